package plan

import "github.com/kolo-ccl/kolo"

// The double binary tree: the positions besides the root form two binary trees, each
// with one half of the vector and a lane of its own, and the root stands above both.
// A rank that has children in one tree is a leaf of the other, so every rank sends
// and receives about one vector each way, and both halves move at full bandwidth.
//
// The tree over 1..m is the in-order one: the lowest set bit b of a label is its
// height. The parent of v is (v^b)|2b, or v^b where that lies beyond m; even labels
// are inner, odd ones leaves. The second tree gives inner labels to other positions:
// m+1-v where m is even, v-1 (cyclic) where m is odd.
//
// Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast,
// reduction and scan", 2009; the parent formula is that of NCCL's trees.
var doubleTree = func() *Algorithm {
	a := flat(Algorithm{
		Name:   "double-tree",
		Source: "Sanders, Speck and Träff 2009",
		parts:  func(kolo.Collective, int) int { return 2 },
		cuts:   treeCuts,
		shared: never,
	}, treePhases(twinBranches, twinCost(treeCuts)))
	a.phases = treePhases(twinBranches, twinCost(uncut))
	return a
}()

// twinBranches is this rank's place in both trees.
func twinBranches(s *scope) []branch {
	half := pieces(s.all(), 2)
	s = s.fromRoot()
	out := make([]branch, 2)
	for h := range out {
		twin := *s
		twin.lane = uint8(h)
		out[h] = branch{scope: &twin, parent: -1, pieces: pieces(half[h], s.b.cuts)}
		for v := 1; v < s.n; v++ {
			switch parent := twinParent(h, v, s.n-1); s.me {
			case v:
				out[h].parent = parent
			case parent:
				out[h].children = append(out[h].children, v)
			}
		}
	}
	return out
}

// twinParent is the parent of position v in tree h over 1..m, 0 for the top.
func twinParent(h, v, m int) int {
	switch {
	case h == 0:
		return inOrderParent(v, m)
	case m%2 == 0: // label m+1-v, and back
		if u := inOrderParent(m+1-v, m); u > 0 {
			return m + 1 - u
		}
		return 0
	}
	label := v - 1 // cyclic in 1..m
	if label == 0 {
		label = m
	}
	if u := inOrderParent(label, m); u > 0 {
		return u%m + 1
	}
	return 0
}

func inOrderParent(v, m int) int {
	b := v & -v
	if u := v ^ b | 2*b; u <= m {
		return u
	}
	return v ^ b
}

// twinCost: as heapCost, with half a piece per tree. The root serves both trees, an
// inner rank its k children in one of them; where pieces follow each other a rank
// does its work in both trees each round: two halves down and two up.
func twinCost(cuts func(int64) int) treeCost {
	measure := func(p int, n float64) (rounds, follow, first, piece float64) {
		c, depth := cuts(int64(n)), float64(ceilLog(p))
		first = 2 + depth - 1
		if p > 3 {
			first = 2 * depth
		}
		return depth, float64(c - 1), first, n / float64(2*c)
	}
	return treeCost{
		allReduce: func(p int, n float64) Level {
			rounds, follow, first, piece := measure(p, n)
			return Level{2*rounds + follow, (2*first + 4*follow) * piece, (first + 2*follow) * piece}
		},
		broadcast: func(p int, n float64) Level {
			rounds, follow, first, piece := measure(p, n)
			return Level{rounds + follow, (first + 2*follow) * piece, 0}
		},
		reduce: func(p int, n float64) Level {
			rounds, follow, first, piece := measure(p, n)
			return Level{rounds + follow, (first + 2*follow) * piece, (first + 2*follow) * piece}
		},
	}
}
