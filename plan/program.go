package plan

import "github.com/kolo-ccl/kolo"

// Buffer names one of the three memories that a Program works on. All are
// indexed by block; a Layout gives the bytes of a block.
type Buffer uint8

// The buffers. Where a call is in place, In and Out are one memory, and a
// Program uses only one of the two names for it (see Program.InPlace).
const (
	In      Buffer = iota // the rank's input; never written unless the call is in place
	Out                   // the rank's result
	Scratch               // memory of the runtime, for the time of the run
	numBuffers
)

// String is "in", "out" or "scratch".
func (b Buffer) String() string {
	switch b {
	case In:
		return "in"
	case Out:
		return "out"
	case Scratch:
		return "scratch"
	}
	return "no buffer"
}

// Span is N blocks of a buffer: Off, Off+Stride, Off+2*Stride and so on, modulo
// the number of blocks of the buffer. A Stride of 1 is a contiguous (cyclic) range.
type Span struct {
	Buf            Buffer
	Off, N, Stride int32
}

// Opcode is what a Step does.
type Opcode uint8

// The opcodes. MSCCL's fused forms (receive-copy-send and the like) are a receive
// and a send that comes after it.
const (
	// Send gives Src to each of Peers; it holds Src from begin to end.
	Send Opcode = iota
	// Recv takes Dst from its one peer.
	Recv
	// RecvReduce takes one operand from each of Peers, adds the local operand Src,
	// folds them in ascending rank order in one pass, and stores to Dst. Dst may be Src.
	RecvReduce
	// Copy moves Src to Dst on this rank.
	Copy
	// Reduce folds Src into Dst on this rank: Dst = Dst op Src.
	Reduce
	// Scale is Dst = factor * Src, the premultiplication of PreMulSum.
	Scale
	// Fabric asks the medium to do the whole collective; it is the only step of its Program.
	Fabric
)

// String is the name of the opcode in lower case.
func (o Opcode) String() string {
	switch o {
	case Send:
		return "send"
	case Recv:
		return "recv"
	case RecvReduce:
		return "recv-reduce"
	case Copy:
		return "copy"
	case Reduce:
		return "reduce"
	case Scale:
		return "scale"
	case Fabric:
		return "fabric"
	}
	return "no opcode"
}

// Step is one action of one rank. It may begin when every step in After has
// ended and every earlier step of the same connection has begun: the k-th
// send on (from, to, lane) meets the k-th receive.
type Step struct {
	Op    Opcode
	Lane  uint8
	Final bool        // the result of this RecvReduce or Reduce holds every rank's part: Avg divides here
	Peers []kolo.Rank // as written; Program.Peer gives the rank
	Src   []Span      // as written; Program.Span gives the blocks
	Dst   []Span
	After []int32 // steps of the same Program, all smaller than this one's index
}

// Program is what one rank does in one collective: steps over blocks, without
// sizes or addresses, so that one Program serves calls of any count.
//
// A Program may be shared by all ranks of a group: the steps are then those of
// rank 0, and Peer and Span rotate them to Rank. Steps are never changed after
// Compile; the Program may be used by many runs at a time.
type Program struct {
	Collective kolo.Collective // a base collective: AllGather for AllGatherV too
	Algorithm  string
	Rank       kolo.Rank
	Ranks      int
	Root       kolo.Rank
	// InPlace: In and Out are one memory. The steps say Out for both, but for
	// ReduceScatter and Scatter, where the larger memory is In, they say In.
	InPlace bool
	// Chunks is the number of equal (or Counts-sized) parts of the whole vector and
	// Parts the number of blocks that each of them is cut into; AllReduce, Reduce and
	// Broadcast have one chunk.
	Chunks, Parts int
	Blocks        [numBuffers]int // blocks of each buffer; 0 where the rank has none
	UsesScratch   bool
	// Even says that the steps hold only for counts that make all blocks equally long,
	// as in plans from outside, which put any block anywhere and, in place, use the rest
	// of the input as they like. Rendezvous makes Programs for any count of them.
	Even bool
	// Like says, for each block of Scratch, which block of the whole vector it is as
	// long as. nil: block i is as long as block i of the vector.
	Like  []int32
	Steps []Step

	shift int // what Peer and Span add, 0 for a Program that is not shared
}

// Peer is the group rank of a Step's peer.
func (p *Program) Peer(r kolo.Rank) kolo.Rank {
	if p.shift == 0 {
		return r
	}
	if r += kolo.Rank(p.shift); r >= kolo.Rank(p.Ranks) {
		r -= kolo.Rank(p.Ranks)
	}
	return r
}

// Span is a Step's span with its offset reduced to [0, Blocks[s.Buf]).
func (p *Program) Span(s Span) Span {
	n := p.Blocks[s.Buf]
	if n == 0 {
		return s
	}
	off := (int(s.Off) + p.shift*p.stepBlocks()) % n
	if off < 0 {
		off += n
	}
	s.Off = int32(off)
	return s
}

// stepBlocks is how many blocks a rotation by one rank moves.
func (p *Program) stepBlocks() int {
	if p.Chunks == 1 {
		return p.Parts / p.Ranks
	}
	return p.Parts
}

// rotated is the Program of rank r where p, made for rank 0, serves all ranks.
// The steps are not copied.
func (p *Program) rotated(r kolo.Rank) *Program {
	q := *p
	q.Rank, q.shift = r, int(r)
	return &q
}

// At calls f for each block of span s, with its index.
func (p *Program) At(s Span, f func(block int)) {
	s = p.Span(s)
	n := p.Blocks[s.Buf]
	at := int(s.Off)
	for range s.N {
		f(at)
		at = (at + int(s.Stride)) % n
		if at < 0 {
			at += n
		}
	}
}
