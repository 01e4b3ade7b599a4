package npu

import (
	"fmt"
	"slices"

	"github.com/kolo-ccl/kolo"
)

// Arena divides a range of addresses into allocations, each at a multiple of
// Alignment: the first gap that is large enough, from the front. It is not safe for
// use by several goroutines at once.
//
//	gaps   sorted by address, never empty, never touching each other
//	taken  size of each allocation, rounded up to Alignment
type Arena struct {
	base, size uint64
	gaps       []gap
	taken      map[uint64]uint64
	used       uint64
}

type gap struct{ at, size uint64 }

// NewArena makes an arena of the addresses from base to base+size. Both are rounded
// inwards to Alignment.
func NewArena(base uint64, size int64) *Arena {
	end := (base + uint64(max(size, 0))) &^ (Alignment - 1)
	base = (base + Alignment - 1) &^ (Alignment - 1)
	a := &Arena{base: base, taken: map[uint64]uint64{}}
	if end > base {
		a.size = end - base
		a.gaps = []gap{{base, a.size}}
	}
	return a
}

// Alloc takes size bytes, at least one.
func (a *Arena) Alloc(size int64) (addr uint64, err error) {
	if size <= 0 {
		return 0, fmt.Errorf("%w: %d bytes asked for", kolo.ErrArgument, size)
	}
	n := (uint64(size) + Alignment - 1) &^ (Alignment - 1)
	i := slices.IndexFunc(a.gaps, func(g gap) bool { return g.size >= n })
	if i < 0 {
		return 0, fmt.Errorf("%w: %d bytes asked for, %d of %d free, %d in one piece", ErrMemory, size, a.size-a.used, a.size, a.Largest())
	}
	g := &a.gaps[i]
	addr = g.at
	g.at, g.size = g.at+n, g.size-n
	if g.size == 0 {
		a.gaps = slices.Delete(a.gaps, i, i+1)
	}
	a.taken[addr] = n
	a.used += n
	return addr, nil
}

// Free gives back what Alloc gave at addr.
func (a *Arena) Free(addr uint64) error {
	n, ok := a.taken[addr]
	if !ok {
		return fmt.Errorf("%w: nothing begins at %#x", ErrFreed, addr)
	}
	delete(a.taken, addr)
	a.used -= n
	i, _ := slices.BinarySearchFunc(a.gaps, addr, func(g gap, at uint64) int {
		if g.at < at {
			return -1
		}
		return 1
	})
	before := i > 0 && a.gaps[i-1].at+a.gaps[i-1].size == addr
	behind := i < len(a.gaps) && addr+n == a.gaps[i].at
	switch {
	case before && behind:
		a.gaps[i-1].size += n + a.gaps[i].size
		a.gaps = slices.Delete(a.gaps, i, i+1)
	case before:
		a.gaps[i-1].size += n
	case behind:
		a.gaps[i].at, a.gaps[i].size = addr, a.gaps[i].size+n
	default:
		a.gaps = slices.Insert(a.gaps, i, gap{addr, n})
	}
	return nil
}

// Used is the number of bytes that are taken, with what was rounded up.
func (a *Arena) Used() int64 { return int64(a.used) }

// Size is the number of bytes in all.
func (a *Arena) Size() int64 { return int64(a.size) }

// Largest is the most bytes that one Alloc could have.
func (a *Arena) Largest() int64 {
	var n uint64
	for _, g := range a.gaps {
		n = max(n, g.size)
	}
	return int64(n)
}
