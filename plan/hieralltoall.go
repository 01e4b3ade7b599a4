package plan

import (
	"errors"
	"slices"

	"github.com/kolo-ccl/kolo"
)

// Hierarchical all-to-all: G servers of M ranks. First the ranks of a server exchange, so
// that rank i holds what all M have for the i-th ranks of all servers; then the i-th ranks
// of the servers exchange M chunks at a time. Between servers a rank sends G-1 messages
// instead of (G-1)M, each M times longer, and moves (M-1)/M of the vector once more inside
// the server: for small chunks. The chunks pass through ranks that know nothing of their
// size, so all must be equal.
// HCCL's documents on all-to-all; Shalyt and others, DeepSpeed-MoE and Tutel's 2DH.
var hierAllToAll = &Algorithm{
	Name:   "hier:alltoall",
	Source: "two levels, in servers first; HCCL, Tutel 2DH",
	parts:  onePerRank,
	shared: never,
	serves: func(c kolo.Collective, t *Topology) error {
		if c != kolo.AllToAll {
			return errors.New("it does AllToAll")
		}
		return equalServers(t)
	},
	write: twoStep,
	terms: func(_ kolo.Collective, t *Topology, n float64) (out Terms) {
		servers := distinct(t.Server)
		out[0] = ringAllGatherCost(t.Ranks()/servers, n)
		out[t.top()] = out[t.top()].plus(ringAllGatherCost(servers, n))
		return out
	},
}

// twoStep is for rank (g, i), the i-th of server g. Scratch has a place for each server h
// and each rank j of its own: what j sends to rank (h, i), which rank (g, i) passes on.
func twoStep(b *builder, t *Topology) {
	groups := t.Groups()
	g := t.Server[b.p.Rank]
	servers, each := len(groups), len(groups[g])
	i := slices.Index(groups[g], b.p.Rank)
	a := newAllToAll(b.whole())
	chunk := func(buf Buffer, r kolo.Rank) place { return place{buf, int32(r)} }
	passing := func(h, j int) place {
		switch {
		case j == i && a.to == Out:
			return chunk(In, groups[h][i])
		case h == g && a.to == Out:
			return chunk(Out, groups[g][j])
		}
		return place{Scratch, int32(h*each + j)}
	}
	var list []place
	if a.to != Out { // what goes to ranks of this position is overwritten before it leaves
		var at []place
		for h := range servers {
			if h != g {
				list, at = append(list, chunk(Out, groups[h][i])), append(at, passing(h, i))
			}
		}
		b.copyPlaces(list, at)
	}
	for d := 1; d < each; d++ {
		to, from := (i+d)%each, (i-d+each)%each
		list = list[:0]
		for h := range servers {
			list = append(list, chunk(a.from, groups[h][to]))
		}
		b.sendFrom(groups[g][to], list)
		list = list[:0]
		for h := range servers {
			list = append(list, passing(h, from))
		}
		b.recvInto(groups[g][from], list)
	}
	for d := 1; d < servers; d++ {
		to, from := (g+d)%servers, (g-d+servers)%servers
		list = list[:0]
		for j := range each {
			list = append(list, passing(to, j))
		}
		b.sendFrom(groups[to][i], list)
		list = list[:0]
		for j := range each {
			list = append(list, chunk(Out, groups[from][j]))
		}
		b.recvInto(groups[from][i], list)
	}
	if a.to == Out {
		return
	}
	var src, dst []place // in place: what came from this server
	for j := range each {
		if j != i {
			src, dst = append(src, passing(g, j)), append(dst, chunk(Out, groups[g][j]))
		}
	}
	if len(src) > 0 {
		b.copyPlaces(src, dst)
	}
}
