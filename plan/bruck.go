package plan

import (
	"errors"
	"math/bits"

	"github.com/kolo-ccl/kolo"
)

// Bruck's algorithms: ceil(lg P) rounds for any P.
//
// All-gather, near step first: with d = 1, 2, 4 and so on position r sends its
// blocks r, r+1, ..., min(d, P-d) of them, to r-d and takes as many from r+d. The
// messages are contiguous, and blocks arrive where they belong.
//
// All-to-all, radix 2: a chunk travels from r to r+j along the binary digits of j,
// together with all others whose offset has the digit. It moves (P/2) lg P chunks per
// rank instead of P-1, in lg P messages instead of P-1: for small chunks.
//
// Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for all-to-all
// communications in multiport message-passing systems", 1997.
var bruck = flat(Algorithm{
	Name:   "bruck",
	Source: "Bruck et al. 1997",
	serves: func(c kolo.Collective, t *Topology) error {
		if c == kolo.AllToAllV || c == kolo.AllToAllVC {
			return errors.New("chunks pass through ranks that know nothing of their size, so all must be equal")
		}
		return bruckPhases.serves(c, t)
	},
}, bruckPhases)

var bruckPhases = phases{
	kolo.AllGather: {bruckAllGather, nhrAllGatherCost},
	kolo.AllToAll:  {bruckAllToAll, bruckAllToAllCost},
}

func bruckAllGather(s *scope) {
	for d := 1; d < s.n; d *= 2 {
		c := min(d, s.n-d)
		s.send(s.me-d, s.series(s.me, 1, c)...)
		s.recv(s.me+d, s.series(s.me+d, 1, c)...)
	}
}

// bruckAllToAll moves the chunk of offset j as often as j has binary ones. It goes
// to and fro between two places, so that it may arrive while its predecessor still
// leaves, and so that it ends at home. In place, home is full of chunks to be sent,
// and the other half of a double scratch stands for it until the end.
func bruckAllToAll(s *scope) {
	a := newAllToAll(s)
	home := func(j int) place { return a.chunk(Out, -j) }
	if a.from == Out {
		s.b.growScratch(2 * s.n)
		home = func(j int) place { return place{Scratch, int32(s.n + j)} }
	}
	at := make([]place, s.n) // by offset: where the chunk is
	for j := range at {
		at[j] = a.chunk(a.from, j)
	}
	var src, dst []place
	for d := 1; d < s.n; d *= 2 {
		src, dst = src[:0], dst[:0]
		for j := range at {
			if j&d == 0 {
				continue
			}
			src = append(src, at[j])
			if at[j] = home(j); bits.OnesCount(uint(j&^(2*d-1)))%2 == 1 {
				at[j] = place{Scratch, int32(j)}
			}
			dst = append(dst, at[j])
		}
		s.b.sendFrom(s.rank(s.me+d), src)
		s.b.recvInto(s.rank(s.me-d), dst)
	}
	if a.from == Out {
		src, dst = src[:0], dst[:0]
		for j := 1; j < s.n; j++ {
			src, dst = append(src, at[j]), append(dst, a.chunk(Out, -j))
		}
		s.b.copyPlaces(src, dst)
	}
}

// bruckAllToAllCost counts, for each digit, the offsets below p that have it.
func bruckAllToAllCost(p int, n float64) Level {
	moved := 0
	for j := range p {
		moved += bits.OnesCount(uint(j))
	}
	return Level{Rounds: float64(ceilLog(p)), Bytes: float64(moved) / float64(p) * n}
}
