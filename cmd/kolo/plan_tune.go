package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/cmd/kolo/internal/draw"
	"github.com/kolo-ccl/kolo/plan"
	"github.com/kolo-ccl/kolo/plan/msccl"
	"github.com/kolo-ccl/kolo/plan/schedule"
	"github.com/kolo-ccl/kolo/rank"
)

// tuneFlags are those of kolo plan tune.
type tuneFlags struct {
	ranks              int
	collectives, sizes string
	rounds             int
	batch              time.Duration
	previous, out      string
	again, json, all   bool
	convert            string
	messages           bool
	transport          string
}

// planTune is kolo plan tune.
func (a *app) planTune() *cobra.Command {
	f := &tuneFlags{}
	cmd := &cobra.Command{
		Use:   "tune",
		Short: "Time algorithms by real calls and write a tuner file, or convert one",
		Long: `Tune times algorithms by real calls of ranks in this process, or in all processes that
a launcher has started (kolo run), and writes the table of the fastest as a tuner file:
.json in the form of HCCL's tuner plug-in, .csv in that of NCCL's. Which are timed is
said by the model: those within 1.5 times the least cost, the others only if two timings
of them are good. A time is the slowest rank's, and the median counts. Regret is how much
slower the choice is than the best one measured; that of the model, which a world without
a tuner file goes by, is told too. With --all every algorithm gets at least two timings,
however little the model thinks of it. With --again all is done twice: regret
again is that of the first choice by the second run's times, and spread how far its two
medians lie apart. Differences below the spread say nothing.

With --convert nothing is timed: the file is read, and written in the form of --out.`,
		Example: `  kolo plan tune -p 4 -o tuned.json
  kolo run -n 4 -- kolo plan tune --transport tcp --again
  kolo run -n 4 -- kolo plan tune --transport tcp --all -c all_reduce,alltoall --sizes 8,64K,1M
  kolo plan tune -p 8 -c all_reduce --sizes 64,4K,1M --previous tuned.json -o new.json
  kolo plan tune --convert nccl.csv -o hccl.json`,
	}
	s := cmd.Flags()
	s.SortFlags = false
	s.IntVarP(&f.ranks, "npus", "p", 0, fmt.Sprintf("`ranks` in this process (default %d, or 1 if there are others)", defaultRanks))
	s.StringVar(&f.transport, "transport", "", "`driver` between the ranks: "+strings.Join(transports, ", "))
	s.StringVarP(&f.collectives, "collectives", "c", "all_reduce,all_gather,reduce_scatter,broadcast", "`collectives` to time")
	s.StringVar(&f.sizes, "sizes", "64,1K,16K,256K,4M,16M", "`sizes` of the whole vector, ascending")
	s.IntVar(&f.rounds, "rounds", 7, "`timings` of each algorithm")
	s.DurationVar(&f.batch, "batch", 100*time.Microsecond, "`time` that one timing takes at least; short calls are repeated")
	s.StringVar(&f.previous, "previous", "", "tuner `file` whose choices stay unless another is faster by 5 %")
	s.StringVarP(&f.out, "out", "o", "", "`file` to write, .json or .csv")
	s.BoolVar(&f.all, "all", false, "time every algorithm that can do the call")
	s.BoolVar(&f.again, "again", false, "do all of it twice and print the spread")
	s.BoolVar(&f.messages, "messages", false, "only algorithms that send messages, as if the ranks shared no medium")
	s.BoolVar(&f.json, "json", false, "print JSON instead of the table")
	s.StringVar(&f.convert, "convert", "", "tuner `file` to read instead of timing")
	return planned(cmd, nil, 0, 0, func([]string) error {
		if f.out != "" && filepath.Ext(f.out) != ".json" && filepath.Ext(f.out) != ".csv" {
			return usage(fmt.Errorf("-o %q: want a name that ends with .json or .csv", f.out), "tune")
		}
		if f.convert != "" {
			t, err := a.readTuning(f.convert)
			if err != nil {
				return err
			}
			return a.writeTuning(f.out, t)
		}
		c, err := f.config(a)
		if err != nil {
			return usage(err, "tune")
		}
		return a.tune(cmd.Context(), f, c)
	})
}

// config is what rank.Tune is to do.
func (f *tuneFlags) config(a *app) (rank.TuneConfig, error) {
	c := rank.TuneConfig{Contest: plan.ContestConfig{Rounds: f.rounds}, Batch: f.batch, Now: a.now}
	if f.ranks < 0 || f.ranks > 1024 || f.rounds < 1 || f.batch <= 0 {
		return c, fmt.Errorf("-p %d, --rounds %d, --batch %v: want 1 to 1024 ranks, and 1 round and some time or more", f.ranks, f.rounds, f.batch)
	}
	if f.all {
		c.Contest.Fringe = math.Inf(1)
	}
	for name := range strings.SplitSeq(f.collectives, ",") {
		k, err := collectiveNamed(name)
		if err != nil {
			return c, err
		}
		c.Collectives = append(c.Collectives, k)
	}
	for part := range strings.SplitSeq(f.sizes, ",") {
		var size byteSize
		if err := size.Set(part); err != nil {
			return c, fmt.Errorf("--sizes %q: %w", part, err)
		}
		c.Sizes = append(c.Sizes, int64(size))
	}
	if f.previous != "" {
		var err error
		c.Previous, err = a.readTuning(f.previous)
		return c, err
	}
	return c, nil
}

// readTuning reads a tuner file of either form, and notes what makes no sense here.
func (a *app) readTuning(name string) (*plan.Tuning, error) {
	data, err := readFile(name, maxInput)
	if err != nil {
		return nil, err
	}
	t, skipped, err := plan.ParseTuning(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	for _, why := range skipped {
		a.note("%s: left out: %s", name, why)
	}
	return t, nil
}

// writeTuning writes a tuner file in the form that its name asks for; "" is HCCL's on
// standard output.
func (a *app) writeTuning(name string, t *plan.Tuning) error {
	data := t.HCCL()
	if filepath.Ext(name) == ".csv" {
		var skipped []string
		data, skipped = t.NCCL()
		for _, why := range skipped {
			a.note("%s: no place for %s", name, why)
		}
	}
	if name == "" {
		name = "-"
	}
	return a.writeFile(name, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

// timingLine is a line of kolo plan tune.
type timingLine struct {
	Collective string        `json:"collective"`
	Bytes      int64         `json:"bytes"`
	Algorithm  string        `json:"algorithm"`
	MedianNS   time.Duration `json:"median_ns"`
	Regret     float64       `json:"regret"`
	Model      string        `json:"model_choice"`
	ModelLoss  float64       `json:"model_regret"`           // of what the model would have taken, by its median here; -1 if it was not timed
	Again      float64       `json:"regret_again,omitempty"` // with --again: of the choice, by the other run's times
	Spread     float64       `json:"spread,omitempty"`       // with --again
	Timed      []string      `json:"timed"`
	// By algorithm; of those that looked bad, of two timings.
	Medians map[string]time.Duration `json:"medians_ns"`
}

// tune times, prints and writes.
func (a *app) tune(ctx context.Context, f *tuneFlags, c rank.TuneConfig) error {
	runs, err := a.tuned(ctx, f, c)
	if err != nil || runs == nil {
		return err
	}
	first := runs[0]
	lines := linesOf(first)
	for i := range lines {
		if f.again {
			lines[i].Again, lines[i].Spread = otherRun(lines[i], runs[1].Timings[i])
		}
	}
	if f.json {
		err = writeJSON(a.out, lines)
	} else {
		err = a.printTuning(f, first, lines)
	}
	if err != nil || f.out == "" {
		return err
	}
	return a.writeTuning(f.out, first.Tuning)
}

// tuned runs rank.Tune, twice with --again, and gives what rank 0 has found; nil in the
// processes of the other ranks.
func (a *app) tuned(ctx context.Context, f *tuneFlags, c rank.TuneConfig) (runs []*rank.Tuned, err error) {
	p := partyConfig{each: f.ranks, transport: f.transport}
	if p.place, err = a.place(); err == nil {
		if p.each == 0 {
			p.each = 1
			if p.alone() {
				p.each = defaultRanks
			}
		}
		if err = p.validate(); err == nil && f.messages && (!p.alone() || f.transport != "") {
			err = errors.New("--messages: without --transport and in one process; others share no medium but the board's")
		}
	}
	if err != nil {
		return nil, usage(err, "tune")
	}
	f.ranks = p.each * p.processes
	if f.messages {
		topo, err := plan.OneServer(f.ranks).With(rank.Probe())
		if err != nil {
			return nil, err
		}
		topo.Medium = false
		p.rank.Topology = topo
	}
	open, err := a.open(ctx, p)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, open.close()) }()
	times := 1
	if f.again {
		times = 2
	}
	errs := make([]error, len(open.worlds))
	var wg sync.WaitGroup
	for i, w := range open.worlds {
		// ends with the call
		wg.Go(func() {
			for range times {
				t, err := rank.Tune(ctx, w.Group(), c)
				if err != nil {
					errs[i] = err
					return
				}
				if w.Rank() == 0 {
					runs = append(runs, t)
				}
			}
		})
	}
	wg.Wait()
	return runs, errors.Join(errs...)
}

func linesOf(t *rank.Tuned) (lines []timingLine) {
	for _, x := range t.Timings {
		l := timingLine{Collective: operatorName(x.Collective), Bytes: x.Size, Algorithm: x.Algorithm, MedianNS: x.Median, Regret: x.Regret, ModelLoss: -1,
			Medians: map[string]time.Duration{}}
		l.Model = x.Contest.Entrants[0].Name
		best := float64(x.Median) / (1 + x.Regret)
		for _, e := range x.Contest.Entrants {
			if len(e.Times) > 0 {
				l.Timed = append(l.Timed, e.Name)
				l.Medians[e.Name] = e.Median()
			}
			if e.Name == l.Model && len(e.Times) > 0 {
				l.ModelLoss = float64(e.Median())/best - 1
			}
		}
		lines = append(lines, l)
	}
	return lines
}

// otherRun is the regret of a choice by the times of another run, and how far its two
// medians lie apart, as fractions.
func otherRun(l timingLine, x plan.Timing) (regret, spread float64) {
	best := float64(x.Median) / (1 + x.Regret)
	for _, e := range x.Contest.Entrants {
		if e.Name == l.Algorithm && len(e.Times) > 0 {
			m := float64(e.Median())
			return max(m/best-1, 0), max(m, float64(l.MedianNS))/min(m, float64(l.MedianNS)) - 1
		}
	}
	return 0, 0
}

func (a *app) printTuning(f *tuneFlags, t *rank.Tuned, lines []timingLine) error {
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	head := "collective\tbytes\tchoice\tmedian\tregret\tmodel would take\tits regret\ttimed"
	if f.again {
		head += "\tregret again\tspread"
	}
	fmt.Fprintln(w, head)
	var regrets, models, again []float64
	for _, l := range lines {
		regrets = append(regrets, l.Regret)
		loss := "-"
		if l.ModelLoss >= 0 {
			models = append(models, max(l.ModelLoss, 0))
			loss = fmt.Sprintf("%.1f %%", 100*l.ModelLoss)
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%v\t%.1f %%\t%s\t%s\t%d", l.Collective, l.Bytes, l.Algorithm, l.MedianNS, 100*l.Regret, l.Model, loss, len(l.Timed))
		if f.again {
			fmt.Fprintf(w, "\t%.1f %%\t%.1f %%", 100*l.Again, 100*l.Spread)
			again = append(again, l.Again)
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintln(w)
	for _, k := range []struct {
		name string
		list []float64
	}{{"regret", regrets}, {"regret of the model", models}, {"regret again", again}} {
		if slices.Sort(k.list); len(k.list) > 0 {
			fmt.Fprintf(w, "%s: median %.1f %%, maximum %.1f %%\n", k.name, 100*k.list[len(k.list)/2], 100*k.list[len(k.list)-1])
		}
	}
	if f.again {
		slower, beyond := 0, 0
		for _, l := range lines {
			if l.Again > 0.2 { // less is noise on most machines
				slower++
				if l.Again > l.Spread {
					beyond++
				}
			}
		}
		fmt.Fprintf(w, "regret again over 20 %%: %d of %d, of which beyond the spread: %d\n", slower, len(lines), beyond)
	}
	fmt.Fprintf(w, "%d ranks, %d rules, digest %016x\n", f.ranks, len(t.Tuning.Rules), t.Tuning.Digest())
	return w.Flush()
}

// planExport is kolo plan export.
func (a *app) planExport() *cobra.Command {
	f := &planFlags{noJSON: true}
	var out, format string
	cmd := &cobra.Command{
		Use:   "export ALGORITHM",
		Short: "Write a choreography as a file of MSCCL, LogGOPSim or ASTRA-sim",
		Long: `Export writes a choreography in a format of others:

  msccl   MSCCL's XML, for any size that divides evenly; kolo plan import reads it back
  goal    GOAL, the text of LogGOPSim and ATLAHS, for -b bytes
  chakra  Chakra execution traces, as ASTRA-sim reads them, for -b bytes: one file for each
          rank, which -o names by what comes before .RANK.et`,
		Example: "  kolo plan export ring -p 8 -o ring8.xml\n  kolo plan export nhr --servers 4x8 -b 16M --format goal -o nhr.goal\n  kolo plan export ring -p 8 -b 1M --format chakra -o ring8",
	}
	cmd.Flags().StringVarP(&out, "out", "o", "-", "`file` to write; - is standard output")
	cmd.Flags().StringVar(&format, "format", "msccl", "`format`: msccl, goal or chakra")
	return planned(cmd, f, 1, 1, func(args []string) error {
		s, err := f.scene()
		if err != nil {
			return usage(err, "export")
		}
		if !slices.Contains([]string{"msccl", "goal", "chakra"}, format) {
			return usage(fmt.Errorf("--format %q: want msccl, goal or chakra", format), "export")
		}
		if format == "chakra" && out == "-" {
			return usage(fmt.Errorf("--format chakra writes a file for each rank: give -o PREFIX"), "export")
		}
		programs, key, err := s.programs(args[0])
		if err != nil {
			return err
		}
		return a.export(s, key, programs, format, out)
	})
}

// export writes the programs of a scene in a format.
func (a *app) export(s *scene, key plan.Key, programs []*plan.Program, format, out string) error {
	bytes := func(b []byte) func(io.Writer) error {
		return func(w io.Writer) error {
			_, err := w.Write(b)
			return err
		}
	}
	if format == "msccl" {
		file, err := msccl.Export(key, programs)
		if err != nil {
			return err
		}
		return a.writeFile(out, bytes(file.XML()))
	}
	list, err := schedule.Of(programs, s.call, s.topo.FoldRate())
	if err != nil {
		return err
	}
	if format == "goal" {
		return a.writeFile(out, bytes(list.GOAL()))
	}
	for r := range list {
		if err := a.writeFile(fmt.Sprintf("%s.%d.et", out, r), bytes(list.Chakra(kolo.Rank(r)))); err != nil {
			return err
		}
	}
	fmt.Fprintf(a.err, "%s.0.et to %s.%d.et: %v by %s\n", out, out, len(list)-1, s.call, programs[0].Algorithm)
	return nil
}

// importDocument is what kolo plan import tells in JSON.
type importDocument struct {
	Name       string            `json:"name"`
	Collective string            `json:"collective"`
	InPlace    bool              `json:"in_place"`
	MinBytes   int64             `json:"min_bytes"`
	MaxBytes   int64             `json:"max_bytes"`
	Report     plan.Report       `json:"report"`
	TimeNS     time.Duration     `json:"time_ns,omitempty"`
	Programs   []programDocument `json:"programs,omitempty"`
}

// planImport is kolo plan import.
func (a *app) planImport() *cobra.Command {
	f := &planFlags{}
	var show bool
	var svg string
	cmd := &cobra.Command{
		Use:   "import FILE",
		Short: "Read a plan of MSCCL or MSCCL++, prove it, and simulate, print or draw it",
		Long: `Import reads a plan of MSCCL (XML) or MSCCL++ (JSON), proves that it does what it says,
and simulates what runs: the same messages with rendezvous, which need no credits. It does
so on --network if there is one of as many NPUs; the collective, the root and in place or
not are the file's. The exit code is 1 if it is wrong; the error names the step.`,
		Example: "  kolo plan import ring8.xml --svg ring8.svg\n  kolo plan import plan.xml --network mesh:8 -b 16M",
	}
	cmd.Flags().BoolVar(&show, "steps", false, "print all steps")
	cmd.Flags().StringVar(&svg, "svg", "", "draw it to `file`")
	return planned(cmd, f, 1, 1, func(args []string) error { return a.importPlan(f, args[0], show, svg) })
}

func (a *app) importPlan(f *planFlags, name string, show bool, svg string) error {
	data, err := readFile(name, maxInput)
	if err != nil {
		return err
	}
	p, err := msccl.Import(data)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	e, err := p.Entry()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	f.ranks, f.collective, f.root, f.inPlace = len(p.Programs), operatorName(p.Collective), int(p.Root), p.Key.InPlace
	s, err := f.scene()
	if err != nil {
		return usage(err, "import")
	}
	if s.topo.Ranks() != len(p.Programs) {
		return usage(fmt.Errorf("%s is for %d ranks, and there are %d", name, len(p.Programs), s.topo.Ranks()), "import")
	}
	var running []*plan.Program
	for r := range p.Programs {
		running = append(running, e.Program(kolo.Rank(r), p.Key.InPlace).Program)
	}
	line, simulated := s.simulate(running, 0)
	if svg != "" {
		if err := a.writeFile(svg, draw.Picture{Programs: p.Programs, Server: s.topo.Server}.WriteSVG); err != nil {
			return err
		}
	}
	if f.json {
		d := importDocument{Name: p.Name, Collective: operatorName(p.Collective), InPlace: p.Key.InPlace, MinBytes: p.MinBytes, MaxBytes: p.MaxBytes,
			Report: p.Report, TimeNS: line.Total}
		for _, q := range p.Programs {
			if show {
				d.Programs = append(d.Programs, documentOf(q))
			}
		}
		return errors.Join(writeJSON(a.out, d), simulated)
	}
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "name\t%s\ncollective\t%v by %d ranks\nsizes\t%d to %d bytes\n", p.Name, p.Collective, len(p.Programs), p.MinBytes, p.MaxBytes)
	fmt.Fprintf(w, "proof\tright: %d steps, %d messages, %d credits, same bits %s\n", p.Report.Steps, p.Report.Messages, p.Report.Credits, yes(p.Report.SameBits))
	fmt.Fprintf(w, "runs as\t%d steps, %d messages, %d credits\n", e.Report.Steps, e.Report.Messages, e.Report.Credits)
	if simulated == nil {
		fmt.Fprintf(w, "simulated\t%v for %v\n", line.Total, s.call)
	}
	if err := errors.Join(w.Flush(), simulated); err != nil || !show {
		return err
	}
	return a.printPrograms(p.Programs, false)
}
