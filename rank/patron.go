package rank

import (
	"fmt"
	"slices"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
)

// patron is a connection that a peer has made to a window of this rank. The rank actor
// serves it; the rank's own goroutines have no part in it.
type patron struct {
	a     *rankActor
	win   *Window
	peer  kolo.Rank
	conn  uint64
	line  *line // nil where the engine reaches both ends, and nothing is to be served
	order notices
}

// service is a transfer of a patron's.
type service struct {
	p       *patron
	id      uint64
	op      channel.Op
	used    []*region
	turn    *turn
	notice  *Notice
	refused error
}

// windowMade lets in those who have asked for the window.
func (a *rankActor) windowMade(win *Window) {
	if win.over() != nil {
		return // Close was called before this message came
	}
	if a.windows == nil {
		a.windows = map[string]*Window{}
	}
	a.windows[win.name] = win
	rest := a.hellos
	a.hellos = nil
	for _, m := range rest {
		a.hello(m)
	}
}

// windowClosed ends the connections of a window.
func (a *rankActor) windowClosed(m *windowClosed) {
	if a.windows[m.win.name] == m.win {
		delete(a.windows, m.win.name)
	}
	left := fmt.Errorf("%w: %v has closed its window %q", kolo.ErrLeft, a.rank, m.win.name)
	for _, p := range a.patrons {
		if p.win == m.win {
			p.leave(left)
		}
	}
	own := fmt.Errorf("%w: window %q of %v", kolo.ErrClosed, m.win.name, a.rank)
	for _, g := range a.targets {
		if g.win == m.win {
			a.failTarget(g, own, true)
		}
	}
	a.closing = append(a.closing, m)
	a.windowsEnded()
}

// windowsEnded tells the windows that close and have no transfer left.
func (a *rankActor) windowsEnded() {
	a.closing = slices.DeleteFunc(a.closing, func(c *windowClosed) bool {
		for _, g := range a.targets {
			if g.win == c.win {
				return false
			}
		}
		close(c.ended)
		return true
	})
}

// hello lets a peer connect, or remembers that it wants to.
func (a *rankActor) hello(m *greeting) {
	if a.closed != nil { // it was on its way when the rank left
		a.p.repel(a.shard, m, a.closed)
		return
	}
	answer := &greeting{kind: greetWelcome, conn: m.conn, from: a.rank, to: m.from}
	win := a.windows[m.window]
	switch {
	case win == nil && len(a.hellos) < maxHellos:
		a.hellos = append(a.hellos, m)
		return
	case win == nil:
		answer.cause = fmt.Errorf("%w: %d connections wait for windows of %v", kolo.ErrLimit, maxHellos, a.rank)
	default:
		answer.cause = a.admit(win, m, answer)
	}
	_ = a.p.greet(a.shard, answer) // one that is lost needs no answer
}

// admit makes the connection of a patron.
func (a *rankActor) admit(win *Window, m, answer *greeting) error {
	p := &patron{a: a, win: win, peer: m.from, conn: m.conn}
	if a.direct(m.from) {
		answer.there = win
	} else {
		c, err := a.channel(m.from)
		if err != nil {
			return err
		}
		p.line = newLine(c, m.conn, laneToOrigin, laneToTarget)
		p.line.hear, p.line.broke = p.hear, p.leave
	}
	if a.patrons == nil {
		a.patrons = map[uint64]*patron{}
	}
	a.patrons[p.conn] = p
	answer.regions = win.known()
	if p.line != nil {
		p.line.listen()
	}
	return nil
}

// end ends the connection, unless it has ended.
func (p *patron) end(cause error) (ended bool) {
	if p.a.patrons[p.conn] != p {
		return false
	}
	delete(p.a.patrons, p.conn)
	if p.line != nil {
		p.line.hangUp(cause)
	}
	return true
}

// leave ends the connection and tells the peer why.
func (p *patron) leave(cause error) {
	if !p.end(cause) {
		return
	}
	// One that is lost needs no goodbye.
	_ = p.a.p.greet(p.a.shard, &greeting{kind: greetGone, conn: p.conn, from: p.a.rank, to: p.peer, cause: cause})
}

// hear serves a request.
func (p *patron) hear(r record) error {
	if r.kind > recordNotify {
		return fmt.Errorf("%w: an origin has sent a record of kind %d", kolo.ErrArgument, r.kind)
	}
	q, err := unpackRequest(r.body, r.size)
	if err != nil {
		return err
	}
	s := &service{p: p, id: r.id, notice: q.notice}
	memory, used, err := p.win.acquire(q.places)
	if err != nil {
		s.refuse(r, err)
		return nil
	}
	s.used = used
	s.turn = p.order.join(s.give)
	switch {
	case r.kind == recordGet:
		p.line.say(record{kind: recordGranted, id: s.id})
		s.op.Kind = channel.Send
		p.line.post(&s.op, p.line.key(laneData, 0, s.id), s, memory...)
	case r.size == 0:
		s.end()
	default:
		s.op.Kind = channel.Recv
		p.line.post(&s.op, p.line.key(laneData, 0, s.id), s, memory...)
	}
	return nil
}

// refuse answers a request for what is not this window's. The data of a put is looked at
// and dropped, so that its sender gets it back.
func (s *service) refuse(r record, err error) {
	s.refused = err
	if r.kind != recordPut || r.size == 0 {
		s.deny()
		return
	}
	l := s.p.line
	s.op.Kind = channel.View
	s.op.Key, s.op.DType, s.op.Sink, s.op.Size = l.key(laneData, 0, s.id), kolo.Uint8, s, r.size
	l.channel.Post(&s.op)
}

func (s *service) deny() {
	e := &encoder{}
	s.p.line.say(record{kind: recordRefused, id: s.id, body: e.cause(s.refused).b})
}

// Complete hears that the data has come or gone.
func (s *service) Complete(op *channel.Op) {
	p := s.p
	switch {
	case op.Err != nil:
		p.win.release(s.used)
		if !p.line.over {
			p.leave(op.Err)
		}
	case s.refused != nil:
		p.line.channel.Release(op)
		s.deny()
	default:
		s.end()
	}
}

// end ends a transfer that has been done. Where there is no notice it does not wait for
// its turn.
func (s *service) end() {
	s.p.win.release(s.used)
	if s.notice == nil && s.op.Kind == channel.Recv && s.op.Size > 0 {
		s.p.line.say(record{kind: recordDone, id: s.id})
	}
	s.p.order.settle(s.turn)
}

// give gives the notice and answers; all before it is done.
func (s *service) give() {
	if s.op.Size > 0 && (s.notice == nil || s.op.Kind == channel.Send) {
		return // answered before
	}
	if n := s.notice; n != nil {
		n.From = s.p.peer
		if s.refused = s.p.win.notify(*n); s.refused != nil {
			s.deny()
			return
		}
	}
	s.p.line.say(record{kind: recordDone, id: s.id})
}
