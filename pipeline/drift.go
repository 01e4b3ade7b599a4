package pipeline

import (
	"context"
	"fmt"
	"hash/fnv"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/rank"
)

// Drifted is a parameter that ranks do not agree on.
type Drifted struct {
	Name  string
	Ranks []kolo.Rank // of the group, that have other bits than most
}

// Drift compares parameters, or gradients that were reduced, of all ranks: they have
// the same bits unless ranks did things in different orders. It is a collective call,
// of the same names on all ranks, and reads all the memory: behind s, if it is a
// device's. It returns what has drifted, in the order of list, the same on all ranks.
func Drift(ctx context.Context, g *rank.Group, s npu.Stream, list []Param) ([]Drifted, error) {
	mine := []uint64{uint64(digest(list))}
	for _, p := range list {
		d, err := bitsOf(ctx, s, p.Gradient.Memory)
		if err != nil {
			g.Abort(err)
			return nil, fmt.Errorf("pipeline: read %q: %w", p.Name, err)
		}
		mine = append(mine, d)
	}
	all := make([]uint64, g.Size()*len(mine))
	if err := rank.AllGather(ctx, g, all, mine); err != nil {
		return nil, err
	}
	digests := make([]uint64, g.Size())
	var found []Drifted
	for i := range mine {
		for r := range digests {
			digests[r] = all[r*len(mine)+i]
		}
		odd := minority(digests)
		switch {
		case len(odd) == 0:
		case i == 0:
			return nil, fmt.Errorf("%w: pipeline: rank %s compared parameters of other names, element types or sizes", kolo.ErrMismatch, kolo.RankList(odd))
		default:
			found = append(found, Drifted{list[i-1].Name, odd})
		}
	}
	return found, nil
}

// bitsOf is a number made of all bytes of memory.
func bitsOf(ctx context.Context, s npu.Stream, m kolo.Memory) (uint64, error) {
	bytes := m.Host
	if m.Space != kolo.HostSpace {
		if s == nil {
			return 0, errNoStreams
		}
		bytes = make([]byte, m.Len())
		if err := s.Copy(kolo.HostMemory(bytes), m); err != nil {
			return 0, err
		}
		if err := s.Sync(ctx); err != nil {
			return 0, err
		}
	}
	h := fnv.New64a()
	h.Write(bytes) // never fails
	return h.Sum64(), nil
}

// minority are the ranks that have another number than most do, or than rank 0 does
// where as many have either.
func minority(numbers []uint64) (odd []kolo.Rank) {
	count := map[uint64]int{}
	for _, n := range numbers {
		count[n]++
	}
	most := numbers[0]
	for _, n := range numbers {
		if count[n] > count[most] {
			most = n
		}
	}
	for r, n := range numbers {
		if n != most {
			odd = append(odd, kolo.Rank(r))
		}
	}
	return odd
}
