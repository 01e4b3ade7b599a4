package channel

import (
	"sync/atomic"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/internal/kernel"
)

// Engine moves and folds bytes: host kernels on the goroutines of a process, or
// the copy and compute engines of a device. It is the DMA engine of the drivers,
// and the group medium (fabric) of ranks whose memory it can address.
type Engine interface {
	// Start begins a job and returns. Job.Done is called exactly once: perhaps before
	// Start returns and then with turn t, as for a small job, or later with a nil turn.
	Start(t Turn, j *Job)
	// Lend gives the calling goroutine, which waits for a call of a priority that reads and
	// writes so many bytes and has nothing else to do, to the engine until done is not zero or
	// there has been nothing to do for some microseconds. It may return at any time; the
	// caller then parks. What is less urgent gives way meanwhile: jobs of lower priority, and
	// at the same priority those of large calls to small ones.
	Lend(done *atomic.Uint32, priority int, call int64)
	// Reaches says whether the engine can address memory of a space.
	Reaches(s kolo.Space) bool
	// Close waits for the jobs that were started and ends the engine's goroutines.
	Close()
}

// Job is a list of parts that may be done in any order and at the same time. It
// is used again; from Start to Done it belongs to the engine.
type Job struct {
	Op       kernel.Op // how the sources of a part are folded
	Parts    []Part
	Priority int   // larger first
	Call     int64 // bytes that the call reads and writes of which the job is a part; 0: those of the job
	// Awaited says that all who know of the job do nothing but wait for it, and that
	// another such job is likely to follow at once: Start may do a share of it, if it
	// touches no more than MaxAwaited bytes.
	Awaited bool
	Done    func(t Turn, err error)

	State JobState
}

// MaxAwaited is the most bytes that an awaited job touches of which Start does a share: the
// turn that it is called in takes that long, some 20 microseconds.
const MaxAwaited = 4 << 20

// Part folds its sources, left to right, and stores the result to each of its
// destinations, in one pass. With one source that is a copy (or a scaling, if Op
// says so). All are of the same length. A destination may be one of the sources;
// apart from that, no destination overlaps any memory of the job.
type Part struct {
	Src, Dst []kolo.Memory
}

// Len is the length of each source and destination.
func (p *Part) Len() int64 {
	if len(p.Src) == 0 {
		return 0
	}
	return p.Src[0].Len()
}

// Size is the number of bytes that the job reads and writes.
func (j *Job) Size() int64 {
	var n int64
	for i := range j.Parts {
		n += j.Parts[i].Len() * int64(len(j.Parts[i].Src)+len(j.Parts[i].Dst))
	}
	return n
}

// Add appends a part and returns it with empty lists, whose memory is used again.
func (j *Job) Add() *Part {
	j.State.Cut = false
	if n := len(j.Parts); n < cap(j.Parts) {
		j.Parts = j.Parts[:n+1]
	} else {
		j.Parts = append(j.Parts, Part{})
	}
	p := &j.Parts[len(j.Parts)-1]
	p.Src, p.Dst = p.Src[:0], p.Dst[:0]
	return p
}

// Reset makes the job empty, keeping its lists.
func (j *Job) Reset() { j.Parts, j.State.Cut = j.Parts[:0], false }

// AddMove appends the parts that move src to dst: two lists of memory that hold
// the same bytes in order, cut differently.
func (j *Job) AddMove(dst, src []kolo.Memory) { j.AddFold(dst, src) }

// AddFold appends the parts that fold operands into dst. Each operand is a list of
// memory of dst's total length, cut in its own way.
func (j *Job) AddFold(dst []kolo.Memory, operands ...[]kolo.Memory) {
	var space [16]cursor
	at := append(space[:0], cursor{list: dst})
	for _, o := range operands {
		at = append(at, cursor{list: o})
	}
	for {
		n := int64(1)<<62 - 1
		for i := range at {
			n = min(n, at[i].left())
		}
		if n == 0 {
			return
		}
		p := j.Add()
		p.Dst = append(p.Dst, at[0].take(n))
		for i := range at[1:] {
			p.Src = append(p.Src, at[i+1].take(n))
		}
	}
}

// cursor is a place in a list of memory.
type cursor struct {
	list []kolo.Memory
	off  int64
}

// left is what is left of the current memory, 0 at the end of the list.
func (c *cursor) left() int64 {
	for len(c.list) > 0 {
		if n := c.list[0].Len() - c.off; n > 0 {
			return n
		}
		c.list, c.off = c.list[1:], 0
	}
	return 0
}

func (c *cursor) take(n int64) kolo.Memory {
	m := c.list[0].Slice(c.off, n)
	c.off += n
	return m
}

// JobState is what an engine notes in a job; it belongs to the engine.
type JobState struct {
	Side   [2]Side      // the blocks, in two halves
	Left   atomic.Int64 // blocks not done
	Class  atomic.Int32 // how urgent it is
	_      [52]byte
	Shares Shares       // the blocks, in place of these, of a job whose starter does a share of it
	Least  atomic.Int32 // blocks of Shares that are taken at the least; may be read at any time
	Run    atomic.Int32 // blocks of a Side that are taken at a time by who is not hurried; may be read at any time
	Sized  int64        // bytes that the job touches, of parts that are Cut
	Cut    bool         // what follows fits the parts; a job that is done again is cut once
	Blocks int          // their number
	Around bool         // what is not also read is written around the caches
	Block  int64        // bytes of a block
	Most   int64        // blocks that a helper does at a time
	First  []int32      // number of the first block of each part
	Err    atomic.Pointer[error]
	Back   bool // each of Side is done from its other end on, every second time
	_      [64]byte
}

// Blocks is how many blocks of a job that runs are done, and of how many; 0 of 0 where the
// engine does not cut jobs into blocks. It is for who has started the job.
func (j *Job) Blocks() (done, all int64) {
	s, last := &j.State, len(j.Parts)-1
	if s.Block == 0 || last < 0 || len(s.First) != len(j.Parts) {
		return 0, 0
	}
	all = int64(s.First[last]) + (j.Parts[last].Len()+s.Block-1)/s.Block
	return max(all-s.Left.Load(), 0), all
}

// Side is one half of a job's blocks: end<<32 | next.
type Side struct {
	claim atomic.Uint64
	_     [56]byte
}

// Set lays blocks next to end open.
func (s *Side) Set(next, end int) { s.claim.Store(uint64(end)<<32 | uint64(next)) }

// Open says whether there are blocks to take.
func (s *Side) Open() bool {
	v := s.claim.Load()
	return uint32(v) < uint32(v>>32)
}

// Take takes up to most blocks that lie side by side and returns the first and their number. A job
// may have ended and begun anew since the caller found it: only with a block in hand may
// its other fields be read.
func (s *Side) Take(most int) (first, n int) {
	if !s.Open() {
		return 0, 0
	}
	v := s.claim.Add(uint64(most))
	first = int(uint32(v)) - most
	return first, max(0, min(most, int(v>>32)-first))
}

// Shares is the blocks of a job in one word, so that few processors say in one access what
// they have done and take more: 16 bits each of the next block, the end of the open ones and
// the number of blocks that are not done, 15 of where the upper part begins, and one for the
// direction. The lower part is taken from the first block on, the upper from the last one
// back. Who starts the job counts as one block that is not done until it leaves.
type Shares struct {
	word atomic.Uint64
	_    [56]byte
}

// MaxShares is the most blocks of Shares.
const MaxShares = 1<<15 - 1

// Range is N blocks that were taken, from From on, of a part that begins or ends at Middle. Where
// Back is set each part is to be mirrored: it is gone through from its other end on.
type Range struct {
	From, N, Middle int
	Back            bool
}

// Lay lays blocks open, of which the starter takes some. Each time the parts are gone through
// the other way round, so that what the caches hold of the last time is met before it makes
// room for the rest. The direction is in the word as all that changes from one time to the
// next: who joins then finds the rest of the job in its own cache.
func (s *Shares) Lay(blocks, least int, upper bool) Range {
	v := shares{end: blocks, left: blocks + 1, middle: blocks / 2, back: s.word.Load()&1 == 0}
	from, n := v.own(least, upper)
	if n == 0 {
		from, n = v.other(least, upper)
	}
	s.word.Store(v.word())
	return Range{from, n, v.middle, v.back}
}

// Open says whether there are blocks to take.
func (s *Shares) Open() bool {
	v := s.word.Load()
	return v>>48 < v>>32&0xffff
}

// Left is the number of blocks that are not done, the starter among them.
func (s *Shares) Left() int { return int(s.word.Load() >> 16 & 0xffff) }

// Take notes that the caller has done so many blocks and gives it open ones of its own part: half
// of them, or all if that is less than least, so that who is interrupted holds little. It
// also says how many are not done.
func (s *Shares) Take(done, least int, upper bool) (r Range, left int) {
	for {
		word := s.word.Load()
		v := read(word)
		v.left -= done
		from, n := v.own(least, upper)
		if n == 0 && done == 0 {
			return Range{}, v.left
		}
		if s.word.CompareAndSwap(word, v.word()) {
			return Range{from, n, v.middle, v.back}, v.left
		}
	}
}

// Steal gives the caller open blocks of the other part: a quarter, and no more than least. It is
// for who has none of its own part, where nobody is at the other or is late there: what
// another core has written is long in coming.
func (s *Shares) Steal(least int, upper bool) (r Range) {
	for {
		word := s.word.Load()
		v := read(word)
		from, n := v.own(least, upper) // of a job that was laid open meanwhile
		if n == 0 {
			from, n = v.other(least, upper)
		}
		if n == 0 {
			return Range{}
		}
		if s.word.CompareAndSwap(word, v.word()) {
			return Range{from, n, v.middle, v.back}
		}
	}
}

// Alone says whether nobody has begun with the other part of so many blocks.
func (s *Shares) Alone(blocks int, upper bool) bool {
	v := read(s.word.Load())
	return upper && v.next == 0 || !upper && v.end == blocks
}

// shares is the word of Shares.
type shares struct {
	next, end, left, middle int
	back                    bool
}

func read(w uint64) shares {
	return shares{int(w >> 48), int(w >> 32 & 0xffff), int(w >> 16 & 0xffff), int(w >> 1 & 0x7fff), w&1 == 1}
}

func (v *shares) word() uint64 {
	w := uint64(v.next)<<48 | uint64(v.end)<<32 | uint64(v.left)<<16 | uint64(v.middle)<<1
	if v.back {
		w++
	}
	return w
}

// own takes n blocks of the taker's part, from from on.
func (v *shares) own(least int, upper bool) (from, n int) {
	open := min(v.end-v.next, v.middle-v.next)
	if upper {
		open = min(v.end-v.next, v.end-v.middle)
	}
	if n = open; n > least {
		n = max(least, (n+1)/2)
	}
	return v.take(max(n, 0), upper)
}

// other takes n blocks of what is open, where none of them are of the taker's part.
func (v *shares) other(least int, upper bool) (from, n int) {
	open := v.end - v.next
	return v.take(min(open, max(1, open/4), least), upper)
}

// take takes n blocks from one end.
func (v *shares) take(n int, upper bool) (int, int) {
	if upper {
		v.end -= n
		return v.end, n
	}
	v.next += n
	return v.next - n, n
}
