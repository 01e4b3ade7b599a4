package plan

import (
	"slices"

	"github.com/kolo-ccl/kolo"
)

// Recursive doubling: with k = 1, 2, 4 and so on position v and v^k exchange all they
// have and fold it. lg P rounds of the whole vector each, for short vectors. Where P
// is no power of two, the ranks beyond it fold into a neighbour first and get the
// result from it at the end (see scope.survivors).
// Thakur, Rabenseifner and Gropp, "Optimization of collective communication
// operations in MPICH", 2005.
var recursiveDoubling = flat(Algorithm{
	Name:   "recursive-doubling",
	Source: "Thakur, Rabenseifner and Gropp 2005",
	parts:  oneBlock,
	shared: never,
}, phases{
	kolo.AllReduce: {doublingAllReduce, doublingAllReduceCost},
	kolo.AllGather: {doublingAllGather, doublingAllGatherCost},
	kolo.Barrier:   {doublingAllReduce, doublingAllReduceCost},
})

func doublingAllReduce(s *scope) {
	s.allReduceFolded(func(rest *scope) {
		for k := 1; k < rest.n; k *= 2 {
			rest.exchange([]int{rest.me ^ k}, floorLog(rest.n/k)-1)
		}
	})
}

// allReduceFolded lets the survivors do an AllReduce with what the others have handed over,
// and gives those the result.
func (s *scope) allReduceFolded(f func(rest *scope)) {
	rest, partner := s.survivors()
	if rest == nil {
		s.sendAll(partner)
		s.recvAll(partner)
		return
	}
	if partner >= 0 {
		s.recvReduceAll(partner, partial)
	}
	f(rest)
	if partner >= 0 {
		s.sendAll(partner)
	}
}

func doublingAllGather(s *scope) {
	rest, partner := s.survivors()
	if rest == nil {
		s.send(partner, s.me)
		s.recv(partner, s.others()...)
		return
	}
	if partner >= 0 {
		s.recv(partner, partner)
	}
	rest.parts = s.owned(rest)
	doubling(rest)
	if partner >= 0 {
		s.send(partner, s.series(partner+1, 1, s.n-1)...)
	}
}

// survivors folds a scope to a power of two: of the first 2*extra positions each odd
// one hands over to the even one before it, its partner. The survivors are a scope of
// their own, with the same blocks: position v is 2v for v < extra, v+extra above. The
// result is nil for an odd position that handed over; partner is -1 where there is none.
func (s *scope) survivors() (rest *scope, partner int) {
	p2 := 1 << floorLog(s.n)
	extra := s.n - p2
	t := *s
	switch {
	case s.me >= 2*extra:
		t.me, partner = s.me-extra, -1
	case s.me%2 == 1:
		return nil, s.me - 1
	default:
		t.me, partner = s.me/2, s.me+1
	}
	t.n, t.extra = p2, extra
	return &t, partner
}

// owned are the blocks of each survivor's parts: its own and its partner's.
func (s *scope) owned(rest *scope) [][]int {
	extra := s.n - rest.n
	out := make([][]int, rest.n)
	for v := range out {
		parts := []int{v + min(v, extra), 2*v + 1}
		if v >= extra {
			parts = parts[:1]
		}
		out[v] = slices.Clone(s.list(parts...))
	}
	return out
}

// doubling is an all-gather among a power of two of positions: before step k each has
// the k parts of its window, and v and v^k exchange windows.
func doubling(s *scope) {
	for k := 1; k < s.n; k *= 2 {
		with := s.me ^ k
		s.sendSeries(with, windowOf(s.me, k))
		s.recvSeries(with, windowOf(with, k))
	}
}

// halving is the reduce-scatter: doubling backwards. v sends the window of v^k and
// folds its own.
func halving(s *scope) {
	for k := s.n / 2; k > 0; k /= 2 {
		with := s.me ^ k
		s.sendSeries(with, windowOf(with, k))
		s.recvReduceSeries(with, sum(k == 1), windowOf(s.me, k))
	}
}

// windowOf are the k parts, k a power of two, among which part v is.
func windowOf(v, k int) series { return series{v &^ (k - 1), 1, k} }

func doublingAllReduceCost(p int, n float64) Level {
	fold := foldCost(p, n)
	k := float64(floorLog(p))
	return Level{Rounds: k, Bytes: k * n, Reduced: k * n}.plus(fold).plus(Level{Rounds: fold.Rounds, Bytes: fold.Bytes})
}

// foldCost is what the ranks beyond a power of two take to hand over n bytes.
func foldCost(p int, n float64) Level {
	if p == 1<<floorLog(p) {
		return Level{}
	}
	return Level{Rounds: 1, Bytes: n, Reduced: n}
}

func doublingAllGatherCost(p int, n float64) Level {
	l := halvingReduceScatterCost(p, n)
	if p != 1<<floorLog(p) {
		l.Bytes -= n / float64(p) // the result that goes back lacks the own part
	}
	return Level{Rounds: l.Rounds, Bytes: l.Bytes}
}
