package plan

import (
	"slices"

	"github.com/kolo-ccl/kolo"
)

// Swing: recursive halving and doubling whose partners swing to and fro, at the distances
// 1, -1, 3, -5, 11 .. for an even position and the opposite ones for an odd one: about a
// third of a power of two, so that on a ring or torus messages have shorter ways than with
// partners at powers of two. 2 ceil(lg P) rounds and 2(P-1)/P of the vector.
//
// Where P is even the partners of a round are pairs. All-gather goes through the rounds
// from the longest distance to the shortest, and a rank gives its partner those parts that
// the partner has not; reduce-scatter is that backwards, so that each partial sum goes
// where its part came from. The sets that the paper gives for the rounds are the same
// where P is a power of two; where it is not they count contributions twice, the
// rule here does not. What even position r has is the mirror of what odd position 1-r has,
// so that one set of offsets tells all.
//
// Where P is odd, the last rank stands aside and trades a part with each of the others
// directly, with about (P-1)/L of them in each of the L rounds.
//
// De Sensi, Bonato, Saam and Hoefler, "Swing: short-cutting rings for higher bandwidth
// allreduce", 2024.
var swing = flat(Algorithm{
	Name:   "swing",
	Source: "De Sensi, Bonato, Saam and Hoefler 2024, with the parts of a round by what the partner lacks",
	shared: never,
}, phases{
	kolo.AllReduce:     {swingAllReduce, inTurn(swingReduceScatterCost, swingAllGatherCost)},
	kolo.ReduceScatter: {swingReduceScatter, swingReduceScatterCost},
	kolo.AllGather:     {swingAllGather, swingAllGatherCost},
	kolo.Barrier:       {swingAllReduce, inTurn(swingReduceScatterCost, swingAllGatherCost)},
})

// swingRound is a round of all-gather as an even position sees it: the partner's offset,
// and the offsets of the parts that it gives and takes. An odd position has the opposite
// offsets.
type swingRound struct {
	partner    int
	give, take []int
}

// swingRounds are the rounds among m positions, m even.
func swingRounds(m int) []swingRound {
	out := make([]swingRound, ceilLog(m))
	has := make([]bool, m) // by offset
	has[0] = true
	mod := func(i int) int { return ((i % m) + m) % m }
	for k := range out {
		rho := (1 - pow(-2, len(out)-k)) / 3
		r := swingRound{partner: rho}
		for e, own := range has { // the partner has those at rho minus an offset of ours
			switch theirs := has[mod(rho-e)]; {
			case own && !theirs:
				r.give = append(r.give, e)
			case theirs && !own:
				r.take = append(r.take, e)
			}
		}
		for _, e := range r.take {
			has[e] = true
		}
		out[k] = r
	}
	return out
}

func pow(base, n int) int {
	x := 1
	for range n {
		x *= base
	}
	return x
}

// swung is a round for this position.
type swung struct {
	partner    int
	give, take []int // parts
	trade      []int // positions to trade a part with directly
}

// swings are this position's rounds of all-gather.
func swings(s *scope) []swung {
	m := s.n &^ 1
	rounds := swingRounds(m)
	out := make([]swung, len(rounds))
	for k, r := range rounds {
		for at := range m { // at trades in round at*L/m
			if s.n > m && at*len(rounds)/m == k && (s.me == m || s.me == at) {
				out[k].trade = append(out[k].trade, at+m-s.me)
			}
		}
		if s.me == m {
			continue
		}
		dir := 1 - 2*(s.me%2)
		at := func(offset int) int { return ((s.me+dir*offset)%m + m) % m }
		out[k].partner = at(r.partner)
		for _, e := range r.give {
			out[k].give = append(out[k].give, at(e))
		}
		for _, e := range r.take {
			out[k].take = append(out[k].take, at(e))
		}
		slices.Sort(out[k].give) // both ends name the parts in one order
		slices.Sort(out[k].take)
	}
	return out
}

func swingAllGather(s *scope) {
	for _, r := range swings(s) {
		if len(r.give) > 0 {
			s.send(r.partner, r.give...)
			s.recv(r.partner, r.take...)
		}
		for _, q := range r.trade {
			s.send(q, s.me)
			s.recv(q, q)
		}
	}
}

// swingReduceScatter: the last sum of an even number of positions comes from the partner,
// that of the one aside from the last that it trades with.
func swingReduceScatter(s *scope) {
	rounds := swings(s)
	traded := 0
	for k := len(rounds) - 1; k >= 0; k-- {
		r := rounds[k]
		for _, q := range r.trade {
			traded++
			s.send(q, q)
			s.recvReduce(q, sum(s.n%2 == 1 && s.me == s.n-1 && traded == s.n-1), s.me)
		}
		if len(r.give) > 0 {
			s.send(r.partner, r.take...)
			s.recvReduce(r.partner, sum(k == 0), r.give...)
		}
	}
}

func swingAllReduce(s *scope) {
	swingReduceScatter(s)
	swingAllGather(s)
}

// swingAllGatherCost: where P is odd the rank aside has P-1 messages of its own.
func swingAllGatherCost(p int, n float64) Level {
	rounds := float64(ceilLog(p &^ 1))
	if p%2 == 1 {
		rounds = float64(p - 1)
	}
	return Level{Rounds: rounds, Bytes: remote(p, n)}
}

func swingReduceScatterCost(p int, n float64) Level {
	l := swingAllGatherCost(p, n)
	l.Reduced = l.Bytes
	return l
}
