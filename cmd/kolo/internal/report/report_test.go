package report

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/cmd/kolo/internal/perf"
	"github.com/kolo-ccl/kolo/internal/golden"
)

// sample is a configuration and rows as perf gives them.
func sample() (*perf.Config, []perf.Row) {
	c := &perf.Config{
		Operator: perf.Operators()[0], Ranks: 2, Range: perf.Range{Min: 8, Max: 16, Step: 8},
		DType: kolo.Float16, Op: kolo.Max, Iterations: 20, Warmup: 10, Check: true,
	}
	row := func(size int64, p perf.Placement, us float64, mistakes ...perf.Mistake) perf.Row {
		bw := float64(size) / us / 1000
		return perf.Row{Size: size, Count: size / 2, Placement: p, Time: us, AlgBW: bw, BusBW: bw, Checked: true, Mistakes: mistakes}
	}
	wrong := perf.Mistake{Rank: 1, Wrong: 3, Of: 8, Index: 5, Got: "1", Want: "2"}
	rows := []perf.Row{
		row(8, perf.OutOfPlace, 2), row(8, perf.InPlace, 4),
		row(16, perf.OutOfPlace, 1234.5, wrong), row(16, perf.InPlace, 8),
	}
	rows[3].Checked = false
	return c, rows
}

func TestTable(t *testing.T) {
	c, rows := sample()
	var b strings.Builder
	for _, table := range []*Table{{}, {Buffers: true, Verbose: true}, {Root: 1}} {
		table.W = &b
		require.NoError(t, table.Head(c.Range, c.Iterations, c.Warmup))
		for _, r := range rows {
			require.NoError(t, table.Row(r))
		}
		b.WriteString("\n")
	}
	golden.Equal(t, "table.txt", b.String())
}

func TestDocument(t *testing.T) {
	c, rows := sample()
	at := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	d := NewDocument(c, at, "v1", []string{"kolo", "test"}, []string{"HCCL_ALGO=x"}, []Device{{Rank: 0, Host: "a"}, {Rank: 1, Host: "a"}})
	for _, r := range rows {
		d.Add(r)
	}
	var b strings.Builder
	require.NoError(t, d.Write(&b, at.Add(time.Minute), errors.New("interrupted")))
	golden.Equal(t, "document.json", b.String())
	require.True(t, json.Valid([]byte(b.String())))
}

func TestRepeatedSizeMakesANewResult(t *testing.T) {
	c, rows := sample()
	d := NewDocument(c, time.Time{}, "", nil, nil, nil)
	for range 3 {
		d.Add(rows[0])
		d.Add(rows[1])
	}
	require.Len(t, d.Results, 3)
	for range maxResults {
		d.Add(rows[0])
	}
	require.Len(t, d.Results, maxResults)
}
