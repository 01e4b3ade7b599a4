//go:build linux && (amd64 || arm64)

package shm

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
)

// board is this process's part of the medium of a group. Each process writes to an
// arena of its own, which the others read:
//
//	0 blocks written | 64 blocks folded | 128 blocks read | 192 rounds ended | 256, 320 heads of rounds | 384 core
//	4096 blocks of the contributions, of each rank | blocks of results
//
// A round begins with a head: its number, the digest of the call and, if it is small,
// the contributions themselves. The heads of two rounds take turns: who has ended a round
// knows that all others have begun it, hence ended the one before.
//
// Larger ones go in blocks, which also take turns (see layout). Each process writes its block,
// and does the parts that have a destination here: it folds, or copies, what lies in the
// arenas. A part whose result many want is shared out: each process folds a share of the
// slice, in the order of the ranks, to where the others read it, and reads the other shares (the
// two steps of Rabenseifner's algorithm, without messages). Two processes, and slices for
// which one more wait costs more than the bytes, do with one step: each folds everything.
//
// A process whose inputs lie in memory of Alloc writes none of that: the head says where
// they are, and the others read them in place. Folding that can be shared out then is, so that
// a share of an input has one reader besides its owner, who writes to it when that one has
// folded it.
type board struct {
	d       *Driver
	group   uint64
	parties []party // of the other processes
	rows    []row   // where the contribution of each rank is, in the group's order
	seats   seats
	mine    party
	arena   kolo.Memory
	open    atomic.Bool // there is a round to look at
	missed  atomic.Bool // somebody has looked in vain, as the lock was taken
	near    atomic.Bool // a process that is waited for may need this core

	mu     sync.Mutex
	ready  bool // the others' memory is here
	broken error
	losses uint32 // of the driver, when last looked at
	number uint64 // of the round, from 1 on
	round  *channel.Round
	layout layout
	// Of the round: the number of its first block since the board was made, and of the last plus 1.
	first, end          uint64
	wrote, folded, read uint64    // blocks, since the board was made
	heads               int       // parties whose heads have come
	twice               bool      // in two steps
	shares              bool      // that was so before the heads came
	inPlace             bool      // the others read this process's inputs where they are
	moved               time.Time // to another core
	withdrew            *party    // has given up the round while its inputs were read
	fence               atomic.Uint32
	dsts, srcs          [][]byte
}

// party is one process of the group.
type party struct {
	p      *peer
	at     int // its place among the processes
	locals int // its ranks
	ranks  []int
	mem    []byte
	area   boardArea
	bell   bell
	region *region
	// Of the round: the inputs of its ranks, and the regions that they are in; none where they are not.
	inputs [][]byte
	within []*region
}

// row is where the contribution of a rank is: which place of which party, or here.
type row struct {
	party int // in parties; -1 for this process
	local int // which of its ranks
}

// boardArea are the words of an arena. Those of a peer may be anything at any time.
type boardArea struct {
	wrote, folded, read, ended *atomic.Uint64
	heads                      [2]boardHead
	core                       *atomic.Uint64 // that its process was last seen on
}

type boardHead struct {
	number, digest *atomic.Uint64
	data           []byte
}

const (
	boardInline = 48        // bytes of contributions in a head, or of places
	boardPlace  = 16        // bytes of a place: region, offset
	placesFrom  = 128 << 10 // bytes of a rank's input from which one more wait costs less than a copy
	boardData   = 4096
	boardTurns  = 4 // blocks that take turns
	// The arenas that a core reads and writes at a time should fit its second cache.
	boardMost  = 128 << 10
	boardLeast = 16 << 10
	boardSpace = 512 << 10 // of all ranks' blocks of one turn
	onceUpTo   = 8 << 10   // bytes of a part that more than two processes fold in one step
)

func newBoardArea(mem []byte) boardArea {
	_ = mem[boardData-1]
	word := func(at int) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&mem[at])) }
	a := boardArea{wrote: word(0), folded: word(64), read: word(128), ended: word(192), core: word(384)}
	for i := range a.heads {
		at := 256 + 64*i
		a.heads[i] = boardHead{number: word(at), digest: word(at + 8), data: mem[at+16 : at+16+boardInline]}
	}
	return a
}

// Spans says whether all ranks are reached, and are of several processes.
func (d *Driver) Spans(ranks []kolo.Rank) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	far := false
	for _, r := range ranks {
		p := d.byRank[r]
		if p == nil || p != d.self && !d.me.reaches(p.address) {
			return false
		}
		far = far || p != d.self
	}
	return far
}

// Board makes this process's part of the medium of a group.
func (d *Driver) Board(group uint64, ranks []kolo.Rank) (channel.Board, error) {
	b := &board{d: d, group: group}
	order, self, err := b.seat(ranks)
	if err != nil {
		return nil, err
	}
	me := b.parties[self]
	mem, err := d.alloc(b.bytes(me.locals), group)
	if err != nil {
		return nil, err
	}
	b.arena = mem
	b.mine = party{at: self, locals: me.locals, ranks: me.ranks, mem: mem.Host, area: newBoardArea(mem.Host)}
	b.parties = slices.Delete(b.parties, self, self+1)
	for i := range b.rows {
		switch w := &b.rows[i]; {
		case w.party == self:
			w.party = -1
		case w.party > self:
			w.party--
		}
	}
	for i, p := range order {
		if i != self {
			p.mu.Lock()
			p.call()
			p.mu.Unlock()
		}
	}
	d.mu.Lock()
	list := append(slices.Clone(*d.boards.Load()), b)
	d.boards.Store(&list)
	d.mu.Unlock()
	return b, nil
}

// seat finds the processes of the ranks, in the order of their first ranks; self is this
// one's place.
func (b *board) seat(ranks []kolo.Rank) (order []*peer, self int, err error) {
	d := b.d
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, r := range ranks {
		p := d.byRank[r]
		if p == nil {
			return nil, 0, fmt.Errorf("%w: shm has not been told of %v", kolo.ErrArgument, r)
		}
		at := slices.Index(order, p)
		if at < 0 {
			at, order = len(order), append(order, p)
			b.parties = append(b.parties, party{p: p, at: at})
		}
		q := &b.parties[at]
		b.rows = append(b.rows, row{at, q.locals})
		b.seats.of = append(b.seats.of, at)
		q.locals++
		q.ranks = append(q.ranks, i)
	}
	for i := range b.parties {
		b.seats.locals = append(b.seats.locals, b.parties[i].locals)
	}
	if self = slices.Index(order, d.self); self < 0 || b.group == 0 {
		return nil, 0, fmt.Errorf("%w: none of the ranks of a board is in this process, or the group has no number", kolo.ErrArgument)
	}
	b.seats.block = int64(min(max(boardSpace/len(ranks), boardLeast), boardMost)) &^ (line - 1)
	return order, self, nil
}

// bytes is the size of the arena of a process with so many ranks.
func (b *board) bytes(locals int) int64 { return boardData + boardTurns*b.seats.block*int64(locals+1) }

// Post begins a round.
func (b *board) Post(t channel.Turn, r *channel.Round) {
	b.d.posters.Add(1) // the driver's goroutine need not look
	defer b.d.posters.Add(-1)
	b.mu.Lock()
	err := b.broken
	if err == nil && !b.layout.same(r.Parts) {
		err = b.layout.lay(&b.seats, r.Parts)
	}
	if err != nil {
		b.mu.Unlock()
		r.Done(t, err)
		return
	}
	b.round = r
	b.withdrew = nil
	b.number++
	b.losses = 0 // those of before count as well
	b.heads = 0
	b.first, b.end = b.end, b.end+b.layout.blocks
	b.wrote, b.folded, b.read = b.first, b.first, b.first
	if b.d.crowded.Load() {
		b.here()
	}
	h := &b.mine.area.heads[b.number%2]
	if b.layout.blocks == 0 { // before the head, which tells of it
		b.fillHead(h.data)
	} else {
		b.inPlace = b.showPlaces(h)
		b.shares = b.layout.twice && (b.inPlace || len(b.parties) > 1 && b.layout.slots[0].length > onceUpTo)
		b.twice = b.shares
		b.skip()
		b.write()
	}
	h.digest.Store(r.Digest)
	h.number.Store(b.number)
	b.ring()
	b.open.Store(true)
	b.mu.Unlock()
	b.advance(t)
	if !b.open.Load() {
		b.d.polls.Add(1) // it was as good as a Poll
	}
}

// ring wakes the processes that sleep.
func (b *board) ring() {
	for i := range b.parties {
		if p := &b.parties[i]; b.ready {
			p.bell.ring()
		}
	}
}

// advance does what can be done of the round, and says whether there was anything.
func (b *board) advance(t channel.Turn) (found bool) {
	if !b.mu.TryLock() {
		b.missed.Store(true)
		return false
	}
	b.missed.Store(false)
	r := b.round
	if r == nil {
		b.mu.Unlock()
		return false
	}
	ended, err := false, error(nil)
	if found, err = b.gather(); err == nil && b.ready {
		var more bool
		if more, err = b.meet(); err == nil && b.heads == len(b.parties) {
			if more, ended = b.move(); b.withdrew != nil {
				err = fmt.Errorf("%w: %v has given up the call", kolo.ErrLost, b.withdrew.p)
			}
		}
		found = found || more
	}
	if !found && err == nil {
		err = b.bereft()
		b.near.Store(b.needed())
	}
	if err != nil || ended {
		b.round = nil
		b.open.Store(false)
		b.leavePlaces(err)
		if b.mine.area.ended.Store(b.number); err != nil {
			b.broken = err
		}
		b.mu.Unlock()
		r.Done(t, err)
		return true
	}
	b.mu.Unlock()
	return found || b.missed.Load() && b.advance(t)
}

// gather finds the arenas of the other processes.
func (b *board) gather() (found bool, err error) {
	if b.ready {
		return false, nil
	}
	all := true
	for i := range b.parties {
		if q := &b.parties[i]; q.mem == nil {
			if err := b.find(q); err != nil {
				return found, err
			}
			found, all = found || q.mem != nil, all && q.mem != nil
		}
	}
	if b.ready = all; all {
		b.ring() // they may have waited for the head in vain
	}
	return found, nil
}

func (b *board) find(q *party) error {
	p := q.p
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.regions[p.boards[b.group]]
	switch {
	case r == nil && p.state == lost:
		return p.lost
	case r == nil:
		return nil
	case int64(len(r.mem)) < b.bytes(q.locals):
		return fmt.Errorf("%w: %v has a board of %d bytes where %d are needed", kolo.ErrMismatch, p, len(r.mem), b.bytes(q.locals))
	}
	r.users++
	q.region, q.mem, q.area, q.bell = r, r.mem, newBoardArea(r.mem), p.bell
	return nil
}

// bereft says whether one of the processes is gone without having done its part.
func (b *board) bereft() error {
	n := b.d.losses.Load()
	if n == b.losses {
		return nil
	}
	b.losses = n
	for i := range b.parties {
		q := &b.parties[i]
		q.p.mu.Lock()
		state, err := q.p.state, q.p.lost
		q.p.mu.Unlock()
		if state != lost || q.mem == nil { // of the latter find tells
			continue
		}
		a := &q.area
		if a.heads[b.number%2].number.Load() != b.number || b.layout.blocks > 0 && (a.wrote.Load() < b.end ||
			b.twice && a.folded.Load() < b.end || (b.wrote < b.end || b.inPlace) && a.read.Load() < b.end) {
			return err
		}
	}
	return nil
}

// meet looks for the heads of the others.
func (b *board) meet() (found bool, err error) {
	for b.heads < len(b.parties) {
		h := &b.parties[b.heads].area.heads[b.number%2]
		if h.number.Load() != b.number {
			return found, nil
		}
		if h.digest.Load() != b.round.Digest {
			return found, fmt.Errorf("%w: %v has made another call", kolo.ErrMismatch, b.parties[b.heads].p)
		}
		if b.layout.blocks > 0 {
			if there, err := b.visit(&b.parties[b.heads], h); !there {
				return found, err
			}
		}
		found = true
		if b.heads++; b.heads == len(b.parties) {
			b.losses = 0 // what a lost process owes depends on how many steps there are
		}
	}
	return found, nil
}

// Level says how far the round is: each block is written, folded and read.
func (b *board) Level(t channel.Turn) (done, all int64, behind []int) {
	b.mu.Lock()
	if b.round != nil {
		all = 3 * max(int64(b.end-b.first), 1)
		done = int64(b.wrote - b.first + b.folded - b.first + b.read - b.first)
		for i, w := range b.rows {
			if w.party < 0 {
				continue
			}
			if q := &b.parties[w.party]; q.mem == nil || b.awaits(&q.area) {
				behind = append(behind, i)
			}
		}
	}
	b.mu.Unlock()
	if b.missed.Load() { // somebody has looked in vain meanwhile
		b.advance(t)
	}
	return done, all, behind
}

// Cancel ends the round.
func (b *board) Cancel(t channel.Turn, cause error) {
	b.mu.Lock()
	r := b.round
	b.round = nil
	b.open.Store(false)
	b.leavePlaces(cause)
	if b.broken == nil {
		b.broken = cause
	}
	b.mu.Unlock()
	if r != nil {
		r.Done(t, cause)
	}
}

// Close gives the arena back, when the others have read what is in it.
func (b *board) Close() {
	b.Cancel(nil, kolo.ErrClosed)
	d := b.d
	d.mu.Lock()
	list := slices.DeleteFunc(slices.Clone(*d.boards.Load()), func(x *board) bool { return x == b })
	had := len(list) < len(*d.boards.Load())
	d.boards.Store(&list)
	leaving := d.leaving
	if d.leaving = nil; had {
		leaving = append(leaving, b)
	}
	d.mu.Unlock()
	var left []*board
	for _, x := range leaving { // under no lock: done takes others
		if x.done() {
			x.release()
		} else {
			left = append(left, x)
		}
	}
	d.mu.Lock()
	d.leaving = append(d.leaving, left...)
	d.mu.Unlock()
}

// done says whether the others have ended the rounds that this process has.
func (b *board) done() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.mine.area.ended.Load()
	for i := range b.parties {
		if q := &b.parties[i]; n > 0 && q.mem != nil && q.area.ended.Load() < n && !q.p.isLost() {
			return false
		}
	}
	return true
}

func (p *peer) isLost() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state == lost
}

func (b *board) release() {
	for i := range b.parties {
		q := &b.parties[i]
		if q.region == nil {
			continue
		}
		q.p.mu.Lock()
		if q.p.regions != nil {
			q.p.leaveRegion(q.region)
		}
		q.p.mu.Unlock()
	}
	_ = b.d.Free(b.arena) // it is of alloc, and is freed once
}

// farewell waits a moment for processes that have yet to read what is on the boards.
func (d *Driver) farewell() {
	d.mu.Lock()
	list := append(slices.Clone(*d.boards.Load()), d.leaving...)
	d.mu.Unlock()
	for start := time.Now(); time.Since(start) < lingerFor; yield() {
		if !slices.ContainsFunc(list, func(b *board) bool { return !b.done() }) {
			return
		}
	}
}

// lookAtBoards looks at the boards that wait.
func (d *Driver) lookAtBoards() {
	for _, b := range *d.boards.Load() {
		if b.open.Load() {
			b.advance(nil)
		}
	}
}
