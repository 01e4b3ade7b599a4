package plan

import "github.com/kolo-ccl/kolo"

// Segment is a range of bytes of a buffer.
type Segment struct {
	Buf Buffer
	Off int64
	Len int64
}

// Layout gives the bytes of the blocks of one rank's Program for one Call. It is
// a small value made per call; it allocates nothing.
type Layout struct {
	part [numBuffers]partition
	size int64 // bytes of an element
}

// Displs are where the chunks of a V form lie, in elements, for In and Out. A nil
// list means packed in rank order; the offset of a chunk is then a sum over those
// before it, each time, so large groups do better to say it.
type Displs struct{ In, Out []int64 }

// LayoutOf is the layout of program p for call c, which p must have been compiled for.
// Where p is Even, the count must be a multiple of its blocks, or of those of a chunk.
// An AllToAllV or AllToAllVC in place must send as much to each rank, from the same
// place, as it takes from it: one list serves for both there, that of Out.
func LayoutOf(p *Program, c *kolo.Call, d Displs) Layout {
	l := Layout{size: int64(c.DType.Size())}
	unit := 64 / l.size
	if p.Even {
		unit = 1
	}
	whole := partition{count: c.Count, chunks: p.Chunks, parts: p.Parts, unit: unit}
	mine := partition{count: c.Count, chunks: 1, parts: p.Parts, chunk: true, unit: unit}
	all := whole
	all.chunk = p.Chunks > 1 || p.Collective == kolo.AllGather || p.Collective == kolo.ReduceScatter ||
		p.Collective == kolo.Gather || p.Collective == kolo.Scatter || p.Collective == kolo.AllToAll
	if len(c.Counts) > 0 && c.Collective != kolo.AllReduce && c.Collective != kolo.AllToAllV && c.Collective != kolo.AllToAllVC {
		all.counts = c.Counts
		mine.count = c.Counts[p.Rank]
	}
	l.part[In], l.part[Out], l.part[Scratch] = all, all, all
	switch p.Collective {
	case kolo.AllGather, kolo.Gather:
		l.part[In] = mine
		l.part[Out].displs = d.Out
	case kolo.ReduceScatter, kolo.Scatter:
		l.part[Out] = mine
		l.part[In].displs = d.In
	case kolo.AllToAll:
		l.allToAll(p, c, d)
	}
	if p.Like != nil {
		l.part[Scratch].resemble(p.Like)
	}
	return l
}

func (l *Layout) allToAll(p *Program, c *kolo.Call, d Displs) {
	switch c.Collective {
	case kolo.AllToAllV:
		l.part[In].counts, l.part[Out].counts = c.Counts, c.RecvCounts
		l.part[Scratch].counts = c.RecvCounts
	case kolo.AllToAllVC:
		n, r := p.Ranks, int(p.Rank)
		l.part[In].counts = c.Counts[r*n : (r+1)*n]
		l.part[Out].counts, l.part[Out].step, l.part[Out].first = c.Counts, n, r
		l.part[Scratch] = l.part[Out]
	}
	l.part[In].displs, l.part[Out].displs = d.In, d.Out
}

// Range is the bytes of a block.
func (l *Layout) Range(b Buffer, block int) (off, n int64) {
	off, n = l.part[b].at(block)
	return off * l.size, n * l.size
}

// ScratchSize is the number of bytes of scratch memory that p needs.
func (l *Layout) ScratchSize(p *Program) int64 {
	if !p.UsesScratch || p.Blocks[Scratch] == 0 {
		return 0
	}
	off, n := l.Range(Scratch, p.Blocks[Scratch]-1)
	return off + n
}

// Segments appends the bytes of spans to dst, in order, neighbours joined and
// empty ranges left out.
func (l *Layout) Segments(dst []Segment, p *Program, spans []Span) []Segment {
	first := len(dst)
	for _, s := range spans {
		s = p.Span(s)
		n := int32(p.Blocks[s.Buf])
		at := s.Off
		for range s.N {
			off, size := l.Range(s.Buf, int(at))
			if last := len(dst) - 1; size > 0 {
				if last >= first && dst[last].Buf == s.Buf && dst[last].Off+dst[last].Len == off {
					dst[last].Len += size
				} else {
					dst = append(dst, Segment{Buf: s.Buf, Off: off, Len: size})
				}
			}
			if at = (at + s.Stride) % n; at < 0 {
				at += n
			}
		}
	}
	return dst
}

// partition cuts a buffer into blocks: chunks, each cut into parts.
type partition struct {
	count         int64 // elements of a chunk (chunk), or of the whole buffer
	chunks, parts int
	chunk         bool    // count is per chunk
	unit          int64   // cut at multiples of this many elements where that is fair
	counts        []int64 // elements of chunk i: counts[first+i*max(step,1)]
	step, first   int
	displs        []int64 // element offset of chunk i; nil: packed
	like          []int32 // block i has the length of block like[i], and room for any; nil: block i is itself
	room          int64   // elements from one block to the next, where there is a like
}

// resemble makes each block as long as some other.
func (t *partition) resemble(like []int32) {
	chunks := 1
	if t.counts != nil {
		chunks = t.chunks
	}
	for c := range chunks {
		n := t.count
		if t.chunk {
			n = t.chunkSize(c)
		}
		blocks := t.parts
		if !t.chunk {
			blocks *= t.chunks
		}
		for _, i := range []int{0, blocks - 1} { // the first is the longest, but for the rest in the last
			_, size := cut(n, blocks, i, t.unit)
			t.room = max(t.room, size)
		}
	}
	t.room += (t.unit - t.room%t.unit) % t.unit
	t.like = like
}

// at is the first element and the number of elements of block i.
func (t *partition) at(i int) (off, n int64) {
	if t.like != nil {
		return int64(i) * t.room, t.blockCount(i)
	}
	if !t.chunk {
		return cut(t.count, t.parts*t.chunks, i, t.unit)
	}
	c, q := i/t.parts, i%t.parts
	size := t.chunkSize(c)
	off, n = cut(size, t.parts, q, t.unit)
	switch {
	case t.displs != nil:
		return t.displs[c] + off, n
	case t.counts == nil:
		return int64(c)*t.count + off, n
	}
	for k := range c {
		off += t.chunkSize(k)
	}
	return off, n
}

func (t *partition) chunkSize(c int) int64 {
	if t.counts == nil {
		return t.count
	}
	return t.counts[t.first+c*max(t.step, 1)]
}

// cut divides n elements into parts as evenly as possible and returns part i. With
// at least 8 units for each part the cuts are at multiples of unit (a cache
// line), the rest going to the last.
func cut(n int64, parts, i int, unit int64) (off, size int64) {
	if parts == 1 {
		return 0, n
	}
	p, k := int64(parts), int64(i)
	if unit < 1 || n < 8*unit*p {
		unit = 1
	}
	units := n / unit
	q, rem := units/p, units%p
	off = (k*q + min(k, rem)) * unit
	end := ((k+1)*q + min(k+1, rem)) * unit
	if i == parts-1 {
		end = n
	}
	return off, end - off
}

// spanSize is the number of bytes of a span of p. It takes no longer for many
// blocks than for few, unless there is a list of counts or a chunk has several parts.
func (l *Layout) spanSize(p *Program, s Span) int64 {
	s = p.Span(s)
	t := &l.part[s.Buf]
	n := int64(p.Blocks[s.Buf])
	if t.counts != nil || t.like != nil || t.chunk && t.parts > 1 {
		size := int64(0)
		at := int64(s.Off)
		for range s.N {
			size += t.blockCount(int(at))
			if at = (at + int64(s.Stride)) % n; at < 0 {
				at += n
			}
		}
		return size * l.size
	}
	if t.chunk {
		return int64(s.N) * t.count * l.size
	}
	each, more, rest := evenCut(t.count, t.parts*t.chunks, t.unit)
	size := int64(s.N) * each
	if more+rest > 0 {
		unit := t.unit
		if t.count < 8*unit*int64(t.parts*t.chunks) {
			unit = 1
		}
		low, last := s.below(n, more)
		size += low*max(unit, 1) + last*rest
	}
	return size * l.size
}

// blockCount is the number of elements of block i.
func (t *partition) blockCount(i int) int64 {
	if t.like != nil {
		i = int(t.like[i])
	}
	size, parts := t.count, t.parts*t.chunks
	if t.chunk {
		size, parts, i = t.chunkSize(i/t.parts), t.parts, i%t.parts
	}
	_, n := cut(size, parts, i, t.unit)
	return n
}

// evenCut is what cut does with n elements: every part has each elements, the first
// more of them a unit more, and the last rest elements more.
func evenCut(n int64, parts int, unit int64) (each, more, rest int64) {
	p := int64(parts)
	if parts == 1 {
		return n, 0, 0
	}
	if unit < 1 || n < 8*unit*p {
		unit = 1
	}
	units := n / unit
	return units / p * unit, units % p, n - units*unit
}

// below counts the blocks of a span, whose offset is in [0, n), that are less than
// limit, and those that are n-1.
func (s Span) below(n, limit int64) (low, last int64) {
	at, left, step := int64(s.Off), int64(s.N), int64(s.Stride)%n
	if step == 0 {
		if at < limit {
			low = left
		}
		if at == n-1 {
			last = left
		}
		return low, last
	}
	for left > 0 { // one turn through the buffer
		var k, first int64
		if step > 0 {
			k = min(left, (n-1-at)/step+1)
			first = at
			at += k*step - n
		} else {
			k = min(left, at/-step+1)
			first = at + (k-1)*step
			at += k*step + n
		}
		d := max(step, -step)
		if limit > first {
			low += min(k, (limit-first+d-1)/d)
		}
		if first+(k-1)*d == n-1 {
			last++
		}
		left -= k
	}
	return low, last
}
