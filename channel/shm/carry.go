//go:build linux && (amd64 || arm64)

package shm

import (
	"sync/atomic"

	"github.com/kolo-ccl/kolo/channel"
)

// move carries the bytes, as far as the others have come.
func (b *board) move() (found, ended bool, err error) {
	if b.layout.blocks == 0 {
		b.foldHeads()
		return true, true, nil
	}
	if b.whole {
		return b.moveWhole()
	}
	for more := true; more && b.withdrew == nil && err == nil; found = found || more {
		more = b.write()
		if b.folded < b.wrote && b.givers(b.folded) {
			err = b.fold()
			more = true
		}
		if b.twice && b.read < b.folded && b.everyone(foldedWord, b.read) {
			b.fetch()
			more = true
		}
		if more && !b.breathe() {
			return true, false, errTaken
		}
	}
	if err != nil { // what the board is made of may be gone
		return found, false, err
	}
	// Who reads inputs where they are must have done so; where folding was shared out, it has.
	return found, b.read == b.end && b.wrote == b.end && (!b.inPlace || b.twice || b.takers()), nil
}

func wroteWord(a *boardArea) *atomic.Uint64  { return a.wrote }
func foldedWord(a *boardArea) *atomic.Uint64 { return a.folded }
func readWord(a *boardArea) *atomic.Uint64   { return a.read }

// everyone says whether all other processes are past a block.
func (b *board) everyone(word func(*boardArea) *atomic.Uint64, block uint64) bool {
	for i := range b.parties {
		if word(&b.parties[i].area).Load() <= block {
			return false
		}
	}
	return true
}

// givers says whether all of whom this process takes have written a block.
func (b *board) givers(block uint64) bool {
	for i := range b.parties {
		if q := &b.parties[i]; q.gives && q.area.wrote.Load() <= block {
			return false
		}
	}
	return true
}

// takers says whether all who take of this process have read everything.
func (b *board) takers() bool {
	for i := range b.parties {
		if q := &b.parties[i]; q.takes && q.area.read.Load() < b.end {
			return false
		}
	}
	return true
}

// turn is where in an arena a block of contributions begins.
func (b *board) turn(p *party, block uint64) int64 {
	return boardData + b.seats.block*int64(block%boardTurns)*int64(p.locals)
}

// result is what a party has folded of a slice.
func (b *board) result(p *party, t *slot, block uint64, n int64) []byte {
	at := boardData + b.seats.block*(boardTurns*int64(p.locals)+int64(block%boardTurns)) + t.result
	return p.mem[at:][:n:n]
}

// skip leaves out the steps in which this process has nothing to do, so that nobody waits
// for them.
func (b *board) skip() {
	if b.layout.twice {
		return
	}
	takes, gives := false, false
	for i := range b.round.Parts {
		p := &b.round.Parts[i]
		takes, gives = takes || len(p.Dst) > 0, gives || len(p.Src) > 0
	}
	if !takes {
		b.folded, b.read = b.end, b.end
		b.mine.area.read.Store(b.end)
	}
	if !gives || b.inPlace {
		b.wrote = b.end
		b.mine.area.wrote.Store(b.end)
	}
}

// write writes the next block of this process's ranks, if its turn is free: all have
// read what was there.
func (b *board) write() bool {
	c := b.wrote
	if c >= b.end || c >= boardTurns && !(b.ready && b.read > c-boardTurns && b.everyone(readWord, c-boardTurns)) {
		return false
	}
	if !b.inPlace {
		for i := range b.layout.slots {
			b.contribute(&b.layout.slots[i], &b.round.Parts[i], c)
		}
	}
	b.wrote++
	b.mine.area.wrote.Store(b.wrote)
	b.ring()
	return true
}

// contribute writes what the others read of a part's slice.
func (b *board) contribute(t *slot, p *channel.Share, block uint64) {
	off, n := t.slice(block - b.first)
	if n == 0 || len(p.Src) == 0 || !b.leaves(t) {
		return
	}
	from, to := n, n // what this process folds nobody else reads
	if b.shares && t.shared {
		from, to = b.share(b.mine.at, n)
	}
	at := b.turn(&b.mine, block)
	for i, m := range p.Src {
		mine := b.mine.mem[at+b.layout.contribution(t, b.mine.at, i):][:n]
		copy(mine[:from], m.Host[off:off+from])
		copy(mine[to:], m.Host[off+to:off+n])
	}
}

// leaves says whether what this process gives to a part is read from its arena.
func (b *board) leaves(t *slot) bool {
	return t.shared || t.to == channel.EveryRank || b.seats.of[t.to] != b.mine.at || b.round.Trades && t.from != channel.EveryRank
}

// share is the part of n bytes that the process at a place folds.
func (b *board) share(place int, n int64) (from, to int64) {
	p := int64(len(b.parties) + 1)
	unit := ((n+p-1)/p + line - 1) &^ (line - 1)
	return min(int64(place)*unit, n), min(int64(place+1)*unit, n)
}

// fold does the next block of the parts that have a destination here, and this process's
// share of what is shared out.
func (b *board) fold() error {
	c := b.folded
	for i := range b.layout.slots {
		t, p := &b.layout.slots[i], &b.round.Parts[i]
		off, n := t.slice(c - b.first)
		from, to, out := int64(0), n, b.twice && t.shared
		switch {
		case out:
			from, to = b.share(b.mine.at, n)
		case len(p.Dst) == 0:
			continue
		case b.direct(t): // all of it in the first block
			if c == b.first {
				if err := b.foldSpan(t, p, 0, t.length); err != nil {
					return err
				}
			}
			continue
		}
		if from == to {
			continue
		}
		b.dsts = b.dsts[:0]
		for _, m := range p.Dst {
			b.dsts = append(b.dsts, m.Host[off+from:off+to])
		}
		if out {
			b.dsts = append(b.dsts, b.result(&b.mine, t, c, n)[from:to])
		}
		if err := b.sources(t, p, c, from, to); err != nil {
			return err
		}
		b.round.Op.Spread(b.dsts, b.srcs)
	}
	if b.withdrew = b.gaveUp(); b.withdrew != nil {
		return nil
	}
	switch {
	case b.twice:
		b.folded++
		b.mine.area.folded.Store(b.folded)
	case b.all:
		b.folded, b.read = b.end, b.end
		b.mine.area.read.Store(b.read)
	default:
		b.folded++
		b.read++
		b.mine.area.read.Store(b.read)
	}
	b.ring()
	return nil
}

// sources lists bytes from to to of a part's slice, of all who give.
func (b *board) sources(t *slot, p *channel.Share, block uint64, from, to int64) error {
	b.srcs, b.used = b.srcs[:0], 0
	if t.from != channel.EveryRank {
		return b.source(t, p, 0, b.rows[t.from], block, from, to)
	}
	for _, w := range b.rows {
		if err := b.source(t, p, w.local, w, block, from, to); err != nil {
			return err
		}
	}
	return nil
}

// source appends to the list of sources where bytes from to to of a slice of a rank are. i
// is its place among this process's sources, if it is of this process.
func (b *board) source(t *slot, p *channel.Share, i int, w row, block uint64, from, to int64) error {
	off, n := t.slice(block - b.first)
	q := &b.mine
	if w.party >= 0 {
		q = &b.parties[w.party]
	}
	if len(q.inputs) > 0 || w.party < 0 && (!b.round.Trades || t.from == channel.EveryRank) {
		return b.span(t, p, i, w, off+from, off+to)
	}
	at := b.turn(q, block) + b.layout.contribution(t, q.at, w.local)
	b.srcs = append(b.srcs, q.mem[at:][from:min(to, n)])
	return nil
}

// fetch reads the shares of a block that the others have folded.
func (b *board) fetch() {
	c := b.read
	for i := range b.layout.slots {
		t := &b.layout.slots[i]
		off, n := t.slice(c - b.first)
		if !t.shared || n == 0 {
			continue
		}
		for k := range b.parties {
			q := &b.parties[k]
			from, to := b.share(q.at, n)
			for _, m := range b.round.Parts[i].Dst {
				copy(m.Host[off+from:off+to], b.result(q, t, c, n)[from:to])
			}
		}
	}
	b.read++
	b.mine.area.read.Store(b.read)
	b.ring()
}

// fillHead writes the contributions of this process to a head.
func (b *board) fillHead(data []byte) {
	for i := range b.layout.slots {
		t := &b.layout.slots[i]
		if !b.leaves(t) {
			continue
		}
		for k, m := range b.round.Parts[i].Src {
			copy(data[b.layout.contribution(t, b.mine.at, k):], m.Host)
		}
	}
}

// foldHeads does the parts of a round whose contributions are in the heads.
func (b *board) foldHeads() {
	r := b.round
	for i := range b.layout.slots {
		t, p := &b.layout.slots[i], &r.Parts[i]
		if len(p.Dst) == 0 || t.length == 0 {
			continue
		}
		b.srcs, b.dsts = b.srcs[:0], b.dsts[:0]
		if t.from != channel.EveryRank {
			b.srcs = append(b.srcs, b.inHead(t, p, 0, b.rows[t.from]))
		} else {
			for _, w := range b.rows {
				b.srcs = append(b.srcs, b.inHead(t, p, w.local, w))
			}
		}
		for _, m := range p.Dst {
			b.dsts = append(b.dsts, m.Host)
		}
		r.Op.Spread(b.dsts, b.srcs)
	}
}

// inHead is the contribution of a rank to a part of a small round.
func (b *board) inHead(t *slot, p *channel.Share, i int, w row) []byte {
	q := &b.mine
	if w.party >= 0 {
		q = &b.parties[w.party]
	} else if !b.round.Trades || t.from == channel.EveryRank {
		return p.Src[i].Host
	}
	return q.area.head(b.number).data[b.layout.contribution(t, q.at, w.local):][:t.length]
}
