package main

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/cmd/kolo/internal/perf"
	"github.com/kolo-ccl/kolo/cmd/kolo/internal/report"
	"github.com/kolo-ccl/kolo/internal/golden"
	"github.com/kolo-ccl/kolo/rank"
)

func TestMain(m *testing.M) {
	if os.Getenv(asMain) != "" {
		main() // which ends the process
	}
	goleak.VerifyTestMain(m)
}

// result is what a command line gave.
type result struct {
	code     int
	out, err string
}

// command runs a command line; change, if not nil, changes the app before.
func command(t *testing.T, line string, change func(*app)) result {
	t.Helper()
	var out, err bytes.Buffer
	a := &app{out: &out, err: &err, getenv: func(string) string { return "" }, now: time.Now}
	if change != nil {
		change(a)
	}
	code := a.run(t.Context(), strings.Fields(line))
	return result{code, out.String(), err.String()}
}

// figures are the numbers that differ from run to run.
var figures = regexp.MustCompile(`\d+\.\d+`)

func masked(s string) string {
	return figures.ReplaceAllStringFunc(s, func(n string) string {
		return regexp.MustCompile(`\d`).ReplaceAllString(n[strings.Index(n, "."):], "n")
	})
}

// shape is a table with its times and bandwidths masked and blanks made equal.
func shape(s string) string {
	var b strings.Builder
	for line := range strings.Lines(masked(s)) {
		b.WriteString(strings.Join(strings.Fields(line), " ") + "\n")
	}
	return b.String()
}

func TestTableOfEveryOperator(t *testing.T) {
	var all strings.Builder
	for _, o := range perf.Operators() {
		line := "test " + o.Name + " -p 3 -b 24 -e 6K -f 16 -n 2 -w 1 -r 1 --inplace both"
		r := command(t, line, nil)
		if r.code != 0 || r.err != "" {
			t.Errorf("%s: ended with %d, %s", line, r.code, r.err)
		}
		fmt.Fprintf(&all, "$ kolo %s\n%s\n", line, shape(r.out))
	}
	golden.Equal(t, "operators.txt", all.String())
}

func TestTheFirstLinesAreThoseOfHCCLTest(t *testing.T) {
	r := command(t, "test all_reduce -p 2 -b 1K -e 2K -f 2 -n 3 -w 0 -c 0", nil)
	require.Zero(t, r.code, r.err)
	lines := strings.Split(r.out, "\n")
	require.Equal(t, "the minbytes is 1024, maxbytes is 2048, iters is 3, warmup_iters is 0", lines[0])
	require.Equal(t, "data_size(Bytes): | aveg_time(us): | alg_bandwidth(GB/s): | check_result: | bus_bandwidth(GB/s):", lines[1])
	require.Regexp(t, `^1024              \| \d+\.\d\d +\| \d+\.\d{5} +\| NULL          \| \d+\.\d{5}$`, lines[2])
	require.Regexp(t, `^2048 `, lines[3])
	require.Len(t, lines, 5)
}

func TestAliasIsTheNameOfTheProgram(t *testing.T) {
	r := command(t, "test all_gather_test -p 2 -b 64 -e 64 -n 1 -w 0", nil)
	require.Zero(t, r.code, r.err)
}

func TestBadCommandLines(t *testing.T) {
	for _, row := range []struct{ name, line, want string }{
		{"unknown command", "tset", "did you mean test?"},
		{"unknown operator", "test allreduce", "did you mean all_reduce?"},
		{"unknown flag", "test reduce --ranks 4", "unknown flag: --ranks"},
		{"stray word", "test reduce 4", `"4" belongs to no flag`},
		{"no ranks", "test reduce -p 0", "-p 0: want 1 or more ranks"},
		{"more ranks than memory", "test reduce -p 99999999999", "-p 99999999999: want at most 65536 ranks"},
		{"root outside", "test reduce -p 4 -r 4", "the ranks are 0 to 3"},
		{"no iterations", "test reduce -n 0", "-n 0"},
		{"negative warm-up", "test reduce -w -1", "-w -1"},
		{"check level", "test reduce -c 3", "want 0, 1 or 2"},
		{"no size", "test reduce -b 8X", "want a number of bytes"},
		{"size 0", "test reduce -b 0", "want 1 byte or more"},
		{"backwards", "test reduce -b 2K -e 1K", "-e 1K is less than -b 2K"},
		{"only a large -b", "test reduce -b 128M", "give -e too"},
		{"factor 1", "test reduce -b 8 -f 1", "-f 1: want a factor of more than 1"},
		{"factor not a number", "test reduce -b 8 -f NaN", "want a factor of more than 1"},
		{"too many sizes", "test reduce -b 8 -i 8", "take a larger step"},
		{"element type", "test reduce -d float8", `-d "float8": want int8`},
		{"element type that is only moved", "test reduce -d hif8", "sum of hif8"},
		{"element type that hccl_test has not", "test all_gather -d int128", "fp8e8m0 or hif8 where nothing is reduced"},
		{"operation", "test reduce -o mean", `-o "mean": want sum`},
		{"in place without a form", "test alltoallv --inplace in", "alltoallv is always out-of-place"},
		{"out of place without a form", "test broadcast --inplace out", "broadcast is always in-place"},
		{"in place maybe", "test reduce --inplace yes", "want both, in or out"},
		{"uneven without counts", "test reduce --uneven", "takes no counts"},
		{"unknown algorithm", "test reduce --algo rings", `--algo: bad argument: no algorithm "rings"; known: ring`},
		{"plot of another kind", "test reduce --plot a.pdf", "a .png or an .svg file"},
		{"timeout", "test reduce --timeout -1s", "want more than 0"},
		{"zero copy", "test reduce -z 2", "-z 2: want 0 or 1"},
		{"symmetric memory", "test reduce -m 1", "leave it out"},
		{"network", "test reduce -s 1", "leave it out"},
		{"accelerator", "test reduce -a aiv", "there is no accelerator here"},
		{"device time", "test reduce -t 1", "there is no device"},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := command(t, row.line, nil)
			require.Equal(t, exitUsage, r.code)
			require.Empty(t, r.out)
			require.Contains(t, r.err, row.want)
			require.Regexp(t, `\nsee kolo.* --help\n$`, r.err)
		})
	}
}

func TestFlagsThatChangeNothingAreTaken(t *testing.T) {
	r := command(t, "test scatter -p 2 -b 64 -e 64 -n 1 -w 0 -z 1 -m 0 -s 0 -a default -t 0 -f 2 -i 8", nil)
	require.Zero(t, r.code, r.err)
	require.Equal(t, "note: -f and -i are given; -f counts\n", r.err)
}

func TestDefaultsOfFlags(t *testing.T) {
	f := &testFlags{}
	a := &app{getenv: func(string) string { return "" }, now: time.Now}
	cmd := a.operatorCommand(perf.Operators()[0])
	for flag, want := range map[string]string{
		"minbytes": "64M", "maxbytes": "64M", "iters": "20", "warmup_iters": "10", "op": "sum", "datatype": "fp32",
		"root": "0", "check": "1", "npus": "8", "zero_copy": "0", "symmetric_memory": "0", "nslb": "0", "onlydevicetime": "0",
		"accelerator": "default",
	} {
		require.Equal(t, want, cmd.Flags().Lookup(flag).DefValue, flag)
	}
	f.register(pflag.NewFlagSet("test", pflag.ContinueOnError))
	c, err := f.config(perf.Operators()[0], rank.Config{})
	require.NoError(t, err)
	require.Equal(t, perf.Range{Min: 64 << 20, Max: 64 << 20, Step: 1}, c.Range)
	require.False(t, c.Repeat)
}

func TestByteSizes(t *testing.T) {
	for text, want := range map[string]byteSize{"8": 8, "8K": 8 << 10, "64m": 64 << 20, "2G": 2 << 30, "1025": 1025} {
		var b byteSize
		require.NoError(t, b.Set(text))
		require.Equal(t, want, b)
		require.Equal(t, strings.ToUpper(text), b.String())
	}
	for _, text := range []string{"", "K", "-1", "1T", "1.5K", "9999999999G"} {
		var b byteSize
		require.Error(t, b.Set(text), text)
	}
}

func TestFailedCheck(t *testing.T) {
	spoil := func(a *app) {
		a.tamper = func(r kolo.Rank, out []byte) {
			if r == 2 {
				out[40]++
			}
		}
	}
	line := "test all_reduce -p 3 -b 1K -e 1K -d int32 -n 1 -w 0"
	r := command(t, line, spoil)
	require.Equal(t, exitFailed, r.code)
	require.Contains(t, r.out, "local rank_id 2, check result failed\n")
	require.Regexp(t, `(?m)^1024 .*\| failed `, r.out)
	require.NotContains(t, r.out, "element 10")
	require.Contains(t, r.err, "the check has failed for 1 of 1 rows; -c 2 says what is wrong")

	r = command(t, line+" -c 2 -r 2", spoil)
	require.Equal(t, exitFailed, r.code)
	require.NotContains(t, r.out, "local rank_id")
	require.Regexp(t, `rank 2: element 10 of the output is -?\d+ instead of -?\d+; 1 of 256 elements are wrong`, r.out)

	r = command(t, line+" -c 0", spoil)
	require.Zero(t, r.code)
	require.Contains(t, r.out, "| NULL ")
}

func TestCheckThatCannotBeExactIsOff(t *testing.T) {
	r := command(t, "test all_reduce -p 17 -b 64 -e 64 -n 1 -w 0 -d bfp16 -o avg", nil)
	require.Zero(t, r.code)
	require.Contains(t, r.out, "| NULL ")
	require.Contains(t, r.err, "note: the check is off")
}

func TestExplainIsPrintedWhereTheChoiceChanges(t *testing.T) {
	r := command(t, "test all_reduce -p 3 -b 64 -e 1K -f 4 -n 1 -w 0 --explain --algo ring", nil)
	require.Zero(t, r.code, r.err)
	require.Equal(t, 1, strings.Count(r.out, "# > ring "))
	require.Contains(t, r.out, "forced")
	for line := range strings.Lines(r.out) {
		require.Regexp(t, `^(#|the minbytes|data_size|\d)`, line)
	}
}

func TestEnvironmentIsThatOfHCCL(t *testing.T) {
	r := command(t, "test all_reduce -p 3 -b 64 -e 64 -n 1 -w 0 --json -", func(a *app) {
		a.getenv = func(name string) string { return map[string]string{"HCCL_ALGO": "level0:NA;level1:ring"}[name] }
	})
	require.Zero(t, r.code, r.err)
	var d report.Document
	require.NoError(t, json.Unmarshal([]byte(r.out), &d))
	require.Equal(t, "ring", d.Results[0].Algorithm)
	require.Equal(t, []string{"HCCL_ALGO=level0:NA;level1:ring"}, d.Env)

	r = command(t, "test all_reduce", func(a *app) {
		a.getenv = func(name string) string { return map[string]string{"HCCL_EXEC_TIMEOUT": "soon"}[name] }
	})
	require.Equal(t, exitUsage, r.code)
	require.Contains(t, r.err, "HCCL_EXEC_TIMEOUT")
}

func TestJSONHasTheFormOfNCCLTests(t *testing.T) {
	file := filepath.Join(t.TempDir(), "r.json")
	r := command(t, "test reduce_scatter -p 4 -b 1K -e 4K -f 2 -d bfp16 -o max -n 2 -w 0 --inplace both --json "+file, nil)
	require.Zero(t, r.code, r.err)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var d map[string]any
	require.NoError(t, json.Unmarshal(text, &d))
	for _, key := range []string{"version", "start_time", "args", "env", "config", "results", "out_of_bounds", "average_bus_bandwidth", "errors", "end_time"} {
		require.Contains(t, d, key)
	}
	results := d["results"].([]any)
	require.Len(t, results, 3)
	first := results[0].(map[string]any)
	require.Equal(t, 1024.0, first["size"])
	require.Equal(t, 128.0, first["count"])
	require.Equal(t, "bfloat16", first["type"])
	require.Equal(t, "max", first["redop"])
	require.Equal(t, "-1", first["root"])
	for _, place := range []string{"out_of_place", "in_place"} {
		f := first[place].(map[string]any)
		require.Positive(t, f["time"])
		require.Positive(t, f["alg_bw"])
		require.InDelta(t, f["alg_bw"].(float64)*3/4, f["bus_bw"], 1e-9)
		require.Equal(t, 0.0, f["nwrong"])
	}
	require.Equal(t, map[string]any{"count": 0.0, "okay": "true"}, d["out_of_bounds"])
	config := d["config"].(map[string]any)
	require.Equal(t, 2.0, config["step_factor"])
	require.NotContains(t, config, "step_bytes")
	require.Len(t, config["devices"], 4)
}

func TestJSONOfAFailedCheckToStandardOutput(t *testing.T) {
	r := command(t, "test broadcast -p 2 -b 64 -e 64 -n 1 -w 0 -r 1 --json -", func(a *app) {
		a.tamper = func(_ kolo.Rank, out []byte) { out[0]++ }
	})
	require.Equal(t, exitFailed, r.code)
	var d report.Document
	require.NoError(t, json.Unmarshal([]byte(r.out), &d))
	require.Equal(t, "failed", d.Results[0].Check)
	require.Equal(t, int64(2), *d.Results[0].InPlace.Wrong)
	require.Nil(t, d.Results[0].OutOfPlace)
	require.Equal(t, "1", d.Results[0].Root)
	require.Equal(t, "none", d.Results[0].RedOp)
	require.Equal(t, "false", d.Bounds.Okay)
}

func TestPlots(t *testing.T) {
	dir := t.TempDir()
	line := "test all_reduce -p 2 -b 8 -e 32K -f 8 -n 1 -w 0 --inplace both --plot " + dir
	require.Zero(t, command(t, line+"/a.png", nil).code)
	require.Zero(t, command(t, line+"/a.SVG", nil).code)
	file, err := os.Open(dir + "/a.png")
	require.NoError(t, err)
	img, err := png.Decode(file)
	require.NoError(t, errors.Join(err, file.Close()))
	require.Equal(t, 960, img.Bounds().Dx())
	colors := map[any]bool{}
	for y := 0; y < img.Bounds().Dy(); y += 3 {
		for x := 0; x < img.Bounds().Dx(); x += 3 {
			colors[img.At(x, y)] = true
		}
	}
	require.Greater(t, len(colors), 20, "a picture with curves and letters")

	svg, err := os.ReadFile(dir + "/a.SVG")
	require.NoError(t, err)
	for _, want := range []string{"all_reduce, 2 ranks, fp32 sum", "bus bandwidth, GB/s", "time, us", "32K", "in-place"} {
		require.Contains(t, string(svg), want)
	}
	for decoder := xml.NewDecoder(bytes.NewReader(svg)); ; {
		if _, err := decoder.Token(); err == io.EOF {
			break
		} else {
			require.NoError(t, err)
		}
	}
}

func TestPlotOfOneSizeAndOneRank(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.svg")
	r := command(t, "test all_reduce -p 1 -b 8 -e 8 -n 1 -w 0 --plot "+file, nil)
	require.Zero(t, r.code, r.err)
	svg, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Contains(t, string(svg), "time, us")
	require.NotContains(t, string(svg), "bus bandwidth", "one rank needs no bus")
}

func TestFilesThatCannotBeWritten(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "no", "such", "folder", "a")
	line := "test all_reduce -p 2 -b 8 -e 8 -n 1 -w 0 "
	require.Contains(t, command(t, line+"--json "+missing+".json", nil).err, "--json: open")
	require.Contains(t, command(t, line+"--plot "+missing+".png", nil).err, "write a plot: open")
}

// full is a pipe whose reader has gone.
type full struct{ after int }

func (f *full) Write(p []byte) (int, error) {
	if f.after--; f.after < 0 {
		return 0, io.ErrClosedPipe
	}
	return len(p), nil
}

func TestAlgorithmThatCannotSaysWhatCan(t *testing.T) {
	r := command(t, "test broadcast -p 3 -b 64 -e 64 -n 1 -w 0 --algo pairwise", nil)
	require.Equal(t, exitFailed, r.code)
	require.Regexp(t, `^kolo: Broadcast #0 .* on rank \d: not supported: algorithm pairwise, .*what can: ring`, r.err)
	require.Equal(t, 1, strings.Count(r.err, "\n"), "one cause, not one per rank: %s", r.err)
}

func TestTimeout(t *testing.T) {
	f := &testFlags{}
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	f.register(flags)
	require.NoError(t, flags.Parse([]string{"--timeout", "90s"}))
	c, err := f.config(perf.Operators()[0], rank.Config{Timeout: time.Second})
	require.NoError(t, err)
	require.Equal(t, 90*time.Second, c.Rank.Timeout)
}

func TestOutputThatIsGoneEndsTheRun(t *testing.T) {
	r := command(t, "test all_reduce -p 3 -b 8 -e 1K -f 2 -n 1 -w 0", func(a *app) { a.out = &full{after: 3} })
	require.Equal(t, exitFailed, r.code)
	require.Contains(t, r.err, "write a row: io: read/write on closed pipe")
	require.Equal(t, 1, strings.Count(r.err, "\n"), "one cause, not one per rank: %s", r.err)
}

func TestStepZeroRepeatsUntilInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var out, err bytes.Buffer
	rows := 0
	a := &app{out: &out, err: &err, getenv: func(string) string { return "" }, now: time.Now, terminal: true}
	a.tamper = func(kolo.Rank, []byte) {
		if rows++; rows == 5 {
			cancel()
		}
	}
	code := a.run(ctx, strings.Fields("test all_reduce -p 1 -b 64 -e 1K -i 0 -n 1 -w 0"))
	require.Zero(t, code, err.String())
	require.GreaterOrEqual(t, strings.Count(out.String(), "\n64 "), 4)
	require.NotContains(t, out.String(), "\n1024 ")
	require.Empty(t, err.String())
}

func TestInterruptedRunFails(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var out, err bytes.Buffer
	a := &app{out: &out, err: &err, getenv: func(string) string { return "" }, now: time.Now}
	a.tamper = func(kolo.Rank, []byte) { cancel() }
	require.Equal(t, exitFailed, a.run(ctx, strings.Fields("test all_reduce -p 2 -b 64 -e 1K -f 2 -n 1 -w 0 --json -")))
	require.Contains(t, err.String(), "canceled")
	var d report.Document
	require.NoError(t, json.Unmarshal(out.Bytes(), &d))
	require.Len(t, d.Errors, 1)
}

func TestMoreMemoryThanThereIs(t *testing.T) {
	if _, ok := availableMemory(); !ok {
		t.Skip("this system does not say how much memory it has")
	}
	r := command(t, "test all_reduce -p 64 -b 512G -e 512G", nil)
	require.Equal(t, exitFailed, r.code)
	require.Regexp(t, `need \d+ MiB of memory and the host has \d+ MiB; take a smaller -e`, r.err)
}

func TestProgressIsForTerminalsOnly(t *testing.T) {
	line := "test all_reduce -p 2 -b 8 -e 32 -f 2 -n 1 -w 0"
	require.Empty(t, command(t, line, nil).err)
	r := command(t, line, func(a *app) { a.terminal = true })
	require.Contains(t, r.err, "\r[                        ] 0/3  all_reduce 8 out-of-place")
	require.Contains(t, r.err, "\r[================        ] 2/3  all_reduce 32 out-of-place")
	require.True(t, strings.HasSuffix(r.err, " \r"), "the line is taken away")
	require.NotContains(t, r.err, "\n")
	require.NotContains(t, r.out, "\r")
}

func TestHelpAndVersion(t *testing.T) {
	require.Regexp(t, `^kolo \S+.* go1\.\d+.* \w+/\w+\n$`, command(t, "--version", nil).out)
	for line, want := range map[string]string{
		"":                        "Available Commands:",
		"test":                    "reduce_scatterv",
		"test alltoallvc --help":  "kolo test alltoallvc -p 8 -b 8 -e 64M -f 2 -d fp32 -o sum -c 1",
		"help test all_gatherv":   "--uneven",
		"test reduce -h":          "-n, --iters calls",
		"test all_reduce -p 3 -h": "default 64M",
	} {
		r := command(t, line, nil)
		require.Zero(t, r.code, line)
		require.Contains(t, r.out, want, line)
	}
}
