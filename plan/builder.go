package plan

import (
	"slices"

	"github.com/kolo-ccl/kolo"
)

// builder writes the Program of one rank. An algorithm says, in the order of its
// paper, what the rank sends and receives, in blocks of the whole vector; the
// builder knows where the rank's value of each block lies, decides where a new
// value goes, and derives from that which earlier steps a step must come after.
//
// A new value of a block goes to the block's home in Out when this rank's result
// has one, and to Scratch otherwise; In is only read. So an out-of-place
// AllReduce copies nothing: its first reduction reads In and writes Out.
type builder struct {
	p     *Program
	loc   []place         // where the value of block b lies
	home  []place         // where the result wants block b
	own   []bool          // block b holds this rank's own, still raw contribution
	write []int32         // by slot: last step that wrote it, -1 none
	reads [][]int32       // by slot: steps that read it since then
	base  [numBuffers]int // slot of block 0 of each buffer
}

// place is a block of a buffer.
type place struct {
	buf   Buffer
	block int32
}

var nowhere = place{numBuffers, 0}

// request is what a Program is compiled for.
type request struct {
	collective kolo.Collective // base
	ranks      int
	rank, root kolo.Rank
	inPlace    bool
	scale      bool // PreMulSum: every rank's contribution is multiplied first
	parts      int  // blocks per chunk, or of the vector where there is one chunk
}

// newBuilder starts the Program of one rank.
func newBuilder(algorithm string, r request) *builder {
	p := &Program{Collective: r.collective, Algorithm: algorithm, Rank: r.rank, Ranks: r.ranks,
		Root: r.root, InPlace: r.inPlace, Chunks: 1, Parts: r.parts}
	b := &builder{p: p}
	switch r.collective {
	case kolo.AllGather, kolo.ReduceScatter, kolo.Gather, kolo.Scatter, kolo.AllToAll:
		p.Chunks = r.ranks
	}
	n := p.Chunks * p.Parts
	b.loc, b.home, b.own = make([]place, n), make([]place, n), make([]bool, n)
	for i := range n {
		b.loc[i], b.home[i] = nowhere, nowhere
	}
	p.Blocks[Scratch] = n
	b.place(r)
	total := 0
	for i, k := range p.Blocks {
		b.base[i] = total
		total += k
	}
	b.write, b.reads = make([]int32, total), make([][]int32, total)
	for i := range b.write {
		b.write[i] = -1
	}
	if r.scale {
		b.scaleOwn()
	}
	return b
}

// place sets the buffers of the collective: where each block is at first and
// where its result goes.
func (b *builder) place(r request) {
	p := b.p
	n, me := p.Chunks*p.Parts, int(r.rank)*p.Parts
	root := r.rank == r.root
	all := func(to []place, buf Buffer) {
		p.Blocks[buf] = n
		for i := range to {
			to[i] = place{buf, int32(i)}
		}
	}
	mine := func(to []place, buf, whole Buffer) {
		if r.inPlace && p.Blocks[whole] == n {
			for i := range p.Parts {
				to[me+i] = place{whole, int32(me + i)}
			}
			return
		}
		p.Blocks[buf] = p.Parts
		for i := range p.Parts {
			to[me+i] = place{buf, int32(i)}
		}
	}
	from := In
	if r.inPlace {
		from = Out
	}
	switch r.collective {
	case kolo.AllReduce, kolo.Barrier:
		all(b.loc, from)
		all(b.home, Out)
	case kolo.Reduce:
		if root {
			all(b.loc, from)
			all(b.home, Out)
		} else {
			all(b.loc, In)
		}
	case kolo.Broadcast:
		if root {
			all(b.loc, Out)
		}
		all(b.home, Out)
	case kolo.AllGather:
		all(b.home, Out)
		mine(b.loc, In, Out)
	case kolo.ReduceScatter:
		all(b.loc, In)
		mine(b.home, Out, In)
	case kolo.Gather:
		if root {
			all(b.home, Out)
		}
		mine(b.loc, In, Out)
	case kolo.Scatter:
		if root {
			all(b.loc, In)
		}
		mine(b.home, Out, In)
	case kolo.AllToAll: // the algorithm places each block itself
		p.Blocks[Out] = n
		p.Blocks[from] = n
	}
	for i, at := range b.loc {
		b.own[i] = at != nowhere && r.collective.Reduces()
	}
}

// scaleOwn multiplies this rank's contribution before anything else.
func (b *builder) scaleOwn() {
	for i := range b.loc {
		if !b.own[i] {
			continue
		}
		src := b.loc[i]
		dst := b.target(i)
		b.step(Step{Op: Scale, Src: spans([]place{src}), Dst: spans([]place{dst})})
		b.loc[i] = dst
	}
}

// target is where a new value of block i goes: over the old one where that may
// be written, else to its home, else to scratch.
func (b *builder) target(i int) place {
	switch at := b.loc[i]; {
	case at == b.home[i] && at != nowhere, at.buf == Scratch:
		return at
	case at.buf == Out:
		return at
	case b.home[i] != nowhere:
		return b.home[i]
	}
	return place{Scratch, int32(i)}
}

// beside is a target that leaves the old value alone, for an exchange in which
// it is being sent.
func (b *builder) beside(i int) place {
	at := b.loc[i]
	if b.home[i] != nowhere && b.home[i] != at {
		return b.home[i]
	}
	if at.buf == Scratch {
		panic("plan: exchange has nowhere to put a block")
	}
	return place{Scratch, int32(i)}
}

// send gives blocks to peers.
func (b *builder) send(lane uint8, peers []kolo.Rank, blocks []int) {
	b.step(Step{Op: Send, Lane: lane, Peers: peers, Src: spans(b.places(blocks))})
}

// recv takes blocks from a peer; they replace whatever this rank had.
func (b *builder) recv(lane uint8, peer kolo.Rank, blocks []int) {
	dst := make([]place, len(blocks))
	for k, i := range blocks {
		dst[k] = b.target(i)
	}
	b.step(Step{Op: Recv, Lane: lane, Peers: []kolo.Rank{peer}, Dst: spans(dst)})
	b.put(blocks, dst)
}

// recvReduce folds the peers' values of blocks into this rank's. With aside the
// old values stay untouched, since a send of the same exchange still reads them.
func (b *builder) recvReduce(lane uint8, peers []kolo.Rank, blocks []int, final, aside bool) {
	src, dst := b.places(blocks), make([]place, len(blocks))
	for k, i := range blocks {
		if aside {
			dst[k] = b.beside(i)
		} else {
			dst[k] = b.target(i)
		}
	}
	b.step(Step{Op: RecvReduce, Lane: lane, Final: final, Peers: peers, Src: spans(src), Dst: spans(dst)})
	b.put(blocks, dst)
}

// copyBlocks moves values on this rank, from place to place.
func (b *builder) copyBlocks(src, dst []place) {
	b.step(Step{Op: Copy, Src: spans(src), Dst: spans(dst)})
}

// sendFrom and recvInto name places instead of blocks, for AllToAll.
func (b *builder) sendFrom(lane uint8, peer kolo.Rank, src []place) {
	b.step(Step{Op: Send, Lane: lane, Peers: []kolo.Rank{peer}, Src: spans(src)})
}

func (b *builder) recvInto(lane uint8, peer kolo.Rank, dst []place) {
	b.step(Step{Op: Recv, Lane: lane, Peers: []kolo.Rank{peer}, Dst: spans(dst)})
}

func (b *builder) places(blocks []int) []place {
	out := make([]place, len(blocks))
	for k, i := range blocks {
		if b.loc[i] == nowhere {
			panic("plan: a step reads a block that the rank does not have")
		}
		out[k] = b.loc[i]
	}
	return out
}

func (b *builder) put(blocks []int, at []place) {
	for k, i := range blocks {
		b.loc[i] = at[k]
		b.own[i] = false
	}
}

// finish brings every block home and returns the Program.
func (b *builder) finish() *Program {
	var src, dst []place
	for i, h := range b.home {
		if h != nowhere && b.loc[i] != h {
			src, dst = append(src, b.places([]int{i})[0]), append(dst, h)
		}
	}
	if len(src) > 0 {
		b.copyBlocks(src, dst)
	}
	return b.p
}

// step appends s with the dependencies that its reads and writes ask for.
func (b *builder) step(s Step) {
	at := int32(len(b.p.Steps))
	after := map[int32]bool{}
	b.each(s.Src, func(slot int) {
		if w := b.write[slot]; w >= 0 {
			after[w] = true
		}
	})
	b.each(s.Dst, func(slot int) {
		if w := b.write[slot]; w >= 0 {
			after[w] = true
		}
		for _, r := range b.reads[slot] {
			after[r] = true
		}
	})
	b.each(s.Src, func(slot int) { b.reads[slot] = append(b.reads[slot], at) })
	b.each(s.Dst, func(slot int) { b.write[slot], b.reads[slot] = at, b.reads[slot][:0] })
	for k := range after {
		s.After = append(s.After, k)
	}
	slices.Sort(s.After)
	for _, d := range s.Dst {
		b.p.UsesScratch = b.p.UsesScratch || d.Buf == Scratch
	}
	b.p.Steps = append(b.p.Steps, s)
}

func (b *builder) each(list []Span, f func(slot int)) {
	for _, s := range list {
		b.p.At(s, func(block int) { f(b.base[s.Buf] + block) })
	}
}

// spans joins places in their order into as few spans as that allows.
func spans(at []place) []Span {
	var out []Span
	for _, q := range at {
		if n := len(out); n > 0 && out[n-1].Buf == q.buf {
			s := &out[n-1]
			d := q.block - (s.Off + (s.N-1)*s.Stride)
			if s.N == 1 {
				s.Stride = d
				s.N = 2
				continue
			}
			if d == s.Stride {
				s.N++
				continue
			}
		}
		out = append(out, Span{Buf: q.buf, Off: q.block, N: 1, Stride: 1})
	}
	return out
}

// alone is the whole Program of a group of one rank: finish brings the blocks
// home, and AllToAll has its one block to move.
func (b *builder) alone() {
	if b.p.Collective == kolo.AllToAll && !b.p.InPlace {
		for i := range b.loc {
			b.copyBlocks([]place{{In, int32(i)}}, []place{{Out, int32(i)}})
		}
	}
}
