package plan

import (
	"errors"
	"fmt"
	"slices"

	"github.com/kolo-ccl/kolo"
)

// AHC, asymmetric hierarchical concatenation: AllReduce over servers of unequal sizes
// m_0, m_1 and so on. The vector is C = lcm(m_g) chunks; in server g rank floor(c*m_g/C)
// owns chunk c. A reduce-scatter in each server leaves every chunk with its owner, the
// owners of a chunk, one in each server, do an AllReduce of it, and an all-gather in each
// server ends it. Neighbouring chunks with the same owners everywhere are done together.
// Within a server and between servers it is a ring for up to three and NHR for more.
// HCCL's documents on AHC.
var ahc = &Algorithm{
	Name:   "ahc",
	Source: "HCCL, asymmetric hierarchical concatenation",
	parts:  oneBlock,
	blocks: func(_ kolo.Collective, t *Topology) int {
		chunks, _ := ahcChunks(t)
		return chunks * distinct(t.Server)
	},
	shared: never,
	serves: func(c kolo.Collective, t *Topology) error {
		if c != kolo.AllReduce && c != kolo.Barrier {
			return errors.New("it does AllReduce and Barrier")
		}
		if distinct(t.Server) < 2 {
			return errors.New("there is only one server")
		}
		_, err := ahcChunks(t)
		return err
	},
	write: func(b *builder, t *Topology) {
		in, across := ahcScopes(b, t)
		ahcReduceScatter(in)
		for _, s := range across {
			ahcReduceScatter(s)
			ahcAllGather(s)
		}
		ahcAllGather(in)
	},
	terms: func(_ kolo.Collective, t *Topology, n float64) (out Terms) {
		sizes := tally(t.Server)
		most, least := slices.Max(sizes), slices.Min(sizes)
		out[0] = ahcCost(most, n)
		chunks, err := ahcChunks(t)
		if err != nil {
			return out
		}
		l := ahcCost(len(sizes), n/float64(least))
		l.Rounds *= float64(len(ahcRuns(sizes, chunks, 0, chunks/least)))
		out[t.top()] = out[t.top()].plus(l)
		return out
	},
}

// maxAHC is the most blocks that AHC cuts a vector into; sizes with a larger common
// multiple are left to others.
const maxAHC = 4096

// ahcChunks is the least common multiple of the servers' sizes.
func ahcChunks(t *Topology) (int, error) {
	sizes := tally(t.Server)
	c := 1
	for _, m := range sizes {
		if c = c / gcd(c, m) * m; c*len(sizes) > maxAHC {
			return 0, fmt.Errorf("servers of %s ranks need more than %d blocks", sizeList(sizes), maxAHC)
		}
	}
	return c, nil
}

// ahcRuns cuts the chunks from first to end where an owner changes; it returns the
// beginnings.
func ahcRuns(sizes []int, chunks, first, end int) []int {
	out := []int{first}
	for c := first + 1; c < end; c++ {
		if slices.ContainsFunc(sizes, func(m int) bool { return c%(chunks/m) == 0 }) {
			out = append(out, c)
		}
	}
	return out
}

// ahcScopes are this rank's scope in its server and those with the owners of its chunks.
func ahcScopes(b *builder, t *Topology) (in *scope, across []*scope) {
	groups := t.Groups()
	sizes := tally(t.Server)
	chunks, _ := ahcChunks(t)
	g := t.Server[b.p.Rank]
	blocks := make([]int, len(b.loc))
	for i := range blocks {
		blocks[i] = i
	}
	of := func(first, end int) []int { return blocks[first*len(groups) : end*len(groups)] }
	in = &scope{b: b, n: sizes[g], ranks: groups[g]}
	in.me = slices.Index(groups[g], b.p.Rank)
	each := chunks / sizes[g]
	for x := range sizes[g] {
		in.parts = append(in.parts, of(x*each, (x+1)*each))
	}
	runs := ahcRuns(sizes, chunks, in.me*each, (in.me+1)*each)
	for k, first := range runs {
		end := (in.me + 1) * each
		if k+1 < len(runs) {
			end = runs[k+1]
		}
		s := &scope{b: b, n: len(groups), me: g, final: true, parts: pieces(of(first, end), len(groups))}
		for h, ranks := range groups {
			s.ranks = append(s.ranks, ranks[first*sizes[h]/chunks])
		}
		across = append(across, s)
	}
	return in, across
}

func ahcReduceScatter(s *scope) {
	if s.n <= 3 {
		ringReduceScatter(s, +1)
	} else {
		nhrReduceScatter(s, +1)
	}
}

func ahcAllGather(s *scope) {
	if s.n <= 3 {
		ringAllGather(s, +1)
	} else {
		nhrAllGather(s, +1)
	}
}

func ahcCost(p int, n float64) Level {
	if p <= 3 {
		return ringAllReduceCost(p, n)
	}
	return inTurn(nhrReduceScatterCost, nhrAllGatherCost)(p, n)
}
