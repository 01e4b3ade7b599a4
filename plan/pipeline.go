package plan

import (
	"errors"

	"github.com/kolo-ccl/kolo"
)

// HCCL's pipeline: rings between servers, a mesh inside. In all-gather rank (g, i) takes
// the block of (h, i) from server g-1 in round after round; each block that it has is given
// to the others of its server while the next one is on its way. Reduce-scatter is that
// backwards: a server folds its contributions for (h, i) at (g, i), adds what comes around
// the ring, and sends it on. So the time is that of the slower of the two levels for each of
// G-1 rounds, and of the inner one once more, where a two-level algorithm adds both.
// HCCL's documents on Pipeline.
var pipeline = &Algorithm{
	Name:   "pipeline",
	Source: "HCCL, pipeline",
	parts:  onePerRank,
	shared: never,
	serves: func(c kolo.Collective, t *Topology) error {
		switch c.Base() {
		case kolo.AllReduce, kolo.AllGather, kolo.ReduceScatter, kolo.Barrier:
			return equalServers(t)
		}
		return errors.New("it does AllReduce, AllGather, ReduceScatter and Barrier")
	},
	write: func(b *builder, t *Topology) {
		l := newRail(b, t)
		if b.p.Collective != kolo.AllGather {
			l.reduceScatter()
		}
		if b.p.Collective != kolo.ReduceScatter {
			l.allGather()
		}
	},
	terms: pipelineTerms,
}

// pipelineTerms charges the slower level for each of the servers' rounds, and the inner
// one once more where it is the faster.
func pipelineTerms(c kolo.Collective, t *Topology, n float64) (out Terms) {
	servers := distinct(t.Server)
	each := t.Ranks() / servers
	rounds, block := float64(servers-1), n/float64(t.Ranks())
	across := Level{Rounds: rounds, Bytes: rounds * block}
	in := Level{Rounds: 1, Bytes: float64(each-1) * block}
	if in.Bytes/t.levelEdge(0).Bandwidth > block/t.levelEdge(t.top()).Bandwidth {
		in = Level{Rounds: rounds + 1, Bytes: in.Bytes * (rounds + 1)}
		across = Level{Rounds: 1, Bytes: block}
	}
	add := func(in, across Level) {
		out[0], out[t.top()] = out[0].plus(in), out[t.top()].plus(across)
	}
	if c != kolo.ReduceScatter {
		add(in, across)
	}
	if c != kolo.AllGather {
		in.Reduced, across.Reduced = in.Bytes, across.Bytes
		add(in, across)
	}
	return out
}

// rail is a rank's two scopes: its server, in which part j of rank j has a block of each
// server, and the ring of the ranks of its position on all servers, in the order of
// servers, which is the same for all positions.
type rail struct {
	b        *builder
	in, ring *scope
}

func newRail(b *builder, t *Topology) *rail {
	in, _, _ := b.levels(t)
	groups := t.Groups()
	ring := &scope{b: b, n: len(groups), me: t.Server[b.p.Rank], final: true}
	for _, ranks := range groups {
		ring.ranks = append(ring.ranks, ranks[in.me])
	}
	return &rail{b: b, in: in, ring: ring}
}

// block is what rank j of the server at a position of the ring owns.
func (l *rail) block(at, j int) []int {
	h := l.ring.mod(at)
	return l.in.parts[j][h : h+1]
}

// reduceScatter: the sum for position d begins at d+1 and goes around to d.
func (l *rail) reduceScatter() {
	v, n := l.ring.me, l.ring.n
	next, before := l.ring.peers(v+1), l.ring.peers(v-1)
	others := append([]int(nil), l.in.others()...)
	for t := range n {
		d := v - 1 - t
		for _, j := range others {
			j = l.in.mod(j)
			l.b.send(0, l.in.peers(j), l.block(d, j))
		}
		if len(others) > 0 {
			l.b.recvReduce(0, l.in.peers(others...), l.block(d, l.in.me), partial)
		}
		if t > 0 {
			l.b.recvReduce(0, before, l.block(d, l.in.me), sum(t == n-1))
		}
		if t < n-1 {
			l.b.send(0, next, l.block(d, l.in.me))
		}
	}
}

// allGather: what came last goes on around the ring and to the others of the server.
func (l *rail) allGather() {
	v, n := l.ring.me, l.ring.n
	next, before := l.ring.peers(v+1), l.ring.peers(v-1)
	others := append([]int(nil), l.in.others()...)
	for t := range n {
		d := v - t
		if t > 0 {
			l.b.recv(0, before, l.block(d, l.in.me))
		}
		if t < n-1 {
			l.b.send(0, next, l.block(d, l.in.me))
		}
		if len(others) > 0 {
			l.b.send(0, l.in.peers(others...), l.block(d, l.in.me))
		}
		for _, j := range others {
			j = l.in.mod(j)
			l.b.recv(0, l.in.peers(j), l.block(d, j))
		}
	}
}
