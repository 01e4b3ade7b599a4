//go:build linux && (amd64 || arm64)

package shm

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"github.com/kolo-ccl/kolo"
)

// regionOf is the number of the arena that memory lies in and where in it; 0 if it is of
// none. m is not empty.
func (d *Driver) regionOf(m []byte) (number uint32, offset uint64) {
	at := uint64(uintptr(unsafe.Pointer(&m[0])))
	for _, a := range *d.arenas.Load() {
		base := uint64(uintptr(unsafe.Pointer(&a.mem[0])))
		if at >= base && at-base < uint64(len(a.mem)) {
			return a.number, at - base
		}
	}
	return 0, 0
}

// showPlaces writes to a head where this process's inputs are, if all are in memory of
// Alloc and one is large, and says whether that is so.
func (b *board) showPlaces(h *boardHead) bool {
	clear(h.data)
	inputs := b.round.Inputs
	if len(inputs)*boardPlace > len(h.data) || len(inputs) != b.mine.locals || b.round.Trades {
		return false
	}
	large := false
	for i, r := range b.mine.ranks {
		n := b.layout.inputs[r]
		if n == 0 {
			continue
		}
		number, offset := uint32(0), uint64(0)
		if inputs[i].Len() >= n {
			number, offset = b.d.regionOf(inputs[i].Host)
		}
		if number == 0 {
			clear(h.data)
			return false
		}
		large = large || n >= placesFrom
		binary.NativeEndian.PutUint64(h.data[i*boardPlace:], uint64(number))
		binary.NativeEndian.PutUint64(h.data[i*boardPlace+8:], offset)
	}
	if !large {
		clear(h.data)
	}
	return large
}

// visit finds the inputs of a process whose head has come. They are not there as long as
// this process has not heard of the memory that they are in.
func (b *board) visit(q *party, h *boardHead) (there bool, err error) {
	data := [boardInline]byte(h.data) // what is judged may not change afterwards
	if data == [boardInline]byte{} {
		return true, nil
	}
	if q.locals*boardPlace > len(data) {
		return false, fmt.Errorf("%w: %v shows the places of %d vectors", kolo.ErrLost, q.p, q.locals)
	}
	q.p.mu.Lock()
	defer q.p.mu.Unlock()
	for i, rank := range q.ranks {
		size := uint64(b.layout.inputs[rank])
		number, offset := binary.NativeEndian.Uint64(data[i*boardPlace:]), binary.NativeEndian.Uint64(data[i*boardPlace+8:])
		if size == 0 {
			q.inputs = append(q.inputs, nil)
			continue
		}
		r := q.p.regions[uint32(number)]
		switch {
		case number == 0 || number>>32 != 0 || r != nil && (offset > uint64(len(r.mem)) || size > uint64(len(r.mem))-offset):
			b.leave(q)
			return false, fmt.Errorf("%w: %v shows %d bytes at %d of its memory %d", kolo.ErrLost, q.p, size, offset, number)
		case r == nil && q.p.state == lost:
			b.leave(q)
			return false, q.p.lost
		case r == nil:
			b.leave(q)
			return false, nil
		}
		r.users++
		q.within = append(q.within, r)
		q.inputs = append(q.inputs, r.mem[offset:][:size:size])
	}
	b.twice = b.layout.twice
	return true, nil
}

// leave lets the memory go that the inputs of a process are in; its lock is held.
func (b *board) leave(q *party) {
	for _, r := range q.within {
		if q.p.regions != nil {
			q.p.leaveRegion(r)
		}
	}
	clear(q.within)
	clear(q.inputs)
	q.within, q.inputs = q.within[:0], q.inputs[:0]
}

// gaveUp is a process that has taken its inputs back, or nil. It is asked when they have
// been read, and before that is told.
func (b *board) gaveUp() *party {
	b.fence.Add(1) // what was read was read before
	for i := range b.parties {
		if q := &b.parties[i]; len(q.inputs) > 0 && q.area.heads[b.number%2].number.Load() != b.number {
			return q
		}
	}
	return nil
}

// leavePlaces lets go of all memory of the round that is the others', and when the round
// has failed takes this process's own back: its ranks may write to it from here on.
func (b *board) leavePlaces(err error) {
	if err != nil && b.inPlace {
		b.mine.area.heads[b.number%2].number.Store(0)
	}
	b.inPlace = false
	for i := range b.parties {
		if q := &b.parties[i]; len(q.within) > 0 {
			q.p.mu.Lock()
			b.leave(q)
			q.p.mu.Unlock()
		}
	}
}
