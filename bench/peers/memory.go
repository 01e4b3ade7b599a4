package main

import (
	"fmt"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/rank"
)

const root = 0

// vectors are the buffers of one rank: what it gives and what it gets. Where a
// collective works in place they are the same slice.
type vectors struct{ src, dst []float32 }

// memory is the buffers of all ranks of this process, long enough for the largest size.
type memory struct {
	collective kolo.Collective
	ranks      []vectors
	here       []int // the ranks whose buffers are real
}

func newMemory(c kolo.Collective, ranks int, largest int64) *memory {
	m := &memory{collective: c}
	src, dst := lengths(c, ranks, largest)
	for r := range ranks {
		m.ranks = append(m.ranks, newVectors(src, dst, rank.Alloc[float32]))
		m.here = append(m.here, r)
	}
	return m
}

func newVectors(src, dst int, alloc func(n int) []float32) vectors {
	v := vectors{src: alloc(src)}
	if v.dst = v.src; dst > 0 {
		v.dst = alloc(dst)
	}
	return v
}

// newMemoryOf is the buffers of one rank, where the others are in other processes.
func newMemoryOf(c kolo.Collective, ranks, me int, largest int64, alloc func(n int) []float32) *memory {
	src, dst := lengths(c, ranks, largest)
	m := &memory{collective: c, ranks: make([]vectors, ranks), here: []int{me}}
	v := newVectors(src, dst, alloc)
	for r := range m.ranks {
		m.ranks[r] = v // of the same lengths
	}
	return m
}

// lengths are the elements of a rank's buffers for vectors of size bytes; dst is 0 where
// the collective works in place.
func lengths(c kolo.Collective, ranks int, size int64) (src, dst int) {
	n := int(size / 4)
	switch c {
	case kolo.AllGather:
		return n / ranks, n
	case kolo.ReduceScatter:
		return n, n / ranks
	case kolo.AllToAll:
		return n, n
	case kolo.AllReduce, kolo.Broadcast:
		return n, 0
	}
	return 0, 0
}

// cut is the same memory for a smaller size.
func (m *memory) cut(size int64) *memory {
	c := &memory{collective: m.collective, here: m.here}
	src, dst := lengths(m.collective, len(m.ranks), size)
	if dst == 0 {
		dst = src
	}
	for _, v := range m.ranks {
		c.ranks = append(c.ranks, vectors{v.src[:src], v.dst[:dst]})
	}
	return c
}

// given is element i of what a rank gives: small whole numbers, whose sums are exact.
func given(rank, i int) float32 { return float32(rank + i&7) }

// fill prepares a call whose result check can tell.
func (m *memory) fill() {
	for _, r := range m.here {
		v := m.ranks[r]
		for i := range v.dst {
			v.dst[i] = -1
		}
		if m.collective == kolo.Broadcast && r != root {
			continue
		}
		for i := range v.src {
			v.src[i] = given(r, i)
		}
	}
}

// check compares every rank's result and clears all buffers, so that sums stay small.
func (m *memory) check() error {
	for _, r := range m.here {
		v := m.ranks[r]
		for i, got := range v.dst {
			if want := m.wanted(r, i); got != want {
				return fmt.Errorf("rank %d has %v at %d, want %v", r, got, i, want)
			}
		}
	}
	for _, v := range m.ranks {
		clear(v.src)
		clear(v.dst)
	}
	return nil
}

// wanted is element i of a rank's result.
func (m *memory) wanted(rank, i int) float32 {
	p := len(m.ranks)
	sum := float32(p * (p - 1) / 2)
	switch m.collective {
	case kolo.AllGather:
		part := len(m.ranks[0].src)
		return given(i/part, i%part)
	case kolo.ReduceScatter:
		part := len(m.ranks[0].dst)
		return sum + float32(p*((rank*part+i)&7))
	case kolo.AllToAll:
		part := len(m.ranks[0].dst) / p
		return given(i/part, rank*part+i%part)
	case kolo.Broadcast:
		return given(root, i)
	}
	return sum + float32(p*(i&7))
}
