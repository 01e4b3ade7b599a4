package tcp

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
)

// link is one end of the link between two ranks: what waits to meet its other end,
// what is on its way, and the connections.
//
//	idle --first op--> dialling --answered--> up --close, loss--> err is set
//	idle, dialling --the peer is faster--> greeting --> up
//
// There is no way back: what has broken stays broken.
type link struct {
	d *driver
	side
	near    bool  // the peer's process is on this host
	dialler *link // of a rank's link to itself, the end that dials

	carried atomic.Int64 // bytes, both ways

	mu      sync.Mutex
	state   state
	err     error         // closed or lost: what is posted later gets this
	cause   error         // and what is still in some goroutine's hands gets this
	own     error         // the other end is closed by this rank too, with this cause
	settled chan struct{} // closed when state is up or err is set
	number  uint64        // of the control connection; its data connections have the same

	waiting []*channel.Op // sends before the link is up
	recvs   []*channel.Op // receives that have not met their send
	early   []early       // messages that have not met their receive
	offers  map[uint64]*channel.Op
	lastID  uint64
	coming  map[uint64]*incoming
	parts   []*outgoing // on data connections
	pieces  []*outgoing // on the control connection
	bulk    atomic.Bool // what comes next may be large

	eager   int64 // the largest message that the peer takes unasked
	room    int64 // what is left of the peer's window
	owed    int64 // of our own, consumed and not told
	used    int64 // of our own, not consumed or not told
	telling bool  // a frame is queued only to tell

	wire *wire
	now  landing // the eager message whose bytes are coming
	data struct {
		more    sync.Cond // parts are there, or the link has ended
		started bool
		conns   []*stripe
		readers int // of conns
	}
}

type state uint8

const (
	idle state = iota
	dialling
	greeting // the peer has dialled and is being answered
	up
)

// early is a message that has come before its receive: an offer, or an eager one
// with its bytes.
type early struct {
	h   header
	buf []byte
}

// incoming is a receive whose bytes come when the peer has been told that it is there.
type incoming struct {
	op    *channel.Op
	id    uint64
	mem   []kolo.Memory
	left  int64 // bytes that have not come
	users int   // connections that write to mem
	cause error // its group was aborted: the end, if the peer has withdrawn the message
}

// outgoing is a send whose bytes the peer has asked for.
type outgoing struct {
	op    *channel.Op
	id    uint64
	next  int64 // bytes taken by connections
	users int   // connections that read its memory
	bad   bool  // one of them has failed
}

// take is the next bytes, at most n, for a connection.
func (o *outgoing) take(n int64) (off, size int64) {
	off, size = o.next, min(n, o.op.Size-o.next)
	o.next += size
	o.users++
	return off, size
}

// landing is an eager message that is being received.
type landing struct {
	op  *channel.Op // nil: it is kept for later, or dropped
	buf []byte      // nil: op's own memory
	on  bool
	bad error     // it does not fit
	in  *incoming // it is the part of a message that was asked for
}

// ended is an op and how it has ended. Ops complete when no lock is held.
type ended struct {
	op  *channel.Op
	err error
}

type endings []ended

func (e *endings) add(op *channel.Op, err error) { *e = append(*e, ended{op, err}) }

func (e endings) complete(t channel.Turn) {
	for _, x := range e {
		x.op.Complete(t, x.err)
	}
}

// overhead is what a message counts in a window besides its bytes.
const overhead = 64

func newLink(d *driver, e side) *link {
	l := &link{d: d, side: e, settled: make(chan struct{}), offers: map[uint64]*channel.Op{}, coming: map[uint64]*incoming{}}
	l.data.more.L = &l.mu
	return l
}

func (l *link) String() string { return fmt.Sprintf("the tcp link of %v to %v", l.me, l.peer) }

// lostBy dresses why the link is lost.
func (l *link) lostBy(err error) error {
	where := ""
	if l.wire != nil {
		where = " (" + l.wire.where + ")"
	}
	if errors.Is(err, syscall.ETIMEDOUT) && l.state == up {
		return fmt.Errorf("%w: %v%s: %w: nothing was acknowledged for %v: the host or the way to it is gone, or swallows large packets (compare the MTU of both ends and of the switches)",
			kolo.ErrLost, l, where, err, l.d.cfg.Timeout)
	}
	return fmt.Errorf("%w: %v%s: %w", kolo.ErrLost, l, where, err)
}

func (l *link) post(t channel.Turn, op *channel.Op) {
	var space [4]ended
	done := endings(space[:0])
	l.mu.Lock()
	switch {
	case !onHost(op):
		done.add(op, fmt.Errorf("%w: the tcp driver moves host memory only; copy what is on a device before", kolo.ErrUnsupported))
	case op.Kind != channel.Send && l.takeEarly(op, &done):
	case l.err != nil:
		done.add(op, l.err)
	case op.Kind != channel.Send:
		l.recvs = append(l.recvs, op)
		l.dial()
	case l.state == up:
		l.send(op)
	default:
		l.waiting = append(l.waiting, op)
		l.dial()
	}
	l.flush(&done)
	l.foresee()
	l.mu.Unlock()
	done.complete(t)
}

// foresee notes whether what comes next may be large. mu is held.
func (l *link) foresee() {
	l.bulk.Store(len(l.coming) > 0 || len(l.recvs) > 0 && l.recvs[0].Size > copyUpTo)
}

func onHost(op *channel.Op) bool {
	for i := range op.Mem {
		if op.Mem[i].Space != kolo.HostSpace {
			return op.Kind == channel.View // its Mem is of its last use
		}
	}
	return true
}

// dial begins to connect, where nobody has. mu is held.
func (l *link) dial() {
	switch {
	case l.dialler != nil:
		x := l.dialler
		// ends by itself; the two ends have a lock each
		l.d.calls.Go(func() {
			x.mu.Lock()
			defer x.mu.Unlock()
			x.dial()
		})
	case l.state == idle && l.err == nil:
		l.state = dialling
		// ended by the driver's context, or by the timeout
		l.d.calls.Go(func() { l.d.dial(l) })
	}
}

// send queues a message: with its bytes if the peer takes them unasked, else as an
// offer. mu is held.
func (l *link) send(op *channel.Op) {
	h := header{dtype: op.DType, key: op.Key, digest: op.Digest, size: op.Size}
	if cost := op.Size + overhead; op.Size <= l.eager && cost <= l.room {
		l.room -= cost
		h.kind = eager
		l.wire.queue = append(l.wire.queue, frame{h: h, op: op})
		return
	}
	l.lastID++
	h.kind, h.id = offer, l.lastID
	l.offers[h.id] = op
	l.tell(h)
}

// tell queues a frame without a body. mu is held.
func (l *link) tell(h header) {
	if l.wire != nil && !l.wire.closing {
		l.wire.queue = append(l.wire.queue, frame{h: h})
	}
}

// takeEarly looks for a message that has come for a receive. mu is held.
func (l *link) takeEarly(op *channel.Op, done *endings) bool {
	at := slices.IndexFunc(l.early, func(e early) bool { return e.h.key == op.Key })
	if at < 0 {
		return false
	}
	e := l.early[at]
	l.early = slices.Delete(l.early, at, at+1)
	if e.h.kind == offer {
		l.meet(&e.h, op, done)
		return true
	}
	l.consumed(e.h.size)
	if err := channel.Agree(e.h.asOp(), op); err != nil {
		l.d.pool.put(e.buf)
		done.add(op, err)
		return true
	}
	if op.Kind == channel.View {
		op.Mem = append(op.Mem[:0], kolo.HostMemory(e.buf))
	} else {
		scatter(op.Mem, e.buf)
		l.d.pool.put(e.buf)
	}
	done.add(op, nil)
	return true
}

// scatter copies b to memory of the same length.
func scatter(mem []kolo.Memory, b []byte) {
	for i := range mem {
		b = b[copy(mem[i].Host, b):]
	}
}

// meet answers an offer whose receive is there. mu is held.
func (l *link) meet(h *header, op *channel.Op, done *endings) {
	if err := channel.Agree(h.asOp(), op); err != nil {
		l.tell(header{kind: refuse, id: h.id, size: op.Size, dtype: op.DType, digest: op.Digest})
		done.add(op, err)
		return
	}
	in := &incoming{op: op, id: h.id, mem: op.Mem, left: op.Size}
	if op.Kind == channel.View {
		op.Mem = op.Mem[:0]
	}
	l.coming[h.id] = in
	l.tell(header{kind: ready, id: h.id})
}

// consumed gives the peer back a part of the window. mu is held.
func (l *link) consumed(size int64) {
	if l.owed += size + overhead; l.owed >= int64(l.d.cfg.Window)/2 && !l.telling {
		l.telling = true
		l.tell(header{kind: credit}) // fill adds the credit
	}
}

// abort ends the ops of a group that have not met their other end, and tells the
// peer to forget what has come for it.
func (l *link) abort(t channel.Turn, group uint64, cause error) {
	var done endings
	of := func(op *channel.Op) bool { return op.Key.Group == group }
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		return
	}
	drop := func(list []*channel.Op) []*channel.Op {
		return slices.DeleteFunc(list, func(op *channel.Op) bool {
			if of(op) {
				done.add(op, cause)
			}
			return of(op)
		})
	}
	l.waiting, l.recvs = drop(l.waiting), drop(l.recvs)
	for id, op := range l.offers {
		if of(op) {
			delete(l.offers, id)
			done.add(op, cause)
		}
	}
	for _, in := range l.coming {
		if of(in.op) {
			in.cause = cause
		}
	}
	if l.wire != nil {
		l.wire.queue = slices.DeleteFunc(l.wire.queue, func(f frame) bool {
			if f.op == nil || !of(f.op) {
				return false
			}
			l.room += f.op.Size + overhead
			done.add(f.op, cause)
			return true
		})
		l.tell(header{kind: abort, key: channel.Key{Group: group}})
	}
	l.forget(group)
	l.flush(&done)
	l.mu.Unlock()
	done.complete(t)
}

// forget drops what has come for a group. mu is held.
func (l *link) forget(group uint64) {
	l.early = slices.DeleteFunc(l.early, func(e early) bool {
		if e.h.key.Group != group {
			return false
		}
		if e.h.kind == eager {
			l.consumed(e.h.size)
			l.d.pool.put(e.buf)
		}
		return true
	})
}

// close ends the link from this side. What the peer has been sent before, it gets.
func (l *link) close(t channel.Turn, cause error) {
	var done endings
	l.mu.Lock()
	if l.err == nil {
		gone := fmt.Errorf("%w: %v has closed the link to %v: %w", kolo.ErrLost, l.me, l.peer, cause)
		l.finish(gone, cause, false, &done)
		l.dropComing(cause, &done)
		l.cutData()
		if w := l.wire; w != nil {
			reason := cause.Error()
			w.say(frame{h: header{kind: bye, size: int64(min(len(reason), maxReason))}, text: []byte(reason[:min(len(reason), maxReason)])})
			w.patience(l.d.cfg.Linger, l.kill)
			if !w.reading {
				w.deafen(&done)
			}
			l.flush(&done)
		}
	}
	l.mu.Unlock()
	done.complete(t)
}

// lose ends the link because a connection has failed. mu is held.
func (l *link) lose(err error, done *endings) {
	if l.err == nil {
		err = l.lostBy(err)
		l.finish(err, err, false, done)
		l.dropComing(err, done)
		l.cutData()
	}
	if w := l.wire; w != nil {
		w.die(done)
	}
}

// fail is lose for who does not hold mu.
func (l *link) fail(err error) {
	var done endings
	l.mu.Lock()
	l.lose(err, &done)
	l.mu.Unlock()
	done.complete(nil)
}

// kill ends what is left of the connections.
func (l *link) kill() {
	var done endings
	l.mu.Lock()
	l.cutData()
	if w := l.wire; w != nil {
		w.die(&done)
	}
	l.mu.Unlock()
	done.complete(nil)
}

// finish sets err and ends, with cause, the ops that have not met their other end, and
// the sends that are on their way. With keep, messages that have come stay for
// receives that are posted later. mu is held.
func (l *link) finish(err, cause error, keep bool, done *endings) {
	if l.own != nil {
		cause = l.own
	}
	l.err, l.cause = err, cause
	if l.state != up {
		close(l.settled)
	}
	for _, list := range [][]*channel.Op{l.waiting, l.recvs} {
		for _, op := range list {
			done.add(op, cause)
		}
	}
	l.waiting, l.recvs = nil, nil
	for _, op := range l.offers {
		done.add(op, cause)
	}
	clear(l.offers)
	if w := l.wire; w != nil {
		for _, f := range w.queue {
			if f.op != nil {
				done.add(f.op, cause)
			}
		}
		w.queue = nil
	}
	for _, list := range [][]*outgoing{l.parts, l.pieces} {
		for _, o := range list {
			if o.users == 0 {
				done.add(o.op, cause)
			}
		}
	}
	l.parts, l.pieces = nil, nil
	kept := l.early[:0]
	for _, e := range l.early {
		if keep && e.h.kind == eager {
			kept = append(kept, e)
		} else {
			l.d.pool.put(e.buf)
		}
	}
	clear(l.early[len(kept):])
	l.early = kept
	l.data.more.Broadcast()
}

// dropComing ends the receives whose bytes were coming. One that a connection writes
// to is ended by that. mu is held.
func (l *link) dropComing(cause error, done *endings) {
	if l.own != nil {
		cause = l.own
	}
	for id, in := range l.coming {
		in.cause = cause
		if in.users == 0 {
			l.undo(in, cause, done)
			delete(l.coming, id)
		}
	}
}

// undo ends a receive that is not filled. mu is held.
func (l *link) undo(in *incoming, cause error, done *endings) {
	l.unview(in)
	done.add(in.op, cause)
}

// unview takes the memory of a View back.
func (l *link) unview(in *incoming) {
	if in.op.Kind == channel.View && len(in.op.Mem) > 0 {
		l.d.pool.put(in.mem[0].Host)
		in.op.Mem = in.op.Mem[:0]
	}
}

// place is where a part goes: the memory of its receive, or of a View that is made for it; nil
// if the View takes the part in pieces. mu is held.
func (l *link) place(in *incoming, h *header, dst [][]byte, pieces bool) ([][]byte, error) {
	if op := in.op; op.Kind == channel.View {
		switch {
		case op.Take != nil && pieces && len(op.Mem) == 0:
			if h.offset%pieceAlign != 0 || h.size%pieceAlign != 0 && h.offset+h.size < op.Size {
				return nil, malformed("a piece of %d bytes at %d", h.size, h.offset)
			}
			op.Taken = true
			return nil, nil
		case op.Taken:
			return nil, malformed("a message by two ways")
		case len(op.Mem) == 0:
			op.Mem = append(op.Mem, kolo.HostMemory(l.d.pool.get(op.Size)))
			in.mem = op.Mem
		}
	}
	return spread(dst, in.mem, h.offset, h.size), nil
}

// take removes and returns the first op with the key, or nil.
func take(list *[]*channel.Op, k channel.Key) *channel.Op {
	at := slices.IndexFunc(*list, func(op *channel.Op) bool { return op.Key == k })
	if at < 0 {
		return nil
	}
	op := (*list)[at]
	*list = slices.Delete(*list, at, at+1)
	return op
}
