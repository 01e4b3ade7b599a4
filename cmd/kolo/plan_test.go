package main

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/internal/golden"
	"github.com/kolo-ccl/kolo/plan"
)

// What the commands print; all of it is exact.
func TestPlanCommands(t *testing.T) {
	net := filepath.Join(t.TempDir(), "net.txt")
	require.NoError(t, os.WriteFile(net, []byte("network two rings\ndim ring 4 1us 10GB/s\ndim ring 2 2us 5GB/s\n"), 0o600))
	yml := filepath.Join(t.TempDir(), "net.yml")
	require.NoError(t, os.WriteFile(yml, []byte("topology: [ Ring ]\nnpus_count: [ 8 ]\nbandwidth: [ 50 ]\nlatency: [ 500 ]\n"), 0o600))
	var all strings.Builder
	for _, line := range []string{
		"plan show nhr -p 6 --rank 1",
		"plan show ring -c reduce_scatter -p 3 --rank all",
		"plan show tree -c broadcast -p 3 -r 1 --rank 1 --json",
		"plan verify nhr --ranks 1-3,7",
		"plan verify hier:mesh+nhr --servers 2x4 -c all_gather",
		"plan verify ring -p 4 --json",
		"plan diff ring nhr -p 8 -b 1M",
		"plan diff ring hier:mesh+nhr --servers 2x8 -b 1M",
		"plan diff mesh star -p 4 --json",
		"plan simulate nhr -p 8 -b 64K",
		"plan simulate ring --network NET -b 1M",
		"plan simulate ring --network YML -b 1M",
		"plan simulate mesh --network ring:4 -b 4K --json",
		"plan simulate ring --network hccs:1x2 -b 1M --slow npu1>npu2=0.1 --lose-nic 7",
		"plan simulate ring --network hccs:1x2 -b 1M --place spread",
		"plan simulate --sweep --max-ranks 64 --algorithms ring,nhr,hier:mesh+nhr --sizes 4K,64M --max-messages 4000",
		"plan simulate --sweep --max-ranks 8 --algorithms nhr --sizes 4K --json",
	} {
		r := command(t, strings.NewReplacer("NET", net, "YML", yml).Replace(line), nil)
		if r.code != 0 || r.err != "" {
			t.Errorf("%s: ended with %d, %s", line, r.code, r.err)
		}
		fmt.Fprintf(&all, "$ kolo %s\n%s\n", line, trimmed(r.out))
	}
	golden.Equal(t, "plans.txt", all.String())
}

// trimmed is s without blanks at the ends of lines.
func trimmed(s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		b.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	return b.String()
}

// The tables of algorithms grow, so only their lines are looked at.
func TestPlanTables(t *testing.T) {
	r := command(t, "plan list -p 4", nil)
	require.Zero(t, r.code, r.err)
	require.Regexp(t, `(?m)^ring +broadcast all_reduce .*Patarasuk`, r.out)
	require.Regexp(t, `(?m)^hier:mesh\+nhr +- there is only one server`, r.out)
	r = command(t, "plan list --servers 2x4 --json", nil)
	require.Zero(t, r.code, r.err)
	var lines []algorithmLine
	require.NoError(t, json.Unmarshal([]byte(r.out), &lines))
	require.Len(t, lines, len(plan.Algorithms()))

	r = command(t, "plan explain -p 4 -b 64", nil)
	require.Zero(t, r.code, r.err)
	require.Regexp(t, `^AllReduce of 64 B by 4 ranks in 1 server \(measured\): mesh-oneshot\n`, r.out)
	r = command(t, "plan explain -p 4 --static --json", nil)
	require.Zero(t, r.code, r.err)
	var doc struct{ Algorithm, Why string }
	require.NoError(t, json.Unmarshal([]byte(r.out), &doc))
	require.Equal(t, "ring", doc.Algorithm)
	r = command(t, "plan explain --process --algo level0:NA;level1:NHR", nil)
	require.Zero(t, r.code, r.err)
	require.Contains(t, r.out, "> nhr")
	r = command(t, "plan verify -p 3", nil)
	require.Zero(t, r.code, r.err)
	require.NotContains(t, r.out, "wrong")
	require.Contains(t, r.out, "recursive-doubling")
}

func TestPlanFiles(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for line, name := range map[string]string{
		"plan show ring -p 4 --svg FILE":                                                    "show.svg",
		"plan show hier:mesh+ring --servers 2x3 --html FILE":                                "show.html",
		"plan simulate nhr --network hccs:1x2 --svg FILE":                                   "simulate.svg",
		"plan simulate --sweep --max-ranks 32 --sizes 4K,1M --svg FILE":                     "sweep.svg",
		"plan simulate nhr --network torus:2x2 --trace FILE":                                "trace.json",
		"plan simulate --sweep --max-ranks 16 --algorithms ring,nhr --sizes 64K --svg FILE": "small.svg",
		"plan show double-tree -p 8 --svg FILE -b 4M":                                       "tree.svg",
		"plan show bruck -c alltoall -p 5 --svg FILE":                                       "bruck.svg",
		"plan simulate tree --network switch:4 --trace FILE -c broadcast -b 1M":             "broadcast.json",
		"plan simulate pairwise -c alltoall --network fat-tree:2x2 --svg FILE":              "alltoall.svg",
	} {
		r := command(t, strings.Replace(line, "FILE", at(name), 1), nil)
		require.Zero(t, r.code, "%s: %s", line, r.err)
		data, err := os.ReadFile(at(name))
		require.NoError(t, err)
		switch filepath.Ext(name) {
		case ".json":
			var doc struct{ TraceEvents []any }
			require.NoError(t, json.Unmarshal(data, &doc), name)
			require.Greater(t, len(doc.TraceEvents), 10)
		case ".svg":
			wellFormed(t, name, string(data))
		}
	}
}

func wellFormed(t *testing.T, name, text string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(text))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
}

func TestBadPlanCommands(t *testing.T) {
	for _, row := range []struct {
		line, want string
		code       int
	}{
		{"plan shwo", "did you mean show?", exitUsage},
		{"plan show", "say which: an algorithm", exitUsage},
		{"plan show ring nhr", `"nhr" belongs to no flag`, exitUsage},
		{"plan show rign", `no algorithm "rign"`, exitFailed},
		{"plan show ring -c allreduce", `-c "allreduce": want gather, barrier, all_reduce`, exitUsage},
		{"plan show ring -p 0", "-p 0: want 1 to", exitUsage},
		{"plan show ring --rank 8", `--rank "8": want 0 to 7`, exitUsage},
		{"plan show ring -c broadcast -r 9", "-r 9", exitUsage},
		{"plan show hier:ring+ring", "there is only one server", exitFailed},
		{"plan show ring -p 65 --svg -", "it can show 1 to 64", exitFailed},
		{"plan show ring --servers 0x8", `--servers "0x8"`, exitUsage},
		{"plan show hier:ring+ring --servers " + strings.Repeat("4096,", 16) + "1", "want as 4x8 or 8,8,4", exitUsage},
		{"plan verify nhr --ranks 5-2", `--ranks "5-2"`, exitUsage},
		{"plan verify none", `no algorithm "none"`, exitFailed},
		{"plan simulate", "name the algorithm", exitUsage},
		{"plan simulate ring --network ring:x", "want ring:N", exitUsage},
		{"plan simulate ring --network nowhere.txt", "nowhere.txt", exitUsage},
		{"plan simulate ring --network ring:4 --slow npu0", "want LINK=FACTOR", exitUsage},
		{"plan simulate ring --network ring:4 --slow npu0>npu3=0", "want more than 0", exitUsage},
		{"plan simulate ring --network ring:4 --lost npu0>npu2", `no link "npu0>npu2"`, exitUsage},
		{"plan simulate ring --network ring:4 --lose-nic 1", "no network card of its own", exitUsage},
		{"plan simulate ring --network ring:4 --place 0,1,2,2", "rank 3 on NPU 2", exitUsage},
		{"plan simulate ring --lost npu0>npu1", "give --network too", exitUsage},
		{"plan simulate ring --trace -", "give --network too", exitUsage},
		{"plan simulate ring --sweep", "--algorithms", exitUsage},
		{"plan simulate --sweep --max-ranks 4", "--max-ranks 4", exitUsage},
		{"plan simulate --sweep --sizes 4X", `--sizes "4X"`, exitUsage},
		{"plan simulate --sweep --algorithms sing", `no algorithm "sing"`, exitUsage},
		{"plan diff ring", "say which: an algorithm", exitUsage},
		{"plan explain --algo what", "no algorithm \"what\"", exitFailed},
		{"plan list ring", `"ring" belongs to no flag`, exitUsage},
	} {
		r := command(t, row.line, nil)
		if r.code != row.code || !strings.Contains(r.err, row.want) {
			t.Errorf("%s: ended with %d and %q; want %d and %q", row.line, r.code, r.err, row.code, row.want)
		}
	}
}

func TestPlanTune(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	small := "plan tune -p 2 -c all_reduce,broadcast --sizes 64,4K --rounds 2 --batch 10us "
	r := command(t, small+"-o "+at("a.json"), nil)
	require.Zero(t, r.code, r.err)
	require.Regexp(t, `(?m)^all_reduce +64 +\S+ +\S+ +\d+\.\d %`, r.out)
	require.Regexp(t, `regret: median \d+\.\d %, maximum \d+\.\d %`, r.out)
	data, err := os.ReadFile(at("a.json"))
	require.NoError(t, err)
	first, skipped, err := plan.ParseTuning(data)
	require.NoError(t, err)
	require.Empty(t, skipped)
	require.NotEmpty(t, first.Rules)

	r = command(t, "plan tune --convert "+at("a.json")+" -o "+at("a.csv"), nil)
	require.Zero(t, r.code, r.err)
	data, err = os.ReadFile(at("a.csv"))
	require.NoError(t, err)
	again, skipped, err := plan.ParseTuning(data)
	require.NoError(t, err)
	require.Empty(t, skipped)
	require.Equal(t, first, again)

	r = command(t, small+"--again --json --messages --previous "+at("a.csv"), nil)
	require.Zero(t, r.code, r.err)
	var lines []timingLine
	require.NoError(t, json.Unmarshal([]byte(r.out), &lines))
	require.Len(t, lines, 4)
	require.NotEqual(t, "fabric", lines[0].Algorithm)

	for line, want := range map[string]string{
		"plan tune -o x.txt":                 "ends with .json or .csv",
		"plan tune -p -1":                    "-p -1",
		"plan tune --sizes 8X":               `--sizes "8X"`,
		"plan tune -c sum":                   `-c "sum"`,
		"plan tune --sizes 64,64":            "want ascending sizes",
		"plan tune --previous " + at("none"): "no such file",
	} {
		r := command(t, line, nil)
		require.NotZero(t, r.code, line)
		require.Contains(t, r.err, want, line)
	}
}

// Files whose plans need credits as they are, and sizes that no chunk divides, are simulated
// as they run.
func TestPlanImportOfEveryFile(t *testing.T) {
	dir := filepath.Join("..", "..", "plan", "msccl", "testdata")
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	n := 0
	for _, f := range files {
		if f.IsDir() {
			continue
		}
		n++
		for _, size := range []string{"1M", "1003"} {
			r := command(t, "plan import "+filepath.Join(dir, f.Name())+" -b "+size, nil)
			require.Zero(t, r.code, "%s: %s", f.Name(), r.err)
			require.Regexp(t, `runs as +\d+ steps, \d+ messages, 0 credits`, r.out)
			require.Contains(t, r.out, "simulated")
		}
		data, err := os.ReadFile(filepath.Join(dir, f.Name()))
		require.NoError(t, err)
		cut := filepath.Join(t.TempDir(), f.Name())
		require.NoError(t, os.WriteFile(cut, data[:2*len(data)/3], 0o600))
		r := command(t, "plan import "+cut, nil)
		require.Equal(t, exitFailed, r.code)
		require.Contains(t, r.err, f.Name()+": msccl: ")
		require.Equal(t, 1, strings.Count(r.err, "\n"), "one line: %q", r.err)
	}
	require.Greater(t, n, 4)
}

func TestPlanImportAndExport(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	r := command(t, "plan export ring -p 3 -o "+at("ring.xml"), nil)
	require.Zero(t, r.code, r.err)
	r = command(t, "plan import "+at("ring.xml")+" -b 1M --steps --svg "+at("ring.svg"), nil)
	require.Zero(t, r.code, r.err)
	require.Contains(t, r.out, "AllReduce by 3 ranks")
	require.Contains(t, r.out, "proof       right: 24 steps, 12 messages, 0 credits")
	require.Contains(t, r.out, "rank 2 of 3")
	data, err := os.ReadFile(at("ring.svg"))
	require.NoError(t, err)
	wellFormed(t, "ring.svg", string(data))
	r = command(t, "plan import "+at("ring.xml")+" --json --network ring:3", nil)
	require.Zero(t, r.code, r.err)
	var doc importDocument
	require.NoError(t, json.Unmarshal([]byte(r.out), &doc))
	require.Positive(t, doc.TimeNS)

	data, err = os.ReadFile(at("ring.xml"))
	require.NoError(t, err)
	wrong := strings.Replace(string(data), `type="rrc"`, `type="r"`, 1)
	require.NotEqual(t, wrong, string(data))
	require.NoError(t, os.WriteFile(at("wrong.xml"), []byte(wrong), 0o600))
	r = command(t, "plan import "+at("wrong.xml"), nil)
	require.Equal(t, exitFailed, r.code)
	require.Contains(t, r.err, "wrong.xml")
	r = command(t, "plan import "+at("ring.xml")+" --network ring:4", nil)
	require.Equal(t, exitUsage, r.code)
	require.Contains(t, r.err, "is for 3 ranks, and there are 4")
	r = command(t, "plan export fabric", nil)
	require.NotZero(t, r.code)
}

func TestPlanExportToSimulators(t *testing.T) {
	at := filepath.Join(t.TempDir(), "nhr")
	r := command(t, "plan export nhr -p 4 -b 1M --format goal", nil)
	require.Zero(t, r.code, r.err)
	require.True(t, strings.HasPrefix(r.out, "num_ranks 4\n\nrank 0 {\nl0: send 524288b to 3 tag 0\n"), r.out)
	r = command(t, "plan export nhr -p 4 -b 1M --format chakra -o "+at, nil)
	require.Zero(t, r.code, r.err)
	require.Contains(t, r.err, "nhr.0.et to "+at+".3.et")
	for k := range 4 {
		data, err := os.ReadFile(fmt.Sprintf("%s.%d.et", at, k))
		require.NoError(t, err)
		require.Equal(t, "\x07\x0a\x050.0.4", string(data[:8]))
	}
	for args, want := range map[string]string{"--format dot": "want msccl, goal or chakra", "--format chakra": "give -o PREFIX"} {
		r = command(t, "plan export nhr "+args, nil)
		require.Equal(t, exitUsage, r.code)
		require.Contains(t, r.err, want)
	}
}

// Processes tune together, and that of rank 0 prints.
func TestPlanTuneBetweenProcesses(t *testing.T) {
	r := processes(t, "2", "plan tune --transport tcp -c all_reduce --sizes 64,4K --rounds 2 --batch 10us --again")
	require.Zero(t, r.code, r.err)
	require.Equal(t, 1, strings.Count(r.out, "2 ranks, "), r.out)
	require.Regexp(t, `regret again over 20 %: \d of 2, of which beyond the spread: \d`, r.out)
	r = processes(t, "2", "plan tune --transport tcp -c alltoall,broadcast --sizes 64 --rounds 2 --batch 10us --all")
	require.Zero(t, r.code, r.err)
	require.Regexp(t, `(?m)^regret of the model: median \d+\.\d %, maximum \d+\.\d %$`, r.out)
	require.Regexp(t, `(?m)^broadcast .* 1\d$`, r.out, "all algorithms are timed")
	r = command(t, "plan tune --transport shm --messages", nil)
	require.Equal(t, exitUsage, r.code)
}

func TestWrongPlanSettingsNameWhatIsWrong(t *testing.T) {
	file := filepath.Join(t.TempDir(), "net.txt")
	require.NoError(t, os.WriteFile(file, []byte("dim ring 4\n"), 0o600))
	for line, want := range map[string]string{
		"plan explain --algo rign":                "no algorithm \"rign\"",
		"plan explain --algo level0:rign":         "HCCL_ALGO, position 8",
		"plan simulate ring --network " + file:    file + ": bad argument: network file, line 1",
		"plan export ring -p 3 --json":            "unknown flag: --json",
		"plan tune --convert /dev/null -o x.json": "the tuner file is empty",
	} {
		r := command(t, line, nil)
		require.NotZero(t, r.code, line)
		require.Contains(t, r.err, want, line)
	}
}

// What is named to be read may have no end.
func TestFilesWithoutEnd(t *testing.T) {
	if _, err := os.Stat("/dev/zero"); err != nil {
		t.Skip("no /dev/zero here: ", err)
	}
	_, err := readFile("/dev/zero", 1000)
	require.ErrorIs(t, err, kolo.ErrLimit)
	require.ErrorContains(t, err, "/dev/zero has more than 1 MiB")
	for _, line := range []string{"plan import /dev/zero", "plan simulate ring --network /dev/zero", "run --hosts /dev/zero -- true"} {
		r := command(t, line, nil)
		require.NotZero(t, r.code, line)
		require.Contains(t, r.err, "/dev/zero has more than 256 MiB", line)
	}
}
