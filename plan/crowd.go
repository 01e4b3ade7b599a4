package plan

import (
	"slices"
	"strings"

	"github.com/kolo-ccl/kolo"
)

// What a message through the sockets of one host takes of the processors of both ends
// together: a part of its latency for itself, and a multiple of the time on the wire for its
// bytes; and what one within a process takes, as a multiple of the latency there. Fitted to
// AllReduce, AllGather, ReduceScatter, Broadcast and AllToAll of 8 B to 16 MiB by all
// algorithms with 4 and 8 processes of a rank and 2 of two and four, on 2 cores over
// loopback, at 6 us and 5 GB/s (kolo plan tune --all).
const (
	socketWork  = 0.75
	socketBytes = 1.5
	processWork = 2.5
)

// crowded says whether ranks of a host talk through sockets and share processors.
func (t *Topology) crowded() bool {
	most := 0
	if t.Processes {
		most = slices.Max(tally(t.Rack))
	} else {
		most = slices.Max(tally(t.Server))
	}
	if t.Cores == 0 || t.Medium || most <= t.Cores {
		return false
	}
	if t.Processes {
		return distinct(t.Server) > distinct(t.Rack) && t.levelEdge(1).Link == kolo.LinkTCP
	}
	return t.levelEdge(t.top()).Link == kolo.LinkTCP
}

// crowdedLevel is an algorithm at a level of a topology whose ranks share processors.
type crowdedLevel struct {
	name       string
	collective kolo.Collective
	terms      Level
	fan        float64
	vector     float64 // bytes
	level      int
}

// traffic is what the ranks of the busiest host do together, and the messages of one rank
// that nobody can do a part of.
type traffic struct{ messages, alone, bytes, folds float64 }

// crowd adds what a level costs whose ranks share processors. To the time of the rounds one
// after another comes the work of all messages of the busiest host, which its processors
// do between them, or of its busiest rank; and bytes and folds take the longer of what the
// busiest rank does by itself and what all do together.
func (t *Topology) crowd(x *costParts, k crowdedLevel) {
	v, e, in := k.terms, t.levelEdge(k.level), t.levelEdge(0)
	here, far := float64(slices.Max(tally(t.Server))), 1.0 // far: of the messages, those through sockets
	if t.Processes {
		here = float64(slices.Max(tally(t.Rack)))
		switch {
		case k.level == 0:
			far = 0
		case !strings.HasPrefix(k.name, hierPrefix) && k.name != "pipeline" && k.name != "ahc":
			far = crossing(k.name, t.Ranks(), distinct(t.Server))
		}
	}
	if k.name == "pipeline" && k.level == 0 { // its terms are of the rounds that take time: see pipelineTerms
		servers := float64(distinct(t.Server))
		k.fan, k.terms.Rounds = max(float64(t.Ranks())/servers-1, 1), max(v.Rounds, servers)
	}
	load, cores := k.traffic(here, far > 0), float64(t.Cores)
	mix := func(a, b float64) float64 { return float64(far*a) + float64((1-far)*b) }
	latency, work := mix(float64(e.Latency), float64(in.Latency)), mix(float64(e.Latency)*socketWork, float64(in.Latency)*processWork)
	x.rounds += float64(v.Rounds*latency) + max(float64(load.messages*work/cores), float64(load.alone*work*aloneShare))
	one := mix(nanosAt(v.Bytes, e.Bandwidth), nanosAt(v.Bytes, in.Bandwidth))
	if k.name == "star" { // the root has nothing to wait for
		one = 0
	}
	all := mix(nanosAt(load.bytes, e.Bandwidth)*socketBytes, nanosAt(load.bytes, in.Bandwidth))
	x.bytes += max(one, float64(all/cores))
	folded := max(nanosAt(v.Reduced, t.FoldRate()), float64(nanosAt(load.folds, t.FoldRate())/cores))
	if far == 0 { // where several sources are read they are folded in one pass, which writes once
		folded = float64(folded * ((k.fan + 2) / (3 * k.fan)))
	}
	x.reduced += folded
}

// traffic counts what so many ranks do, which talk through sockets or within a process.
func (k *crowdedLevel) traffic(here float64, sockets bool) traffic {
	v, n := k.terms, k.vector
	l := traffic{messages: float64(here * v.Rounds * k.fan), bytes: float64(here * v.Bytes), folds: float64(here * v.Reduced)}
	rooted := k.collective == kolo.Broadcast || k.collective == kolo.Reduce
	ways := 1.0 // in which the data goes: up to a root, or down from it
	if k.collective == kolo.AllReduce || k.collective == kolo.Barrier {
		ways = 2
	}
	switch {
	case k.name == "star": // the root has a part in each
		l = traffic{messages: float64(v.Rounds * k.fan), bytes: v.Bytes, folds: v.Reduced}
		l.alone = l.messages
	case k.name == "tree" || k.name == "binomial" || k.name == "double-tree" || k.name == "chain": // each rank but the root has one above it
		l.messages, l.bytes, l.folds = float64(ways*(here-1)), float64(ways*(here-1)*n), min(l.folds, float64((here-1)*n))
		if k.name == "double-tree" {
			l.messages *= 2
		}
	case rooted && strings.HasPrefix(k.name, hierPrefix): // who sends does not receive
		l = traffic{messages: l.messages / 2, bytes: l.bytes / 2, folds: l.folds / 2}
	case rooted && sockets: // one part to each, and then all to all
		l.messages = float64(l.messages * ((1 + 1/here) / 2))
		l.bytes, l.folds = min(l.bytes, float64((1+1/here)*(here-1)*n)), min(l.folds, float64((here-1)*n))
	}
	return l
}

// aloneShare is the part of a message's work that falls to the busier of its ends.
const aloneShare = 0.5

// crossing is the part of the messages of a flat algorithm that go from one of so many
// processes to another, where ranks of a process are neighbours.
func crossing(name string, ranks, processes int) float64 {
	p, s, rounds := float64(ranks), float64(processes), float64(ceilLog(processes))/float64(ceilLog(ranks))
	switch name {
	case "tree", "binomial", "double-tree", "chain":
		return (s - 1) / (p - 1)
	case "ring", "ring-bidir", "multi-ring", "scatter-ring":
		return s / p
	case "recursive-doubling", "halving-doubling": // the rounds between processes
		return rounds
	case "nhr", "nb", "bruck", "pat", "swing":
		return (1 + rounds) / 2
	}
	return (p - p/s) / (p - 1) // everybody with everybody
}
