package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kolo-ccl/kolo/internal/golden"
	"github.com/kolo-ccl/kolo/plan/survey"
)

// varying is what differs from run to run and from host to host.
var varying = []struct {
	what *regexp.Regexp
	by   string
}{
	{regexp.MustCompile(`-?[\d.]+(ns|µs|ms|m?\d*s)\b`), "TIME"},
	{regexp.MustCompile(`[\d.]+(e\+\d+)? [kMG]B/s`), "RATE"},
	{regexp.MustCompile(`0x[0-9a-f]+`), "DIGEST"},
	{regexp.MustCompile(`; pairs of [^\n]*`), ""}, // how uneven
	{regexp.MustCompile(` \([0-9a-f.:]+\): rank`), ": rank"},
	{regexp.MustCompile(` +`), " "},
	// What a join makes of what it has measured is another matter on a machine that others use.
	{regexp.MustCompile(`(?m)^ *(measured at the join: |the default figures hold: |[^\n]*: measured at the join\n *warning: )[^\n]*\n`), ""},
	{regexp.MustCompile(`(?m)^ *host [^\n]* is crowded: [^\n]*\n`), ""},
	{regexp.MustCompile(` \((measured|default, measured [^)]*)\)`), ""},
}

func unmeasured(t *testing.T, s string) string {
	name, err := os.Hostname()
	require.NoError(t, err)
	s = regexp.MustCompile(`\b`+regexp.QuoteMeta(name)+`\b`).ReplaceAllString(s, "HOST")
	for _, m := range varying {
		s = m.what.ReplaceAllString(s, m.by)
	}
	return s
}

func TestTopoProbe(t *testing.T) {
	var all strings.Builder
	show := func(title string, r result) {
		require.Zero(t, r.code, r.err)
		fmt.Fprintf(&all, "$ %s\n%s\n", title, unmeasured(t, r.out))
	}
	show("kolo topo probe -p 3", command(t, "topo probe -p 3", nil))
	r := processes(t, "3", "topo probe --transport tcp")
	require.Contains(t, r.out, "measured at the join: tcp between ranks of one host, ")
	show("kolo run -n 3 -- kolo topo probe --transport tcp", r)
	show("kolo run -n 2 -- kolo topo probe -p 2 --transport tcp --rack a", processes(t, "2", "topo probe -p 2 --transport tcp --rack a"))
	golden.Equal(t, "topo.txt", all.String())
}

func TestTopoFiles(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	r := processes(t, "2", "topo export -p 2 --transport tcp -o "+file("t.json"))
	require.Zero(t, r.code, r.err)
	require.Empty(t, r.out)
	s, err := readTopology(file("t.json"))
	require.NoError(t, err)
	require.Len(t, s.Places, 4)
	require.Len(t, s.Ways, 2+4)
	require.Contains(t, command(t, "topo show "+file("t.json"), nil).out, "tcp")
	require.Contains(t, command(t, "plan explain --topology "+file("t.json"), nil).out, "; 6 pairs measured")
	require.Equal(t, "as expected\n", command(t, "topo diff "+file("t.json")+" "+file("t.json"), nil).out)
	for _, v := range survey.TableVersions {
		require.Zero(t, command(t, "topo export "+file("t.json")+" --format "+v+" -o "+file(v), nil).code)
		table, err := readTopology(file(v))
		require.NoError(t, err)
		for i, p := range table.Places {
			want := s.Places[i]
			if p.Host != want.Host || p.Device != want.Device || len(want.Addresses) > 0 && p.Addresses[0] != want.Addresses[0] {
				t.Errorf("version %s, rank %d: %+v in place of %+v", v, i, p, want)
			}
		}
		require.Contains(t, command(t, "topo show "+file(v), nil).out, "rank 0, 1, 2 and 3")
	}
	r = processes(t, "2", "topo diff -p 2 --slower 0.99 --later 1000 "+file("t.json"))
	require.Zero(t, r.code, "shm in place of tcp is better, not worse: %s%s", r.out, r.err)
}

func TestTopoFindsFault(t *testing.T) {
	dir := t.TempDir()
	want, have := filepath.Join(dir, "want.json"), filepath.Join(dir, "have.json")
	text := `{"kolo_topology": 1, "ranks": [{"rank": 0, "host": "a", "addresses": ["10.0.0.1"]}, {"rank": 1, "host": "b", "addresses": ["10.0.0.%d"]}],
		"links": [{"from": 0, "to": 1, "link": "%s", "bandwidth": 1e10}, {"from": 1, "to": 0, "link": "%s", "bandwidth": 1e10}]}`
	require.NoError(t, os.WriteFile(want, fmt.Appendf(nil, text, 2, "roce", "roce"), 0o644))
	require.NoError(t, os.WriteFile(have, fmt.Appendf(nil, text, 1, "tcp", "roce"), 0o644))
	r := command(t, "topo diff "+want+" "+have, nil)
	require.Equal(t, exitFailed, r.code)
	require.Contains(t, r.out, "fallen: rank 0 and rank 1 are joined by tcp in place of roce\n    check that the RoCE port")
	r = command(t, "topo lint "+have, nil)
	require.Equal(t, exitFailed, r.code)
	require.Contains(t, r.out, "both have the address 10.0.0.1")
	require.Contains(t, r.out, "asymmetric: rank 0 reaches rank 1 by tcp, and is reached by roce")
	require.Contains(t, r.err, "findings")
	for line, want := range map[string]string{
		"topo show nowhere": "no such file", "topo show a b": "accepts at most 1 arg", "topo diff": "accepts between 1 and 2",
		"topo export --format 9 " + have: "rank table of version", "topo probe --transport x": "want one of", "topo probe -p -1": "want positive",
		"topo porbe": "did you mean probe",
	} {
		r := command(t, line, nil)
		require.NotZero(t, r.code, line)
		require.Contains(t, r.err, want, line)
	}
}

func TestJoinThatCannotComplete(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	require.NoError(t, l.Close())
	env := map[string]string{"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": fmt.Sprint(port)}
	r := command(t, "topo probe --join 1s", func(a *app) { a.getenv = func(k string) string { return env[k] } })
	require.Equal(t, exitFailed, r.code)
	require.Contains(t, r.err, "1", "the rank that has not come is named")
	require.Contains(t, r.err, "join")
}
