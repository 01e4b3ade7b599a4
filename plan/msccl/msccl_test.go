package msccl

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kolo-ccl/kolo"
)

// expectation is a row of the table.
type expectation struct {
	file       string
	collective kolo.Collective
	ranks      int
	steps      int
	channels   int
	chunks     int
	inPlace    bool
	credits    int
}

// expectations reads the table of what is known of the public plans in the directory
// that KOLO_DATA names, or skips the test where there is none.
func expectations(t *testing.T) (dir string, list []expectation) {
	t.Helper()
	dir = filepath.Join(os.Getenv("KOLO_DATA"), "msccl-xml")
	if dir == "msccl-xml" {
		t.Skip("KOLO_DATA names no directory of public plans; those of testdata are tested")
	}
	table, err := os.ReadFile(filepath.Join(dir, "EXPECTED.tsv"))
	require.NoError(t, err)
	for _, line := range strings.Split(strings.TrimSpace(string(table)), "\n")[1:] {
		cells := strings.Split(line, "\t")
		c, err := collectiveOf(cells[1])
		require.NoError(t, err)
		e := expectation{file: cells[0], collective: c, inPlace: cells[6] == "1"}
		for i, to := range []*int{&e.ranks, &e.steps, &e.channels, &e.chunks, nil, &e.credits} {
			if to != nil {
				*to, err = strconv.Atoi(cells[2+i])
				require.NoError(t, err)
			}
		}
		list = append(list, e)
	}
	return dir, list
}

// channels is how many channels the file uses.
func channels(f *File) int {
	used := map[int]bool{}
	for _, g := range f.GPUs {
		for _, b := range g.Blocks {
			used[b.Channel] = true
		}
	}
	return len(used)
}

func TestPublishedPlans(t *testing.T) {
	dir, list := expectations(t)
	for _, e := range list {
		t.Run(e.file, func(t *testing.T) { check(t, dir, e) })
	}
}

// check imports a file, compares it with what is known of it, and writes and reads it
// again.
func check(t *testing.T, dir string, e expectation) {
	data, err := os.ReadFile(filepath.Join(dir, e.file))
	require.NoError(t, err)
	p, err := Import(data)
	require.NoError(t, err)
	got := expectation{e.file, p.Collective, len(p.GPUs), p.Steps(), channels(p.File), p.Chunks, p.InPlace, p.Report.Credits}
	require.Equal(t, e, got)
	again, err := Read(p.XML())
	require.NoError(t, err)
	require.Equal(t, p.File, again)
	entry, err := p.Entry()
	require.NoError(t, err)
	require.Zero(t, entry.Report.Credits)
}

// own are the plans of testdata, with what is known of them.
var own = []expectation{
	{"allgather-doubling-4.xml", kolo.AllGather, 4, 16, 1, 4, true, 1},
	{"allreduce-pairs-2.xml", kolo.AllReduce, 2, 9, 1, 2, true, 1},
	{"allreduce-ring-3.xml", kolo.AllReduce, 3, 15, 3, 3, true, 0},
	{"alltoall-relay-3.xml", kolo.AllToAll, 3, 17, 2, 3, false, 1},
	{"reducescatter-ring-4.xml", kolo.ReduceScatter, 4, 16, 1, 4, true, 1},
}

func TestOwnPlans(t *testing.T) {
	files, err := filepath.Glob("testdata/*.xml")
	require.NoError(t, err)
	require.Len(t, files, len(own))
	for _, e := range own {
		t.Run(e.file, func(t *testing.T) { check(t, "testdata", e) })
	}
}
