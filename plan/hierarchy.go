package plan

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/kolo-ccl/kolo"
)

// Two levels: G servers of M ranks each. A phase runs either among the ranks of a
// server (intra) or among the ranks of equal position on all servers (inter), M such
// groups at a time, each on 1/M of the vector: so what crosses between servers is
// n/M per rank in each direction.
//
//	AllReduce      intra reduce-scatter, inter all-reduce, intra all-gather
//	ReduceScatter  intra, inter
//	AllGather      inter, intra
//	Broadcast      scatter in the root's server, inter broadcast, intra all-gather
//	Reduce         intra reduce-scatter, inter reduce, gather in the root's server
//
// HCCL's documents on hierarchical algorithms. There ReduceScatter begins between the
// servers and AllGather ends there, so that every message is contiguous; each rank
// then moves (G-1)/G of the whole vector between servers. In the order used here it
// is (G-1)/G of n/M, M times less over the slower links; that the parts of a server
// are then every M-th block is no matter to a message that is a list of spans.
func hierarchical(intra, inter []*Algorithm) []*Algorithm {
	var out []*Algorithm
	for _, a := range intra {
		for _, x := range inter {
			out = append(out, twoLevel(a, x))
		}
	}
	return out
}

// hop is a phase of a two-level algorithm.
type hop struct {
	at      site
	through kolo.Collective
}

// site says where a hop takes place.
type site uint8

const (
	inServers     site = iota // in each server
	acrossServers             // among equal positions of all servers
	inRootServer              // in the root's server only
)

// itinerary is the order of hops.
var itinerary = map[kolo.Collective][]hop{
	kolo.AllReduce:     {{inServers, kolo.ReduceScatter}, {acrossServers, kolo.AllReduce}, {inServers, kolo.AllGather}},
	kolo.Barrier:       {{inServers, kolo.ReduceScatter}, {acrossServers, kolo.AllReduce}, {inServers, kolo.AllGather}},
	kolo.ReduceScatter: {{inServers, kolo.ReduceScatter}, {acrossServers, kolo.ReduceScatter}},
	kolo.AllGather:     {{acrossServers, kolo.AllGather}, {inServers, kolo.AllGather}},
	kolo.Broadcast:     {{inRootServer, kolo.Scatter}, {acrossServers, kolo.Broadcast}, {inServers, kolo.AllGather}},
	kolo.Reduce:        {{inServers, kolo.ReduceScatter}, {acrossServers, kolo.Reduce}, {inRootServer, kolo.Gather}},
}

// twoLevel is intra inside servers and inter between them.
func twoLevel(intra, inter *Algorithm) *Algorithm {
	of := func(h hop) phase {
		if h.at == acrossServers {
			return inter.phases[h.through]
		}
		return intra.phases[h.through]
	}
	return &Algorithm{
		Name:   "hier:" + intra.Name + "+" + inter.Name,
		Source: "two levels; in servers " + intra.Source + "; between them " + inter.Source,
		parts:  onePerRank,
		shared: never,
		serves: func(c kolo.Collective, t *Topology) error {
			hops := itinerary[c.Base()]
			if hops == nil {
				return errors.New("it does AllReduce, AllGather, ReduceScatter, Broadcast, Reduce and Barrier where both levels can")
			}
			for _, h := range hops {
				if of(h).write == nil {
					return fmt.Errorf("%s has no %v to do between servers", inter.Name, h.through)
				}
			}
			return equalServers(t)
		},
		write: func(b *builder, t *Topology) {
			in, across, atRoot := b.levels(t)
			for _, h := range itinerary[b.p.Collective] {
				switch {
				case h.at == acrossServers:
					of(h).write(across)
				case h.at == inServers || atRoot:
					of(h).write(in)
				}
			}
		},
		terms: func(c kolo.Collective, t *Topology, n float64) (out Terms) {
			servers := distinct(t.Server)
			each := t.Ranks() / servers
			for _, h := range itinerary[c] {
				if h.at == acrossServers {
					out[t.top()] = out[t.top()].plus(of(h).cost(servers, n/float64(each)))
				} else {
					out[0] = out[0].plus(of(h).cost(each, n))
				}
			}
			return out
		},
	}
}

// equalServers says why t is not several servers of equal size, or nil.
func equalServers(t *Topology) error {
	switch {
	case distinct(t.Server) < 2:
		return errors.New("there is only one server")
	case !t.EqualServers():
		return fmt.Errorf("it needs servers of equal size, not of %s ranks", sizeList(tally(t.Server)))
	}
	return nil
}

// levels are the two scopes of this rank, and whether its server is the root's. With
// the i-th rank of server g at (g,i), part i of the inner scope is what all (g,i)
// own, and part g of the outer one is what (g,i) owns: chunk (g,i) where there are
// chunks, else the g-th part of the i-th part of the vector. Positions of both are in
// the order of ranks, so that pairs of sums are added the same way around by all.
func (b *builder) levels(t *Topology) (in, across *scope, atRoot bool) {
	groups := t.Groups()
	servers, each := len(groups), len(groups[0])
	whole := b.whole()
	me, root := t.Server[whole.me], t.Server[whole.root]
	in = &scope{b: b, n: each, ranks: groups[me], parts: make([][]int, each)}
	in.me = slices.Index(groups[me], b.p.Rank)
	in.root = slices.Index(groups[root], whole.rank(whole.root))
	blocks := make([]int, 0, len(b.loc))
	for i := range each {
		first := len(blocks)
		for g := range servers {
			owner := i*servers + g
			if b.p.Chunks > 1 {
				owner = int(groups[g][i])
			}
			blocks = append(blocks, owner)
		}
		in.parts[i] = blocks[first:len(blocks):len(blocks)]
	}
	across = &scope{b: b, n: servers, ranks: make([]kolo.Rank, servers), parts: make([][]int, servers), final: true}
	order := make([]int, servers)
	for g := range order {
		order[g] = g
	}
	slices.SortFunc(order, func(g, h int) int { return cmp.Compare(groups[g][in.me], groups[h][in.me]) })
	for v, g := range order {
		across.ranks[v] = groups[g][in.me]
		across.parts[v] = in.parts[in.me][g : g+1]
		if g == me {
			across.me = v
		}
		if g == root {
			across.root = v
		}
	}
	return in, across, me == root
}
