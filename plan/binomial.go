package plan

import "math/bits"

// The binomial tree: in each round every position that has the vector gives it to one
// that has not, so that ceil(lg P) rounds reach all. Position v > 0, counted from the root,
// has the parent v without its lowest one bit. The least rounds that one port per rank
// allows: for short vectors.
// Thakur, Rabenseifner and Gropp 2005.
var binomial = func() *Algorithm {
	list := treePhases(func(s *scope) []branch { return []branch{binomialBranch(s)} }, treeCost{
		allReduce: inTurn(binomialReduceCost, binomialBroadcastCost),
		broadcast: binomialBroadcastCost,
		reduce:    binomialReduceCost,
	})
	return flat(Algorithm{
		Name:   "binomial",
		Source: "Thakur, Rabenseifner and Gropp 2005",
		parts:  oneBlock,
		shared: never,
	}, list)
}()

// binomialBranch has its farthest children first: they have the longest way before them.
func binomialBranch(s *scope) branch {
	t := branch{scope: s.fromRoot(), parent: -1, pieces: pieces(s.all(), 1)}
	low := 1 << ceilLog(t.n)
	if t.me > 0 {
		low = 1 << bits.TrailingZeros(uint(t.me))
		t.parent = t.me - low
	}
	for d := low / 2; d > 0; d /= 2 {
		if t.me+d < t.n {
			t.children = append(t.children, t.me+d)
		}
	}
	return t
}

func binomialBroadcastCost(p int, n float64) Level {
	return Level{Rounds: float64(ceilLog(p)), Bytes: float64(ceilLog(p)) * n}
}

// binomialReduceCost: on the longest way each position folds those of all its children in
// one pass, one child more at each level.
func binomialReduceCost(p int, n float64) Level {
	l := binomialBroadcastCost(p, n)
	l.Reduced = l.Bytes * (l.Rounds + 1) / 2
	return l
}
