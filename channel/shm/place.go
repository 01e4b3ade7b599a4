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

// What the first word of a large round's head says: which places are beside it.
const (
	placesNone = iota
	placesInputs
	placesAll // the output's too
)

// place is where a vector of a process lies: in a region, which the others have mapped, or, with
// region 0, at an address of its private memory. The zero place is nowhere.
type place struct{ region, at uint64 }

func (h *boardHead) place(i int) place {
	b := h.places[i*boardPlace:][:boardPlace]
	return place{binary.NativeEndian.Uint64(b), binary.NativeEndian.Uint64(b[8:])}
}

func (h *boardHead) setPlace(i int, p place) {
	b := h.places[i*boardPlace:][:boardPlace]
	binary.NativeEndian.PutUint64(b, p.region)
	binary.NativeEndian.PutUint64(b[8:], p.at)
}

// placeOf is where memory of this process lies for the others, and whether they reach it.
func (b *board) placeOf(m []byte) (p place, reached bool) {
	number, offset := b.d.regionOf(m)
	switch {
	case number != 0:
		return place{uint64(number), offset}, true
	case b.canBeRead() && b.layout.grain >= privateFrom && b.d.me.shows(m):
		return place{0, uint64(uintptr(unsafe.Pointer(&m[0])))}, true
	}
	return place{}, false
}

// showPlaces writes beside a head where this process's inputs are, if all are where the others
// reach them and reading them there is worth a wait. It says whether it did, and whether the
// output of a part that is all from all to all is shown as well.
func (b *board) showPlaces(h *boardHead) (inputs, output bool) {
	shows := placesNone
	if b.placeInputs(h) {
		shows = placesInputs
		if b.placeOutput(h) {
			shows = placesAll
		}
	}
	binary.NativeEndian.PutUint64(h.data, uint64(shows))
	return shows != placesNone, shows == placesAll
}

func (b *board) placeInputs(h *boardHead) bool {
	inputs := b.round.Inputs
	if len(inputs) >= boardPlaces || len(inputs) != b.mine.locals || b.round.Trades {
		return false
	}
	large := false
	for i, r := range b.mine.ranks {
		n := b.layout.inputs[r]
		h.setPlace(i, place{})
		if n == 0 {
			continue
		}
		if inputs[i].Len() < n {
			return false
		}
		p, reached := b.placeOf(inputs[i].Host)
		// What is shared out to be folded goes by the arenas as fast.
		if !reached || p.region == 0 && b.layout.twice {
			return false
		}
		large = large || p.region == 0 || n >= placesFrom
		h.setPlace(i, p)
	}
	return large
}

func (b *board) placeOutput(h *boardHead) bool {
	if !b.layout.one {
		return false
	}
	p, reached := b.placeOf(b.round.Parts[0].Dst[0].Host)
	h.setPlace(b.mine.locals, p)
	return reached
}

// visit finds the inputs of a process whose head has come. They are not there as long as
// this process has not heard of the memory that they are in.
func (b *board) visit(q *party, h *boardHead) (there bool, err error) {
	shows := binary.NativeEndian.Uint64(h.data) // what is judged may not change afterwards
	if shows == placesNone {
		return true, nil
	}
	if shows > placesAll || q.locals >= boardPlaces || shows == placesAll && !b.layout.one {
		return false, fmt.Errorf("%w: %v shows the places of %d vectors in a way that is not known", kolo.ErrLost, q.p, q.locals)
	}
	q.p.mu.Lock()
	defer q.p.mu.Unlock()
	for i, rank := range q.ranks {
		v, there, err := b.vector(q, h.place(i), uint64(b.layout.inputs[rank]))
		if !there {
			b.leave(q)
			return false, err
		}
		q.inputs = append(q.inputs, v)
	}
	if shows == placesAll {
		v, there, err := b.vector(q, h.place(q.locals), uint64(b.layout.slots[0].length))
		if !there {
			b.leave(q)
			return false, err
		}
		q.output = v
	}
	b.twice = b.layout.twice
	return true, nil
}

// vector is the memory at a place of a process; the peer's lock is held.
func (b *board) vector(q *party, at place, size uint64) (v vector, there bool, err error) {
	if size == 0 {
		return v, true, nil
	}
	r := q.p.regions[uint32(at.region)]
	wrong := false
	switch {
	case at.region == 0:
		wrong = at.at == 0 || at.at+size < at.at || !q.p.reads
	case at.region>>32 != 0:
		wrong = true
	case r != nil:
		wrong = at.at > uint64(len(r.mem)) || size > uint64(len(r.mem))-at.at
	}
	switch {
	case wrong:
		return v, false, fmt.Errorf("%w: %v shows %d bytes at %d of its memory %d", kolo.ErrLost, q.p, size, at.at, at.region)
	case q.p.state == lost && (r == nil || at.region == 0):
		return v, false, q.p.lost
	case at.region == 0:
		q.private, q.process = true, q.p.process
		return vector{addr: at.at}, true, nil
	case r == nil:
		return v, false, nil
	}
	r.users++
	q.within = append(q.within, r)
	return vector{mem: r.mem[at.at:][:size:size]}, true, nil
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
	q.output, q.private, q.process = vector{}, false, process{}
}

// gaveUp is a process that has taken its vectors back or is gone, or nil. It is asked when they
// have been read, and before that is told.
func (b *board) gaveUp() *party {
	b.fence.Add(1) // what was read was read before
	for i := range b.parties {
		q := &b.parties[i]
		if len(q.inputs) > 0 && (q.area.head(b.number).number.Load() != b.number || q.private && !q.process.alive()) {
			return q
		}
	}
	return nil
}

// leavePlaces lets go of all memory of the round that is the others', and when the round
// has failed takes this process's own back: its ranks may write to it from here on.
func (b *board) leavePlaces(err error) {
	if err != nil && b.inPlace {
		b.mine.area.head(b.number).number.Store(0)
	}
	b.inPlace, b.shown, b.whole = false, false, false
	for i := range b.parties {
		if q := &b.parties[i]; len(q.inputs) > 0 {
			q.p.mu.Lock()
			b.leave(q)
			q.p.mu.Unlock()
		}
	}
}
