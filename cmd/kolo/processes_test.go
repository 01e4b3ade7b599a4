package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kolo-ccl/kolo/cmd/kolo/internal/perf"
	"github.com/kolo-ccl/kolo/cmd/kolo/internal/report"
)

// asMain makes the test program be kolo itself.
const asMain = "KOLO_TEST_MAIN"

// processes runs a command line in so many processes of the test program.
func processes(t *testing.T, n, line string) result {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	return command(t, "run -n "+n+" --no-prefix -x "+asMain+"=1 -x GORACE=atexit_sleep_ms=0 -- "+exe+" "+line, nil)
}

func TestEveryOperatorBetweenProcesses(t *testing.T) {
	for _, o := range perf.Operators() {
		t.Run(o.Name, func(t *testing.T) {
			r := processes(t, "3", "test "+o.Name+" -b 24 -e 100K -f 4096 -n 2 -w 1 -r 1 --inplace "+buffers(o))
			require.Zero(t, r.code, r.err)
			require.Equal(t, 1, strings.Count(r.out, "data_size"), "one process writes the table: %s", r.out)
			require.GreaterOrEqual(t, strings.Count(r.out, "success"), 2, r.out)
			require.NotContains(t, r.out, "failed")
		})
	}
}

// buffers is the widest --inplace that an operator has.
func buffers(o perf.Operator) string {
	switch p := o.Placements(); {
	case len(p) == 2:
		return "both"
	case p[0] == perf.InPlace:
		return "in"
	}
	return "out"
}

func TestSeveralRanksOfEachProcess(t *testing.T) {
	for _, transport := range []string{"shm", "tcp", "roce"} {
		t.Run(transport, func(t *testing.T) {
			r := processes(t, "2", "test all_reduce -p 2 -b 64 -e 64K -f 1024 -n 2 -w 1 --json - --transport "+transport)
			if transport == "shm" && strings.Contains(r.err, "not supported") {
				t.Skip("no shared memory between processes on this system")
			}
			require.Zero(t, r.code, r.err)
			var d report.Document
			require.NoError(t, json.Unmarshal([]byte(r.out), &d), r.out)
			require.Len(t, d.Results, 2)
			require.Equal(t, "success", d.Results[1].Check)
			require.Len(t, d.Config.Devices, 4)
			pids := map[int]int{}
			for r, v := range d.Config.Devices {
				require.Equal(t, r, v.Rank)
				pids[v.PID]++
			}
			require.Len(t, pids, 2, "two processes of two ranks each")
		})
	}
}

func TestOneProcessByADriverBetweenProcesses(t *testing.T) {
	r := command(t, "test all_reduce -p 3 -b 64 -e 64 -n 1 -w 0 --transport tcp --explain", nil)
	require.Zero(t, r.code, r.err)
	require.Contains(t, r.out, "success")
	require.NotContains(t, r.out, "fabric wins", "the medium of the process would not use the driver")
}

func TestPlaceOfAProcess(t *testing.T) {
	for _, row := range []struct {
		name, line, want string
		env              map[string]string
	}{
		{"no number", "test reduce", "is no place of a process", map[string]string{"RANK": "x", "WORLD_SIZE": "2"}},
		{"no size", "test reduce", "set both", map[string]string{"RANK": "1"}},
		{"no rank", "test reduce", "set both", map[string]string{"WORLD_SIZE": "2"}},
		{"outside", "test reduce", "is no place of a process", map[string]string{"SLURM_PROCID": "2", "SLURM_NTASKS": "2"}},
		{"hccs", "test reduce --transport hccs", "joins ranks of one process", map[string]string{"RANK": "0", "WORLD_SIZE": "2"}},
		{"unknown driver", "test reduce --transport ib", "want one of", nil},
		{"root", "test reduce -p 2 -r 4", "the ranks are 0 to 3", map[string]string{"RANK": "0", "WORLD_SIZE": "2"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := command(t, row.line, func(a *app) { a.getenv = func(k string) string { return row.env[k] } })
			require.Equal(t, exitUsage, r.code)
			require.Contains(t, r.err, row.want)
		})
	}
}
