package main

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/internal/golden"
)

// local is what is of the host, and of the moment.
var local = []struct {
	what *regexp.Regexp
	by   string
}{
	{regexp.MustCompile(`(?s)this host\n.*?\n (process|no launcher)`), "this host\n ...\n $1"},
	{regexp.MustCompile(`(?s)\nNPUs\n.*?\nlinks\n`), "\nNPUs\n ...\n\nlinks\n"},
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
