package plan

import "github.com/kolo-ccl/kolo"

// The mesh, two-shot: every pair of ranks exchanges parts directly. In one round
// each rank gets its part from all others and folds all of them in one pass, in
// rank order; in a second one it gives the result to all. A link carries 1/P of the
// vector per phase, so it is fastest where every pair has a link of its own.
// HCCL's documents on Mesh.
var mesh = flat(Algorithm{
	Name:   "mesh",
	Source: "HCCL, mesh (two-shot)",
}, phases{
	kolo.AllReduce:     {meshAllReduce, inTurn(meshReduceScatterCost, meshAllGatherCost)},
	kolo.ReduceScatter: {meshReduceScatter, meshReduceScatterCost},
	kolo.AllGather:     {meshAllGather, meshAllGatherCost},
	kolo.Broadcast:     {meshBroadcast, inTurn(meshAllGatherCost, meshAllGatherCost)},
	kolo.Reduce:        {meshReduce, inTurn(meshReduceScatterCost, meshAllGatherCost)},
	kolo.Scatter:       {starScatter, meshAllGatherCost},
	kolo.Gather:        {starGather, meshAllGatherCost},
	kolo.Barrier:       {meshAllReduce, inTurn(meshReduceScatterCost, meshAllGatherCost)},
})

func meshReduceScatter(s *scope) {
	for d := 1; d < s.n; d++ {
		s.send(s.me+d, s.me+d)
	}
	s.fold(s.others(), total, s.me)
}

func meshAllGather(s *scope) {
	s.multicast(s.others(), s.me)
	for d := 1; d < s.n; d++ {
		s.recv(s.me-d, s.me-d)
	}
}

func meshAllReduce(s *scope) {
	meshReduceScatter(s)
	meshAllGather(s)
}

// meshBroadcast scatters the parts and gathers them at all but the root, which has
// them.
func meshBroadcast(s *scope) {
	if s.me == s.root {
		for d := 1; d < s.n; d++ {
			s.send(s.me+d, s.me+d)
		}
		s.multicast(s.others(), s.me)
		return
	}
	s.recv(s.root, s.me)
	s.multicast(s.othersBut(s.root), s.me)
	for d := 1; d < s.n; d++ {
		s.recv(s.me-d, s.me-d)
	}
}

// meshReduce folds each part at its owner and gathers the parts at the root.
func meshReduce(s *scope) {
	meshReduceScatter(s)
	starGather(s)
}

func meshReduceScatterCost(p int, n float64) Level {
	return Level{Rounds: 1, Bytes: remote(p, n), Reduced: remote(p, n)}
}

func meshAllGatherCost(p int, n float64) Level {
	return Level{Rounds: 1, Bytes: remote(p, n)}
}
