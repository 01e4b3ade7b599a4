package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/kolo-ccl/kolo"
)

// The plain part is what a Go programmer writes without a runtime: goroutines that share
// the buffers and wait for each other at a gate, in one of two ways.
//
//	all   every rank waits, does its share of the work, and waits again
//	last  the last to arrive does everything and then opens the gate; small sizes only
//
// The variants differ in the gate, in the way and in the loop that adds.

// maxLast is the most bytes, of all ranks together, that one goroutine handles alone.
const maxLast = 256 << 10

// variant is one way to write the program.
type variant struct {
	name string
	gate func(ranks int) gate
	last bool // the last to arrive does the work of all
	sum  reduction
}

var plainVariants = []variant{
	{"spin-rows", newSpinGate, false, rowReduction},
	{"spin-fused", newSpinGate, false, fusedReduction},
	{"cond-rows", newCondGate, false, rowReduction},
	{"chan-rows", newChanGate, false, rowReduction},
	{"spin-last", newSpinGate, true, fusedReduction},
	{"cond-last", newCondGate, true, fusedReduction},
}

// fits says whether a variant is worth its time: the loop matters only where something
// is added, the way only where there is work.
func (v variant) fits(c kolo.Collective, ranks int, size int64) bool {
	switch c {
	case kolo.Barrier:
		return !v.last && v.name != "spin-fused"
	case kolo.AllReduce, kolo.ReduceScatter:
	default:
		if v.name == "spin-fused" {
			return false
		}
	}
	return !v.last || size*int64(ranks) <= maxLast
}

// plainPart measures the job's collective with every variant that fits.
func plainPart(_ context.Context, j job, w io.Writer) error {
	all, units := newMemory(j.collective, j.ranks, slices.Max(j.sizes)), unitsOf(j.think)
	for _, size := range j.sizes {
		m := all.cut(size)
		for _, v := range plainVariants {
			if !v.fits(j.collective, j.ranks, size) {
				continue
			}
			c := newPlainCrew(v, m)
			r := result{program: "plain", variant: v.name, collective: j.collective, ranks: j.ranks, size: size}
			if err := errors.Join(c.measure(j, m, units, r, w), c.close()); err != nil {
				return fmt.Errorf("%s, %s: %w", v.name, sizeString(size), err)
			}
		}
	}
	return nil
}

// newPlainCrew starts the goroutines.
func newPlainCrew(v variant, m *memory) *crew {
	n, c, g := len(m.ranks), newCrew(len(m.ranks)), v.gate(len(m.ranks))
	share := shareOf(m, v.sum)
	everything := func() {
		for r := range n {
			share(r)
		}
	}
	var ranks sync.WaitGroup
	for me := range n {
		call := func() error {
			g.pass(me, nil)
			share(me)
			g.pass(me, nil)
			return nil
		}
		barrier := func() error { g.pass(me, nil); return nil }
		switch {
		case m.collective == kolo.Barrier:
			call = barrier
		case v.last:
			call = func() error { g.pass(me, everything); return nil }
		}
		// ended by close
		ranks.Go(func() { _ = c.serve(me, call, barrier) }) // these calls cannot fail
	}
	// ends with the ranks
	go func() { ranks.Wait(); c.ended <- nil }()
	return c
}

// shareOf is what each rank has to do between the gates.
func shareOf(m *memory, sum reduction) func(me int) {
	n := len(m.ranks)
	sources, targets := make([][]float32, n), make([][]float32, n)
	for i, v := range m.ranks {
		sources[i], targets[i] = v.src, v.dst
	}
	switch m.collective {
	case kolo.AllReduce:
		return func(me int) {
			all := len(sources[0])
			sum(targets, sources, 0, all*me/n, all*(me+1)/n)
		}
	case kolo.ReduceScatter:
		part := len(targets[0])
		return func(me int) { sum(targets[me:me+1], sources, me*part, me*part, (me+1)*part) }
	case kolo.AllGather:
		part := len(sources[0])
		return func(me int) {
			for r, s := range sources {
				copy(targets[me][r*part:], s)
			}
		}
	case kolo.AllToAll:
		part := len(sources[0]) / n
		return func(me int) {
			for r, s := range sources {
				copy(targets[me][r*part:(r+1)*part], s[me*part:])
			}
		}
	case kolo.Broadcast:
		return func(me int) {
			if me != root {
				copy(targets[me], sources[root])
			}
		}
	}
	return func(int) {}
}
