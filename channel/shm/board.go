//go:build linux && (amd64 || arm64)

package shm

import (
	"errors"
	"fmt"
	"runtime"
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
//	0 blocks written | 64 blocks folded | 128 blocks read | 192 rounds ended
//	256 heads of rounds | 768 core | 832 whether all others' private memory can be read
//	1024 places of vectors, of each head | 4096 blocks of the contributions, of each rank | blocks of results
//
// A round begins with a head: its number, the digest of all calls so far and, if it is small,
// the contributions themselves. A process waits for the heads of those only whose contributions
// it takes, so the root of a Broadcast runs ahead of the others. A head is written where that of
// boardHeads rounds before was, when all have ended that one.
//
// Larger ones go in blocks, which also take turns (see layout). Each process writes its block,
// and does the parts that have a destination here: it folds, or copies, what lies in the
// arenas. A part whose result many want is shared out: each process folds a share of the
// slice, in the order of the ranks, to where the others read it, and reads the other shares (the
// two steps of Rabenseifner's algorithm, without messages). Two processes, and slices for
// which one more wait costs more than the bytes, do with one step: each folds everything.
//
// A process whose inputs lie in memory of Alloc, or are large and in memory that all others
// can read with process_vm_readv, writes none of that: the places beside the head say where
// they are, and the others read them there (whole.go). Folding that can be shared out then is,
// so that a share of an input has one reader besides its owner, who writes to it when that one
// has folded it.
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

	waiting atomic.Int32 // for mu, while it is held by who moves memory

	mu     sync.Mutex
	moving bool // somebody moves memory, and has left the lock for a moment
	ready  bool // the others' memory is here
	broken error
	losses uint32 // of the driver, when last looked at
	number uint64 // of the round, from 1 on
	round  *channel.Round
	posted bool // its head is written
	layout layout
	chain  uint64 // digest of the calls of all rounds
	// Of the round: the number of its first block since the board was made, and of the last plus 1.
	first, end          uint64
	wrote, folded, read uint64    // blocks, since the board was made
	heads               int       // parties whose heads have come, or are not waited for
	twice               bool      // in two steps
	shares              bool      // that was so before the heads came
	inPlace             bool      // the others read this process's inputs where they are
	shown               bool      // and its output
	whole               bool      // all do so with all: nothing goes by the arenas
	all                 bool      // all inputs that this process takes are read where they are
	moved               time.Time // to another core
	withdrew            *party    // has given up the round while its inputs were read
	fence               atomic.Uint32
	readable            bool // all others can read this process's private memory
	dsts, srcs          [][]byte
	scratch             []byte // what is read of private memory before it is folded
	used                int    // of scratch, for the sources that are listed
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
	ended  uint64 // at least so many rounds
	// Of the round: whether this process takes what its ranks give, and the other way round; the
	// inputs of its ranks and its output, and the regions that they are in; none where they are
	// not read where they are; the pieces of its share of the output that were taken.
	gives, takes bool
	inputs       []vector
	output       vector
	within       []*region
	private      bool // some of that is private memory
	process      process
	taken        int
}

// vector is memory of a party: mapped here, or private.
type vector struct {
	mem  []byte
	addr uint64 // in its process, of private memory
}

// at is a vector that begins later.
func (v vector) at(off int64) vector {
	if v.addr != 0 {
		return vector{addr: v.addr + uint64(off)}
	}
	return vector{mem: v.mem[off:]}
}

// row is where the contribution of a rank is: which place of which party, or here.
type row struct {
	party int // in parties; -1 for this process
	local int // which of its ranks
}

// boardArea are the words of an arena. Those of a peer may be anything at any time.
type boardArea struct {
	wrote, folded, read, ended *atomic.Uint64
	heads                      [boardHeads]boardHead
	core                       *atomic.Uint64 // that its process was last seen on
	reads                      *atomic.Uint64 // whether it can read the others' private memory: readsAll, or another number; 0: not known
}

type boardHead struct {
	number, digest *atomic.Uint64
	data, places   []byte
}

const (
	boardInline = 48 // bytes of contributions in a head
	boardHeads  = 8  // that take turns
	boardPlace  = 16 // bytes of a place: region and offset, or 0 and address
	boardPlaces = 16 // beside a head: inputs, then the output
	placesAt    = 1024
	readsAll    = 1
	boardData   = 4096
	boardTurns  = 4         // blocks that take turns
	placesFrom  = 128 << 10 // bytes of a rank's input in memory of Alloc from which one more wait costs less than a copy
	// The arenas that a core reads and writes at a time should fit its second cache.
	boardMost  = 128 << 10
	boardLeast = 16 << 10
	boardSpace = 512 << 10 // of all ranks' blocks of one turn
	onceUpTo   = 8 << 10   // bytes of a part that more than two processes fold in one step
)

func newBoardArea(mem []byte) boardArea {
	_ = mem[boardData-1]
	word := func(at int) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&mem[at])) }
	a := boardArea{wrote: word(0), folded: word(64), read: word(128), ended: word(192), core: word(768), reads: word(832)}
	for i := range a.heads {
		at, places := 256+64*i, placesAt+boardPlaces*boardPlace*i
		a.heads[i] = boardHead{word(at), word(at + 8), mem[at+16:][:boardInline:boardInline], mem[places:][:boardPlaces*boardPlace]}
	}
	return a
}

// head is that of a round.
func (a *boardArea) head(round uint64) *boardHead { return &a.heads[round%boardHeads] }

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
	b.chain = chained(b.chain, r.Digest)
	b.posted = false
	b.losses = 0 // those of before count as well
	b.heads = 0
	b.first, b.end = b.end, b.end+b.layout.blocks
	b.wrote, b.folded, b.read = b.first, b.first, b.first
	if b.d.crowded.Load() {
		b.here()
	}
	b.relate()
	b.begin()
	b.open.Store(true)
	b.mu.Unlock()
	b.advance(t)
	if !b.open.Load() {
		b.d.polls.Add(1) // it was as good as a Poll
	}
}

// chained is the digest of a list of calls and one more.
func chained(list, call uint64) uint64 {
	x := (list ^ call) * 0x9e3779b97f4a7c15
	return x ^ x>>29
}

// begin writes the head of the round, if all have ended the one that was there, and says
// whether it did.
func (b *board) begin() bool {
	if b.number > boardHeads && !(b.ready && b.haveEnded(b.number-boardHeads)) {
		return false
	}
	b.posted = true
	h := b.mine.area.head(b.number)
	if b.layout.blocks == 0 { // before the head, which tells of it
		b.fillHead(h.data)
	} else {
		b.inPlace, b.shown = b.showPlaces(h)
		b.shares = b.layout.twice && (b.inPlace || len(b.parties) > 1 && b.layout.slots[0].length > onceUpTo)
		b.twice = b.shares
		b.skip()
		b.write()
	}
	h.digest.Store(b.chain)
	h.number.Store(b.number)
	b.ring()
	return true
}

// haveEnded says whether all others have ended a round. Their words are read only where what was
// seen of them before does not say so: every read costs their owners a line of the cache.
func (b *board) haveEnded(round uint64) bool {
	for i := range b.parties {
		q := &b.parties[i]
		if q.ended < round {
			if q.ended = q.area.ended.Load(); q.ended < round {
				return false
			}
		}
	}
	return true
}

// relate notes who takes part in the round with what this process gives or takes. In a round
// without parts, a Barrier, all wait for all.
func (b *board) relate() {
	all := b.layout.twice && b.layout.blocks > 0 || len(b.round.Parts) == 0
	for i := range b.parties {
		b.parties[i].gives, b.parties[i].takes = all, all
	}
	for i := range b.round.Parts {
		if all {
			return
		}
		p := &b.round.Parts[i]
		if len(p.Dst) > 0 {
			for k := range b.parties {
				q := &b.parties[k]
				q.gives = q.gives || p.From == channel.EveryRank || b.seats.of[p.From] == q.at
			}
		}
		if len(p.Src) > 0 {
			for k := range b.parties {
				q := &b.parties[k]
				q.takes = q.takes || p.To == channel.EveryRank || b.seats.of[p.To] == q.at
			}
		}
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
	if b.moving {
		b.mu.Unlock()
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
	if found, err = b.gather(); err == nil && b.ready && (b.posted || b.begin()) {
		var more bool
		if more, err = b.meet(); err == nil && b.heads == len(b.parties) {
			if more, ended, err = b.move(); b.round == nil { // it was canceled in between
				b.mu.Unlock()
				return true
			}
			if b.withdrew != nil {
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

// errTaken ends the moving of memory whose round was canceled.
var errTaken = errors.New("the round was canceled")

// enter takes the lock, at the latest when the piece is done that is on its way.
func (b *board) enter() {
	b.waiting.Add(1)
	b.mu.Lock()
	b.waiting.Add(-1)
}

// breathe lets those in who wait for the lock, and says whether the round goes on. It is called
// between pieces of memory: whoever has canceled the round has its memory for himself.
func (b *board) breathe() bool {
	b.moving = true
	for b.waiting.Load() > 0 {
		b.mu.Unlock()
		runtime.Gosched()
		b.mu.Lock()
	}
	b.moving = false
	return b.round != nil
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
		b.tellReads()
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
		switch {
		case !b.posted:
			if a.ended.Load()+boardHeads < b.number {
				return err
			}
		case q.gives && a.head(b.number).number.Load() != b.number:
			return err
		case b.layout.blocks > 0 && (q.gives && a.wrote.Load() < b.end || b.twice && a.folded.Load() < b.end ||
			(b.wrote < b.end || b.inPlace && q.takes) && a.read.Load() < b.end):
			return err
		}
	}
	return nil
}

// meet looks for the heads of the others.
func (b *board) meet() (found bool, err error) {
	for b.heads < len(b.parties) {
		q := &b.parties[b.heads]
		if q.gives {
			h := q.area.head(b.number)
			if h.number.Load() != b.number {
				return found, nil
			}
			q.ended = b.number - 1 // who has begun a round
			if h.digest.Load() != b.chain {
				return found, fmt.Errorf("%w: %v has made another call, or had before", kolo.ErrMismatch, q.p)
			}
			if b.layout.blocks > 0 {
				if there, err := b.visit(q, h); !there {
					return found, err
				}
			}
		}
		found = true
		if b.heads++; b.heads == len(b.parties) && b.layout.blocks > 0 {
			b.losses = 0 // what a lost process owes depends on how many steps there are
			b.settle()
		}
	}
	return found, nil
}

// Level says how far the round is: each block is written, folded and read.
func (b *board) Level(t channel.Turn) (done, all int64, behind []int) {
	b.enter()
	if b.round != nil {
		all = 3 * max(int64(b.end-b.first), 1)
		done = int64(b.wrote - b.first + b.folded - b.first + b.read - b.first)
		for i, w := range b.rows {
			if w.party < 0 {
				continue
			}
			if q := &b.parties[w.party]; q.mem == nil || b.awaits(q) {
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
	b.enter()
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
	b.enter()
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
