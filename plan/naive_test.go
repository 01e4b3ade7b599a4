package plan

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/kolo-ccl/kolo"
)

// elem is an element of the dumb executor: a sum, which says whether each rank's
// value came in once, and a mix of operands that depends on their order and
// grouping, which says whether two ranks computed the same expression.
type elem struct{ sum, mix int64 }

func (x elem) fold(y elem) elem {
	return elem{x.sum + y.sum, (x.mix*1000003 ^ y.mix) + int64(uint64(y.mix)>>7)}
}

// canary is what memory holds that nobody should touch.
var canary = elem{-7777777777, -1}

const factor = 3

// performance is one collective on P ranks with data: what it is, and all memories.
type performance struct {
	key      Key
	topo     *Topology
	calls    []kolo.Call // by rank
	displs   []Displs
	compiled []Compiled
	layouts  []Layout
	memory   [][numBuffers][]elem
	want     [][numBuffers][]elem // what In and Out must hold in the end
	rng      *rand.Rand
}

// payload says how much data a performance moves.
type payload struct {
	count  int64 // elements of the vector or of each chunk
	gaps   bool  // chunks of V forms lie apart and out of order
	cuts   int
	scaled bool
}

// chunks is the number of elements that rank a gives to rank b, for the collectives
// whose vector has chunks.
type chunks func(a, b int) int64

// newPerformance sets up collective k on t, with data that differ by rank and index.
func newPerformance(k Key, t *Topology, s payload, rng *rand.Rand) *performance {
	n := t.Ranks()
	if k.Collective == kolo.Barrier {
		s.count = 0
	}
	k.Cuts, k.Scale = s.cuts, s.scaled && k.Collective.Reduces()
	x := &performance{key: k, topo: t, rng: rng, calls: make([]kolo.Call, n), displs: make([]Displs, n),
		compiled: make([]Compiled, n), layouts: make([]Layout, n),
		memory: make([][numBuffers][]elem, n), want: make([][numBuffers][]elem, n)}
	size := x.fillCalls(s)
	for r := range n {
		x.compile(r)
		x.layouts[r] = LayoutOf(x.compiled[r].Program, &x.calls[r], x.displs[r])
		x.memory[r][Scratch] = make([]elem, x.layouts[r].ScratchSize(x.compiled[r].Program)/8)
	}
	for r := range n {
		x.fillMemory(r, s.count, size)
	}
	return x
}

// perform replaces the Programs.
func (x *performance) perform(programs []*Program) *performance {
	for r, p := range programs {
		x.compiled[r] = Compiled{Program: p, Successors: NewSuccessors(p)}
		x.layouts[r] = LayoutOf(p, &x.calls[r], x.displs[r])
		x.memory[r][Scratch] = make([]elem, x.layouts[r].ScratchSize(p)/8)
	}
	return x
}

// compile takes the Program of rank 0 for all where it may be shared.
func (x *performance) compile(r int) {
	c, shared, err := Compile(x.key, x.topo, kolo.Rank(r))
	if err != nil {
		panic(err)
	}
	if shared && r > 0 {
		c = x.compiled[0].For(kolo.Rank(r))
	}
	x.compiled[r] = c
}

// fillCalls makes every rank's call and, for V forms with gaps, its displacements.
func (x *performance) fillCalls(s payload) chunks {
	k, n := x.key, len(x.calls)
	size := func(_, _ int) int64 { return s.count }
	if k.Collective.Base() != k.Collective {
		table := make([]int64, n*n)
		for i := range table {
			table[i] = x.rng.Int64N(s.count + 1)
		}
		switch k.Collective {
		case kolo.AllToAllV, kolo.AllToAllVC:
			size = func(a, b int) int64 {
				if k.InPlace { // as much each way
					a, b = min(a, b), max(a, b)
				}
				return table[a*n+b]
			}
		case kolo.AllGatherV, kolo.GatherV:
			size = func(a, _ int) int64 { return table[a] }
		default:
			size = func(_, b int) int64 { return table[b] }
		}
	}
	for r := range n {
		c := &x.calls[r]
		*c = kolo.Call{Collective: k.Collective, DType: kolo.Int64, Root: k.Root, InPlace: k.InPlace}
		for q := range n {
			switch k.Collective {
			case kolo.AllToAllV:
				c.Counts, c.RecvCounts = append(c.Counts, size(r, q)), append(c.RecvCounts, size(q, r))
			case kolo.AllToAllVC:
				for p := range n {
					c.Counts = append(c.Counts, size(q, p))
				}
			case kolo.AllGatherV, kolo.GatherV, kolo.ReduceScatterV, kolo.ScatterV:
				c.Counts = append(c.Counts, size(q, q))
			default:
				c.Count = s.count
			}
		}
		if s.gaps && k.Collective.Base() != k.Collective {
			in := x.scatterChunks(n, func(q int) int64 { return size(r, q) }, func(q int) int64 { return size(q, q) })
			out := x.scatterChunks(n, func(q int) int64 { return size(q, r) }, func(q int) int64 { return size(q, q) })
			if k.InPlace {
				out = in
			}
			x.displs[r] = Displs{In: in, Out: out}
		}
	}
	return size
}

// scatterChunks places n chunks in random order with gaps between them.
func (x *performance) scatterChunks(n int, pair, own func(q int) int64) []int64 {
	out, at := make([]int64, n), int64(0)
	for _, q := range x.rng.Perm(n) {
		at += x.rng.Int64N(3)
		out[q] = at
		if x.key.Collective.Base() == kolo.AllToAll {
			at += pair(q)
		} else {
			at += own(q)
		}
	}
	return out
}

// value is element i of what rank r has for chunk c before the call. Sums over all
// ranks are multiples of their number, so that Avg leaves whole numbers.
func (x *performance) value(r, c int, i int64) elem {
	h := uint64(r+1)*0x9e3779b97f4a7c15 ^ uint64(c+1)*0xbf58476d1ce4e5b9 ^ uint64(i+1)*0x94d049bb133111eb
	h ^= h >> 29
	v := int64(h%1000000) * int64(x.topo.Ranks())
	return elem{v, v}
}

// region is a run of elements of one buffer.
type region struct {
	buf    Buffer
	off, n int64
	chunk  int
}

// fillMemory makes the buffers of rank r and what they must hold in the end.
func (x *performance) fillMemory(r int, count int64, size chunks) {
	input, output := x.regions(r, count, size)
	for b := range x.compiled[r].Blocks[:Scratch] {
		end := int64(0)
		for _, g := range slices.Concat(input, output) {
			if g.buf == Buffer(b) {
				end = max(end, g.off+g.n)
			}
		}
		x.memory[r][b] = slices.Repeat([]elem{canary}, int(end)+3)
	}
	for _, g := range input {
		for i := range g.n {
			x.memory[r][g.buf][g.off+i] = x.value(r, g.chunk, i)
		}
	}
	for b := range x.want[r] {
		x.want[r][b] = slices.Clone(x.memory[r][b])
	}
	for _, g := range output {
		for i := range g.n {
			x.want[r][g.buf][g.off+i] = x.result(r, g.chunk, i)
		}
	}
}

// regions are where rank r's input lies and where its output goes.
func (x *performance) regions(r int, count int64, size chunks) (input, output []region) {
	k, n := x.key, x.topo.Ranks()
	root := kolo.Rank(r) == k.Root
	at := func(displs []int64, length func(q int) int64) func(buf Buffer, q int) region {
		return func(buf Buffer, q int) region {
			if displs != nil {
				return region{buf, displs[q], length(q), q}
			}
			off := int64(0)
			for p := range q {
				off += length(p)
			}
			return region{buf, off, length(q), q}
		}
	}
	from := In
	if k.InPlace {
		from = Out
	}
	own := func(q int) int64 { return size(q, q) }
	in, out := at(x.displs[r].In, own), at(x.displs[r].Out, own)
	switch base := k.Collective.Base(); base {
	case kolo.AllReduce, kolo.Reduce, kolo.Broadcast:
		if base == kolo.Reduce && !root {
			from = In
		}
		if base != kolo.Broadcast || root {
			input = []region{{from, 0, count, 0}}
		}
		if base != kolo.Reduce || root {
			output = []region{{Out, 0, count, 0}}
		}
	case kolo.AllGather, kolo.Gather:
		whole := base == kolo.AllGather || root
		input = []region{{In, 0, own(r), 0}}
		if k.InPlace && whole {
			input = []region{out(Out, r)}
		}
		input[0].chunk = 0
		for q := 0; whole && q < n; q++ {
			output = append(output, out(Out, q))
		}
	case kolo.ReduceScatter, kolo.Scatter:
		whole := base == kolo.ReduceScatter || root
		for q := 0; whole && q < n; q++ {
			input = append(input, in(In, q))
		}
		output = []region{{Out, 0, own(r), r}}
		if k.InPlace && whole {
			output = []region{in(In, r)}
		}
	case kolo.AllToAll:
		in = at(x.displs[r].In, func(q int) int64 { return size(r, q) })
		out = at(x.displs[r].Out, func(q int) int64 { return size(q, r) })
		for q := range n {
			input, output = append(input, in(from, q)), append(output, out(Out, q))
		}
	}
	return input, output
}

// result is element i of chunk c of rank r's result. Reductions average.
func (x *performance) result(r, c int, i int64) elem {
	switch x.key.Collective.Base() {
	case kolo.AllReduce, kolo.Reduce, kolo.ReduceScatter:
		var sum int64
		for q := range x.topo.Ranks() {
			v := x.value(q, c, i).sum
			if x.key.Scale {
				v *= factor
			}
			sum += v
		}
		return elem{sum: sum / int64(x.topo.Ranks())}
	case kolo.Broadcast:
		return x.value(int(x.key.Root), c, i)
	case kolo.Scatter:
		return x.value(int(x.key.Root), r, i)
	case kolo.AllToAll:
		return x.value(c, r, i)
	}
	return x.value(c, 0, i)
}

// check compares what the ranks hold with what they should.
func (x *performance) check() error {
	for r := range x.memory {
		for b := range x.memory[r][:Scratch] {
			for i, got := range x.memory[r][b] {
				if want := x.want[r][b][i]; got.sum != want.sum {
					return fmt.Errorf("rank %d: %v element %d is %d, not %d", r, Buffer(b), i, got.sum, want.sum)
				}
				if first := x.memory[0][b]; x.key.Collective == kolo.AllReduce && b == int(Out) && got.mix != first[i].mix {
					return fmt.Errorf("rank %d: out element %d is folded in another way than on rank 0", r, i)
				}
			}
		}
	}
	return nil
}
