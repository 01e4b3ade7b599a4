package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/cluster"
	"github.com/kolo-ccl/kolo/cmd/kolo/internal/chart"
	"github.com/kolo-ccl/kolo/cmd/kolo/internal/perf"
	"github.com/kolo-ccl/kolo/cmd/kolo/internal/report"
	"github.com/kolo-ccl/kolo/rank"
)

const testLong = `Test measures a collective of ranks and checks its result, with the flags and the
table of hccl_test. The ranks are in this process, or under kolo run, torchrun, srun or
mpirun in all processes that it starts, -p in each; rank 0 prints the table.

A time is that of the slowest rank over all timed calls, back to back, divided by
their number. alg_bandwidth is the size divided by it, in 1e9 bytes per second;
bus_bandwidth is that times the factor of nccl-tests, which makes collectives and
numbers of ranks comparable. check_result is success, failed, or NULL if nothing
was compared. The check makes one more call with inputs that differ by rank and
index, whose result has no rounding, and compares every bit on every rank.

Where the ranks divide a size it is rounded to what they can divide, above 16 MiB
to 512 bytes per rank. HCCL_ALGO, HCCL_EXEC_TIMEOUT and HCCL_DETERMINISTIC count as
they do for HCCL; flags come first.`

// testCommand is kolo test with a command per operator.
func (a *app) testCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "test",
		Short:   "Measure and check a collective, as hccl_test does",
		Long:    testLong,
		Example: testExamples("all_reduce"),
		Args:    noSuchCommand,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	for _, o := range perf.Operators() {
		cmd.AddCommand(a.operatorCommand(o))
	}
	return cmd
}

// operatorCommand is the command of one operator.
func (a *app) operatorCommand(o perf.Operator) *cobra.Command {
	f := &testFlags{}
	cmd := &cobra.Command{
		Use:     o.Name,
		Aliases: []string{o.Name + "_test"},
		Short:   o.About,
		Long:    o.About + ".\n\n" + testLong,
		Example: testExamples(o.Name),
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return &usageError{fmt.Errorf("%q belongs to no flag", args[0]), cmd.CommandPath()}
			}
			return nil
		},
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		env, err := rank.ConfigFromEnv(a.getenv)
		if err != nil {
			return &usageError{err, cmd.CommandPath()}
		}
		if f.place, err = a.place(); err != nil {
			return &usageError{err, cmd.CommandPath()}
		}
		c, err := f.config(o, env)
		if err != nil {
			return &usageError{err, cmd.CommandPath()}
		}
		return a.test(cmd.Context(), f, c)
	}
	f.register(cmd.Flags())
	return cmd
}

func testExamples(name string) string {
	lines := []string{
		"%s -p 8 -b 8 -e 64M -f 2 -d fp32 -o sum -c 1",
		"%s -p 4 -b 1M -e 1M --inplace both --explain",
		"%s -b 1K -e 16M -f 2 --algo ring --json ring.json --plot ring.png",
	}
	for i, l := range lines {
		lines[i] = "  kolo test " + fmt.Sprintf(l, name)
	}
	return strings.Join(lines, "\n")
}

// test runs a test and writes everything that the flags ask for.
// In a world of several processes that of rank 0 writes it; the others end with the
// same code where a call has failed.
func (a *app) test(ctx context.Context, f *testFlags, c *perf.Config) (err error) {
	if f.place.alone() { // before so many ranks are made
		if err := a.fits(c); err != nil {
			return err
		}
	}
	p, err := a.open(ctx, f.party(c))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	c.Worlds, c.Now, c.Tamper = p.worlds, a.now, a.tamper
	if err := a.fits(c); err != nil {
		return err
	}
	if !p.leads() {
		return brief(c.Run(ctx))
	}
	return a.lead(ctx, f, c, p.members())
}

// lead is test in the process of rank 0.
func (a *app) lead(ctx context.Context, f *testFlags, c *perf.Config, members []cluster.Member) error {
	if f.set.Changed("stepfactor") && f.set.Changed("stepbytes") {
		a.note("-f and -i are given; -f counts")
	}
	if c.Check && !c.Exact() {
		a.note("the check is off: %v of %d ranks of %v cannot be exact", c.Op, c.Ranks, c.DType)
	}
	r, err := a.newRecord(f, c, members)
	if err != nil {
		return err
	}
	c.Begin, c.Row = r.begin, r.row
	err = brief(c.Run(ctx))
	if c.Repeat && errors.Is(err, kolo.ErrCanceled) {
		err = nil // that is how it ends
	}
	r.progress.clear()
	return errors.Join(err, r.finish(err))
}

// note tells the user what they may not expect.
func (a *app) note(format string, args ...any) {
	_, _ = fmt.Fprintf(a.err, "note: "+format+"\n", args...) // a note is not worth an error
}

// brief is one cause where every rank reports the same or a consequence of it.
func brief(err error) error {
	list, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return err
	}
	first := err
	for i, e := range list.Unwrap() {
		if i == 0 || errors.Is(first, kolo.ErrLeft) && !errors.Is(e, kolo.ErrLeft) {
			first = e
		}
	}
	if call := (*kolo.Error)(nil); errors.As(first, &call) {
		return call // it names the rank itself
	}
	return first
}

// record is where the rows of a run go.
type record struct {
	app      *app
	flags    *testFlags
	config   *perf.Config
	table    *report.Table // nil: JSON goes to standard output
	document *report.Document
	progress *progress
	series   []chart.Series
	failed   int
	all      int
}

// maxPoints is how many points of each placement a plot has, the latest.
const maxPoints = 1 << 16

func (a *app) newRecord(f *testFlags, c *perf.Config, members []cluster.Member) (*record, error) {
	r := &record{app: a, flags: f, config: c}
	counts, err := c.Range.Counts(c.Operator, c.Ranks, c.DType)
	if err != nil {
		return nil, err
	}
	if a.terminal && !c.Repeat {
		r.progress = &progress{w: a.err, total: len(counts) * len(c.Placements), start: a.now(), now: a.now}
	}
	if f.json != "" {
		r.document = report.NewDocument(c, a.now(), version(), a.arguments(f, c), a.environment(), devices(members))
	}
	for _, p := range c.Placements {
		name := fmt.Sprintf("%s, %v", algorithmName(c), p)
		r.series = append(r.series, chart.Series{Name: name})
	}
	if f.json == "-" {
		return r, nil
	}
	r.table = &report.Table{
		W: a.out, Root: c.Root, Buffers: len(c.Placements) > 1, Verbose: f.check == 2, Explain: f.explain,
	}
	return r, r.table.Head(c.Range.Aligned(c.Operator, c.Ranks), c.Iterations, c.Warmup)
}

// begin is told before each trial.
func (r *record) begin(row perf.Row) {
	r.progress.begin(fmt.Sprintf("%s %v %v", r.config.Operator.Name, byteSize(row.Size), row.Placement))
}

// row is told what a trial gave.
func (r *record) row(row perf.Row) error {
	r.progress.end()
	r.all++
	if row.Verdict() == "failed" {
		r.failed++
	}
	if r.document != nil {
		r.document.Add(row)
	}
	for i, p := range r.config.Placements {
		if s := &r.series[i]; p == row.Placement {
			if len(s.Points) == maxPoints {
				s.Points = append(s.Points[:0], s.Points[1:]...)
			}
			s.Points = append(s.Points, chart.Point{Size: row.Size, Time: row.Time, BusBW: row.BusBW})
		}
	}
	if r.table == nil {
		return nil
	}
	if err := r.table.Row(row); err != nil {
		return fmt.Errorf("write a row: %w", err)
	}
	return nil
}

// finish writes the files, also after a run that ended early with err, and says if
// a check has failed.
func (r *record) finish(err error) error {
	var errs []error
	if r.document != nil {
		errs = append(errs, r.writeJSON(err))
	}
	if r.flags.plot != "" && r.all > 0 {
		c := r.config
		title := fmt.Sprintf("%s, %d ranks, %v", c.Operator.Name, c.Ranks, c.DType)
		if c.Operator.Collective.Reduces() {
			title += " " + c.Op.String()
		}
		errs = append(errs, chart.Write(r.flags.plot, title, r.series))
	}
	if r.failed > 0 {
		text := fmt.Sprintf("the check has failed for %d of %d rows", r.failed, r.all)
		if r.flags.check < 2 {
			text += "; -c 2 says what is wrong"
		}
		errs = append(errs, errors.New(text))
	}
	return errors.Join(errs...)
}

// writeJSON writes the document where --json says.
func (r *record) writeJSON(err error) error {
	end := r.app.now()
	if r.flags.json == "-" {
		return r.document.Write(r.app.out, end, err)
	}
	file, openErr := os.Create(r.flags.json)
	if openErr != nil {
		return fmt.Errorf("--json: %w", openErr)
	}
	return errors.Join(r.document.Write(file, end, err), file.Close())
}
