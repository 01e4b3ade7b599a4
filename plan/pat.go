package plan

import "github.com/kolo-ccl/kolo"

// PAT(A), parallel aggregated trees: all-gather down P binomial trees at a time, one
// rooted at every position, with at most A parts in a message. lg A + 2^L/A - 1 rounds
// and (P-1)/P of the vector for any P, L = ceil(lg P): as NHR where A is P/2, which is
// the most, and in more rounds of smaller messages where A is less.
//
// Part r-s is at offset s of position r, which gets it from position r - lowbit(s). With
// D = 2^L/A the rounds of all-gather are
//
//	far   d = k*D for k = A/2, A/4 .. 1, offsets d, 3d, 5d ..
//	near  for v = 1..D-1 in depth-first order of the tree, far child first:
//	      d = lowbit(v), offsets v, v+D, v+2D ..
//
// in each of which position r takes the parts at the offsets from r-d and gives the same
// offsets to r+d. Reduce-scatter is that backwards.
//
// Jeaugey, "PAT: a new algorithm for all-gather and reduce-scatter operations at scale",
// 2025, and NCCL's source. There the point of a small A is that buffers are bounded; here a
// message needs none, so A, which is patParts, bounds only what is on its way at a time.
var pat = flat(Algorithm{
	Name:   "pat",
	Source: "Jeaugey 2025, and NCCL, with 4 parts at a time",
}, phases{
	kolo.AllReduce:     {patAllReduce, inTurn(patReduceScatterCost, patAllGatherCost)},
	kolo.ReduceScatter: {patReduceScatter, patReduceScatterCost},
	kolo.AllGather:     {patAllGather, patAllGatherCost},
	kolo.Barrier:       {patAllReduce, inTurn(patReduceScatterCost, patAllGatherCost)},
})

// patParts is A, the most parts of a message.
const patParts = 4

// patRound is the distance that a round's messages go, and their offsets at the receiver.
type patRound struct {
	d       int
	offsets []int
}

// patRounds are the rounds of all-gather among n positions.
func patRounds(n, most int) []patRound {
	all := 1 << ceilLog(n)
	a := max(1, min(most, all/2))
	delta := all / a
	var out []patRound
	add := func(d, first, stride int) {
		r := patRound{d: d}
		for s := first; s < n; s += stride {
			r.offsets = append(r.offsets, s)
		}
		if len(r.offsets) > 0 {
			out = append(out, r)
		}
	}
	for k := a / 2; k > 0; k /= 2 {
		add(k*delta, k*delta, 2*k*delta)
	}
	var below func(v, low int)
	below = func(v, low int) {
		for d := low / 2; d > 0; d /= 2 {
			add(d, v+d, delta)
			below(v+d, d)
		}
	}
	below(0, delta)
	return out
}

// patAllGather takes parts me-s from me-d and gives parts me+d-s to me+d.
func patAllGather(s *scope) {
	for _, r := range patRounds(s.n, patParts) {
		s.send(s.me+r.d, s.at(s.me+r.d, r.offsets)...)
		s.recv(s.me-r.d, s.at(s.me, r.offsets)...)
	}
}

func patReduceScatter(s *scope) {
	rounds := patRounds(s.n, patParts)
	for i := len(rounds) - 1; i >= 0; i-- {
		r := rounds[i]
		s.send(s.me-r.d, s.at(s.me, r.offsets)...)
		s.recvReduce(s.me+r.d, sum(i == 0), s.at(s.me+r.d, r.offsets)...)
	}
}

// at are the parts at offsets behind a position, until the next call.
func (s *scope) at(position int, offsets []int) []int {
	out := s.b.numbers[:0]
	for _, o := range offsets {
		out = append(out, position-o)
	}
	s.b.numbers = out
	return out
}

func patAllReduce(s *scope) {
	patReduceScatter(s)
	patAllGather(s)
}

func patAllGatherCost(p int, n float64) Level {
	return Level{Rounds: float64(len(patRounds(p, patParts))), Bytes: remote(p, n)}
}

func patReduceScatterCost(p int, n float64) Level {
	l := patAllGatherCost(p, n)
	l.Reduced = l.Bytes
	return l
}
