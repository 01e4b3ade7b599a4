package plan

import (
	"math/bits"

	"github.com/kolo-ccl/kolo"
)

// Terms is what an algorithm costs in the alpha-beta-gamma (Hockney) model: the
// number of message rounds, the bytes that the busiest rank moves one after the other,
// and the bytes that it folds. Level l of a hierarchical algorithm has its own terms.
type Terms [3]Level

// Level is the part of Terms that crosses one level of the topology.
type Level struct{ Rounds, Bytes, Reduced float64 }

// plus is l and then m.
func (l Level) plus(m Level) Level {
	return Level{l.Rounds + m.Rounds, l.Bytes + m.Bytes, l.Reduced + m.Reduced}
}

// cost is what p ranks need for a phase over n bytes of the whole vector.
type cost func(p int, n float64) Level

// inTurn is the cost of phases that follow each other.
func inTurn(list ...cost) cost {
	return func(p int, n float64) (l Level) {
		for _, c := range list {
			l = l.plus(c(p, n))
		}
		return l
	}
}

// ceilLog is the number of doublings from 1 to at least p; floorLog to at most p.
func ceilLog(p int) int  { return bits.Len(uint(p - 1)) }
func floorLog(p int) int { return bits.Len(uint(p)) - 1 }

// remote is the part of n bytes that belongs to the other p-1 of p ranks.
func remote(p int, n float64) float64 { return float64(p-1) / float64(p) * n }

// top is the highest level that the ranks of t reach across.
func (t *Topology) top() int {
	switch {
	case distinct(t.Rack) > 1:
		return 2
	case distinct(t.Server) > 1:
		return 1
	}
	return 0
}

// flatTerms are the terms of an algorithm that does not look at the topology: the
// worst link that it may use sets its pace.
func flatTerms(list phases) func(kolo.Collective, *Topology, float64) Terms {
	return func(c kolo.Collective, t *Topology, n float64) (out Terms) {
		out[t.top()] = list[c].cost(t.Ranks(), n)
		return out
	}
}
