package plan

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/kolo-ccl/kolo"
)

// Timeline is what Simulate has found out about a call.
type Timeline struct {
	Total    time.Duration   // when the last rank has ended
	Finish   []time.Duration // by rank
	Levels   [3]Traffic      // by level of the topology; see Topology.Level
	Critical []Leg           // what took the Total: each leg begins where the one before it ends

	// Links are the links of a Network that something has passed, the busiest first.
	Links []LinkUse
	// Legs is everything that took time, in the order in which it was certain to
	// happen, as far as SimulateOn was asked to keep it.
	Legs []Leg
}

// Traffic is what crosses a level.
type Traffic struct {
	Messages int
	Bytes    int64
}

// LinkUse is what has passed a link, and how long the link was held.
type LinkUse struct {
	Name string // "npu3>leaf0"
	Traffic
	Busy time.Duration
}

// Leg is something that took time: a step of a rank that sends to Peer, or that folds
// or copies, where Peer is NoRank.
type Leg struct {
	Rank       kolo.Rank
	Step       int
	Peer       kolo.Rank
	Start, End time.Duration
	// Link is the link that the message passed, in a Network; "" where none did: ports,
	// folds, and what a message costs the processors of its ends.
	Link string
}

// Bound is the leg that bounds the time: the longest of the critical path, of equal
// ones the first.
func (t Timeline) Bound() Leg {
	var long Leg
	for _, l := range t.Critical {
		if l.End-l.Start > long.End-long.Start {
			long = l
		}
	}
	return long
}

// Simulate runs programs, one per rank of t, in virtual time for call c. It knows no
// chance: the same input gives the same Timeline. Ranks are taken to be devices of
// their own. Each has one port to send and one to receive, and a unit that folds and
// copies one thing after the other at t.Reduce.
//
// A message can go once both its steps have begun. It holds the sender's and the
// receiver's port for size/bandwidth, and arrives a latency later; the latencies of
// several messages overlap. The figures are those of Topology.Edge. A rank's messages
// go in the order in which they could go first, those of one time in the order of the
// Program. What lies between the ports is never in the way; SimulateOn knows links.
//
// A fabric step costs what Choose takes it to cost.
// AllToAllV, where no rank knows all counts, is simulated as AllToAllVC.
//
// The Programs must be of the kind that Verify admits. Simulate itself finds wrong
// headers, steps and partners, but not whether the blocks are the right ones.
func Simulate(programs []*Program, t *Topology, c *kolo.Call) (Timeline, error) {
	all, c, err := choreographyFor(programs, t.Ranks(), c)
	if err != nil {
		return Timeline{}, err
	}
	if all.fabric() {
		return all.simulateFabric(t, c)
	}
	return all.simulate(&simulation{t: t, c: all}, c)
}

// SimulateOn is Simulate on the links of a network, of which Topology gives the rest.
// A message takes the links that the network's routing says, in the order in which
// messages come to each; a rank can send and receive on all its links at once. keep is
// the number of legs to keep in Timeline.Legs. A fabric step is ErrUnsupported: no
// network does collectives.
func SimulateOn(programs []*Program, n *Network, c *kolo.Call, keep int) (Timeline, error) {
	t, err := n.Topology()
	if err != nil {
		return Timeline{}, err
	}
	w, err := n.wire()
	if err != nil {
		return Timeline{}, err
	}
	all, c, err := choreographyFor(programs, t.Ranks(), c)
	if err != nil {
		return Timeline{}, err
	}
	if all.fabric() {
		return Timeline{}, fmt.Errorf("%w: a fabric step on a network of links", kolo.ErrUnsupported)
	}
	return all.simulate(&simulation{t: t, c: all, net: w, end: n.Endpoint, keep: keep}, c)
}

// choreographyFor looks at programs as those of call c, which it returns without what
// a simulation has no use for.
func choreographyFor(programs []*Program, ranks int, c *kolo.Call) (*choreography, *kolo.Call, error) {
	if len(programs) != ranks || len(programs) == 0 {
		return nil, nil, fmt.Errorf("%w: %d programs for %d ranks", kolo.ErrArgument, len(programs), ranks)
	}
	if c.Collective == kolo.AllToAllV {
		return nil, nil, fmt.Errorf("%w: AllToAllV in a simulation: give the whole matrix, as AllToAllVC", kolo.ErrUnsupported)
	}
	if c.Collective == kolo.Barrier {
		c = &kolo.Call{Collective: kolo.Barrier}
	}
	if programs[0] == nil {
		return nil, nil, fmt.Errorf("%w: rank 0 has no program", kolo.ErrArgument)
	}
	key := KeyOf(c, programs[0].Algorithm)
	key.InPlace = programs[0].InPlace
	all, err := assemble(key, programs)
	return all, c, err
}

// simulate runs the choreography.
func (c *choreography) simulate(s *simulation, call *kolo.Call) (Timeline, error) {
	for r, p := range c.programs {
		for i := range p.Steps {
			if why, peer := c.stepShape(r, i); why != "" {
				return Timeline{}, c.fault(CheckShape, r, i, peer, "%s", why)
			}
		}
	}
	if err := c.connect(); err != nil {
		return Timeline{}, err
	}
	if err := s.init(call); err != nil {
		return Timeline{}, err
	}
	if err := s.run(); err != nil {
		return Timeline{}, err
	}
	for step, n := range s.left {
		if n >= 0 {
			return Timeline{}, fmt.Errorf("simulation stands still at %v; Verify says why", c.stepName(int32(step)))
		}
	}
	return s.timeline(), nil
}

func (c *choreography) simulateFabric(t *Topology, call *kolo.Call) (Timeline, error) {
	if err := c.checkFabric(); err != nil {
		return Timeline{}, err
	}
	size, err := VectorSize(call, t.Ranks())
	if err != nil {
		return Timeline{}, err
	}
	var row Row
	t.estimate(&row, fabric, call.Collective.Base(), float64(size))
	return Timeline{
		Total:    row.Cost,
		Finish:   slices.Repeat([]time.Duration{row.Cost}, t.Ranks()),
		Critical: []Leg{{Peer: kolo.NoRank, End: row.Cost}},
	}, nil
}

// picos is virtual time in picoseconds. Whole numbers add up to the same on every
// machine; a nanosecond would be too coarse for the blocks of small messages.
type picos int64

// longest is the end of virtual time, 26 days.
const longest picos = 1 << 61

func (x picos) duration() time.Duration { return time.Duration((x + 500) / 1000) }

// picosAt is the time that size bytes take at a rate in bytes per second.
func picosAt(size int64, rate float64) picos {
	if size == 0 || rate == 0 {
		return 0
	}
	return picos(min(math.Round(float64(size)*(1e12/rate)), float64(longest)))
}

// timeline is the result of a run.
func (s *simulation) timeline() Timeline {
	var out Timeline
	last := 0
	for r, d := range s.ranks {
		out.Finish = append(out.Finish, d.finish.duration())
		if d.finish > s.ranks[last].finish {
			last = r
		}
	}
	c := s.c
	for m, size := range s.size {
		l := &out.Levels[s.t.Level(kolo.Rank(c.owner[c.sender[m]]), kolo.Rank(c.owner[c.receiver[m]]))]
		l.Messages++
		l.Bytes += size
	}
	out.Total = s.ranks[last].finish.duration()
	until := s.ranks[last].finish
	for a := s.ranks[last].finishCause; a != nothing; a = s.log[a].cause {
		if s.log[a].start >= until {
			continue // it took no time, or none that counts
		}
		leg := s.leg(a)
		leg.End = until.duration()
		out.Critical = append(out.Critical, leg)
		until = s.log[a].start
	}
	slices.Reverse(out.Critical)
	for a := range s.log[:min(s.keep, len(s.log))] {
		if s.log[a].stop > s.log[a].start {
			out.Legs = append(out.Legs, s.leg(activity(a)))
		}
	}
	if s.net != nil {
		out.Links = s.linkUse()
	}
	return out
}

// leg is an activity in the words of a Timeline.
func (s *simulation) leg(a activity) Leg {
	x, c := s.log[a], s.c
	leg := Leg{Peer: kolo.NoRank, Start: x.start.duration(), End: x.stop.duration()}
	step := x.step
	if x.message != noMessage {
		step = c.sender[x.message]
		leg.Peer = kolo.Rank(c.owner[c.receiver[x.message]])
	}
	if x.link >= 0 {
		leg.Link = s.net.linkName(x.link)
	}
	r, i := c.local(step)
	leg.Rank, leg.Step = kolo.Rank(r), i
	return leg
}

// linkUse is what has passed the links.
func (s *simulation) linkUse() (out []LinkUse) {
	for k := range s.wires {
		if w := &s.wires[k]; w.use.Messages > 0 {
			out = append(out, LinkUse{s.net.linkName(int32(k)), w.use, w.busy.duration()})
		}
	}
	slices.SortStableFunc(out, func(a, b LinkUse) int { return int(b.Busy - a.Busy) })
	return out
}
