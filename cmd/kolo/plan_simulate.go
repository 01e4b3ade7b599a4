package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/plan"
	"github.com/kolo-ccl/kolo/trace"
)

// Limits of what is printed and kept.
const (
	shownLegs  = 12
	shownLinks = 8
	keptLegs   = 200_000
)

// simulateFlags are those of kolo plan simulate besides planFlags.
type simulateFlags struct {
	trace, svg string
	sweep      sweepFlags
}

// planSimulate is kolo plan simulate.
func (a *app) planSimulate() *cobra.Command {
	f, m := &planFlags{}, &simulateFlags{}
	cmd := &cobra.Command{
		Use:   "simulate ALGORITHM",
		Short: "Run a choreography in virtual time, on ports or on the links of a network",
		Long: `Simulate runs the programs of all ranks in virtual time. Without --network each
rank has a port to send and one to receive; with it, messages take the links that
lie between the NPUs, and wait for each other there. Printed are the time, what
passed the links, and the critical path: what took the time, step after step.

With --sweep it runs several algorithms over growing numbers of ranks and sizes, on
boards of 8 NPUs in servers in racks, and prints where the fastest one changes.`,
		Example: `  kolo plan simulate ring --network torus:4x4 -b 64M
  kolo plan simulate hier:mesh+nhr --network hccs:4x8 -b 25M --trace trace.json
  kolo plan simulate ring --network hccs:1x4 --slow "npu1>npu2=0.1" --lose-nic 7
  kolo plan simulate --sweep --max-ranks 256 --svg curve.svg`,
	}
	s := cmd.Flags()
	s.StringVar(&m.trace, "trace", "", "write what happened when to `file`, for the trace viewers of browsers")
	s.StringVar(&m.svg, "svg", "", "draw it to `file`; with --sweep, the curves")
	m.sweep.register(s)
	planned(cmd, f, 0, 1, func(args []string) error {
		if m.sweep.on {
			if len(args) > 0 {
				return usage(fmt.Errorf("--sweep takes its algorithms from --algorithms, not %q", args[0]), "simulate")
			}
			return a.sweep(f, m)
		}
		if len(args) == 0 {
			return usage(errors.New("name the algorithm; kolo plan list has them"), "simulate")
		}
		sc, err := f.scene()
		if err != nil {
			return usage(err, "simulate")
		}
		return a.simulate(sc, f, m, args[0])
	})
	f.registerWhatIf(s)
	return cmd
}

func (a *app) simulate(sc *scene, f *planFlags, m *simulateFlags, algorithm string) error {
	programs, _, err := sc.programs(algorithm)
	if err != nil {
		return err
	}
	keep := 0
	if m.trace != "" || m.svg != "" {
		if sc.net == nil {
			return usage(errors.New("--trace and --svg show links: give --network too"), "simulate")
		}
		keep = keptLegs
	}
	line, err := sc.simulate(programs, keep)
	if err != nil {
		return err
	}
	for _, o := range []struct {
		name  string
		write func(io.Writer, []trace.Span) error
	}{{m.trace, trace.WriteTrace}, {m.svg, trace.WriteSVG}} {
		if o.name != "" {
			if err := a.writeFile(o.name, func(w io.Writer) error { return o.write(w, spansOf(programs, line.Legs)) }); err != nil {
				return err
			}
		}
	}
	if f.json {
		return writeJSON(a.out, timelineDocument(sc, algorithm, programs, line))
	}
	return a.printTimeline(sc, algorithm, programs, line)
}

// spansOf are legs as lanes of links and of ranks.
func spansOf(programs []*plan.Program, legs []plan.Leg) []trace.Span {
	var out []trace.Span
	for _, l := range legs {
		s := trace.Span{Lane: l.Link, Name: programs[l.Rank].Steps[l.Step].Op.String(), Begin: l.Start, End: l.End}
		switch {
		case l.Link != "":
			s.Name = fmt.Sprintf("send %d>%d step %d", l.Rank, l.Peer, l.Step)
		case l.Peer != kolo.NoRank:
			s.Lane = fmt.Sprintf("rank %d processor", l.Rank)
		default:
			s.Lane = fmt.Sprintf("rank %d", l.Rank)
		}
		out = append(out, s)
	}
	return out
}

// legText is a leg in words.
func legText(programs []*plan.Program, l plan.Leg) string {
	s := fmt.Sprintf("rank %d, step %d: %s", l.Rank, l.Step, programs[l.Rank].Describe(l.Step))
	if l.Link != "" {
		s += " over " + l.Link
	}
	return s
}

func (a *app) printTimeline(sc *scene, algorithm string, programs []*plan.Program, line plan.Timeline) error {
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "%s, %v\non %s\n\n", algorithm, sc.call, sc.where())
	fmt.Fprintf(w, "time\t%v\n", line.Total)
	for l, x := range line.Levels {
		if x.Messages > 0 {
			fmt.Fprintf(w, "%s\t%d messages, %d bytes\n", [3]string{"in servers", "between servers", "between racks"}[l], x.Messages, x.Bytes)
		}
	}
	if len(line.Critical) > 0 {
		b := line.Bound()
		fmt.Fprintf(w, "bound by\t%v of %s\n", b.End-b.Start, legText(programs, b))
	}
	if len(line.Links) > 0 {
		fmt.Fprintf(w, "\nlink\tbusy\tof the time\tmessages\tbytes\n")
		for _, u := range line.Links[:min(len(line.Links), shownLinks)] {
			fmt.Fprintf(w, "%s\t%v\t%.0f %%\t%d\t%d\n", u.Name, u.Busy, 100*float64(u.Busy)/float64(max(line.Total, 1)), u.Messages, u.Bytes)
		}
		if more := len(line.Links) - shownLinks; more > 0 {
			fmt.Fprintf(w, "and %d more links\n", more)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return a.printPath(programs, line)
}

// printPath prints the critical path, its middle left out where it is long.
func (a *app) printPath(programs []*plan.Program, line plan.Timeline) error {
	var b strings.Builder
	fmt.Fprintf(&b, "\ncritical path, %d legs\n", len(line.Critical))
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for i, l := range line.Critical {
		switch left := len(line.Critical) - shownLegs; {
		case left > 0 && i == shownLegs/2:
			fmt.Fprintf(w, "...\t\t%d more\n", left)
			continue
		case left > 0 && i > shownLegs/2 && i < len(line.Critical)-shownLegs/2:
			continue
		}
		fmt.Fprintf(w, "%v\t%v\t%s\n", l.Start, l.End-l.Start, legText(programs, l))
	}
	_ = w.Flush() // a strings.Builder takes everything
	_, err := io.WriteString(a.out, b.String())
	return err
}

// timelineJSON is a Timeline in JSON; times are nanoseconds.
type timelineJSON struct {
	Algorithm  string          `json:"algorithm"`
	Collective string          `json:"collective"`
	Ranks      int             `json:"ranks"`
	Bytes      int64           `json:"bytes"`
	TimeNS     time.Duration   `json:"time_ns"`
	Finish     []time.Duration `json:"finish_ns"`
	Levels     []levelJSON     `json:"levels"`
	Links      []linkJSON      `json:"links,omitempty"`
	Critical   []legJSON       `json:"critical"`
}

type levelJSON struct {
	Messages int   `json:"messages"`
	Bytes    int64 `json:"bytes"`
}

type linkJSON struct {
	Link string `json:"link"`
	levelJSON
	BusyNS time.Duration `json:"busy_ns"`
}

type legJSON struct {
	Rank    int           `json:"rank"`
	Step    int           `json:"step"`
	What    string        `json:"what"`
	Link    string        `json:"link,omitempty"`
	StartNS time.Duration `json:"start_ns"`
	EndNS   time.Duration `json:"end_ns"`
}

func timelineDocument(sc *scene, algorithm string, programs []*plan.Program, line plan.Timeline) timelineJSON {
	size, _ := plan.VectorSize(sc.call, sc.topo.Ranks()) // Simulate has found it to be right
	d := timelineJSON{Algorithm: algorithm, Collective: operatorName(sc.call.Collective), Ranks: sc.topo.Ranks(), Bytes: size,
		TimeNS: line.Total, Finish: line.Finish, Critical: []legJSON{}}
	for _, x := range line.Levels {
		d.Levels = append(d.Levels, levelJSON{x.Messages, x.Bytes})
	}
	for _, u := range line.Links {
		d.Links = append(d.Links, linkJSON{u.Name, levelJSON{u.Messages, u.Bytes}, u.Busy})
	}
	for _, l := range line.Critical {
		d.Critical = append(d.Critical, legJSON{int(l.Rank), l.Step, programs[l.Rank].Describe(l.Step), l.Link, l.Start, l.End})
	}
	return d
}

// planDiff is kolo plan diff.
func (a *app) planDiff() *cobra.Command {
	f := &planFlags{}
	cmd := &cobra.Command{
		Use:     "diff ALGORITHM ALGORITHM",
		Short:   "Compare two choreographies: steps, messages, bytes, estimated and simulated time",
		Example: "  kolo plan diff ring nhr -p 16 -b 1M",
	}
	planned(cmd, f, 2, 2, func(args []string) error {
		s, err := f.scene()
		if err != nil {
			return usage(err, "diff")
		}
		var both [2]measures
		for i, name := range args {
			if both[i], err = s.measure(name); err != nil {
				return err
			}
		}
		if f.json {
			return writeJSON(a.out, both)
		}
		w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
		fmt.Fprintf(w, "%v\ton %s\n\t%s\t%s\t\n", s.call, s.where(), args[0], args[1])
		x, y := both[0].rows(), both[1].rows()
		for i := range x {
			mark := ""
			if x[i][1] != y[i][1] {
				mark = "*"
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", x[i][0], x[i][1], y[i][1], mark)
		}
		return w.Flush()
	})
	f.registerWhatIf(cmd.Flags())
	return cmd
}

// measures are the figures of a choreography that diff compares.
type measures struct {
	Algorithm  string        `json:"algorithm"`
	Steps      int           `json:"steps"`
	MostSteps  int           `json:"most_steps_of_a_rank"`
	Messages   int           `json:"messages"`
	Credits    int           `json:"credits"`
	Wasted     int           `json:"wasted_blocks"`
	Scratch    int64         `json:"most_scratch_bytes"`
	SameBits   bool          `json:"same_bits"`
	OnePass    bool          `json:"one_pass"`
	Bytes      [3]int64      `json:"bytes_by_level"`
	EstimateNS time.Duration `json:"estimate_ns"`
	TimeNS     time.Duration `json:"time_ns"`
	Legs       int           `json:"critical_legs"`
}

// measure proves and simulates an algorithm.
func (s *scene) measure(algorithm string) (measures, error) {
	m := measures{Algorithm: algorithm}
	programs, key, err := s.programs(algorithm)
	if err != nil {
		return m, err
	}
	report, err := plan.Verify(key, programs)
	if err != nil {
		return m, err
	}
	line, err := s.simulate(programs, 0)
	if err != nil {
		return m, err
	}
	choice, err := plan.Choose(s.call, s.topo, plan.Policy{Algorithm: algorithm})
	if err != nil {
		return m, err
	}
	m.Steps, m.Messages, m.Credits, m.Wasted, m.SameBits, m.OnePass = report.Steps, report.Messages, report.Credits, report.Wasted, report.SameBits, report.OnePass
	for _, p := range programs {
		l := plan.LayoutOf(p, s.call, plan.Displs{})
		m.MostSteps, m.Scratch = max(m.MostSteps, len(p.Steps)), max(m.Scratch, l.ScratchSize(p))
	}
	for l, x := range line.Levels {
		m.Bytes[l] = x.Bytes
	}
	m.EstimateNS, m.TimeNS, m.Legs = choice.Cost, line.Total, len(line.Critical)
	return m, nil
}

// rows are the measures with their names.
func (m measures) rows() [][2]string {
	n := func(x any) string { return fmt.Sprint(x) }
	return [][2]string{
		{"steps", n(m.Steps)}, {"steps of the busiest rank", n(m.MostSteps)}, {"messages", n(m.Messages)}, {"credits", n(m.Credits)},
		{"wasted blocks", n(m.Wasted)}, {"scratch bytes", n(m.Scratch)}, {"same bits on all ranks", yes(m.SameBits)}, {"folded in one pass", yes(m.OnePass)},
		{"bytes in servers", n(m.Bytes[0])}, {"bytes between servers", n(m.Bytes[1])}, {"bytes between racks", n(m.Bytes[2])},
		{"estimated", n(m.EstimateNS)}, {"simulated", n(m.TimeNS)}, {"legs of the critical path", n(m.Legs)},
	}
}
