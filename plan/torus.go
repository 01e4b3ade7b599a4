package plan

import (
	"errors"

	"github.com/kolo-ccl/kolo"
)

// The bucket algorithm on a torus: ranks are a grid of A x B, and rings run along one
// axis and then the other, so that 2(A-1 + B-1) rounds of neighbours do what takes a ring
// 2(P-1). Each half of every part begins on another axis, on a lane of its own, so that both
// axes' links are busy all the time.
// The grid is the squarest one that the number of ranks allows, in the order of ranks: rank
// r is at (r / B, r mod B). The cost is that of a single port, which does both halves.
// Jain and Sabharwal, "Optimal bucket algorithms for large MPI collectives on torus
// interconnects", 2010.
var torus = flat(Algorithm{
	Name:   "torus",
	Source: "Jain and Sabharwal 2010",
	parts:  func(c kolo.Collective, p int) int { return 2 * onePerRank(c, p) },
	shared: never,
	serves: func(c kolo.Collective, t *Topology) error {
		if a, _ := squarest(t.Ranks()); a == 1 {
			return errors.New("the number of ranks is a prime, so that they are no grid")
		}
		return torusPhases.serves(c, t)
	},
}, torusPhases)

var torusPhases = phases{
	kolo.AllReduce:     {onTorus(true, true), inTurn(torusReduceScatterCost, torusAllGatherCost)},
	kolo.ReduceScatter: {onTorus(true, false), torusReduceScatterCost},
	kolo.AllGather:     {onTorus(false, true), torusAllGatherCost},
	kolo.Barrier:       {onTorus(true, true), inTurn(torusReduceScatterCost, torusAllGatherCost)},
}

// squarest is n as the product of two numbers that differ least, the smaller one first.
func squarest(n int) (a, b int) {
	a = 1
	for x := 2; x*x <= n; x++ {
		if n%x == 0 {
			a = x
		}
	}
	return a, n / a
}

// onTorus is a reduce-scatter, an all-gather or both, each half of the parts with the
// axes in another order.
func onTorus(scatter, gather bool) func(*scope) {
	return func(s *scope) {
		_, b := squarest(s.n)
		at := make([][]int, s.n)
		for j := range at {
			at[j] = []int{j / b, j % b}
		}
		for k, half := range s.lanes(2) {
			axes := half.stages(at, []int{k, 1 - k})
			if scatter {
				ringReduceScatter(axes[0], +1)
				ringReduceScatter(axes[1], +1)
			}
			if gather {
				ringAllGather(axes[1], +1)
				ringAllGather(axes[0], +1)
			}
		}
	}
}

func torusAllGatherCost(p int, n float64) Level {
	a, b := squarest(p)
	return Level{Rounds: float64(a + b - 2), Bytes: remote(p, n)}
}

func torusReduceScatterCost(p int, n float64) Level {
	l := torusAllGatherCost(p, n)
	l.Reduced = l.Bytes
	return l
}
