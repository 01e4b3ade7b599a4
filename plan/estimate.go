package plan

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/kolo-ccl/kolo"
)

// estimate fills in what algorithm a costs for n bytes of base collective c.
//
// Between machines the cost is the sum over the levels of
//
//	rounds*(1 + (fan-1)/16)*alpha + bytes*beta + reduced*gamma
//
// with alpha and 1/beta the level's edge and 1/gamma the topology's Reduce. The fan
// is the number of messages that the busiest rank takes in one round: links carry
// those of a mesh side by side, and HCCL counts one alpha for all of them, but each
// takes its time in the rank and its network card. Without that a mesh of a thousand
// ranks would cost two alphas.
//
// Where more ranks of a server than it has processors (Topology.Cores) talk through sockets, every
// message takes its turn: see crowd.
//
// Ranks of one process (Topology.Medium) share its processors and its memory. With
// s = max(1, ranks/cores), a Program costs them
//
//	s*(start + rounds*fan*alpha) + max(s*(bytes*beta + reduced*gamma), traffic/memory)
//
// where traffic is what all ranks together read and write: 2 bytes for each that is
// moved and 1 more for each that is folded. The bytes include what a rank copies from
// its input to its own output, which between machines is next to nothing. The medium itself (fabric) costs
//
//	call + ranks*rank + traffic/memory
//
// Products are rounded before they are added, so that machines with and without a
// fused multiply-add come to the same bits, and the sum is a whole number of ns.
func (t *Topology) estimate(r *Row, a *Algorithm, c kolo.Collective, n float64) {
	ranks := float64(t.Ranks())
	if a == fabric {
		p, traffic := t.process(), fabricTraffic(c, ranks, n)
		r.Rounds, r.Bytes, r.Reduced = 1, traffic, 0
		call := float64(p.Call) + float64(ranks*float64(p.Rank))
		r.compose(costParts{rounds: call, memory: nanosAt(traffic, p.Memory)})
		return
	}
	if a.terms == nil || t.Ranks() == 1 {
		if t.Ranks() == 1 {
			r.Cost = 0
		}
		return
	}
	var x costParts
	fans, gap, crowded := fans(a.Name, t), 1.0/messagesPerLatency, t.crowded()
	if t.Medium {
		gap = 1
	}
	for l, v := range a.terms(c, t, n) {
		r.Rounds, r.Bytes, r.Reduced = r.Rounds+v.Rounds, r.Bytes+v.Bytes, r.Reduced+v.Reduced
		e := t.levelEdge(l)
		if v.Rounds > 0 && crowded {
			r.fan = max(r.fan, fans[l])
			t.crowd(&x, crowdedLevel{name: a.Name, collective: c, terms: v, fan: fans[l], vector: n, level: l})
			continue
		}
		more := float64((fans[l] - 1) * gap)
		x.rounds += float64(float64(v.Rounds*float64(e.Latency)) * (1 + more))
		if v.Rounds > 0 {
			r.fan = max(r.fan, fans[l])
		}
		x.bytes += nanosAt(v.Bytes, e.Bandwidth)
		x.reduced += nanosAt(v.Reduced, t.FoldRate())
	}
	if t.Medium {
		p := t.process()
		own := ownCopy(c, ranks, n)
		r.Bytes += own
		x.bytes += nanosAt(own, t.levelEdge(0).Bandwidth)
		share := max(1, ranks/float64(p.Cores))
		x.rounds = float64(share * (float64(p.Start) + x.rounds))
		x.bytes, x.reduced = float64(x.bytes*share), float64(x.reduced*share)
		traffic := float64(ranks * (float64(2*r.Bytes) + r.Reduced))
		if floor := nanosAt(traffic, p.Memory); floor > x.bytes+x.reduced {
			x.bytes, x.reduced, x.memory = 0, 0, floor
		}
	}
	r.compose(x)
}

// messagesPerLatency is how many messages a rank takes from the net in the time that
// one is under way.
const messagesPerLatency = 16

// fans are the messages per round of an algorithm at each level.
func fans(name string, t *Topology) [3]float64 {
	fan := func(name string, ranks int) float64 {
		switch name {
		case "mesh", "mesh-oneshot", "star":
			return float64(max(ranks-1, 1))
		}
		return 1
	}
	tiers, ok := strings.CutPrefix(name, hierPrefix)
	if !ok {
		f := fan(name, t.Ranks())
		return [3]float64{f, f, f}
	}
	out := [3]float64{1, 1, 1}
	for l, name := range strings.SplitN(tiers, "+", 3) {
		switch l {
		case 0:
			out[0] = fan(name, slices.Max(tally(t.Server)))
		case 1:
			f := fan(name, distinct(t.Server))
			out[1], out[2] = f, f
		case 2:
			out[2] = fan(name, distinct(t.Rack))
		}
	}
	return out
}

// fabricTraffic is the bytes that the medium reads and writes for n bytes of the
// whole vector: each input once and each output once.
func fabricTraffic(c kolo.Collective, ranks, n float64) float64 {
	switch c {
	case kolo.AllReduce, kolo.AllToAll:
		return 2 * ranks * n
	case kolo.Gather, kolo.Scatter:
		return 2 * n
	case kolo.Barrier:
		return 0
	}
	return (ranks + 1) * n
}

// ownCopy is the bytes that go from a rank's input to its own output.
func ownCopy(c kolo.Collective, ranks, n float64) float64 {
	switch c {
	case kolo.AllGather, kolo.Gather, kolo.Scatter, kolo.AllToAll:
		return n / ranks
	}
	return 0
}

// nanosAt is the nanoseconds that n bytes take at a rate in bytes per second.
func nanosAt(n, rate float64) float64 {
	if n == 0 {
		return 0
	}
	return float64(n / rate * 1e9)
}

// costParts are what a cost is made of, in nanoseconds.
type costParts struct{ rounds, bytes, reduced, memory float64 }

// compose sets the cost and its greatest part.
func (r *Row) compose(x costParts) {
	r.Cost = nanoseconds(x.rounds + x.bytes + x.reduced + x.memory)
	r.most = mostRounds
	most := x.rounds
	for _, k := range []struct {
		part costPart
		ns   float64
	}{{mostBytes, x.bytes}, {mostReduced, x.reduced}, {mostMemory, x.memory}} {
		if k.ns > most {
			most, r.most = k.ns, k.part
		}
	}
	r.mostCost = nanoseconds(most)
}

func nanoseconds(x float64) time.Duration {
	if !(x < math.MaxInt64/2) { // too long, or no number
		return NoCost
	}
	return time.Duration(math.Round(x))
}

// costPart names the greatest part of a cost.
type costPart uint8

const (
	mostRounds costPart = iota
	mostBytes
	mostReduced
	mostMemory
)

// loss says why r lost against win.
func (r *Row) loss(win *Row) string {
	switch {
	case r.Cost == NoCost:
		return "no cost is known"
	case r.Cost == win.Cost:
		return "the same cost, but later in the table"
	}
	s := ""
	if win.Cost > 0 {
		s = fmt.Sprintf("%.3gx the cost; ", float64(r.Cost)/float64(win.Cost))
	}
	took := duration(r.mostCost)
	switch r.most {
	case mostBytes:
		return s + fmt.Sprintf("%s for moving %s", took, amount(r.Bytes))
	case mostReduced:
		return s + fmt.Sprintf("%s for folding %s", took, amount(r.Reduced))
	case mostMemory:
		return s + fmt.Sprintf("%s for the memory that the ranks share", took)
	}
	s += fmt.Sprintf("%s for %s", took, plural(int(math.Round(r.Rounds)), "round"))
	if r.fan > 1 {
		s += fmt.Sprintf(" of %.0f messages", r.fan)
	}
	return s
}
