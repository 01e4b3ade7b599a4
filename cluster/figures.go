package cluster

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/plan"
)

// What is measured in passing, on hosts that have other things to do, is not exact. So a
// default that lies within offBy of it is kept, and what replaces one is rounded coarsely
// (plan.CoarseEdge): the same machines then seldom choose differently on another day. Within a
// host, where a process that sleeps takes three times as long to answer as one that looks, and the
// defaults are figures of such ways, the band is nearBy. What is slower than expected by slowBy,
// or within a host by nearSlowBy, as far as one that works on other things goes, is worth a warning.
const (
	offBy      = 2
	nearBy     = 3
	slowBy     = 4
	nearSlowBy = 16
)

// crowdedDelay is what a message may take where there is more to run than processors.
const crowdedDelay = 2 * time.Millisecond

// figures are what the links of a world have been found to be, and what was made of it.
// They come of the same reports on all processes, and are the same.
type figures struct {
	topology *plan.Topology // nil: the defaults hold
	classes  []*linkClass
	fold     float64 // bytes per second, of the slowest host; 0: not measured
	note     string  // why the defaults hold
}

// linkClass is the ways of one kind at one level of the topology.
type linkClass struct {
	level    int
	link     kolo.Link
	near     bool                 // between processes of one host
	where    string               // between whom
	found    []report             // of what was measured
	missed   []report             // of what was not
	best     map[string]kolo.Edge // of a host's ways
	expected kolo.Edge            // by default
	edge     kolo.Edge            // of the host that has the slowest, by its best way
	typical  kolo.Edge            // the middle of all, if that is better than what is expected
	taken    kolo.Edge            // what choices are made by
}

// newFigures makes of the reports of all processes, by number, a table in place of base.
func newFigures(r *roster, base *plan.Topology, list []appointment, told [][]byte) *figures {
	f := &figures{}
	of := r.processes()
	place := func(k kolo.Rank) string { return r.Members[of[k]].place() }
	for _, x := range f.gathered(list, told, of) {
		if x.A == x.B && x.Fold > 0 && (f.fold == 0 || float64(x.Fold) < f.fold) {
			f.fold = float64(x.Fold)
		}
		c := f.class(base, x, place(x.A) == place(x.B))
		if x.Latency == 0 {
			c.missed = append(c.missed, x)
			continue
		}
		c.found = append(c.found, x)
		for _, h := range []string{place(x.A), place(x.B)} {
			e, ok := c.best[h]
			if !ok {
				e.Latency = time.Duration(x.Latency)
			}
			c.best[h] = kolo.Edge{Link: x.Link, Latency: min(e.Latency, time.Duration(x.Latency)), Bandwidth: max(e.Bandwidth, float64(x.Bandwidth))}
		}
	}
	slices.SortFunc(f.classes, func(a, b *linkClass) int { return cmp.Or(a.level-b.level, int(a.link)-int(b.link)) })
	for _, c := range f.classes {
		c.judge()
	}
	f.make(base)
	return f
}

// gathered are the reports of what was to be measured, each by the process that leads.
func (f *figures) gathered(list []appointment, told [][]byte, of []int) (out []report) {
	by := make([]map[appointment]report, len(told))
	for q, b := range told {
		by[q] = map[appointment]report{}
		for _, x := range reports(b) {
			if x.Latency < 0 || x.Bandwidth < 0 || x.Fold < 0 || x.Link > kolo.LinkTCP {
				continue
			}
			by[q][appointment{x.A, x.B}] = x
		}
	}
	for _, a := range list {
		if x, ok := by[of[a.a]][a]; ok {
			out = append(out, x)
		}
	}
	return out
}

// class is the class of a report.
func (f *figures) class(base *plan.Topology, x report, near bool) *linkClass {
	level, where := base.Level(x.A, x.B), "of one host"
	switch {
	case x.A == x.B:
		level, where = 0, "of one process"
	case !near:
		where = "of different hosts"
	}
	for _, c := range f.classes {
		if c.level == level && c.link == x.Link {
			return c
		}
	}
	c := &linkClass{level: level, link: x.Link, near: near && x.A != x.B, where: where, best: map[string]kolo.Edge{}, expected: base.Default(level)}
	if c.near { // the topology knows of one kind alone
		switch x.Link {
		case kolo.LinkSHM:
			c.expected = byMemory
		case kolo.LinkTCP:
			c.expected = bySocket
		}
	}
	c.expected.Link = x.Link
	f.classes = append(f.classes, c)
	return c
}

// judge compares what was measured with what was expected. A host counts as fast as its
// best way, since what disturbs makes one only slower; and the class as its slowest host,
// whose pace all have to keep.
func (c *linkClass) judge() {
	c.taken, c.typical = c.expected, c.expected
	if len(c.found) == 0 {
		return
	}
	for _, e := range c.best {
		if c.edge.Latency = max(c.edge.Latency, e.Latency); e.Bandwidth > 0 && (c.edge.Bandwidth == 0 || e.Bandwidth < c.edge.Bandwidth) {
			c.edge.Bandwidth = e.Bandwidth
		}
	}
	c.edge.Link = c.link
	c.edge = plan.CoarseEdge(c.edge)
	if off(float64(c.edge.Latency), float64(c.expected.Latency), c.band()) {
		c.taken.Latency = c.edge.Latency
	}
	if c.edge.Bandwidth > 0 && off(c.edge.Bandwidth, c.expected.Bandwidth, c.band()) {
		c.taken.Bandwidth = c.edge.Bandwidth
	}
	var latency []time.Duration
	var bandwidth []float64
	for _, x := range c.found {
		latency, bandwidth = append(latency, time.Duration(x.Latency)), append(bandwidth, float64(x.Bandwidth))
	}
	slices.Sort(latency)
	slices.Sort(bandwidth)
	middle := plan.CoarseEdge(kolo.Edge{Latency: latency[(len(latency)-1)/2], Bandwidth: bandwidth[len(bandwidth)/2]})
	c.typical.Latency, c.typical.Bandwidth = min(c.typical.Latency, middle.Latency), max(c.typical.Bandwidth, middle.Bandwidth)
}

// band is how many times the default a figure may be without replacing it.
func (c *linkClass) band() float64 {
	if c.near {
		return nearBy
	}
	return offBy
}

// off says whether a figure is too far from what is expected.
func off(x, expected, by float64) bool { return x > by*expected || x*by < expected }

// make makes the table. Where the ways of a level are of several kinds, the slowest kind
// counts: a call that does not look at them goes by it.
func (f *figures) make(base *plan.Topology) {
	t := *base
	measured := false
	for _, c := range f.classes { // ascending
		if len(c.found) == 0 {
			continue
		}
		measured = true
		t.Levels[c.level], t.Sources[c.level] = c.taken, "measured"
		if c.taken == c.expected {
			t.Sources[c.level] = fmt.Sprintf("default, measured within %gx of it", c.band())
		}
	}
	if f.fold > 0 && off(f.fold, base.FoldRate(), offBy) {
		t.Reduce = plan.Coarse(f.fold)
	}
	if !measured {
		f.note = "nothing was measured in time"
		return
	}
	if err := t.Validate(); err != nil {
		f.note = err.Error()
		return
	}
	f.topology = &t
}

// digest is of the table, 0 if there is none.
func (f *figures) digest() uint64 {
	if f.topology == nil {
		return 0
	}
	return f.topology.Digest()
}

// settle drops the table unless all processes have come to the same.
func (f *figures) settle(digests [][]byte) {
	mine := binary.LittleEndian.AppendUint64(nil, f.digest())
	for _, d := range digests {
		if !bytes.Equal(d, digests[0]) || !bytes.Equal(d, mine) {
			f.topology, f.note = nil, "the processes have not come to one table of what was measured: this is a fault of Kolo, or of a processor"
			return
		}
	}
}

// explain is what was measured, in lines.
func (f *figures) explain() string {
	var b strings.Builder
	for _, c := range f.classes {
		n := len(c.found) + len(c.missed)
		fmt.Fprintf(&b, "measured at the join: %v between ranks %s, %d of %d ways", c.link, c.where, len(c.found), n)
		if len(c.found) == 0 {
			fmt.Fprintf(&b, ": %s; choices go by the default, %s\n", c.missed[0].Failed, edgeText(c.expected))
			continue
		}
		fmt.Fprintf(&b, ": %s; ", edgeText(c.edge))
		if f.topology == nil || c.taken == c.expected {
			fmt.Fprintf(&b, "choices go by the default, %s\n", edgeText(c.expected))
		} else {
			fmt.Fprintf(&b, "choices go by %s in place of %s\n", edgeText(c.taken), edgeText(c.expected))
		}
	}
	if f.note != "" {
		fmt.Fprintf(&b, "the default figures hold: %s\n", f.note)
	}
	return b.String()
}

// edgeText is the figures of an edge.
func edgeText(e kolo.Edge) string {
	if e.Bandwidth == 0 {
		return e.Latency.String()
	}
	return fmt.Sprintf("%v and %s", e.Latency, kolo.RateString(e.Bandwidth))
}

// warnings are of ways that are much slower than expected, those of a kind together. Within
// a host that is so where all of them are: one alone is more likely to have been disturbed. Where a
// host is crowded nothing within it is slow, and only what no scheduler takes is a long delay.
func (f *figures) warnings(r *roster) (list []Warning) {
	of, crowded := r.processes(), make([]bool, len(r.Members))
	for q := range crowded {
		crowded[q] = r.crowd(q) != ""
	}
	for _, c := range f.classes {
		if c.link == kolo.LinkHCCS {
			continue // a busy processor, which is nobody's link
		}
		late, slow := &bad{link: c.link}, &bad{link: c.link}
		worst := kolo.Edge{Bandwidth: c.typical.Bandwidth}
		for _, x := range c.found {
			e := kolo.Edge{Latency: time.Duration(x.Latency), Bandwidth: float64(x.Bandwidth)}
			by := slowBy
			if c.near {
				e, by = c.best[r.Members[of[x.A]].place()], nearSlowBy
			}
			busy := crowded[of[x.A]] || crowded[of[x.B]]
			if e.Latency > time.Duration(by)*c.typical.Latency && !(busy && e.Latency < crowdedDelay) {
				late.add(x)
				worst.Latency = max(worst.Latency, e.Latency)
			}
			if e.Bandwidth > 0 && e.Bandwidth*float64(by) < c.typical.Bandwidth && !(busy && c.near) {
				slow.add(x)
				worst.Bandwidth = min(worst.Bandwidth, e.Bandwidth)
			}
		}
		worst = plan.CoarseEdge(worst)
		if slow.count > 0 {
			list = append(list, Warning{slow.between(), fmt.Sprintf("slow%s: %s, expected %s: check %s", f.fault(r, c, slow),
				kolo.RateString(worst.Bandwidth), kolo.RateString(c.typical.Bandwidth), c.advice())})
		}
		if late.count > 0 {
			list = append(list, Warning{late.between(), fmt.Sprintf("a long delay%s: %v, expected %v: check %s", f.fault(r, c, late),
				worst.Latency, c.typical.Latency, c.advice())})
		}
	}
	return list
}

// bad is ways of a kind that are worse than expected.
type bad struct {
	link    kolo.Link
	pairs   []string // the first maxNotes
	count   int
	reports []report
}

// between names the pairs, not too many.
func (g *bad) between() string {
	text := fmt.Sprintf("%v between rank %s", g.link, strings.Join(g.pairs, ", "))
	if more := g.count - len(g.pairs); more > 0 {
		text += fmt.Sprintf(" and %d more pairs", more)
	}
	return text
}

// add counts a way.
func (g *bad) add(x report) {
	g.reports = append(g.reports, x)
	if g.count++; g.count <= maxNotes {
		g.pairs = append(g.pairs, fmt.Sprintf("%d with %d", int(x.A), int(x.B)))
	}
}

// fault names the host that all bad ways of a class have in common, where it has more than
// one and no good one, and others have good ones.
func (f *figures) fault(r *roster, c *linkClass, bad *bad) string {
	if len(bad.reports) < 2 || len(bad.reports) == len(c.found) {
		return ""
	}
	of := r.processes()
	ends := func(x report) [2]string { return [2]string{r.Members[of[x.A]].place(), r.Members[of[x.B]].place()} }
	for i, place := range ends(bad.reports[0]) {
		has := func(x report) bool { e := ends(x); return e[0] == place || e[1] == place }
		all := !slices.ContainsFunc(bad.reports, func(x report) bool { return !has(x) })
		for _, x := range c.found {
			if has(x) && !slices.ContainsFunc(bad.reports, func(y report) bool { return y.A == x.A && y.B == x.B }) {
				all = false
			}
		}
		if all {
			x := bad.reports[0]
			return fmt.Sprintf(", all of host %s", cmp.Or(r.Members[of[[2]kolo.Rank{x.A, x.B}[i]]].Host.Name, "without a name"))
		}
	}
	return ""
}

// advice is what to look at where ways of the class are slow.
func (c *linkClass) advice() string {
	switch {
	case c.link == kolo.LinkSHM:
		return "what else runs on the host, the processors that a container may use, and whether the processes are on distant memory (numactl)"
	case c.link == kolo.LinkTCP && c.near:
		return "what else runs on the host, and the processors that a container may use"
	case c.link == kolo.LinkTCP:
		return "the speed of both ports and of the switch (ethtool), limits of the rate (tc qdisc), the MTU, which interface is used, and other traffic; kolo topo probe measures every pair"
	}
	return "the speed and state of both ports (rdma link), flow control of the switch, and the adapter's PCIe lanes; kolo topo probe measures every pair"
}
