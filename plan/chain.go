package plan

import "github.com/kolo-ccl/kolo"

// The chain: each position passes what comes from the one before it on to the next, from
// the root to the last, or folds its own part in on the way to the root. A long vector is
// cut into pieces that follow each other, so that every link is busy: P-1 rounds for the
// first piece and one more for each of the others. The vector crosses each link once, which
// no other broadcast does with one peer on each side; it takes a long vector, about
// P alpha/beta, to pay for the rounds.
// HCCL's and Open MPI's documents on the pipelined chain.
var chain = flat(Algorithm{
	Name:   "chain",
	Source: "pipelined chain",
	parts:  oneBlock,
	cuts:   chainCuts,
	shared: never,
}, phases{
	kolo.Broadcast: {onChain((*branch).down), chainPassCost},
	kolo.Reduce: {onChain((*branch).up), func(p int, n float64) Level {
		l := chainPassCost(p, n)
		l.Reduced = l.Bytes
		return l
	}},
})

// chainCuts is the number of pieces for a vector of size bytes: few values, since each
// is a Program of its own.
func chainCuts(size int64) int {
	switch {
	case size < 64<<10:
		return 1
	case size < 1<<20:
		return 8
	case size < 16<<20:
		return 32
	}
	return maxCuts
}

// onChain moves every piece along the chain.
func onChain(move func(*branch, int)) func(*scope) {
	return func(s *scope) {
		t := branch{scope: s.fromRoot(), pieces: pieces(s.all(), s.b.cuts)}
		t.parent = t.me - 1
		if t.me+1 < t.n {
			t.children = []int{t.me + 1}
		}
		for piece := range s.b.cuts {
			move(&t, piece)
		}
	}
}

func chainPassCost(p int, n float64) Level {
	c := float64(chainCuts(int64(n)))
	rounds := float64(p-1) + c - 1
	return Level{Rounds: rounds, Bytes: rounds * n / c}
}
