package channeltest

import (
	"fmt"
	"slices"
	"sync"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
)

// bug is what is wrong with a dumb driver.
type bug int

const (
	none bug = iota
	lastFirst
	ignoresLane
	ignoresGroup
	ignoresClass
	ignoresCall
	dropsLastByte
	skipsEmptyMessages
	noTurn
	sharesViews
	completesTwice
	forgetsPeer
	forgetsOwn
	abortsAll
	abortsNobody
	ignoresSize
	ignoresType
	oneHearsOfMismatch
	writesAfterAbort
	closesAllLinks
	forgetsEndpoint
	acceptsAfterClose
	leaksGoroutine
	besideShard
	forgetsRelease
	receivesLate
	bugs // their number
)

// dumb is the plainest driver: one lock, one list of ops, copies of everything.
type dumb struct {
	bug     bug
	mu      sync.Mutex
	waiting []post
	cut     map[[2]kolo.Rank]bool
	gone    map[kolo.Rank]bool
	side    sync.WaitGroup
	leak    chan struct{} // what leaksGoroutine waits for
}

// post is an op that waits for its other end.
type post struct {
	from, to kolo.Rank // of the message
	op       *channel.Op
}

func newDumb(b bug) *dumb {
	return &dumb{bug: b, cut: map[[2]kolo.Rank]bool{}, gone: map[kolo.Rank]bool{}, leak: make(chan struct{})}
}

func (d *dumb) Link() kolo.Link { return kolo.LinkTCP }

func (d *dumb) Open(r kolo.Rank) (channel.Endpoint, error) { return &dumbEnd{d, r}, nil }

func (d *dumb) Close() error {
	d.side.Wait()
	return nil
}

type dumbEnd struct {
	d    *dumb
	rank kolo.Rank
}

func (e *dumbEnd) Connect(peer kolo.Rank) (channel.Conn, error) {
	return &dumbConn{d: e.d, me: e.rank, peer: peer}, nil
}

func (e *dumbEnd) Close() {
	d := e.d
	if d.bug == forgetsEndpoint {
		return
	}
	d.mu.Lock()
	d.gone[e.rank] = true
	d.mu.Unlock()
	lost := d.take(func(p post) bool { return p.from == e.rank || p.to == e.rank })
	d.side.Go(func() {
		for _, p := range lost {
			p.op.Complete(nil, kolo.ErrLost)
		}
	})
}

type dumbConn struct {
	d        *dumb
	me, peer kolo.Rank
}

// take removes and returns the posts that which picks.
func (d *dumb) take(which func(post) bool) (list []post) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waiting = slices.DeleteFunc(d.waiting, func(p post) bool {
		if which(p) {
			list = append(list, p)
			return true
		}
		return false
	})
	return list
}

func (d *dumb) fits(a, b channel.Key) bool {
	switch d.bug {
	case ignoresLane:
		a.Lane = b.Lane
	case ignoresGroup:
		a.Group = b.Group
	case ignoresClass:
		a.Class = b.Class
	case ignoresCall:
		a.Call = b.Call
	}
	return a == b
}

func link(a, b kolo.Rank) [2]kolo.Rank { return [2]kolo.Rank{min(a, b), max(a, b)} }

func (c *dumbConn) Post(t channel.Turn, op *channel.Op) {
	d, p := c.d, post{c.me, c.peer, op}
	if op.Kind != channel.Send {
		p.from, p.to = c.peer, c.me
	}
	d.mu.Lock()
	if d.bug != acceptsAfterClose && (d.cut[link(c.me, c.peer)] || d.gone[c.me] || d.gone[c.peer]) {
		d.mu.Unlock()
		op.Complete(t, fmt.Errorf("%w: closed", kolo.ErrLost))
		return
	}
	at := -1
	for i, q := range d.waiting {
		if q.from == p.from && q.to == p.to && (q.op.Kind == channel.Send) != (op.Kind == channel.Send) && d.fits(q.op.Key, op.Key) {
			if at = i; d.bug != lastFirst {
				break
			}
		}
	}
	if at < 0 {
		d.waiting = append(d.waiting, p)
		d.mu.Unlock()
		return
	}
	mate := d.waiting[at].op
	d.waiting = slices.Delete(d.waiting, at, at+1)
	d.mu.Unlock()
	if op.Kind == channel.Send {
		c.meet(t, op, mate)
	} else {
		c.meet(t, mate, op)
	}
}

func (c *dumbConn) meet(t channel.Turn, send, recv *channel.Op) {
	d := c.d
	if d.bug == noTurn {
		t = nil
	}
	err := channel.Agree(send, recv)
	if err != nil && (d.bug == ignoresSize && send.Size != recv.Size || d.bug == ignoresType && send.Size == recv.Size) {
		err = nil
	}
	switch {
	case err != nil && d.bug == oneHearsOfMismatch:
		recv.Complete(t, err)
		return
	case err != nil:
		send.Complete(t, err)
		recv.Complete(t, err)
		return
	case d.bug == skipsEmptyMessages && send.Size == 0:
		return
	}
	if recv.Kind == channel.View {
		d.meetView(t, send, recv)
		return
	}
	var b []byte
	for _, m := range send.Mem {
		b = append(b, m.Host...)
	}
	if d.bug == dropsLastByte && len(send.Mem) > 1 && len(b) > 0 {
		b = b[:len(b)-1]
	}
	if d.bug == receivesLate && len(b) > 1000 {
		send.Complete(t, nil)
		recv.Complete(t, nil)
		return
	}
	for _, m := range recv.Mem {
		b = b[copy(m.Host, b):]
	}
	d.end(t, send, recv)
}

// end completes both ends of a transfer.
func (d *dumb) end(t channel.Turn, send, recv *channel.Op) {
	switch d.bug {
	case completesTwice:
		send.Complete(t, nil)
		send.Complete(t, nil)
	case besideShard:
		sink := send.Sink
		d.side.Go(func() { sink.Complete(send) })
	default:
		send.Complete(t, nil)
	}
	recv.Complete(t, nil)
}

// meetView gives a copy, so that the send is over.
func (d *dumb) meetView(t channel.Turn, send, recv *channel.Op) {
	recv.Mem = recv.Mem[:0]
	for _, m := range send.Mem {
		if d.bug != sharesViews {
			m = kolo.HostMemory(slices.Clone(m.Host))
		}
		recv.Mem = append(recv.Mem, m)
	}
	if d.bug == forgetsRelease { // it would have to tell the sender at Release
		recv.Complete(t, nil)
		return
	}
	d.end(t, send, recv)
}

func (c *dumbConn) Release(channel.Turn, *channel.Op) {}

func (c *dumbConn) Abort(t channel.Turn, group uint64, cause error) {
	if c.d.bug == abortsNobody {
		return
	}
	mine := c.d.take(func(p post) bool {
		return c.owns(p) && (p.op.Key.Group == group || c.d.bug == abortsAll)
	})
	for _, p := range mine {
		if c.d.bug == writesAfterAbort {
			for _, m := range p.op.Mem {
				defer clear(m.Host)
			}
		}
		p.op.Complete(t, cause)
	}
}

// owns says whether a waiting op was posted to this end.
func (c *dumbConn) owns(p post) bool {
	if p.op.Kind == channel.Send {
		return p.from == c.me && p.to == c.peer
	}
	return p.to == c.me && p.from == c.peer
}

func (c *dumbConn) Close(t channel.Turn, cause error) {
	d := c.d
	d.mu.Lock()
	d.cut[link(c.me, c.peer)] = true
	d.mu.Unlock()
	if d.bug == leaksGoroutine {
		go func() { <-d.leak }()
	}
	for _, p := range d.take(func(p post) bool {
		return link(p.from, p.to) == link(c.me, c.peer) || d.bug == closesAllLinks && (p.from == c.me || p.to == c.me)
	}) {
		switch {
		case c.owns(p) && d.bug != forgetsOwn:
			p.op.Complete(t, cause)
		case !c.owns(p) && d.bug != forgetsPeer:
			p.op.Complete(t, kolo.ErrLost)
		}
	}
}
