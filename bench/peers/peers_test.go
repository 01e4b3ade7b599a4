package main

import (
	"context"
	"encoding/csv"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kolo-ccl/kolo"
)

// TestMain is also the main of the processes that a test of everything starts.
func TestMain(m *testing.M) {
	if args := os.Args[1:]; len(args) > 1 && args[0] == "part" {
		if err := runPart(context.Background(), args[1], args[2:]); err != nil {
			fmt.Println("BAD", err)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

func TestOutputWithRemarksAndMistakes(t *testing.T) {
	list, problems := parseOutput(strings.NewReader(strings.Join([]string{
		"a remark of a launcher",
		"RES floor blocked AllReduce 4 1024 0.5000 0.5000 100",
		"RES openmpi default-apart Broadcast 2 8 1.2500 - 7",
		"BAD plain spin-rows AllReduce 2 8 rank 1 has 3 at 0, want 1",
		"RES kolo default AllReduce 2 8 -1 - 7",
		"RES kolo default AllReduce 2 8 1 - 0",
		"RES kolo default Nothing 2 8 1 - 5",
		"RES kolo default AllReduce 2 8 1 -",
		"RES kolo default AllReduce 2 8 NaN - 5",
		"RES kolo default AllReduce 0 8 1 - 5",
		"RES kolo default AllReduce 2 x 1 - 5",
	}, "\n")))
	require.Len(t, list, 2)
	require.Equal(t, result{"floor", "blocked", kolo.AllReduce, 4, 1024, [manners]float64{0.5, 0.5}, 100}, list[0])
	if r := list[1]; r.times[backToBack] != 1.25 || !math.IsNaN(r.times[separated]) || r.variant != "default-apart" {
		t.Errorf("got %v", r)
	}
	require.Len(t, problems, 8)
	require.Contains(t, problems[0], "want 1")
}

func TestResultReadsItself(t *testing.T) {
	r := result{"kolo", "default", kolo.AllToAll, 8, 1 << 20, [manners]float64{12.25, math.NaN()}, 3}
	back, err := parseResult(r.String())
	require.NoError(t, err)
	require.Equal(t, r.String(), back.String())
}

func TestJobReadsItself(t *testing.T) {
	j := job{kolo.ReduceScatter, 4, []int64{16, 1024}, 3 * time.Millisecond, 5, 20 * time.Microsecond, time.Minute, 2, 1, "shm", 1}
	back, err := parseJob(j.args())
	require.NoError(t, err)
	require.Equal(t, j, back)
	for _, bad := range []string{"ranks=x", "ranks=-1", "ranks=1000", "sizes=", "sizes=1,,2", "collective=Send", "color=red", "color=1", "repeats"} {
		if _, err := parseJob(append(j.args(), bad)); err == nil {
			t.Errorf("%s is accepted", bad)
		}
	}
}

func TestFlags(t *testing.T) {
	o, err := parse([]string{"-quick", "-rounds", "3", "-ranks", "8", "-mpi", "sm, default"})
	require.NoError(t, err)
	require.Equal(t, 3, o.rounds)
	require.Equal(t, []int{8}, o.ranks)
	require.Equal(t, []int64{8, 64 << 10, 1 << 20}, o.sizes)
	require.Equal(t, []string{"sm", "default"}, o.mpi)
	o, err = parse(nil)
	require.NoError(t, err)
	require.GreaterOrEqual(t, o.rounds, minRounds)
	for _, bad := range []string{"-ranks=1", "-sizes=0", "-sizes=2GiB", "-collectives=Send", "-programs=nccl", "-mpi=x", "-rounds=0", "-limit=0s", "-think=-1s", "all"} {
		if _, err := parse([]string{bad}); err == nil {
			t.Errorf("%s is accepted", bad)
		}
	}
}

func TestSizesAreWholeParts(t *testing.T) {
	for _, row := range []struct {
		c     kolo.Collective
		ranks int
		size  int64
		want  int64
	}{
		{kolo.AllReduce, 2, 8, 8}, {kolo.AllReduce, 4, 8, 16}, {kolo.AllGather, 3, 100, 108}, {kolo.Barrier, 2, 64, 0},
	} {
		if got := whole(row.c, row.ranks, row.size); got != row.want {
			t.Errorf("%v: got %d", row, got)
		}
	}
}

func TestSpread(t *testing.T) {
	require.Equal(t, spread{}, spreadOf(nil))
	require.Equal(t, spread{2, 1, 9, 3}, spreadOf([]float64{9, 1, 2}))
	require.Equal(t, spread{2.5, 1, 9, 4}, spreadOf([]float64{9, 3, 1, 2}))
}

func TestRatiosPairRounds(t *testing.T) {
	// The second round was slow for both; the fourth is missing on one side.
	got := ratios(map[int]float64{0: 1, 1: 10, 2: 2, 3: 5}, map[int]float64{0: 2, 1: 20, 2: 2})
	require.Equal(t, spread{0.5, 0.5, 1, 3}, got)
	require.Zero(t, ratios(map[int]float64{0: 1}, map[int]float64{1: 1}).count)
}

func TestFastestVariantCounts(t *testing.T) {
	s := samples{}
	for round, list := range [][]float64{{5, 4}, {5, 4}, {1, 4}} {
		for i, variant := range []string{"a", "b"} {
			s.add(round, result{"plain", variant, kolo.AllReduce, 2, 8, [manners]float64{list[i], math.NaN()}, 1})
		}
	}
	best, ok := s.best(key{kolo.AllReduce, 2, 8, backToBack, "plain", ""})
	require.True(t, ok)
	require.Equal(t, "b", best.variant)
	_, ok = s.best(key{kolo.AllReduce, 2, 8, separated, "plain", ""})
	require.False(t, ok)
}

func TestNumbers(t *testing.T) {
	for x, want := range map[float64]string{0: "0", 0.01234: "0.0123", 0.000012: "0.0000", 0.5: "0.500", 1.234: "1.23", 12.34: "12.3", 1234: "1234"} {
		if got := number(x, 3); got != want {
			t.Errorf("%v: got %s, want %s", x, got, want)
		}
	}
}

// Every variant of the plain program checks its own results.
func TestPlainVariants(t *testing.T) {
	for _, c := range collectives {
		for _, ranks := range []int{2, 3, 4, 8} {
			j := job{collective: c, ranks: ranks, budget: 20 * time.Microsecond, repeats: 1, separated: 1}
			for _, size := range []int64{1, 100, 20000} {
				j.sizes = append(j.sizes, whole(c, ranks, size))
			}
			var out strings.Builder
			require.NoError(t, plainPart(t.Context(), j, &out))
			list, problems := parseOutput(strings.NewReader(out.String()))
			require.Empty(t, problems)
			require.NotEmpty(t, list)
		}
	}
}

func TestWrongResultIsFound(t *testing.T) {
	m := newMemory(kolo.AllGather, 2, 16)
	m.fill()
	require.ErrorContains(t, m.check(), "rank 0")
}

func TestRanksThatFailEndTheCrew(t *testing.T) {
	c, broken := newCrew(2), errors.New("broken")
	call := func() error { return broken }
	// ended by the order that fails
	go func() { c.ended <- errors.Join(c.serve(0, call, nil), c.serve(1, call, nil)) }()
	_, err := c.repeat(order{calls: 1})
	require.ErrorIs(t, err, broken)
	require.ErrorIs(t, c.close(), broken)
}

func TestProcessPastItsLimit(t *testing.T) {
	start := time.Now()
	out, err := runProcess(t.Context(), 100*time.Millisecond, []string{"sh", "-c", "trap '' TERM; sleep 60 & echo $!; wait; wait"})
	require.ErrorContains(t, err, "-limit")
	require.Less(t, time.Since(start), 30*time.Second)
	child := strings.TrimSpace(out.String())
	gone := func() bool { return read("/proc/"+child+"/cmdline") == "" } // a zombie has none either
	require.Eventually(t, gone, 10*time.Second, 10*time.Millisecond, "process %s is left", child)
}

func TestProcessThatFails(t *testing.T) {
	out, err := runProcess(t.Context(), time.Minute, []string{"sh", "-c", "echo RES; echo ------ >&2; echo no pml-x >&2; exit 3"})
	require.EqualError(t, err, "exit status 3: no pml-x")
	require.Equal(t, "RES\n", out.String())
	_, err = runProcess(t.Context(), time.Minute, []string{"/no/such/program"})
	require.Error(t, err)
}

func TestBusyProcessEnds(t *testing.T) {
	if _, err := exec.LookPath("taskset"); err != nil {
		t.Skip("no taskset here")
	}
	end, err := startBusy(t.Context())
	require.NoError(t, err)
	end()
}

func TestPlotIsXML(t *testing.T) {
	l := line{"kolo", []point{{8, 0.2, 0.1, 0.3}, {64 << 20, 9000, 8000, 20000}}}
	s := plot{"a < b", "c", []panel{{"2 ranks", []line{l, {"floor", l.points}}}, {"4 ranks", []line{l}}}}.svg()
	checkXML(t, s)
	for _, want := range []string{"100 ns", "100 ms", "64 MiB", "a &lt; b", "4 ranks", ">floor<"} {
		require.Contains(t, s, want)
	}
	require.NotContains(t, s, "NaN")
	require.Empty(t, plot{panels: []panel{{}}}.svg())
}

func checkXML(t *testing.T, s string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(s))
	for {
		if _, err := d.Token(); err == io.EOF {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

func TestNativeSourcesHaveNoWarnings(t *testing.T) {
	for source, compiler := range map[string]string{"floor.c": "gcc", "mpi.c": "mpicc"} {
		t.Run(source, func(t *testing.T) {
			if _, err := exec.LookPath(compiler); err != nil {
				t.Skipf("no %s here", compiler)
			}
			c := exec.CommandContext(t.Context(), compiler, "-O3", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", filepath.Join("native", source))
			text, err := c.CombinedOutput()
			require.NoError(t, err, string(text))
		})
	}
}

// One tiny round of every program that can run here.
func TestEverything(t *testing.T) {
	o, err := parse([]string{
		"-rounds=1", "-repeats=1", "-budget=1ms", "-ranks=2", "-sizes=8,4KiB", "-collectives=AllReduce,AllGather,Barrier",
		"-install=false", "-out", t.TempDir(), "-limit=15s",
	})
	require.NoError(t, err)
	var text strings.Builder
	require.NoError(t, run(t.Context(), o, &text))
	for line := range strings.Lines(text.String()) {
		if strings.HasPrefix(line, "note:") {
			t.Log(line)
			require.NotContains(t, line, "kolo")
			require.NotContains(t, line, "plain")
		}
	}
	for _, want := range []string{"processor:", "back to back", "separated", "ONLY 1 ROUNDS", "size: bytes"} {
		require.Contains(t, text.String(), want)
	}
	f, err := os.Open(filepath.Join(o.out, "peers.csv"))
	require.NoError(t, err)
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	require.NoError(t, err)
	seen := map[string]int{}
	for _, row := range rows[1:] {
		seen[row[4]]++
	}
	require.Equal(t, 9, seen["kolo"], "two manners of two collectives at two sizes, and a barrier")
	require.NotZero(t, seen["plain"])
	plotted, err := os.ReadFile(filepath.Join(o.out, "allgather-separated.svg"))
	require.NoError(t, err)
	checkXML(t, string(plotted))
}
