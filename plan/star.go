package plan

import (
	"slices"

	"github.com/kolo-ccl/kolo"
)

// The star: the root deals with all others in one step. One round (two for
// AllReduce, whose root is rank 0), but the root's link carries everything.
// HCCL's documents on Star.
var star = flat(Algorithm{
	Name:   "star",
	Source: "HCCL, star",
	parts:  oneBlock,
	shared: never,
}, starPhases())

// starPhases: a star is a tree of depth one.
func starPhases() phases {
	list := treePhases(starBranches, treeCost{
		allReduce: inTurn(starReduceCost, starBroadcastCost),
		broadcast: starBroadcastCost,
		reduce:    starReduceCost,
	})
	list[kolo.Gather] = phase{starGather, meshAllGatherCost}
	list[kolo.Scatter] = phase{starScatter, meshAllGatherCost}
	return list
}

func starBranches(s *scope) []branch {
	t := branch{scope: s, parent: s.root, pieces: pieces(s.all(), 1)}
	if s.me == s.root {
		t.parent, t.children = -1, slices.Clone(s.others())
	}
	return []branch{t}
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
