package report

import (
	"fmt"
	"io"
	"strings"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/cmd/kolo/internal/perf"
)

// The columns: hccl_test's four with its spelling, which parsers know, then ours.
const (
	columnSize    = "data_size(Bytes):"
	columnTime    = "aveg_time(us):"
	columnAlgBW   = "alg_bandwidth(GB/s):"
	columnCheck   = "check_result:"
	columnBusBW   = "bus_bandwidth(GB/s):"
	columnBuffers = "buffers:"
)

// Table writes rows for people and for parsers of hccl_test's output.
type Table struct {
	W io.Writer
	// Root is the rank whose row it is; others are named where they are wrong.
	Root kolo.Rank
	// Buffers adds a column with the placement, for when there are several.
	Buffers bool
	// Verbose says for each wrong rank what its first wrong element is.
	Verbose bool
	// Explain writes the table of algorithms, as lines that begin with #, before the
	// first row and where another is chosen than before.
	Explain bool

	chosen string
}

// Head writes the line of the settings and the names of the columns.
func (t *Table) Head(r perf.Range, iterations, warmup int) error {
	names := []string{columnSize, columnTime, columnAlgBW, columnCheck, columnBusBW}
	if t.Buffers {
		names = append(names, columnBuffers)
	}
	_, err := fmt.Fprintf(t.W, "the minbytes is %d, maxbytes is %d, iters is %d, warmup_iters is %d\n%s\n",
		r.Min, r.Max, iterations, warmup, strings.Join(names, " | "))
	return err
}

// Row writes one result, and what is wrong with it.
func (t *Table) Row(r perf.Row) error {
	var b strings.Builder
	if t.Explain && t.chosen != r.Choice.Algorithm {
		t.chosen = r.Choice.Algorithm
		for line := range strings.Lines(r.Choice.Explain()) {
			b.WriteString("# " + line)
		}
	}
	for _, m := range r.Mistakes {
		if m.Rank != t.Root {
			fmt.Fprintf(&b, "local rank_id %d, check result failed\n", int(m.Rank))
		}
		if t.Verbose {
			fmt.Fprintf(&b, "%v\n", m)
		}
	}
	cells := []string{
		fmt.Sprintf("%-*d", len(columnSize), r.Size),
		fmt.Sprintf("%-*.2f", len(columnTime), r.Time),
		fmt.Sprintf("%-*.5f", len(columnAlgBW), r.AlgBW),
		fmt.Sprintf("%-*s", len(columnCheck), r.Verdict()),
		fmt.Sprintf("%-*.5f", len(columnBusBW), r.BusBW),
	}
	if t.Buffers {
		cells = append(cells, r.Placement.String())
	}
	b.WriteString(strings.TrimRight(strings.Join(cells, " | "), " ") + "\n")
	_, err := io.WriteString(t.W, b.String())
	return err
}
