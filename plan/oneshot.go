package plan

import "github.com/kolo-ccl/kolo"

// The mesh, one-shot: every rank sends all it has to all others, and each folds
// everything by itself, in one pass and in rank order. One round, P-1 times the
// bytes: for vectors so small that only rounds count.
// HCCL's documents on Mesh.
var meshOneShot = flat(Algorithm{
	Name:   "mesh-oneshot",
	Source: "HCCL, mesh (one-shot)",
	parts:  oneBlock,
}, phases{
	kolo.AllReduce: {oneShotAllReduce, oneShotCost},
	kolo.AllGather: {meshAllGather, meshAllGatherCost},
	kolo.AllToAll:  {oneShotAllToAll, meshAllGatherCost},
	kolo.Barrier:   {oneShotAllReduce, oneShotCost},
})

func oneShotAllReduce(s *scope) { s.exchange(s.others(), 0) }

// oneShotAllToAll starts all P-1 exchanges at a time, in no order.
func oneShotAllToAll(s *scope) {
	a := newAllToAll(s)
	for d := 1; d < s.n; d++ {
		a.send(d)
	}
	for d := 1; d < s.n; d++ {
		a.recv(d)
	}
	a.end()
}

func oneShotCost(p int, n float64) Level {
	return Level{Rounds: 1, Bytes: float64(p-1) * n, Reduced: float64(p-1) * n}
}
