package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/cluster"
	"github.com/kolo-ccl/kolo/internal/golden"
)

// local is what is of the host, and of the moment.
var local = []struct {
	what *regexp.Regexp
	by   string
}{
	{regexp.MustCompile(`(?s)this host\n.*?\n (process|no launcher)`), "this host\n ...\n $1"},
	{regexp.MustCompile(`(?s)\nNPUs\n.*?\nlinks\n`), "\nNPUs\n ...\n\nlinks\n"},
	{regexp.MustCompile(` at \S+ within TIME[^\n]*`), " at ADDRESS within TIME"},
	{regexp.MustCompile(`the slowest has \d+ %`), "the slowest has N %"},
	{regexp.MustCompile(` (shm|verbs|roce) [^\n]*; needs`), " $1 STATE; needs"},
	{regexp.MustCompile(`(?s)\nfindings\n.*`), "\nfindings\n ...\n"},
}

func examined(t *testing.T, s string) string {
	s = unmeasured(t, s)
	for _, l := range local {
		s = l.what.ReplaceAllString(s, l.by)
	}
	return s
}

func TestDoctor(t *testing.T) {
	var all strings.Builder
	for _, row := range []struct {
		title string
		run   func() result
	}{
		{"kolo doctor", func() result { return command(t, "doctor", nil) }},
		{"kolo run -n 3 -- kolo doctor --transport tcp", func() result { return processes(t, "3", "doctor --transport tcp") }},
	} {
		r := row.run()
		require.Zero(t, r.code, r.err)
		for _, want := range []string{"AscendCL", "drivers, best first", "  pcie  ready; needs ranks", "  tcp   ready", "interfaces\n", "identity handshake: ", "large frames: there is no other host", "findings\n"} {
			require.Contains(t, r.out, want)
		}
		all.WriteString("$ " + row.title + "\n" + examined(t, r.out) + "\n\n")
	}
	golden.Equal(t, "doctor.txt", all.String())
}

// What each driver needs is said of all that are linked in, and of no others.
func TestDoctorKnowsTheDrivers(t *testing.T) {
	var list []string
	for _, n := range needs {
		list = append(list, n.name)
	}
	require.ElementsMatch(t, channel.Drivers(), list)
	require.Subset(t, list, transports)
	require.Contains(t, command(t, "doctor", nil).out, "\nNPUs\n  drivers linked in: ascend\n")
}

func TestDoctorExpects(t *testing.T) {
	r := command(t, "topo export -p 2", nil)
	require.Zero(t, r.code, r.err)
	var f map[string]any
	require.NoError(t, json.Unmarshal([]byte(r.out), &f))
	for _, l := range f["links"].([]any) {
		l.(map[string]any)["bandwidth"] = 1e15
	}
	text, err := json.Marshal(f)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "e.json")
	require.NoError(t, os.WriteFile(file, text, 0o644))
	r = command(t, "doctor -p 2 --expect "+file, nil)
	require.Equal(t, exitFailed, r.code)
	require.Contains(t, r.out, "expected\n      check power capping")
	require.Contains(t, command(t, "doctor --expect nowhere", nil).err, "no such file")
}

func TestLargeFrames(t *testing.T) {
	a, err := newEcho()
	if err != nil {
		t.Skip(err)
	}
	defer a.close()
	b, err := newEcho()
	require.NoError(t, err)
	at := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(b.port()))
	largest, err := a.ask(t.Context(), at)
	require.NoError(t, err)
	require.Equal(t, 9000, largest, "loopback takes 65536")
	b.close()
	largest, _ = a.ask(t.Context(), at)
	require.Zero(t, largest, "nobody answers")
	for _, row := range []struct {
		largest int
		want    string
	}{{9000, "9000 bytes come through"}, {1500, "1500 bytes come through and 9000 do not"}, {0, "a firewall?"}} {
		require.Contains(t, frameText(row.largest, nil), row.want)
	}
}

// Of many processes those that took longest to connect have a line, and what failed before is said.
func TestConnectionsInFewLines(t *testing.T) {
	members := make([]cluster.Member, 64)
	var list []connected
	for q := range members {
		members[q].Ranks = []kolo.Rank{kolo.Rank(q)}
		c := connected{Ranks: members[q].Ranks}
		for to := range q {
			c.To = append(c.To, cluster.Connection{Process: to, Dialled: true, Address: fmt.Sprintf("10.0.0.%d:4000", to%2), Took: time.Duration(q) * time.Millisecond})
		}
		list = append(list, c)
	}
	list[63].To[5].Failed = []cluster.Attempt{{Address: "172.17.0.1:9", Error: "connection refused", Errno: "ECONNREFUSED", Tries: 1, Took: time.Millisecond}}
	text := connectionsText(members, list)
	lines := strings.Split(strings.TrimSpace(text), "\n")
	require.Len(t, lines, maxConnections+2, text)
	require.Contains(t, lines[0], "2016 pairs of processes")
	require.Contains(t, lines[1], "  rank 63: rank 0, 2, 4, ")
	require.Contains(t, lines[1], " at 10.0.0.0 within 63ms; rank 1, 3, ")
	require.Contains(t, lines[1], "; after 172.17.0.1:9: connection refused (ECONNREFUSED) in 1ms")
	require.Contains(t, lines[17], "and 47 more processes, each of which took 47ms at most")
}

// What the doctor says of private memory: one line, or one for each reason why it is not read.
func TestReadingsInFewLines(t *testing.T) {
	members := make([]cluster.Member, 3)
	list := make([]connected, 3)
	for q := range members {
		members[q].Ranks = []kolo.Rank{kolo.Rank(q)}
		list[q].Ranks = members[q].Ranks
	}
	require.Empty(t, readingsText(members, list), "nobody has tried")
	for q := range list {
		for to := range members {
			if to != q {
				list[q].Reads = append(list[q].Reads, cluster.Reading{Process: to})
			}
		}
	}
	require.Equal(t, "private memory of the others: read in place\n", readingsText(members, list))
	list[0].Reads[1].Refusal, list[2].Reads[0].Refusal, list[1].Reads[0].Refusal = "not permitted: set it", "not permitted: set it", "unseen"
	require.Equal(t, "private memory of rank 2: not readable by rank 0 (so it is 2 times of 6); large messages are copied twice: not permitted: set it\n"+
		"private memory of rank 0: not readable by rank 1; large messages are copied twice: unseen\n", readingsText(members, list))
}

// Processes that shared memory joins have tried it of each other.
func TestDoctorOfPrivateMemory(t *testing.T) {
	if _, err := channel.Open("shm", channel.Config{}); errors.Is(err, kolo.ErrUnsupported) {
		t.Skip(err)
	}
	r := processes(t, "2", "doctor --transport shm")
	require.Zero(t, r.code, r.err)
	require.Contains(t, r.out, "\n  private memory of ")
}

// Of a world that cannot be joined the process of rank 0 says which pairs cannot connect, and the
// others where that is said.
func TestDoctorOfAWorldThatCannotConnect(t *testing.T) {
	e := &cluster.ConnectError{Pairs: 6, Linked: 5, Blocked: []cluster.Blocked{{Ranks: []kolo.Rank{2}, With: []kolo.Rank{3}, Pairs: 1, From: 3, To: 2,
		Tried: []cluster.Attempt{{Address: "10.0.0.3:4000", Error: "connection refused", Errno: "ECONNREFUSED", Tries: 3, Took: time.Millisecond}}}}}
	for process, want := range []string{"10.0.0.3:4000: connection refused (ECONNREFUSED), 3 tries, the last in 1ms", ""} {
		var out strings.Builder
		a := &app{out: &out, getenv: func(k string) string { return map[string]string{"RANK": fmt.Sprint(process), "WORLD_SIZE": "4"}[k] }}
		require.ErrorContains(t, a.unconnected(e), "some processes cannot connect")
		require.Contains(t, out.String(), want)
		require.Equal(t, process == 0, strings.Contains(out.String(), "interfaces\n"))
	}
}
