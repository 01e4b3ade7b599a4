package plan

import "github.com/kolo-ccl/kolo"

// NHR, the non-uniform hierarchical ring: a ring whose rounds take strides of 1, 2,
// 4 and so on, so that ceil(lg P) rounds suffice for any P and each rank still moves
// (P-1)/P of the vector.
//
// The partial sum of part x at position r travels along the binary digits of the
// distance r-x, low digit first: in round t a position that has digit t sends to
// r-2^t. A message of that round holds the c parts that lie 2^(t+1) apart:
//
//	reduce-scatter  t = 0..L-1, d = 2^t, c = floor((P-1+d)/(2d))
//	  position r    sends parts (r-d) - 2d*i to r-d, folds parts r - 2d*i from r+d
//	all-gather      the same backwards, t = L-1..0
//	  position r    sends parts r - 2d*i to r+d, takes parts (r-d) - 2d*i from r-d
//
// HCCL's documents on NHR and its index rules; Bruck's all-gather, far step first,
// and PAT with enough buffers send the same messages.
var nhr = flat(Algorithm{
	Name:   "nhr",
	Source: "HCCL, non-uniform hierarchical ring",
}, nhrPhases(+1))

// nhrPhases are the phases for a direction: 1 sends to r-d in reduce-scatter, as NHR
// does, and -1 to r+d, as NB does.
func nhrPhases(dir int) phases {
	turn := func(write func(s *scope, dir int)) func(*scope) {
		return func(s *scope) { write(s, dir) }
	}
	allReduce := phase{turn(nhrAllReduce), inTurn(nhrReduceScatterCost, nhrAllGatherCost)}
	return phases{
		kolo.AllReduce:     allReduce,
		kolo.Barrier:       allReduce,
		kolo.ReduceScatter: {turn(nhrReduceScatter), nhrReduceScatterCost},
		kolo.AllGather:     {turn(nhrAllGather), nhrAllGatherCost},
		kolo.Scatter:       {turn(nhrScatter), nhrAllGatherCost},
		kolo.Gather:        {turn(nhrGather), nhrAllGatherCost},
		kolo.Broadcast: {turn(func(s *scope, dir int) {
			nhrScatter(s, dir)
			nhrAllGather(s, dir)
		}), inTurn(nhrAllGatherCost, nhrAllGatherCost)},
		kolo.Reduce: {turn(func(s *scope, dir int) {
			nhrReduceScatter(s, dir)
			nhrGather(s, dir)
		}), inTurn(nhrReduceScatterCost, nhrAllGatherCost)},
	}
}

func nhrReduceScatter(s *scope, dir int) {
	for d := 1; d < s.n; d *= 2 {
		c := (s.n - 1 + d) / (2 * d)
		s.sendSeries(s.me-dir*d, series{s.me - dir*d, -dir * 2 * d, c})
		s.recvReduceSeries(s.me+dir*d, sum(2*d >= s.n), series{s.me, -dir * 2 * d, c})
	}
}

func nhrAllGather(s *scope, dir int) {
	for d := 1 << ceilLog(s.n) / 2; d > 0; d /= 2 {
		c := (s.n - 1 + d) / (2 * d)
		s.sendSeries(s.me+dir*d, series{s.me, -dir * 2 * d, c})
		s.recvSeries(s.me-dir*d, series{s.me - dir*d, -dir * 2 * d, c})
	}
}

func nhrAllReduce(s *scope, dir int) {
	nhrReduceScatter(s, dir)
	nhrAllGather(s, dir)
}

// nhrScatter takes the way of reduce-scatter with the root as the only source. At
// step d the position at distance e < d behind the root sends to e+d all that goes
// to distances e+d, e+3d, e+5d and so on: the subtree of e+d.
func nhrScatter(s *scope, dir int) {
	e := s.mod(dir * (s.root - s.me))
	for d := 1; d < s.n; d *= 2 {
		switch {
		case e < d && e+d < s.n:
			s.send(s.me-dir*d, nhrSubtree(s, dir, e+d, d)...)
		case d <= e && e < 2*d:
			s.recv(s.me+dir*d, nhrSubtree(s, dir, e, d)...)
		}
	}
}

// nhrGather is nhrScatter backwards.
func nhrGather(s *scope, dir int) {
	e := s.mod(dir * (s.root - s.me))
	for d := 1 << ceilLog(s.n) / 2; d > 0; d /= 2 {
		switch {
		case e < d && e+d < s.n:
			s.recv(s.me-dir*d, nhrSubtree(s, dir, e+d, d)...)
		case d <= e && e < 2*d:
			s.send(s.me+dir*d, nhrSubtree(s, dir, e, d)...)
		}
	}
}

// nhrSubtree are the parts at distances e, e+2d, e+4d and so on behind the root.
func nhrSubtree(s *scope, dir, e, d int) []int {
	return s.series(s.root-dir*e, -dir*2*d, (s.n-e+2*d-1)/(2*d))
}

func nhrReduceScatterCost(p int, n float64) Level {
	return Level{Rounds: float64(ceilLog(p)), Bytes: remote(p, n), Reduced: remote(p, n)}
}

func nhrAllGatherCost(p int, n float64) Level {
	return Level{Rounds: float64(ceilLog(p)), Bytes: remote(p, n)}
}
