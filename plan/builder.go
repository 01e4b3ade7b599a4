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
	cuts  int             // pieces that a pipelined algorithm cuts its vector into
	loc   []place         // where the value of block b lies
	home  []place         // where the result wants block b
	base  [numBuffers]int // slot of block 0 of each buffer; Scratch has the last slots
	write []int32         // by slot: last step that wrote it, -1 none
	read  []int32         // by slot: its last entry in reads since then, -1 none
	reads []reading
	seen  []int32 // by step: 1 + the last step that was found to come after it
	wait  []int32 // steps that the next one must come after for another reason

	// Lists that steps hold parts of. They only grow.
	peers []kolo.Rank
	spans []Span
	after []int32
	// Lists that live for one call.
	numbers, blocks []int
	src, dst        []place
}

// place is a block of a buffer.
type place struct {
	buf   Buffer
	block int32
}

var nowhere = place{numBuffers, 0}

// reading is an entry in the list of the steps that read a slot.
type reading struct{ step, next int32 }

// request is what a Program is compiled for.
type request struct {
	collective kolo.Collective // base
	ranks      int
	rank, root kolo.Rank
	inPlace    bool
	scale      bool // PreMulSum: every rank's contribution is multiplied first
	parts      int  // blocks per chunk, or of the vector where there is one chunk
	cuts       int  // of these, pieces that follow each other in a pipeline
}

// newBuilder starts the Program of one rank.
func newBuilder(algorithm string, r request) *builder {
	b := &builder{}
	b.begin(algorithm, r)
	return b
}

// begin starts the Program of one rank. What was made before keeps what it holds; the
// other lists are used again.
func (b *builder) begin(algorithm string, r request) {
	p := &Program{Collective: r.collective, Algorithm: algorithm, Rank: r.rank, Ranks: r.ranks,
		Root: r.root, InPlace: r.inPlace, Chunks: 1, Parts: r.parts}
	if b.p != nil { // likely as long as the last
		p.Steps = make([]Step, 0, len(b.p.Steps))
		b.peers, b.spans, b.after = make([]kolo.Rank, 0, len(b.peers)), make([]Span, 0, len(b.spans)), make([]int32, 0, len(b.after))
	}
	b.p, b.cuts = p, r.cuts
	b.write, b.read, b.reads, b.seen, b.wait = b.write[:0], b.read[:0], b.reads[:0], b.seen[:0], b.wait[:0]
	switch r.collective {
	case kolo.AllGather, kolo.ReduceScatter, kolo.Gather, kolo.Scatter, kolo.AllToAll:
		p.Chunks = r.ranks
	}
	n := p.Chunks * p.Parts
	b.loc, b.home = b.loc[:0], b.home[:0]
	for range n {
		b.loc, b.home = append(b.loc, nowhere), append(b.home, nowhere)
	}
	b.place(r)
	b.base[Out] = p.Blocks[In]
	b.base[Scratch] = p.Blocks[In] + p.Blocks[Out]
	b.growScratch(n)
	if r.scale {
		b.scaleOwn()
	}
}

// growScratch gives the Program n blocks of scratch.
func (b *builder) growScratch(n int) {
	b.p.Blocks[Scratch] = n
	for len(b.write) < b.base[Scratch]+n {
		b.write, b.read = append(b.write, -1), append(b.read, -1)
	}
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
}

// scaleOwn multiplies this rank's contribution before anything else.
func (b *builder) scaleOwn() {
	b.src, b.dst = append(b.src[:0], b.loc...), b.dst[:0]
	for i := range b.loc {
		b.dst = append(b.dst, b.target(i))
	}
	b.step(Step{Op: Scale}, b.src, b.dst)
	copy(b.loc, b.dst)
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
// it is being sent. The values of a row of exchanges go from home to scratch and
// back; left is how many exchanges are to come, so that the last one ends at home
// where the first may choose.
func (b *builder) beside(i, left int) place {
	at, home, scratch := b.loc[i], b.home[i], place{Scratch, int32(i)}
	switch {
	case home == nowhere || at == home:
		if at == scratch {
			panic("plan: an exchange has nowhere to put a block")
		}
		return scratch
	case at == scratch || left%2 == 0:
		return home
	}
	return scratch
}

// send gives blocks to peers.
func (b *builder) send(lane uint8, peers []kolo.Rank, blocks []int) {
	b.step(Step{Op: Send, Lane: lane, Peers: peers}, b.places(blocks), nil)
}

// recv takes blocks from a peer; they replace whatever this rank had.
func (b *builder) recv(lane uint8, peers []kolo.Rank, blocks []int) {
	b.dst = b.dst[:0]
	for _, i := range blocks {
		b.dst = append(b.dst, b.target(i))
	}
	b.step(Step{Op: Recv, Lane: lane, Peers: peers}, nil, b.dst)
	b.put(blocks)
}

// recvReduce folds the peers' values of blocks into this rank's.
func (b *builder) recvReduce(lane uint8, peers []kolo.Rank, blocks []int, last sum) {
	b.dst = b.dst[:0]
	for _, i := range blocks {
		b.dst = append(b.dst, b.target(i))
	}
	b.step(Step{Op: RecvReduce, Lane: lane, Final: bool(last), Peers: peers}, b.places(blocks), b.dst)
	b.put(blocks)
}

// exchange sends blocks to peers and folds their values of the same blocks into
// this rank's. The old values stay untouched, since the send still reads them.
func (b *builder) exchange(lane uint8, peers []kolo.Rank, blocks []int, last sum, left int) {
	b.send(lane, peers, blocks)
	b.dst = b.dst[:0]
	for _, i := range blocks {
		b.dst = append(b.dst, b.beside(i, left))
	}
	b.step(Step{Op: RecvReduce, Lane: lane, Final: bool(last), Peers: peers}, b.places(blocks), b.dst)
	b.put(blocks)
}

// places are where the values of blocks lie. The list lives until the next call.
func (b *builder) places(blocks []int) []place {
	b.src = b.src[:0]
	for _, i := range blocks {
		if b.loc[i] == nowhere {
			panic("plan: a step reads a block that the rank does not have")
		}
		b.src = append(b.src, b.loc[i])
	}
	return b.src
}

// put notes that the values of blocks lie at b.dst.
func (b *builder) put(blocks []int) {
	for k, i := range blocks {
		b.loc[i] = b.dst[k]
	}
}

// finish brings every block home and returns the Program.
func (b *builder) finish() *Program {
	b.src, b.dst = b.src[:0], b.dst[:0]
	for i, h := range b.home {
		if h != nowhere && b.loc[i] != h {
			if b.loc[i] == nowhere {
				panic("plan: a program ends without a block of its result")
			}
			b.src, b.dst = append(b.src, b.loc[i]), append(b.dst, h)
		}
	}
	if len(b.src) > 0 {
		b.step(Step{Op: Copy}, b.src, b.dst)
	}
	return b.p
}

// then makes the next step come after step i, whatever they read and write.
func (b *builder) then(i int) { b.wait = append(b.wait, int32(i)) }

// last is the index of the last step, -1 when there is none.
func (b *builder) last() int { return len(b.p.Steps) - 1 }

// step appends s, which reads src and writes dst, with the dependencies that
// follow. Who comes after the readers of a slot comes after its writer too.
func (b *builder) step(s Step, src, dst []place) {
	at := int32(len(b.p.Steps))
	first := len(b.after)
	b.seen = append(b.seen, 0)
	for _, q := range src {
		b.comesAfter(at, b.write[b.slot(q)])
	}
	for _, q := range dst {
		k := b.slot(q)
		if b.read[k] < 0 {
			b.comesAfter(at, b.write[k])
		}
		for r := b.read[k]; r >= 0; r = b.reads[r].next {
			b.comesAfter(at, b.reads[r].step)
		}
	}
	for _, w := range b.wait {
		b.comesAfter(at, w)
	}
	b.wait = b.wait[:0]
	for _, q := range src {
		k := b.slot(q)
		b.reads = append(b.reads, reading{at, b.read[k]})
		b.read[k] = int32(len(b.reads) - 1)
	}
	for _, q := range dst {
		k := b.slot(q)
		b.write[k], b.read[k] = at, -1
		b.p.UsesScratch = b.p.UsesScratch || q.buf == Scratch
	}
	s.After = b.after[first:len(b.after):len(b.after)]
	slices.Sort(s.After)
	s.Src, s.Dst = b.join(src), b.join(dst)
	if len(b.p.Steps) == cap(b.p.Steps) { // doubled: append alone grows long lists by a quarter
		b.p.Steps = slices.Grow(b.p.Steps, len(b.p.Steps)+32)
	}
	b.p.Steps = append(b.p.Steps, s)
}

func (b *builder) slot(q place) int { return b.base[q.buf] + int(q.block) }

// comesAfter adds step w to the After of the step being made, once.
func (b *builder) comesAfter(at, w int32) {
	if w >= 0 && b.seen[w] != at+1 {
		b.seen[w] = at + 1
		b.after = append(b.after, w)
	}
}

// join writes places in their order with as few spans as that allows.
func (b *builder) join(at []place) []Span {
	first := len(b.spans)
	for _, q := range at {
		if last := len(b.spans) - 1; last < first || !b.spans[last].take(q, b.p.Blocks[q.buf]) {
			b.spans = append(b.spans, Span{Buf: q.buf, Off: q.block, N: 1, Stride: 1})
		}
	}
	return b.spans[first:len(b.spans):len(b.spans)]
}

// take makes q the last block of s, if it follows in the cycle of the buffer's n.
func (s *Span) take(q place, n int) bool {
	if s.Buf != q.buf {
		return false
	}
	last := (int(s.Off) + int(s.N-1)*int(s.Stride)) % n
	d := (int(q.block) - last) % n
	switch {
	case 2*d > n:
		d -= n
	case 2*d <= -n:
		d += n
	}
	if d == 0 || s.N > 1 && d != int(s.Stride) {
		return false
	}
	s.N, s.Stride = s.N+1, int32(d)
	return true
}

// peer is the list of one rank.
func (b *builder) peer(r kolo.Rank) []kolo.Rank {
	b.peers = append(b.peers, r)
	n := len(b.peers)
	return b.peers[n-1 : n : n]
}

// alone is the whole Program of a group of one rank: finish brings the blocks
// home, and AllToAll has its one block to move.
func (b *builder) alone() {
	if b.p.Collective == kolo.AllToAll && !b.p.InPlace {
		b.copyPlaces([]place{{In, 0}}, []place{{Out, 0}})
	}
}

// sendFrom, recvInto and copyPlaces name places, for AllToAll.
func (b *builder) sendFrom(peer kolo.Rank, src []place) {
	b.step(Step{Op: Send, Peers: b.peer(peer)}, src, nil)
}

func (b *builder) recvInto(peer kolo.Rank, dst []place) {
	b.step(Step{Op: Recv, Peers: b.peer(peer)}, nil, dst)
}

func (b *builder) copyPlaces(src, dst []place) {
	b.step(Step{Op: Copy}, src, dst)
}
