//go:build linux && (amd64 || arm64)

package shm

import (
	"fmt"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
)

// layout is where the parts of a round lie in the arenas. All processes derive the same
// from the parts. A round takes as many blocks as its largest process needs, and every
// block holds a slice of each part:
//
//	contributions of a process: the slices of its ranks, part after part
//	results of a process:       the slices of the parts whose folding is shared out
//
// So all processes have something to fold in every block of a ReduceScatter, and read from
// all others in every block of an AllToAll.
type layout struct {
	blocks uint64 // 0: the heads hold everything
	twice  bool   // the folding of some part may be shared out
	one    bool   // the only part is from all to all
	grain  int64  // bytes that are read at once of an input that is read where it is: the most of a part
	slots  []slot
	places []int64 // of slots of every rank: where each process has its contributions; -1: nowhere
	inputs []int64 // bytes of the input of each rank
	used   []int64 // bytes of the contributions of each process
}

// slot is where a part lies.
type slot struct {
	length, unit, at int64     // bytes of the part and of a slice; where it begins in the inputs
	from, to         kolo.Rank // of the part
	shared           bool      // its folding may be shared out
	place            int64     // of the contribution of from; or the first of its list in places
	result           int64
}

// seats says which process each rank of the group is in, and what each of them can hold.
type seats struct {
	of     []int // the place of each rank's process
	locals []int // ranks of each process
	block  int64 // bytes that a process has in a turn for each of its ranks, and for results
}

// same says whether the layout is that of the parts.
func (l *layout) same(parts []channel.Share) bool {
	if len(parts) != len(l.slots) {
		return false
	}
	for i := range parts {
		p, s := &parts[i], &l.slots[i]
		if p.Len != s.length || p.From != s.from || p.To != s.to || p.At != s.at {
			return false
		}
	}
	return true
}

// lay makes the layout of the parts.
func (l *layout) lay(s *seats, parts []channel.Share) error {
	l.slots, l.places, l.twice = l.slots[:0], l.places[:0], false
	l.grain, l.one = 0, len(parts) == 1 && parts[0].From == channel.EveryRank && parts[0].To == channel.EveryRank
	l.inputs = append(l.inputs[:0], make([]int64, len(s.of))...)
	for i := range parts {
		p := &parts[i]
		if p.Len < 0 || p.At < 0 || min(p.From, p.To) < channel.EveryRank || p.From >= kolo.Rank(len(s.of)) || p.To >= kolo.Rank(len(s.of)) {
			return fmt.Errorf("%w: part %d of a round, of %d bytes at %d, from %d to %d", kolo.ErrArgument, i, p.Len, p.At, int(p.From), int(p.To))
		}
		t := slot{length: p.Len, at: p.At, from: p.From, to: p.To}
		if p.From == channel.EveryRank {
			t.shared = p.To == channel.EveryRank || len(parts) == 1
			t.place = int64(len(l.places))
			l.places = append(l.places, make([]int64, len(s.locals))...)
			for r := range l.inputs {
				l.inputs[r] = max(l.inputs[r], p.At+p.Len)
			}
		} else {
			l.inputs[p.From] = max(l.inputs[p.From], p.At+p.Len)
		}
		l.twice = l.twice || t.shared
		grain := t.length
		if t.shared {
			grain /= int64(len(s.locals))
		}
		l.grain = max(l.grain, grain)
		l.slots = append(l.slots, t)
	}
	if l.pack(s, 0) {
		return nil
	}
	blocks := uint64(1)
	for ; !l.pack(s, blocks); blocks = max(blocks+blocks/16+1, l.least(s)) {
		if blocks > maxRoundBlocks {
			return fmt.Errorf("%w: a round of %d parts, whose slices have no room in %d bytes", kolo.ErrUnsupported, len(parts), s.block)
		}
	}
	return nil
}

// maxRoundBlocks is more than 64-bit sizes can ask for with the least blocks.
const maxRoundBlocks = 1 << 50

// least is a number of blocks that is not too large, as far as one is enough for everything
// but room.
func (l *layout) least(s *seats) uint64 {
	if l.blocks != 1 {
		return 0
	}
	most := uint64(0)
	for q, n := range l.used {
		most = max(most, uint64(n/(s.block*int64(s.locals[q]))))
	}
	return most
}

// pack places the slices of a number of blocks and says whether they have room. With 0 the
// room is that of a head.
func (l *layout) pack(s *seats, blocks uint64) bool {
	l.blocks = blocks
	l.used = append(l.used[:0], make([]int64, len(s.locals))...)
	results := int64(0)
	for i := range l.slots {
		t := &l.slots[i]
		t.unit = unitOf(t.length, int64(blocks))
		if t.from != channel.EveryRank {
			q := s.of[t.from]
			t.place = l.used[q]
			l.used[q] += t.unit
			continue
		}
		for q, k := range s.locals {
			at := &l.places[t.place+int64(q)]
			if *at = l.used[q]; !t.shared && t.to != channel.EveryRank && s.of[t.to] == q {
				*at = -1 // nobody else reads it
				continue
			}
			l.used[q] += t.unit * int64(k)
		}
		if t.shared {
			t.result = results
			results += t.unit
		}
	}
	for q, n := range l.used {
		if blocks == 0 && n > boardInline || blocks > 0 && n > s.block*int64(s.locals[q]) {
			return false
		}
	}
	return blocks == 0 || !l.twice || results <= s.block
}

// unitOf is the size of the slices of a part: of whole elements, those excepted that are only
// moved, and of whole cache lines where they are not small.
func unitOf(n, blocks int64) int64 {
	if blocks == 0 {
		return n
	}
	unit, grain := (n+blocks-1)/blocks, int64(8)
	if unit >= 8*line {
		grain = line
	}
	return (unit + grain - 1) &^ (grain - 1)
}

// slice is what block number c, from 0 on, has of the part.
func (t *slot) slice(c uint64) (off, n int64) {
	if t.unit == 0 || c >= uint64((t.length+t.unit-1)/t.unit) {
		return 0, 0
	}
	off = int64(c) * t.unit
	return off, min(t.unit, t.length-off)
}

// contribution is where in a block the slice of rank number local of the process at a place
// lies.
func (l *layout) contribution(t *slot, place, local int) int64 {
	if t.from != channel.EveryRank {
		return t.place
	}
	return l.places[t.place+int64(place)] + int64(local)*t.unit
}
