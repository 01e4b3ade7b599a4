package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/cluster"
	"github.com/kolo-ccl/kolo/cluster/probe"
	"github.com/kolo-ccl/kolo/plan/survey"
	"github.com/kolo-ccl/kolo/rank"
)

const topoLong = `Topo says where the ranks of a world are and what lies between them. A topology is
measured here (under kolo run, srun or mpirun between all processes that it starts, and
rank 0 prints), or read from a file: the JSON that export writes, or a rank table of HCCL
1.0, 1.2 or 2.0, which has places and no links.`

// topoFlags are the flags of the commands that may measure.
type topoFlags struct {
	ranks      int
	thorough   bool
	transport  string
	rack       string
	timeout    time.Duration
	join       time.Duration
	out        string
	format     string
	tolerance  survey.Tolerance
	everything bool // for the doctor: probe large frames too, and say who has connected by what
}

// register declares the flags of measuring.
func (f *topoFlags) register(s *pflag.FlagSet) {
	s.SortFlags = false
	s.IntVarP(&f.ranks, "npus", "p", 0, "`ranks` in each process (default 2 in one process, 1 under a launcher)")
	s.BoolVar(&f.thorough, "thorough", false, "all pairs of ranks, with more and larger messages; default: pairs of processes, a few milliseconds each")
	s.StringVar(&f.transport, "transport", "", "`driver` between the ranks: "+strings.Join(transports, ", "))
	s.StringVar(&f.rack, "rack", "", "`name` of this host's rack (default: KOLO_RACK)")
	s.DurationVar(&f.join, "join", cluster.DefaultTimeout, "`time` to wait for the other processes")
	s.DurationVar(&f.timeout, "timeout", probe.DefaultTimeout, "`time` after which the link of a pair is lost")
}

// topoCommand is kolo topo.
func (a *app) topoCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "topo", Short: "Measure, show, compare and check what lies between ranks", Long: topoLong, Args: noSuchCommand,
		Example: `  kolo run -n 4 -- kolo topo export -o expected.json
  kolo run -n 4 -- kolo topo diff expected.json
  kolo topo show expected.json`,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	add := func(use, short string, args cobra.PositionalArgs, do func(ctx context.Context, f *topoFlags, args []string) error) *pflag.FlagSet {
		f := &topoFlags{}
		c := &cobra.Command{Use: use, Short: short, Long: short + ".\n\n" + topoLong, Args: usageArgs(args)}
		c.RunE = func(cmd *cobra.Command, args []string) error { return do(cmd.Context(), f, args) }
		f.register(c.Flags())
		switch c.Name() {
		case "export":
			c.Flags().StringVarP(&f.out, "out", "o", "-", "`file` to write; - is standard output")
			c.Flags().StringVar(&f.format, "format", "json", "json, or the version of a rank table: "+strings.Join(survey.TableVersions, ", "))
		case "diff":
			c.Flags().Float64Var(&f.tolerance.Bandwidth, "slower", 0.25, "part of the expected bandwidth that may be missing")
			c.Flags().Float64Var(&f.tolerance.Latency, "later", 2, "how many times the expected latency may be; below 20 us it is never too long")
		}
		cmd.AddCommand(c)
		return c.Flags()
	}
	add("probe", "Measure every link, and print who is where and the channel map", cobra.NoArgs, a.topoProbe)
	add("show [FILE]", "Print the topology of a file; or what is measured, with the channel map and why each pair has its channel", cobra.MaximumNArgs(1), a.topoShow)
	add("export [FILE]", "Write what is measured, or the topology of a file, as JSON or as a rank table", cobra.MaximumNArgs(1), a.topoExport)
	add("diff EXPECTED [ACTUAL]", "Say in what a topology, measured unless given, is not as expected; ends with 1 if in something", cobra.RangeArgs(1, 2), a.topoDiff)
	add("lint [FILE]", "Say what cannot be right in a topology, measured unless given; ends with 1 if something is", cobra.MaximumNArgs(1), a.topoLint)
	return cmd
}

// usageArgs makes errors of the command line of errors about arguments.
func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return &usageError{err, cmd.CommandPath()}
		}
		return nil
	}
}

// measured is what a probe has given, in the process of rank 0.
type measured struct {
	*probe.Result
	party       *party
	config      partyConfig
	members     []cluster.Member
	frames      string // what was found of large frames, in lines
	connections string // who has connected by what, in lines
}

// measure probes, and in the process of rank 0 gives the result to f.
func (a *app) measure(ctx context.Context, f *topoFlags, then func(m *measured) error) (err error) {
	c := partyConfig{each: f.ranks, transport: f.transport, patience: f.join, rack: cmp.Or(f.rack, a.getenv("KOLO_RACK"))}
	if c.rank, err = rank.ConfigFromEnv(a.getenv); err != nil {
		return &usageError{err, "kolo topo"}
	}
	c.rank.Algorithm = ""
	if c.place, err = a.place(); err == nil {
		if c.each == 0 && c.alone() {
			c.each = 2
		}
		c.each = max(c.each, 1)
		err = c.validate()
	}
	if err == nil && (f.ranks < 0 || f.timeout <= 0 || f.join <= 0) {
		err = fmt.Errorf("%w: -p %d, --timeout %v, --join %v: want positive ones", kolo.ErrArgument, f.ranks, f.timeout, f.join)
	}
	if err != nil {
		return &usageError{err, "kolo topo"}
	}
	p, err := a.open(ctx, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	r, err := p.probe(ctx, probe.Config{Thorough: f.thorough, Timeout: f.timeout})
	if err != nil {
		return brief(err)
	}
	m := &measured{Result: r, party: p, config: c, members: p.members()}
	if f.everything {
		if m.frames, err = p.framesBetween(ctx); err == nil {
			m.connections, err = p.connections(ctx)
		}
		if err != nil {
			return brief(err)
		}
	}
	if !p.leads() {
		return nil
	}
	return then(m)
}

// probe measures between all ranks.
func (p *party) probe(ctx context.Context, c probe.Config) (*probe.Result, error) {
	if p.process != nil {
		return c.OfProcess(p.process).Run(ctx, p.worlds)
	}
	self := cluster.Self()
	for i := range p.worlds {
		c.Places = append(c.Places, survey.Place{Host: hostName(&self), Rack: p.rack, Addresses: self.Addresses, Device: i})
		c.Identities = append(c.Identities, fmt.Sprint(self.PID))
	}
	c.Link = func(kolo.Rank) kolo.Link { return p.link }
	return c.Run(ctx, p.worlds)
}

// topoProbe is kolo topo probe.
func (a *app) topoProbe(ctx context.Context, f *topoFlags, _ []string) error {
	return a.measure(ctx, f, func(m *measured) error {
		var b strings.Builder
		b.WriteString(m.Survey.String())
		b.WriteString(m.channels())
		if m.Topology != nil {
			fmt.Fprintf(&b, "all ranks agree: digest %#016x, %v\n", m.Topology.Digest(), m.Topology)
		}
		_, err := fmt.Fprint(a.out, b.String())
		return err
	})
}

// channels is the channel map of the process of rank 0, and why.
func (m *measured) channels() string {
	var b strings.Builder
	if m.party.process == nil {
		fmt.Fprintf(&b, "channel map: all ranks are in one process, by %v\n", m.party.link)
		return b.String()
	}
	b.WriteString("channel map of rank 0:\n")
	for _, r := range m.party.process.Map() {
		fmt.Fprintf(&b, "  %v\n", r)
	}
	b.WriteString("all pairs:\n")
	for line := range strings.Lines(m.party.process.Explain()) {
		b.WriteString("  " + line)
	}
	fmt.Fprintf(&b, "calls are chosen by: %v\n", m.party.process.Topology())
	return b.String()
}

// maxTopology is the largest file that is read.
const maxTopology = 1 << 30

// readTopology reads a file of either kind.
func readTopology(path string) (*survey.Survey, error) {
	text, err := readFile(path, maxTopology)
	if err != nil {
		return nil, fmt.Errorf("topology: %w", err)
	}
	var s *survey.Survey
	if bytes.Contains(text, []byte(`"kolo_topology"`)) {
		s, err = survey.Parse(text)
	} else {
		var t *cluster.Table
		if t, err = cluster.ParseTable(text); err == nil {
			s = ofTable(t)
			err = s.Validate()
		} else {
			err = fmt.Errorf("neither a topology of kolo nor a rank table: %w", err)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// ofTable is the places of a rank table.
func ofTable(t *cluster.Table) *survey.Survey {
	s := &survey.Survey{}
	for i, r := range t.Ranks {
		p := survey.Place{Process: i, Host: r.Server, Rack: r.Pod, Device: r.Device}
		if r.HostIP != "" {
			p.Addresses = []string{r.HostIP}
		}
		s.Places = append(s.Places, p)
	}
	return s
}

// with gives f the topology of a file, or what is measured where there is none.
func (a *app) with(ctx context.Context, f *topoFlags, files []string, then func(s *survey.Survey) error) error {
	if len(files) == 0 {
		return a.measure(ctx, f, func(m *measured) error { return then(m.Survey) })
	}
	if p, err := a.place(); err == nil && p.process > 0 {
		return nil // of several processes the first reads files
	}
	s, err := readTopology(files[0])
	if err != nil {
		return err
	}
	return then(s)
}

// topoShow is kolo topo show.
func (a *app) topoShow(ctx context.Context, f *topoFlags, args []string) error {
	if len(args) == 0 {
		return a.topoProbe(ctx, f, nil)
	}
	return a.with(ctx, f, args, func(s *survey.Survey) error {
		_, err := fmt.Fprint(a.out, s)
		return err
	})
}

// topoExport is kolo topo export.
func (a *app) topoExport(ctx context.Context, f *topoFlags, args []string) error {
	return a.with(ctx, f, args, func(s *survey.Survey) error {
		text, err := s.JSON()
		if f.format != "json" {
			text, err = s.RankTable(f.format)
		}
		if err != nil {
			return err
		}
		if f.out != "-" {
			return os.WriteFile(f.out, text, 0o644)
		}
		_, err = a.out.Write(text)
		return err
	})
}

// topoDiff is kolo topo diff.
func (a *app) topoDiff(ctx context.Context, f *topoFlags, args []string) error {
	expected, err := readTopology(args[0])
	if err != nil {
		return err
	}
	return a.with(ctx, f, args[1:], func(s *survey.Survey) error {
		return a.tell(s.Diff(expected, f.tolerance), "as expected")
	})
}

// topoLint is kolo topo lint.
func (a *app) topoLint(ctx context.Context, f *topoFlags, args []string) error {
	return a.with(ctx, f, args, func(s *survey.Survey) error { return a.tell(s.Lint(), "nothing to find fault with") })
}

// tell prints findings, of which any is an error.
func (a *app) tell(list []survey.Finding, none string) error {
	for _, f := range list {
		if _, err := fmt.Fprintln(a.out, f); err != nil {
			return err
		}
	}
	if len(list) > 0 {
		return fmt.Errorf("%d findings", len(list))
	}
	_, err := fmt.Fprintln(a.out, none)
	return err
}
