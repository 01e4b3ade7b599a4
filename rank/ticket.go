package rank

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/channel/hccs"
	"github.com/kolo-ccl/kolo/internal/ctxerr"
)

// ticket is one rank's call on its way: it goes to the group's hub (or, for a
// message, to the rank actor) and is resolved once. Tickets are made by a Group and
// used again, so that a call allocates nothing.
type ticket struct {
	group  *Group
	gen    atomic.Uint64 // counts the uses
	seq    uint64
	kept   bool      // the group keeps it for blocking calls, see Group.keep
	lends  bool      // its rank helps the engine while it waits
	beside bool      // its rank takes turns with another while less urgent jobs go on
	place  *arrivals // where it meets the others
	turns  turns
	asked
	tag uint64
	// Of messages: when it was posted, and when it is given up after it was aborted or
	// after its link has broken, by loss.
	issued, patience time.Time
	grace            time.Time // until when a message waits for what a rank that has left had said before
	loss             error
	site             site // if Config.Diagnose says so
	sum              uint64
	since            atomic.Int64 // when a rank began to wait for a collective, from the begin of the process on, plus 1 ns; 0: it does not wait

	state  atomic.Uint32
	park   chan struct{}
	err    error
	signal atomic.Pointer[signal] // made by Work.Done
	async  bool                   // has a Work that was not waited for
	next   *ticket                // free list of the Group
	stream *streamCall            // of a call between streams
	// The transfer of a message.
	op channel.Op
}

// The states of a ticket. Engine.Lend looks for a state other than ticketOpen.
const (
	ticketOpen    uint32 = iota
	ticketDone           // resolved
	ticketParked         // a waiter takes park; above it are bits of the call's number, see parkedFor
	ticketWatched        // Work.Done has made signal; the ticket is not used again
)

// parkedFor is ticketParked in a call of a group, with what tells it from the ticket's
// other uses.
func parkedFor(seq uint64) uint32 { return uint32(seq)<<2 | ticketParked }

// signal is a channel closed once.
type signal struct {
	mu     sync.Mutex
	closed bool
	ch     chan struct{}
	then   []func() // called by close
}

func newSignal() *signal { return &signal{ch: make(chan struct{})} }

func (s *signal) close() {
	s.mu.Lock()
	then := s.then
	if s.then = nil; !s.closed {
		s.closed = true
		close(s.ch)
	}
	s.mu.Unlock()
	for _, f := range then {
		f()
	}
}

// after has f called once, when the signal has been closed. f neither blocks nor
// takes a lock of the group.
func (s *signal) after(f func()) {
	s.mu.Lock()
	closed := s.closed
	if !closed {
		s.then = append(s.then, f)
	}
	s.mu.Unlock()
	if closed {
		f()
	}
}

// resolve ends the call. It is called exactly once per use.
func (t *ticket) resolve(err error) {
	t.err = err
	if s := t.stream; s != nil {
		t.stream = nil
		s.end(err)
	}
	g, kept := t.group, t.kept
	switch t.state.Swap(ticketDone) & 3 { // a waiter may use the ticket again from here on, but in these cases
	case ticketParked:
		t.park <- struct{}{}
	case ticketWatched:
		t.signal.Load().close()
	}
	if !kept {
		g.landed()
	}
}

// ended says whether the call has ended. One whose ticket is kept may end without that
// the ticket is told.
func (t *ticket) ended() bool {
	return t.state.Load() == ticketDone || t.kept && t.place.over.Load() > t.seq
}

// wait returns when the call has ended, with its error. A context that ends first
// aborts the group, and wait then returns as soon as the memory is free again.
func (t *ticket) wait(ctx context.Context) error {
	if t.ended() {
		return t.err
	}
	if !t.lends && !t.polls() {
		runtime.Gosched()
	}
	return t.waitOn(ctx)
}

// polls says whether what is to be done for the call comes from outside, and is seen by the poller.
func (t *ticket) polls() bool {
	h := t.group.hub
	return h.far != nil && len(h.mine) == 1 && h.p.poller != nil
}

// waitOn is wait of a rank that has given its processor away once, or is not to.
func (t *ticket) waitOn(ctx context.Context) error {
	g := t.group
	switch {
	case t.polls():
	case t.beside:
		c := t.class()
		g.hub.p.host.Enter(c)
		defer g.hub.p.host.Leave(c)
		g.hub.giveWay()
	case t.lends:
		g.hub.p.engine.Lend(&t.state, g.hub.cfg.Priority, t.touches())
	default:
		t.look()
	}
	if t.ended() {
		return t.err
	}
	t.waiting()
	if p := g.hub.p.poller; p != nil {
		t.poll(ctx, p)
	}
	if t.kept {
		a := t.place
		a.parked.Add(1)
		defer a.parked.Add(-1)
	}
	park := t.park
	if !t.state.CompareAndSwap(ticketOpen, parkedFor(t.seq)) {
		if t.state.Load() == ticketDone {
			return t.err
		}
		park = t.signal.Load().ch
	} else if t.kept && t.ended() && t.state.CompareAndSwap(parkedFor(t.seq), ticketDone) {
		return t.err
	}
	done := ctx.Done()
	if done == nil || done == g.world.done && g.world.ended(ctx) == nil { // when it ends, Run fails every group there is
		<-park
		return t.err
	}
	select {
	case <-park:
	case <-done:
		g.hub.tell(nil, t.canceled(ctx))
		<-park
	}
	return t.err
}

// class is how urgent the call is.
func (t *ticket) class() hccs.Class { return hccs.ClassOf(t.group.hub.cfg.Priority, t.touches()) }

// touches is the number of bytes that the call reads and writes in this process.
func (t *ticket) touches() int64 { return t.bytes * int64(len(t.group.hub.mine)) }

// poll lets the rank read what comes from outside, until the call has ended or nothing has
// come for a while. A driver gives the rank back from time to time, to look at its context.
func (t *ticket) poll(ctx context.Context, p channel.Poller) {
	for p.Poll(&t.state); !t.ended() && t.group.world.ended(ctx) == nil; {
		begin := time.Now()
		if p.Poll(&t.state); time.Since(begin) < pollBusy {
			return
		}
	}
}

// pollBusy is how long a poll takes in which something has come.
const pollBusy = time.Millisecond

// look waits for a moment for a call that needs no help. The ranks that are missing may
// be waiting for this processor, so it was given away before. Where ranks compute between their
// calls, one that parks is started again late, and where a processor sleeps meanwhile, the rank that
// comes last waits for it to wake; so it looks longer before it parks. But not while so many are
// missing that one of them waits for a processor: that of a rank that parks takes it from another's
// queue, that of a rank that yields does not. Ranks that do next to nothing between their calls are
// better off on one processor: it costs less to take turns there than to have a call's words in
// two. The parked one is started there.
func (t *ticket) look() {
	h := t.group.hub
	if t.large {
		t.lookLong()
		return
	}
	if t.ended() || !t.computes() {
		return
	}
	for i := range waitLooks {
		if t.ended() || len(h.mine) > h.p.procs && t.place.missing() >= h.p.procs {
			return
		}
		if i%yieldEvery == yieldEvery-1 {
			runtime.Gosched()
		}
	}
}

// computes says whether the ranks are taken to do something between their calls.
func (t *ticket) computes() bool {
	h := t.group.hub
	if len(h.mine) > h.p.procs {
		return t.kept && h.far == nil && !t.turns.taken
	}
	now := int64(time.Since(h.p.began))
	return now-t.group.looked.Swap(now) >= idleBetween
}

// lookLong is look of a rank that takes turns: what a call of that size takes is worth some
// hundred yields. Who parks is started by the processor that ends the call.
func (t *ticket) lookLong() {
	for i := 0; i < turnLooks && !t.ended(); i++ {
		runtime.Gosched()
	}
}

const (
	turnLooks   = 300  // yields of a rank that takes turns before it parks, 50 microseconds or more
	waitLooks   = 6000 // of a rank before it parks, some 100 microseconds: a few times what it takes to wake a processor
	yieldEvery  = 16   // looks from one yield to the next
	idleBetween = 3000 // ns from one wait to the next of ranks that do nothing between: two calls take 2.2 us
)

// ended says why a call's context has ended, or nil. That of Run's function counts as
// ended when Run's own has.
func (w *World) ended(ctx context.Context) error {
	err := ctx.Err()
	if err == nil || w.done == nil || ctx.Done() != w.done {
		return err
	}
	select {
	case <-w.over:
		return err
	default:
		return nil
	}
}

// lendFrom is the size of a rank's buffers from which a waiting rank helps the
// engine; below, the work is done by whoever came last.
const lendFrom = 16 << 10

// Work is the handle of an asynchronous call. It is a small value that may be
// copied; one goroutine may wait for it, any number may watch Done. Every Work must be
// waited for: Close reports those that were not. The buffers belong to the runtime
// until Wait has returned or Done is closed, and the Work keeps them alive.
type Work struct {
	t   *ticket
	gen uint64
	err error // the call was refused at once
}

// Wait returns when the call has ended, with its error; nil after the first Wait
// that returned nil. If ctx ends first the group is aborted: a collective cannot be
// taken back by one rank alone.
func (w Work) Wait(ctx context.Context) error {
	if w.t == nil {
		return w.err
	}
	if w.t.gen.Load() != w.gen {
		return nil // waited for before, and used again since
	}
	return w.t.group.finishWork(w.t, w.t.wait(ctx))
}

// Refused is why the call was not made, or nil if it was.
func (w Work) Refused() error { return w.err }

// Done is closed when the call has ended. Wait then returns at once.
func (w Work) Done() <-chan struct{} { return w.ended().ch }

// ended is the signal that the call has ended.
func (w Work) ended() *signal {
	if w.t == nil {
		s := newSignal()
		s.close()
		return s
	}
	return w.t.group.watch(w.t, w.gen)
}

// canceled is the failure of a group for the end of a call's context. The ticket may
// be used again when the hub hears of it, so all that counts is copied.
func (t *ticket) canceled(ctx context.Context) *failure {
	e := t.failure(ctxerr.Of(ctx))
	if !isMessage(e.Op) {
		return &failure{why: func(h *hub) { h.canceled(e) }}
	}
	e.Peer = t.call.Root
	e.Err = fmt.Errorf("%w, %s", e.Err, t.waitsFor())
	return &failure{why: func(h *hub) { h.inquire(e, []kolo.Rank{e.Peer}) }}
}

// failure dresses a cause as an error of this call on this rank.
func (t *ticket) failure(err error) *kolo.Error {
	return &kolo.Error{Op: t.call.Collective, Group: t.group.Name(), Rank: t.group.rank, Peer: kolo.NoRank, Seq: t.seq, Err: err}
}

// dress makes the cause for which the group has failed the error of this call on
// this rank. A cause that names the call at fault keeps naming it.
func (t *ticket) dress(err error) *kolo.Error {
	e := t.failure(err)
	k, ok := err.(*kolo.Error)
	if !ok {
		return e
	}
	e.Peer, e.Ranks, e.Err = k.Peer, k.Ranks, k.Err
	if e.Peer == e.Rank && k.Rank >= 0 { // the other end of a broken link has told first
		e.Peer = k.Rank
	}
	switch {
	case k.Op == kolo.NoCollective:
	case isMessage(k.Op):
		if k.Op != e.Op || k.Rank != e.Rank {
			e.Err = fmt.Errorf("%w: the group failed in %v on rank %d: %w", kolo.ErrAborted, k.Op, int(k.Rank), k.Err)
		}
	case isMessage(e.Op) || k.Seq != t.seq:
		e.Err = fmt.Errorf("%w: the group failed in %v #%d: %w", kolo.ErrAborted, k.Op, k.Seq, k.Err)
	}
	return e
}

// isMessage says whether a call goes between two ranks and has no number.
func isMessage(c kolo.Collective) bool { return c == kolo.Send || c == kolo.Recv }

func (t *ticket) String() string {
	return fmt.Sprintf("%v #%d", &t.call, t.seq)
}
