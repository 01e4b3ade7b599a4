package plan

import "github.com/kolo-ccl/kolo"

// Multi-ring: up to four rings at a time, each with its share of every part and a lane
// of its own. A ring goes from i to i+s for a stride s that has no divisor in common
// with P, so that it visits every position; no two of the rings use the same link in the
// same direction. Where a rank has several ports, or ranks are wired each to each, the
// rings share the work.
// As for the bidirectional ring the cost is that of a single port.
// HCCL's documents on the double ring; NCCL's channels.
var multiRing = flat(Algorithm{
	Name:   "multi-ring",
	Source: "rings of coprime strides, after Patarasuk and Yuan 2009",
	parts:  func(c kolo.Collective, p int) int { return len(strides(p)) * onePerRank(c, p) },
}, phases{
	kolo.AllReduce:     {around(ringAllReduce), ringAllReduceCost},
	kolo.ReduceScatter: {around(ringReduceScatter), ringReduceScatterCost},
	kolo.AllGather:     {around(ringAllGather), ringAllGatherCost},
	kolo.Barrier:       {around(ringAllReduce), ringAllReduceCost},
})

// maxRings is the most rings at a time.
const maxRings = 4

// strides are the strides of the rings among n positions: 1, -1, then the next that has
// no divisor in common with n, and its opposite.
func strides(n int) []int {
	out := []int{1}
	for s := 1; s <= n/2 && len(out) < maxRings; s++ {
		if gcd(s, n) > 1 {
			continue
		}
		if s > 1 {
			out = append(out, s)
		}
		if n-s > s && len(out) < maxRings {
			out = append(out, n-s)
		}
	}
	return out
}

func gcd(a, b int) int {
	for b > 0 {
		a, b = b, a%b
	}
	return a
}

// around does the k-th share of each part on the k-th ring.
func around(write func(s *scope, dir int)) func(*scope) {
	return func(s *scope) {
		list := strides(s.n)
		for k, share := range s.lanes(len(list)) {
			write(share.stride(list[k]), +1)
		}
	}
}

// stride is the same scope with its positions in the order 0, d, 2d and so on. Its parts
// are those of its positions. d must have no divisor in common with n.
func (s *scope) stride(d int) *scope {
	t := *s
	t.ranks, t.parts = make([]kolo.Rank, s.n), make([][]int, s.n)
	for i := range s.n {
		at := s.mod(i * d)
		t.ranks[i], t.parts[i] = s.rank(at), s.parts[at]
		if at == s.me {
			t.me = i
		}
		if at == s.root {
			t.root = i
		}
	}
	return &t
}
