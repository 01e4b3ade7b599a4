//go:build linux && (amd64 || arm64)

package shm

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/kolo-ccl/kolo"
)

// The layout of one direction of a segment, in bytes. Producer and consumer write to
// different cache lines.
//
//	0 tail | 64 head, 72 producer waits for room | 128 bytes of messages taken | 256 slots | 8192 data
//
// Head and tail count bytes from the beginning of time.
const (
	tailAt    = 0
	headAt    = 64
	waitsAt   = 72
	takenAt   = 128
	slotsAt   = 256
	slots     = 512
	dataAt    = 8192
	ringBytes = 256 << 10
	halfBytes = dataAt + ringBytes
)

// area is one direction of a segment. Every word in it may be anything at any time.
type area struct {
	tail, head, taken *atomic.Uint64
	waits             *atomic.Uint32
	slots             []atomic.Uint64
	data              []byte
}

// newArea lays the words out over halfBytes of memory that begins at a page.
func newArea(mem []byte) area {
	_ = mem[halfBytes-1]
	word := func(at int) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&mem[at])) }
	return area{
		tail: word(tailAt), head: word(headAt), taken: word(takenAt),
		waits: (*atomic.Uint32)(unsafe.Pointer(&mem[waitsAt])),
		slots: unsafe.Slice(word(slotsAt), slots),
		data:  mem[dataAt:halfBytes:halfBytes],
	}
}

// writer is the producer's end of a ring.
type writer struct {
	area
	at   uint64 // the tail, which nobody else moves
	seen uint64 // the head as it was when last looked at
}

// room says whether an entry of n bytes fits.
func (w *writer) room(n uint64) (bool, error) {
	if w.at+n-w.seen <= ringBytes {
		return true, nil
	}
	h := w.head.Load()
	if w.at-h > ringBytes || h < w.seen {
		return false, fmt.Errorf("%w: the head of a ring is at %d and its tail at %d", errCorrupt, h, w.at)
	}
	w.seen = h
	return w.at+n-h <= ringBytes, nil
}

// put writes a frame whose payload is bytes off to off+f.size of mem. There is room
// for it. It is seen when it is whole.
func (w *writer) put(f *frame, mem []kolo.Memory, off int64) {
	left := int64(f.size)
	to := w.at + line
	if f.size <= inlineBytes {
		gather(f.inline[:f.size], mem, off)
		left = 0
	}
	for _, m := range mem {
		if left == 0 {
			break
		}
		b := m.Host
		if off >= int64(len(b)) {
			off -= int64(len(b))
			continue
		}
		b = b[off:min(int64(len(b)), off+left)]
		off, left = 0, left-int64(len(b))
		for len(b) > 0 {
			n := copy(w.data[to%ringBytes:], b)
			b, to = b[n:], to+uint64(n)
		}
	}
	f.put(w.data[w.at%ringBytes:])
	w.at += f.entry()
	w.tail.Store(w.at)
}

// gather fills b from byte off of the list on.
func gather(b []byte, mem []kolo.Memory, off int64) {
	for _, m := range mem {
		if off >= int64(len(m.Host)) {
			off -= int64(len(m.Host))
			continue
		}
		b = b[copy(b, m.Host[off:]):]
		off = 0
	}
}

// reader is the consumer's end of a ring.
type reader struct {
	area
	at    atomic.Uint64 // the head, which nobody else moves
	limit uint64        // the tail as it was when last looked at
}

// waiting says whether there are frames. It may be called by anybody.
func (r *reader) waiting() bool { return r.tail.Load() != r.at.Load() }

// next reads the head of the next frame, if there is one.
func (r *reader) next(f *frame) (bool, error) {
	at := r.at.Load()
	if at == r.limit {
		t := r.tail.Load()
		if t-at > ringBytes || t%line != 0 {
			return false, fmt.Errorf("%w: the tail of a ring is at %d and its head at %d", errCorrupt, t, at)
		}
		if r.limit = t; t == at {
			return false, nil
		}
	}
	head := [line]byte(r.data[at%ringBytes:][:line]) // what is judged may not change afterwards
	if err := f.parse(&head); err != nil {
		return false, err
	}
	if n := f.entry(); n > r.limit-at {
		return false, fmt.Errorf("%w: an entry of %d bytes where %d are written", errCorrupt, n, r.limit-at)
	}
	return true, nil
}

// payload copies bytes of the frame at hand, from off on, to b.
func (r *reader) payload(f *frame, b []byte, off uint64) {
	if f.size <= inlineBytes {
		copy(b, f.inline[off:f.size])
		return
	}
	for from := r.at.Load() + line + off; len(b) > 0; {
		at := from % ringBytes
		n := copy(b, r.data[at:])
		b, from = b[n:], from+uint64(n)
	}
}

// scatter copies the payload of the frame at hand to bytes off and following of mem.
func (r *reader) scatter(f *frame, mem []kolo.Memory, off int64) {
	done, size := uint64(0), uint64(f.size)
	for _, m := range mem {
		b := m.Host
		if off >= int64(len(b)) {
			off -= int64(len(b))
			continue
		}
		b = b[off:]
		off = 0
		b = b[:min(uint64(len(b)), size-done)]
		if r.payload(f, b, done); done+uint64(len(b)) == size {
			return
		}
		done += uint64(len(b))
	}
}

// skip goes to the next frame. The producer sees the room after free.
func (r *reader) skip(f *frame) { r.at.Store(r.at.Load() + f.entry()) }

// free gives what was read back to the producer, and says whether it waits for room.
func (r *reader) free() (waits bool) {
	r.head.Store(r.at.Load())
	return r.waits.Load() != 0 && r.waits.Swap(0) != 0
}
