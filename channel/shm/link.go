//go:build linux && (amd64 || arm64)

package shm

import (
	"fmt"
	"slices"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
)

// link is this process's end of what two ranks exchange. The peer's lock guards it.
type link struct {
	p *peer
	way
	recvs    []*channel.Op // that have not met their send
	arrivals []arrival     // that have not met their receive
	closed   error         // closed here
	lost     error         // closed there
}

// arrival is a message or an offer that has come and has met no receive.
type arrival struct {
	f     frame
	held  *hold  // of a message
	spans []span // of an offer
}

// hold is memory that a View refers to, or that a message waits in.
type hold struct{ buf []byte }

// connect makes the end of a link of a rank of this process.
func (p *peer) connect(local, remote kolo.Rank) channel.Conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.call()
	return p.link(way{local, remote})
}

// call joins the peer, unless that has begun; the lock is held.
func (p *peer) call() {
	if p.state == idle {
		p.state = joining
		// ended by the handshake, its deadline or Close
		p.d.work.Go(p.join)
	}
}

// link is the link of two ranks, made at its first use.
func (p *peer) link(w way) *link {
	l := p.links[w]
	if l == nil {
		l = &link{p: p, way: w}
		if p.gone[w.remote] {
			l.lost = fmt.Errorf("%w: %v has closed all its links", kolo.ErrLost, w.remote)
		}
		p.links[w] = l
	}
	return l
}

// linkOf is the link that a frame belongs to.
func (p *peer) linkOf(f *frame) (*link, error) {
	w := way{local: f.to, remote: f.from}
	if l := p.links[w]; l != nil {
		return l, nil
	}
	if !p.loop && !slices.Contains(p.ranks, f.from) {
		return nil, fmt.Errorf("%w: a frame of %v, which is not there", errCorrupt, f.from)
	}
	if len(p.links) >= maxLinks {
		return nil, fmt.Errorf("%w: %d links", kolo.ErrLimit, maxLinks)
	}
	return p.link(w), nil
}

// handle does what a frame says that concerns this link.
func (l *link) handle(u *turn, f *frame) (err error) {
	p := l.p
	switch f.kind {
	case message:
		if op := take(&l.recvs, f.key); op != nil {
			l.deliver(u, f, op)
			return nil
		}
		if l.closed != nil {
			p.release(f.entry())
			return nil
		}
		h := p.d.buffers.get(int(f.size))
		p.in.payload(f, h.buf, 0)
		l.arrivals = append(l.arrivals, arrival{f: *f, held: h})
	case offer:
		p.scratch = slices.Grow(p.scratch[:0], int(f.size))[:f.size]
		p.in.payload(f, p.scratch, 0)
		if p.spans, err = parseSpans(p.spans[:0], p.scratch, f.length); err != nil {
			return err
		}
		if op := first(l.recvs, f.key); op == nil {
			l.arrivals = append(l.arrivals, arrival{f: *f, spans: slices.Clone(p.spans)})
		} else if p.claim(f.offer) {
			take(&l.recvs, f.key)
			l.begin(u, f, p.spans, op)
		}
	case abandoned:
		l.forget(func(a *arrival) bool { return a.f.key.Group == f.key.Group })
	case hungUp:
		err := fmt.Errorf("%w: %v has closed the link to %v", kolo.ErrLost, l.remote, l.local)
		l.lose(u, err)
		l.withdraw(u, err, every)
	}
	return nil
}

// deliver gives the message at hand to the receive that it has met.
func (l *link) deliver(u *turn, f *frame, op *channel.Op) {
	p := l.p
	p.release(f.entry())
	if err := disagree(*f, op); err != nil {
		u.end(op, err)
		return
	}
	if op.Kind == channel.View {
		h := p.d.buffers.get(int(f.size))
		p.in.payload(f, h.buf, 0)
		op.Hold, op.Mem = h, append(op.Mem[:0], kolo.HostMemory(h.buf))
	} else if f.size > 0 {
		p.in.scatter(f, op.Mem, 0)
	}
	u.end(op, nil)
}

// Post starts op.
func (l *link) Post(t channel.Turn, op *channel.Op) {
	p, u := l.p, turn{t: t}
	if op.Kind != channel.View {
		for i := range op.Mem {
			if op.Mem[i].Space != kolo.HostSpace {
				op.Complete(t, fmt.Errorf("%w: shm moves host memory only", kolo.ErrUnsupported))
				return
			}
		}
	}
	p.mu.Lock()
	switch {
	case l.closed != nil:
		u.end(op, l.closed)
	case op.Kind == channel.Send:
		l.send(&u, op)
	default:
		l.receive(&u, op)
	}
	p.unlock(&u)
}

func (l *link) send(u *turn, op *channel.Op) {
	if err := l.broken(); err != nil {
		u.end(op, err)
		return
	}
	f := frame{kind: offer, dtype: op.DType, from: l.local, to: l.remote, key: op.Key, digest: op.Digest, length: uint64(op.Size)}
	if op.Size <= eagerBytes {
		f.kind, f.size = message, uint32(op.Size)
	}
	l.p.push(u, item{f, op, l})
}

// broken says why nothing can be sent on the link.
func (l *link) broken() error {
	if l.lost != nil {
		return l.lost
	}
	return l.p.lost
}

func (l *link) receive(u *turn, op *channel.Op) {
	p := l.p
	for i := 0; i < len(l.arrivals); i++ {
		a := l.arrivals[i]
		if a.f.key != op.Key {
			continue
		}
		l.arrivals = slices.Delete(l.arrivals, i, i+1)
		if a.held != nil {
			l.accept(u, &a, op)
			return
		}
		if p.claim(a.f.offer) {
			l.begin(u, &a.f, a.spans, op)
			return
		}
		i-- // the sender has taken it back
	}
	if err := l.broken(); err != nil {
		u.end(op, err)
		return
	}
	l.recvs = append(l.recvs, op)
}

// accept gives a message that has waited to its receive.
func (l *link) accept(u *turn, a *arrival, op *channel.Op) {
	l.p.release(a.f.entry())
	err := disagree(a.f, op)
	if err == nil && op.Kind == channel.View {
		op.Hold, op.Mem = a.held, append(op.Mem[:0], kolo.HostMemory(a.held.buf))
		u.end(op, nil)
		return
	}
	if b := a.held.buf; err == nil {
		for _, m := range op.Mem {
			b = b[copy(m.Host, b):]
		}
	}
	l.p.d.buffers.put(a.held)
	u.end(op, err)
}

// Release gives back what a View refers to.
func (l *link) Release(t channel.Turn, op *channel.Op) {
	held := op.Hold
	op.Hold = nil
	switch h := held.(type) {
	case *hold:
		l.p.d.buffers.put(h)
	case *move:
		h.finish(t, nil)
	}
}

// Abort ends the ops of a group that have not met their other end.
func (l *link) Abort(t channel.Turn, group uint64, cause error) {
	p, u := l.p, turn{t: t}
	p.mu.Lock()
	ours := func(op *channel.Op) bool { return op.Key.Group == group }
	l.drop(&u, cause, ours)
	l.withdraw(&u, cause, ours)
	if l.closed == nil && l.broken() == nil {
		p.push(&u, item{f: frame{kind: abandoned, from: l.local, to: l.remote, key: channel.Key{Group: group}}})
	}
	p.unlock(&u)
}

// Close ends what has not met its other end.
func (l *link) Close(t channel.Turn, cause error) {
	p, u := l.p, turn{t: t}
	p.mu.Lock()
	l.shut(&u, cause, fmt.Errorf("%w: %v has closed the link to %v: %w", kolo.ErrLost, l.local, l.remote, cause))
	p.unlock(&u)
}

// shut closes the link here: its ops end with cause and those posted later with closed.
func (l *link) shut(u *turn, cause, closed error) {
	if l.closed != nil {
		return
	}
	l.closed = closed
	l.drop(u, cause, every)
	l.withdraw(u, cause, every)
	l.forget(func(*arrival) bool { return true })
	if l.broken() == nil {
		l.p.push(u, item{f: frame{kind: hungUp, from: l.local, to: l.remote}})
	}
}

// leave closes the links of a rank of this process.
func (p *peer) leave(rank kolo.Rank) {
	var u turn
	p.mu.Lock()
	err := fmt.Errorf("%w: %v has closed all its links", kolo.ErrLost, rank)
	for w, l := range p.links {
		if w.local == rank {
			l.shut(&u, err, err)
		}
	}
	if p.state == up {
		p.push(&u, item{f: frame{kind: gone, from: rank}})
	}
	p.unlock(&u)
}

func every(*channel.Op) bool { return true }

// drop ends the receives of the link that which picks.
func (l *link) drop(u *turn, cause error, which func(*channel.Op) bool) {
	l.recvs = slices.DeleteFunc(l.recvs, func(op *channel.Op) bool {
		if !which(op) {
			return false
		}
		u.end(op, cause)
		return true
	})
}

// withdraw ends the sends of the link that which picks and that the receiver has not
// claimed.
func (l *link) withdraw(u *turn, cause error, which func(*channel.Op) bool) {
	p := l.p
	p.backlog = slices.DeleteFunc(p.backlog, func(it item) bool {
		if it.op == nil || it.link != l || !which(it.op) {
			return false
		}
		u.end(it.op, cause)
		return true
	})
	if p.state != up {
		return
	}
	for i := range p.offers {
		o := &p.offers[i]
		if o.op != nil && o.link == l && which(o.op) &&
			p.out.slots[i].CompareAndSwap(slotWord(o.number, slotOffered), 0) {
			p.close(u, o.number, cause)
		}
	}
}

// forget drops arrivals.
func (l *link) forget(which func(*arrival) bool) {
	l.arrivals = slices.DeleteFunc(l.arrivals, func(a arrival) bool {
		if !which(&a) {
			return false
		}
		if a.held != nil {
			l.p.release(a.f.entry())
			l.p.d.buffers.put(a.held)
		}
		return true
	})
}

// lose notes that the other end is gone: what waits for it ends. Messages that have
// come can be received still, offers cannot.
func (l *link) lose(u *turn, err error) {
	if l.lost == nil {
		l.lost = err
	}
	l.drop(u, err, every)
	l.forget(func(a *arrival) bool { return a.held == nil })
}

// take removes and returns the first op with the key, or nil.
func take(list *[]*channel.Op, k channel.Key) *channel.Op {
	for i, op := range *list {
		if op.Key == k {
			*list = slices.Delete(*list, i, i+1)
			return op
		}
	}
	return nil
}

// first is the first op with the key, or nil.
func first(list []*channel.Op, k channel.Key) *channel.Op {
	for _, op := range list {
		if op.Key == k {
			return op
		}
	}
	return nil
}

// disagree says why a message and a receive do not fit each other, or nil.
func disagree(f frame, op *channel.Op) error {
	if f.length == uint64(op.Size) && f.dtype == op.DType && f.digest == op.Digest {
		return nil
	}
	return channel.Agree(&channel.Op{Size: int64(f.length), DType: f.dtype, Digest: f.digest}, op)
}
