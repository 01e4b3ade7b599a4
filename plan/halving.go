package plan

import "github.com/kolo-ccl/kolo"

// Halving-doubling (HCCL's H-D_R): reduce-scatter by halving the vector with partners
// at P/2, P/4 and so on, then all-gather by doubling backwards. 2 lg P rounds and
// 2(P-1)/P of the vector where P is a power of two. Otherwise the ranks beyond the
// power fold into a neighbour first (see scope.survivors), which moves the vector two
// more times: NHR is better there.
// Rabenseifner, "Optimization of collective reduction operations", 2004.
var halvingDoubling = flat(Algorithm{
	Name:   "halving-doubling",
	Source: "Rabenseifner 2004",
	parts:  powerOfTwo,
	shared: never,
}, phases{
	kolo.AllReduce:     {halvingAllReduce, halvingAllReduceCost},
	kolo.ReduceScatter: {halvingReduceScatter, halvingReduceScatterCost},
	kolo.AllGather:     {doublingAllGather, doublingAllGatherCost},
	kolo.Barrier:       {halvingAllReduce, halvingAllReduceCost},
})

// powerOfTwo cuts the vector into a part for each rank that is left after folding.
func powerOfTwo(c kolo.Collective, p int) int {
	if n := onePerRank(c, p); n == p {
		return 1 << floorLog(p)
	}
	return 1
}

func halvingAllReduce(s *scope) {
	s.allReduceFolded(func(rest *scope) {
		halving(rest) // in equal parts, whoever folded
		doubling(rest)
	})
}

func halvingReduceScatter(s *scope) {
	rest, partner := s.survivors()
	if rest == nil {
		s.sendAll(partner)
		s.recv(partner, s.me)
		return
	}
	if partner >= 0 {
		s.recvReduceAll(partner, partial)
	}
	rest.parts = s.owned(rest)
	halving(rest)
	if partner >= 0 {
		s.send(partner, partner)
	}
}

func halvingAllReduceCost(p int, n float64) Level {
	p2, fold := 1<<floorLog(p), foldCost(p, n)
	return Level{Rounds: float64(2 * floorLog(p)), Bytes: 2 * remote(p2, n), Reduced: remote(p2, n)}.
		plus(fold).plus(Level{Rounds: fold.Rounds, Bytes: fold.Bytes})
}

// halvingReduceScatterCost: of the windows of k parts the largest holds min(k, extra)
// blocks more than k.
func halvingReduceScatterCost(p int, n float64) Level {
	p2 := 1 << floorLog(p)
	blocks := 0
	for k := p2 / 2; k > 0; k /= 2 {
		blocks += k + min(k, p-p2)
	}
	block := n / float64(p)
	l := Level{Rounds: float64(floorLog(p)), Bytes: float64(blocks) * block, Reduced: float64(blocks) * block}
	if p != p2 {
		l = l.plus(foldCost(p, n)).plus(Level{Rounds: 1, Bytes: block})
	}
	return l
}
