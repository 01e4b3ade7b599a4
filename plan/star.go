package plan

import "github.com/kolo-ccl/kolo"

// The star: the root deals with all others in one step. One round (two for
// AllReduce, whose root is rank 0), but the root's link carries everything.
// HCCL's documents on Star.
var star = flat(Algorithm{
	Name:   "star",
	Source: "HCCL, star",
	parts:  oneBlock,
	shared: never,
}, phases{
	kolo.AllReduce: {starAllReduce, inTurn(starReduceCost, starBroadcastCost)},
	kolo.Broadcast: {starBroadcast, starBroadcastCost},
	kolo.Reduce:    {starReduce, starReduceCost},
	kolo.Gather:    {starGather, meshAllGatherCost},
	kolo.Scatter:   {starScatter, meshAllGatherCost},
	kolo.Barrier:   {starAllReduce, inTurn(starReduceCost, starBroadcastCost)},
})

func starReduce(s *scope) {
	if s.me == s.root {
		s.fold(s.others(), total, 0)
	} else {
		s.send(s.root, 0)
	}
}

func starBroadcast(s *scope) {
	if s.me == s.root {
		s.multicast(s.others(), 0)
	} else {
		s.recv(s.root, 0)
	}
}

func starAllReduce(s *scope) {
	starReduce(s)
	starBroadcast(s)
}

// starScatter gives every position its part straight from the root.
func starScatter(s *scope) {
	if s.me != s.root {
		s.recv(s.root, s.me)
		return
	}
	for _, j := range s.others() {
		s.send(j, j)
	}
}

// starGather takes every position's part straight to the root.
func starGather(s *scope) {
	if s.me != s.root {
		s.send(s.root, s.me)
		return
	}
	for _, j := range s.others() {
		s.recv(j, j)
	}
}

func starBroadcastCost(p int, n float64) Level {
	return Level{Rounds: 1, Bytes: float64(p-1) * n}
}

func starReduceCost(p int, n float64) Level {
	return Level{Rounds: 1, Bytes: float64(p-1) * n, Reduced: float64(p-1) * n}
}
