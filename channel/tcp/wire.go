package tcp

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
)

// wire is the control connection of a link: frames go out in the order of queue, by
// whoever has queued one; what comes is read by whoever the poller has. Where there is
// no poller, two goroutines do that. All fields but p belong to link.mu.
type wire struct {
	l     *link
	sock  socket
	where string
	queue []frame

	batch   [][]byte      // what is being written: headers and small bodies in scratch, others in place
	ops     []*channel.Op // which have been sent when batch is written
	piece   *outgoing     // of which batch has a piece
	scratch []byte
	writing bool // a goroutine writes batch
	blocked bool // the kernel takes no more; the poller tells when it does
	more    sync.Cond

	p       parser
	reading bool // a goroutine reads and has p
	full    bool // the last read took all there was room for: there may be more; the reader's
	done    endings

	closing bool // the last frame is queued; then the connection is shut, and what comes is dropped
	shut    bool // it is
	dead    bool // it is closed as soon as nobody reads or writes
	closed  bool
	timer   *time.Timer
}

// socket is a connection. Read and write return errWouldBlock where it is polled.
type socket interface {
	read(space [][]byte) (int, error)
	write(list [][]byte) (int, error)
	polled() bool
	ask(p *poller, write bool) error // what the poller shall tell
	shutdown() error                 // of the writing half
	interrupt()                      // ends reads and writes that wait
	close(p *poller)
}

var errWouldBlock = errors.New("would block")

// frame is a frame to send. Its body is op's memory, or text.
type frame struct {
	h    header
	op   *channel.Op
	text []byte
}

// The sizes of a batch.
const (
	scratchSize = 16 << 10
	copyUpTo    = 4 << 10 // a body of this size is copied behind its header
	maxPieces   = 512

	// A large message goes in pieces of this size, between which other frames go, and which the
	// receiver folds while they are in its cache.
	pieceSize  = 256 << 10
	pieceAlign = 64 // see channel.Op.Take
)

// attach makes conn the link's control connection. mu is held.
func (l *link) attach(s socket, where string, eager, window int64, done *endings) error {
	w := &wire{l: l, sock: s, where: where, scratch: make([]byte, 0, scratchSize)}
	w.more.L = &l.mu
	w.p.to = l
	l.wire = w
	l.eager, l.room = eager, window
	l.d.calls.Add(1) // done by bury
	if l.err != nil {
		w.say(frame{h: header{kind: bye}})
		w.patience(l.d.cfg.Linger, l.kill)
	} else {
		l.state = up
		close(l.settled)
		for _, op := range l.waiting {
			l.send(op)
		}
		l.waiting = nil
	}
	if !s.polled() {
		// ended by die
		l.d.calls.Go(w.readAll)
		// ended by die
		l.d.calls.Go(w.writeAll)
		return nil
	}
	if err := l.d.poller.add(s, w); err != nil {
		return err
	}
	l.flush(done)
	return nil
}

// say queues the last frame. mu is held.
func (w *wire) say(f frame) {
	if !w.closing {
		w.queue, w.closing = append(w.queue, f), true
	}
}

// patience ends the connection after a while. mu is held.
func (w *wire) patience(d time.Duration, kill func()) {
	if w.timer == nil && !w.dead {
		w.timer = time.AfterFunc(d, kill)
	}
}

// flush sends what is queued, as far as the kernel takes it at once. mu is held, but
// not while it writes.
func (l *link) flush(done *endings) {
	w := l.wire
	switch {
	case w == nil || w.writing || w.blocked || w.dead:
	case !w.sock.polled():
		w.more.Signal()
	default:
		w.pump(done)
	}
}

// pump writes until nothing is queued or the connection blocks. mu is held, but not
// while it writes.
func (w *wire) pump(done *endings) {
	l := w.l
	w.writing = true
	for !w.dead && w.fill() {
		list := w.batch[:min(len(w.batch), maxPieces)]
		l.mu.Unlock()
		n, err := w.sock.write(list)
		l.carried.Add(int64(n))
		l.mu.Lock()
		w.batch = skip(w.batch, n)
		if err == errWouldBlock {
			w.blocked = true
			err = w.sock.ask(l.d.poller, true)
			if err == nil {
				break
			}
		}
		if err != nil {
			l.lose(fmt.Errorf("write: %w", err), done)
			break
		}
		if len(w.batch) == 0 {
			w.sent(done)
		}
	}
	w.writing = false
	if w.dead {
		w.bury(done)
	} else if w.closing && !w.blocked && !w.shut {
		w.shut = true
		if err := w.sock.shutdown(); err != nil {
			w.die(done)
		}
	}
}

// sent completes the ops of a batch that is written.
func (w *wire) sent(done *endings) {
	for _, op := range w.ops {
		done.add(op, nil)
	}
	clear(w.ops)
	w.ops, w.scratch = w.ops[:0], w.scratch[:0]
	if o := w.piece; o != nil {
		w.piece = nil
		w.l.letGo(o, done)
	}
}

// fill makes a batch of what is queued, if there is none in progress. It says whether
// there is anything to write.
func (w *wire) fill() bool {
	if len(w.batch) > 0 {
		return true
	}
	w.batch = w.batch[:0]
	n, start := 0, 0 // frames taken; where in scratch the piece begins that is being made
	piece := func() {
		if len(w.scratch) > start {
			w.batch = append(w.batch, w.scratch[start:])
			start = len(w.scratch)
		}
	}
	for i := range w.queue {
		f := &w.queue[i]
		small := f.h.body() <= copyUpTo
		need := headerSize
		if small {
			need += int(f.h.body())
		}
		if len(w.scratch)+need > scratchSize || len(w.batch) > maxPieces {
			break
		}
		if f.h.kind != credit || w.l.owed > 0 {
			w.head(&f.h)
		}
		w.scratch = append(w.scratch, f.text...)
		if f.op != nil {
			w.ops = append(w.ops, f.op)
			for _, m := range f.op.Mem {
				if small {
					w.scratch = append(w.scratch, m.Host...)
				} else if len(m.Host) > 0 {
					piece()
					w.batch = append(w.batch, m.Host)
				}
			}
		}
		n++
	}
	piece()
	w.queue = slices.Delete(w.queue, 0, n)
	if l := w.l; len(l.pieces) > 0 && len(w.batch) < maxPieces && len(w.scratch)+headerSize <= scratchSize {
		o := l.pieces[0]
		h := header{kind: part, dtype: o.op.DType, id: o.id}
		if h.offset, h.size = o.take(pieceSize); o.next == o.op.Size {
			l.pieces[0] = nil
			l.pieces = l.pieces[1:]
		}
		w.head(&h)
		piece()
		w.batch = spread(w.batch, o.op.Mem, h.offset, h.size)
		w.piece = o
	}
	return len(w.batch) > 0
}

// head appends a header to scratch, with what is owed to the peer.
func (w *wire) head(h *header) {
	h.credit, w.l.used, w.l.owed = w.l.owed, w.l.used-w.l.owed, 0
	w.l.telling = false
	w.scratch = w.scratch[:len(w.scratch)+headerSize]
	h.encode(w.scratch[len(w.scratch)-headerSize:])
}

// writable is called by the poller.
func (w *wire) writable() {
	var space [4]ended
	done := endings(space[:0])
	w.l.mu.Lock()
	if w.blocked && !w.dead {
		w.blocked = false
		if err := w.sock.ask(w.l.d.poller, false); err != nil {
			w.l.lose(err, &done)
		}
		w.l.flush(&done)
	}
	w.l.mu.Unlock()
	done.complete(nil)
}

// rounds is how often one call of readable reads.
const rounds = 16

// readable is called by the poller, and says whether anything has come.
func (w *wire) readable() bool {
	if !w.own() {
		return false
	}
	some := false
	for range rounds {
		n, err := w.read()
		some = some || n > 0
		if err != nil || n == 0 || !w.full {
			break
		}
	}
	w.disown()
	return some
}

// own takes the reader's part, if nobody has it.
func (w *wire) own() bool {
	w.l.mu.Lock()
	defer w.l.mu.Unlock()
	if w.reading || w.dead {
		return false
	}
	w.reading = true
	return true
}

func (w *wire) disown() {
	var done endings
	w.l.mu.Lock()
	w.reading = false
	if w.dead {
		w.bury(&done)
	}
	w.l.mu.Unlock()
	done.complete(nil)
}

// read takes what has come and completes what that ends. The caller owns the wire. No
// bytes and no error: there is nothing for now.
func (w *wire) read() (int, error) {
	w.p.lean = w.l.bulk.Load()
	space := w.p.space()
	n, err := w.sock.read(space)
	w.full = n >= size(space)
	switch {
	case err == errWouldBlock:
		return 0, nil
	case err == nil && n == 0:
		err = io.EOF
	}
	l := w.l
	l.carried.Add(int64(max(n, 0)))
	l.mu.Lock()
	switch {
	case err == io.EOF:
		err = errors.New("the peer's process has ended or cut the connection")
	case err != nil:
		err = fmt.Errorf("read: %w", err)
	case w.closing:
		w.deafen(&w.done)
	default:
		err = w.p.filled(n)
		l.flush(&w.done)
		l.foresee()
	}
	if err != nil {
		l.lose(err, &w.done)
	}
	dead := w.dead
	l.mu.Unlock()
	w.done.complete(nil)
	clear(w.done)
	w.done = w.done[:0]
	if err == nil && dead {
		err = net.ErrClosed
	}
	return n, err
}

func size(list [][]byte) (n int) {
	for _, b := range list {
		n += len(b)
	}
	return n
}

// deafen makes the parser forget where it is: what comes is dropped. The wire has no
// other reader; mu is held.
func (w *wire) deafen(done *endings) {
	w.l.wreck(done)
	w.p = parser{to: w.l, buf: w.p.buf}
}

func (w *wire) readAll() {
	if !w.own() {
		return
	}
	for {
		if _, err := w.read(); err != nil {
			break
		}
	}
	w.disown()
}

// writeAll is pump for a connection that is not polled.
func (w *wire) writeAll() {
	var done endings
	w.l.mu.Lock()
	for !w.dead && !w.shut {
		w.pump(&done)
		if len(done) > 0 {
			w.l.mu.Unlock()
			done.complete(nil)
			w.l.mu.Lock()
			clear(done)
			done = done[:0]
		}
		for len(w.queue) == 0 && !w.dead && !w.closing {
			w.more.Wait()
		}
	}
	w.l.mu.Unlock()
	done.complete(nil)
}

// die closes the connection, now or when its reader and writer have let go. mu is held.
func (w *wire) die(done *endings) {
	w.dead = true
	w.sock.interrupt()
	w.more.Broadcast()
	w.bury(done)
}

// bury closes a dead connection that nobody uses, and ends the ops that were in its
// hands. mu is held.
func (w *wire) bury(done *endings) {
	if w.closed {
		return
	}
	if !w.writing {
		for _, op := range w.ops {
			done.add(op, w.l.cause)
		}
		w.ops, w.batch = nil, nil
		if o := w.piece; o != nil {
			w.piece, o.bad = nil, true
			w.l.letGo(o, done)
		}
	}
	if !w.reading {
		w.l.wreck(done)
	}
	if !w.writing && !w.reading {
		w.closed = true
		if w.timer != nil {
			w.timer.Stop()
		}
		w.sock.close(w.l.d.poller)
		w.l.d.calls.Done()
	}
}

// wreck ends the message whose bytes were coming. mu is held.
func (l *link) wreck(done *endings) {
	if !l.now.on {
		return
	}
	if in := l.now.in; in != nil {
		if in.users--; in.users == 0 {
			delete(l.coming, in.id)
			l.undo(in, l.cause, done)
		}
	}
	if l.d.pool.put(l.now.buf); l.now.op != nil && l.now.bad == nil {
		done.add(l.now.op, l.cause)
	}
	l.now = landing{}
}

// begin takes a frame of the control connection. It is called by the parser, with mu
// held.
func (l *link) begin(h *header, dst [][]byte) ([][]byte, error) {
	l.room += h.credit
	if l.room > maxWindow {
		return nil, malformed("credit of %d bytes that were not owed", h.credit)
	}
	switch h.kind {
	case bye:
		l.now = landing{buf: l.d.pool.get(h.size), on: true}
		return append(dst, l.now.buf), nil
	case eager:
		return l.land(h, dst)
	case part:
		in, err := l.beginPart(h)
		if err != nil {
			return nil, err
		}
		l.now = landing{on: true, in: in}
		dst, err = l.place(in, h, dst, true)
		if in.op.Taken {
			l.now.buf = l.d.pool.get(h.size)
			dst = append(dst, l.now.buf)
		}
		return dst, err
	}
	return nil, nil
}

// land finds the place for an eager message: the memory of its receive, or a buffer.
func (l *link) land(h *header, dst [][]byte) ([][]byte, error) {
	if l.used += h.size + overhead; l.used > int64(l.d.cfg.Window) {
		return nil, malformed("%d bytes that nobody has asked for, %d are allowed", l.used, l.d.cfg.Window)
	}
	if h.size > int64(l.d.cfg.Eager) {
		return nil, malformed("%d bytes at a time that nobody has asked for, %d are allowed", h.size, l.d.cfg.Eager)
	}
	n := landing{op: take(&l.recvs, h.key), on: true}
	if n.op != nil {
		if n.bad = channel.Agree(h.asOp(), n.op); n.bad != nil {
			l.now = n
			return nil, nil
		}
	}
	if n.op != nil && n.op.Kind == channel.Recv {
		for i := range n.op.Mem {
			dst = append(dst, n.op.Mem[i].Host)
		}
	} else {
		n.buf = l.d.pool.get(h.size)
		dst = append(dst, n.buf)
	}
	l.now = n
	return dst, nil
}

// end acts on a frame whose body, if any, has come.
func (l *link) end(h *header) error {
	done := &l.wire.done
	switch h.kind {
	case eager:
		return l.landed(h, done)
	case offer:
		if op := take(&l.recvs, h.key); op != nil {
			l.meet(h, op, done)
			return nil
		}
		return l.keep(early{h: *h})
	case part:
		in := l.now.in
		if in.op.Taken {
			in.op.Take(h.offset, l.now.buf)
			l.d.pool.put(l.now.buf)
		}
		l.now = landing{}
		l.endPart(in, done)
	case ready:
		l.cleared(h.id)
	case refuse:
		if op := l.offers[h.id]; op != nil {
			delete(l.offers, h.id)
			done.add(op, channel.Agree(op, h.asOp()))
		}
	case gone:
		l.withdrawn(h.id, done)
	case abort:
		l.forget(h.key.Group)
	case bye:
		l.left(string(l.now.buf), done)
		l.d.pool.put(l.now.buf)
		l.now = landing{}
	}
	return nil
}

// landed ends an eager message.
func (l *link) landed(h *header, done *endings) error {
	n := l.now
	l.now = landing{}
	if n.op == nil { // a receive may have been posted since
		if n.op = take(&l.recvs, h.key); n.op == nil {
			return l.keep(early{*h, n.buf})
		}
		n.bad = channel.Agree(h.asOp(), n.op)
		if n.bad == nil && n.op.Kind == channel.Recv {
			scatter(n.op.Mem, n.buf)
			l.d.pool.put(n.buf)
		}
	}
	l.consumed(h.size)
	if n.bad != nil {
		l.d.pool.put(n.buf)
	} else if n.op.Kind == channel.View {
		n.op.Mem = append(n.op.Mem[:0], kolo.HostMemory(n.buf))
	}
	done.add(n.op, n.bad)
	return nil
}

// keep lays a message aside until its receive comes.
func (l *link) keep(e early) error {
	if len(l.early) == maxEarly {
		return malformed("more than %d messages wait for their receive", maxEarly)
	}
	l.early = append(l.early, e)
	return nil
}

// withdrawn takes back a receive whose offer had been withdrawn when it was answered.
func (l *link) withdrawn(id uint64, done *endings) {
	in := l.coming[id]
	if in == nil || in.users > 0 || in.left < in.op.Size {
		return
	}
	delete(l.coming, id)
	if in.cause != nil {
		l.undo(in, in.cause, done)
		return
	}
	l.unview(in)
	if !l.takeEarly(in.op, done) { // the next message of the key may have come
		l.recvs = slices.Insert(l.recvs, 0, in.op)
	}
}

// left acts on the peer's bye: all is lost but what has come, and what is coming on
// data connections.
func (l *link) left(reason string, done *endings) {
	if l.err == nil {
		err := fmt.Errorf("%w: %v has closed its link to %v: %s", kolo.ErrLost, l.peer, l.me, reason)
		l.finish(err, err, true, done)
		if l.data.readers == 0 {
			l.dropComing(err, done)
		}
	}
	l.wire.die(done)
}
