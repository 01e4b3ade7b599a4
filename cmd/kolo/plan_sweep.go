package main

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/pflag"

	"github.com/kolo-ccl/kolo/cmd/kolo/internal/draw"
	"github.com/kolo-ccl/kolo/plan"
)

// sweepFlags are those of kolo plan simulate --sweep.
type sweepFlags struct {
	on          bool
	algorithms  string
	sizes       string
	maxRanks    int
	maxMessages int
}

func (f *sweepFlags) register(s *pflag.FlagSet) {
	s.BoolVar(&f.on, "sweep", false, "simulate over numbers of ranks and sizes, and print where the fastest changes")
	s.StringVar(&f.algorithms, "algorithms", "ring,nhr,double-tree,hier:mesh+nhr", "`algorithms` of the sweep")
	s.StringVar(&f.sizes, "sizes", "64K,25M,1G", "`sizes` of the sweep")
	s.IntVar(&f.maxRanks, "max-ranks", 512, "largest `number` of ranks of the sweep, which doubles them from 8 on")
	s.IntVar(&f.maxMessages, "max-messages", 600_000, "leave out what has more `messages`")
}

// The cluster of a sweep.
const (
	sweepBoard = 8  // NPUs of a server
	sweepRack  = 16 // servers of a rack, at most
	maxSweep   = 1 << 14
)

// point is a time of a sweep.
type point struct {
	Algorithm string        `json:"algorithm"`
	Bytes     int64         `json:"bytes"`
	Ranks     int           `json:"ranks"`
	TimeNS    time.Duration `json:"time_ns"`
	Left      string        `json:"left_out,omitempty"` // why there is no time
}

// sweep simulates every algorithm with every size and number of ranks.
func (a *app) sweep(f *planFlags, m *simulateFlags) error {
	if m.sweep.maxRanks < sweepBoard || m.sweep.maxRanks > maxSweep || m.sweep.maxMessages < 1 || m.trace != "" {
		return usage(fmt.Errorf("--max-ranks %d: want %d to %d; a sweep has no --trace", m.sweep.maxRanks, sweepBoard, maxSweep), "simulate")
	}
	var sizes []byteSize
	for part := range strings.SplitSeq(m.sweep.sizes, ",") {
		var size byteSize
		if err := size.Set(part); err != nil {
			return usage(fmt.Errorf("--sizes %q: %w", part, err), "simulate")
		}
		sizes = append(sizes, size)
	}
	names := strings.Split(m.sweep.algorithms, ",")
	for _, name := range names {
		if _, err := plan.Lookup(name); err != nil {
			return usage(err, "simulate")
		}
	}
	var points []point
	for _, size := range sizes {
		f.size = size
		for n := sweepBoard; n <= m.sweep.maxRanks; n *= 2 {
			s, err := f.cluster(n)
			if err != nil {
				return usage(err, "simulate")
			}
			for _, name := range names {
				p := point{Algorithm: name, Bytes: int64(size), Ranks: n}
				if p.TimeNS, p.Left, err = s.time(name, m.sweep.maxMessages); err != nil {
					return err
				}
				points = append(points, p)
			}
		}
	}
	if m.svg != "" {
		if err := a.writeFile(m.svg, curvesOf(f, points, names, sizes).WriteSVG); err != nil {
			return err
		}
	}
	if f.json {
		return writeJSON(a.out, points)
	}
	for _, size := range sizes {
		if err := a.printSweep(f, points, names, size); err != nil {
			return err
		}
	}
	return nil
}

// cluster is the scene of n ranks on boards of 8.
func (f *planFlags) cluster(n int) (*scene, error) {
	servers := n / sweepBoard
	racks := max(1, servers/sweepRack)
	net, err := plan.NetworkNamed(fmt.Sprintf("hccs:%dx%d", racks, servers/racks))
	if err != nil {
		return nil, err
	}
	s := &scene{net: net}
	if s.topo, err = net.Topology(); err != nil {
		return nil, err
	}
	s.call, err = f.callFor(n)
	return s, err
}

// time simulates an algorithm, or says why not.
func (s *scene) time(algorithm string, most int) (took time.Duration, left string, err error) {
	alg, err := plan.Lookup(algorithm)
	if err != nil {
		return 0, "", err
	}
	if err := alg.Serves(s.call.Collective, s.topo); err != nil {
		return 0, err.Error(), nil
	}
	first, _, err := plan.Compile(plan.KeyOf(s.call, algorithm), s.topo, 0)
	if err != nil {
		return 0, "", err
	}
	messages := 0
	for i := range first.Steps {
		messages += len(first.Steps[i].Peers)
	}
	if messages *= s.topo.Ranks() / 2; messages > most {
		return 0, fmt.Sprintf("about %d messages", messages), nil
	}
	programs, _, err := s.programs(algorithm)
	if err != nil {
		return 0, "", err
	}
	line, err := s.simulate(programs, 0)
	return line.Total, "", err
}

// printSweep prints the table of one size, and where the fastest algorithm changes.
func (a *app) printSweep(f *planFlags, points []point, names []string, size byteSize) error {
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "%s of %v\t", f.collective, size)
	for _, name := range names {
		fmt.Fprintf(w, "%s\t", name)
	}
	fmt.Fprintln(w, "fastest\t")
	var switches []string
	last := ""
	for n := sweepBoard; ; n *= 2 {
		best, row := point{}, 0
		line := fmt.Sprintf("%d ranks\t", n)
		for _, p := range points {
			if p.Bytes != int64(size) || p.Ranks != n {
				continue
			}
			row++
			if p.Left != "" {
				line += "-\t"
				continue
			}
			line += brief3(p.TimeNS) + "\t"
			if best.Algorithm == "" || p.TimeNS < best.TimeNS {
				best = p
			}
		}
		if row == 0 {
			break
		}
		fmt.Fprintf(w, "%s%s\t\n", line, best.Algorithm)
		if best.Algorithm != last {
			last = best.Algorithm
			switches = append(switches, fmt.Sprintf("%s from %d ranks", last, n))
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(a.out, "fastest: %s\n\n", strings.Join(switches, ", "))
	return err
}

// brief3 is a time with three digits.
func brief3(d time.Duration) string {
	for unit := time.Nanosecond; ; unit *= 10 {
		if d < 1000*unit {
			return d.Round(unit).String()
		}
	}
}

func curvesOf(f *planFlags, points []point, names []string, sizes []byteSize) draw.Curves {
	c := draw.Curves{Title: f.collective + ": simulated time over the number of ranks",
		Subtitle: fmt.Sprintf("boards of %d NPUs linked by HCCS (18.3 GB/s each way), a 20 GB/s card for each, %d servers a rack, uplinks for half of the cards; cut-through", sweepBoard, sweepRack)}
	for _, size := range sizes {
		p := draw.Panel{Name: size.String()}
		for _, name := range names {
			l := draw.Line{Name: name}
			for _, x := range points {
				if x.Algorithm == name && x.Bytes == int64(size) && x.Left == "" {
					l.Ranks, l.Times = append(l.Ranks, x.Ranks), append(l.Times, x.TimeNS)
				}
			}
			p.Lines = append(p.Lines, l)
		}
		c.Panels = append(c.Panels, p)
	}
	return c
}
