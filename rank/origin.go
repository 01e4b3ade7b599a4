package rank

import (
	"errors"
	"fmt"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/actor"
	"github.com/kolo-ccl/kolo/channel"
)

// onesided is what a rank actor has of one-sided transfers.
type onesided struct {
	windows map[string]*Window
	hellos  []*greeting // for windows that are not made
	patrons map[uint64]*patron
	targets map[uint64]*Target
	closing []*windowClosed
}

const maxHellos = 4096 // connections to windows that are not made

func (*windowMade) isMessage()   {}
func (*windowClosed) isMessage() {}
func (*greeting) isMessage()     {}
func (*Target) isMessage()       {} // to connect
func (*targetEnd) isMessage()    {}
func (*Transfer) isMessage()     {} // to start
func (*moved) isMessage()        {}

// windowMade says that a window listens, windowClosed that it closes; ended
// is closed when the window's own transfers have ended.
type windowMade struct{ win *Window }

type windowClosed struct {
	win   *Window
	ended chan struct{}
}

// targetEnd ends a connection that was made here.
type targetEnd struct {
	target *Target
	cause  error
}

// moved says that the engine is done with a transfer.
type moved struct {
	x   *Transfer
	err error
}

// The kinds of greeting.
const (
	greetHello   byte = iota // origin to target: connect
	greetWelcome             // target to origin: connected, or why not
	greetBye                 // origin to target: the connection has ended
	greetGone                // target to origin: the same
)

// greeting makes and ends connections. Within a process it is a message between rank
// actors, else a letter.
type greeting struct {
	kind     byte
	conn     uint64
	from, to kolo.Rank // world ranks
	window   string
	regions  []Region
	cause    error
	there    *Window // in one process, where the engine reaches both
}

func (m *greeting) write(e *encoder) {
	e.kind(kindGreeting).uint(uint64(m.kind)).uint(m.conn).int(int64(m.from)).int(int64(m.to)).text(m.window)
	e.uint(uint64(len(m.regions)))
	for _, r := range m.regions {
		e.text(r.Name).uint(r.Key).int(r.Size)
	}
	e.cause(m.cause)
}

func readGreeting(d *decoder) *greeting {
	m := &greeting{kind: byte(d.uint()), conn: d.uint(), from: kolo.Rank(d.int()), to: kolo.Rank(d.int()), window: d.text()}
	for range d.count(3) {
		m.regions = append(m.regions, Region{Name: d.text(), Key: d.uint(), Size: d.int()})
	}
	m.cause = d.cause()
	return m
}

// greeted takes a greeting of another process.
func (o *outside) greeted(from int, m *greeting) error {
	list := o.part.Processes
	if m.from < 0 || int(m.from) >= len(list) || list[m.from] != from || m.to < 0 || int(m.to) >= len(list) || list[m.to] != o.part.Process || m.kind > greetGone {
		return fmt.Errorf("%w: process %d greets rank %d for rank %d", kolo.ErrArgument, from, m.to, m.from)
	}
	o.p.actors[m.to].tell(nil, m)
	return nil
}

// greet sends a greeting.
func (p *process) greet(from *actor.Shard, m *greeting) error {
	if a := p.actors[m.to]; a != nil {
		a.tell(from, m)
		return nil
	}
	p.mu.Lock()
	d := p.parted[m.to]
	p.mu.Unlock()
	if d != nil && m.kind == greetHello {
		kind := kolo.ErrLeft
		if d.lost {
			kind = kolo.ErrLost
		}
		if d.cause != nil {
			return fmt.Errorf("%w: %v: %w", kind, m.to, d.cause)
		}
		return fmt.Errorf("%w: %v", kind, m.to)
	}
	return p.outside.part.Control.Tell(p.outside.part.Processes[m.to], pack(m))
}

// repel answers a greeting to a rank that has ended.
func (p *process) repel(from *actor.Shard, m *greeting, err error) {
	if m.kind == greetHello {
		// One that is lost needs no answer.
		_ = p.greet(from, &greeting{kind: greetWelcome, conn: m.conn, from: m.to, to: m.from, cause: fmt.Errorf("%w: %v: %w", kolo.ErrLeft, m.to, err)})
	}
}

// direct says whether the engine may be used between this rank and a peer.
func (a *rankActor) direct(peer kolo.Rank) bool {
	d, ok := a.p.driver.(channel.Direct)
	return ok && a.p.actors[peer] != nil && d.Direct(a.rank, peer)
}

// oneSided handles the messages of one-sided transfers.
func (a *rankActor) oneSided(m message) {
	switch m := m.(type) {
	case *windowMade:
		a.windowMade(m.win)
	case *windowClosed:
		a.windowClosed(m)
	case *greeting:
		a.greeted(m)
	case *Target:
		a.connectTo(m)
	case *targetEnd:
		a.endTarget(m.target, m.cause)
	case *Transfer:
		a.begin(m)
	case *moved:
		a.moved(m)
	default:
		panic(fmt.Sprintf("rank: unknown message %T", m))
	}
}

// refuseOneSided answers a message that the actor, which has ended, did not take.
func (a *rankActor) refuseOneSided(from *actor.Shard, m message, err error) {
	switch m := m.(type) {
	case *windowClosed:
		close(m.ended)
	case *greeting:
		a.p.repel(from, m, err)
	case *Target:
		m.ended.Store(&err)
		close(m.ready)
	case *Transfer:
		m.resolve(err)
	case *moved:
		m.x.target.there.release(m.x.used)
		m.x.resolve(err)
	}
}

// greeted handles a greeting.
func (a *rankActor) greeted(m *greeting) {
	switch m.kind {
	case greetHello:
		a.hello(m)
	case greetWelcome:
		if g := a.targets[m.conn]; g != nil && g.peer == m.from {
			a.welcome(g, m)
		}
	case greetBye:
		for i, h := range a.hellos {
			if h.conn == m.conn && h.from == m.from {
				a.hellos = append(a.hellos[:i], a.hellos[i+1:]...)
				break
			}
		}
		if p := a.patrons[m.conn]; p != nil && p.peer == m.from {
			p.end(m.cause)
		}
	case greetGone:
		if g := a.targets[m.conn]; g != nil && g.peer == m.from {
			a.failTarget(g, m.cause, false)
		}
	}
}

// connectTo asks the peer for a connection.
func (a *rankActor) connectTo(g *Target) {
	if a.targets == nil {
		a.targets = map[uint64]*Target{}
	}
	err := a.closed
	if err == nil {
		err = a.cut[g.peer]
	}
	if err == nil {
		err = g.win.over() // Close comes behind, or has come
	}
	if a.targets[g.conn] = g; err == nil {
		err = a.p.greet(a.shard, &greeting{kind: greetHello, conn: g.conn, from: a.rank, to: g.peer, window: g.win.name})
	}
	if err != nil {
		a.failTarget(g, err, false)
	}
}

// welcome takes the peer's answer.
func (a *rankActor) welcome(g *Target, m *greeting) {
	if g.ended.Load() != nil || g.made {
		return
	}
	if m.cause != nil {
		a.failTarget(g, m.cause, false)
		return
	}
	if g.there = m.there; g.there == nil {
		c, err := a.channel(g.peer)
		if err != nil {
			a.failTarget(g, err, true)
			return
		}
		g.line = newLine(c, g.conn, laneToTarget, laneToOrigin)
		g.line.hear = func(r record) error { return a.answer(g, r) }
		g.line.broke = func(err error) { a.breakTarget(g, err) }
		g.line.listen()
	}
	g.regions, g.byKey = m.regions, map[uint64]*Region{}
	for i := range g.regions {
		g.byKey[g.regions[i].Key] = &g.regions[i]
	}
	g.made = true
	close(g.ready)
}

// endTarget ends a connection because the user says so.
func (a *rankActor) endTarget(g *Target, cause error) {
	a.failTarget(g, cause, true)
}

// failTarget ends a connection: first cause wins, and all that is outstanding ends with it as
// soon as its memory is free. With tell set the peer hears of it.
func (a *rankActor) failTarget(g *Target, cause error, tell bool) {
	if g.ended.Load() != nil {
		return
	}
	g.ended.Store(&cause)
	if tell {
		// One that is lost needs no goodbye.
		_ = a.p.greet(a.shard, &greeting{kind: greetBye, conn: g.conn, from: a.rank, to: g.peer, cause: cause})
	}
	if !g.made {
		close(g.ready)
	}
	if g.line != nil {
		g.line.hangUp(cause)
	}
	patience := a.p.cfg.CloseTimeout
	if errors.Is(cause, kolo.ErrLost) {
		patience = min(patience, lossTime)
	}
	g.patience = a.p.now().Add(patience)
	for _, x := range g.open {
		if x.failed == nil {
			x.failed = cause
		}
		if !x.moving {
			a.finish(x)
		}
	}
	if a.forget(g); len(g.open) > 0 {
		a.p.watch.arm(g.patience)
	}
}

// breakTarget ends a connection whose link has failed. One that is lost has a moment to be
// explained, as that of a message: whether the peer has left is told by a control message,
// which may come a little later.
func (a *rankActor) breakTarget(g *Target, err error) {
	switch {
	case !errors.Is(err, kolo.ErrLost) || a.closed != nil:
		a.failTarget(g, err, true)
	case g.loss == nil && g.ended.Load() == nil:
		g.loss, g.patience = err, a.p.now().Add(lossTime)
		a.p.watch.arm(g.patience)
	}
}

// forget drops a connection that has ended with all its transfers.
func (a *rankActor) forget(g *Target) {
	if g.ended.Load() == nil || len(g.open) > 0 {
		return
	}
	delete(a.targets, g.conn)
	a.windowsEnded()
}

// finish resolves a transfer.
func (a *rankActor) finish(x *Transfer) {
	g := x.target
	if g.open[x.id] != x {
		return
	}
	delete(g.open, x.id)
	x.resolve(x.failed)
	a.forget(g)
}

// begin starts a transfer.
func (a *rankActor) begin(x *Transfer) {
	g := x.target
	if err := g.ended.Load(); err != nil {
		x.resolve(*err)
		return
	}
	if len(g.open) == maxInFlight {
		x.resolve(fmt.Errorf("%w: %d transfers of one connection; wait for some", kolo.ErrLimit, maxInFlight))
		return
	}
	g.last++
	x.id = g.last
	g.open[x.id] = x
	if g.win.timeout > 0 {
		x.deadline = a.p.now().Add(g.win.timeout)
		a.p.watch.arm(x.deadline)
	}
	if g.there != nil {
		a.beginDirect(x)
		return
	}
	r := record{kind: x.kind, id: x.id, size: x.size}
	q := request{places: x.places(), notice: x.notice}
	r.body = q.pack()
	g.line.say(r)
	if x.kind == transferPut && x.size > 0 {
		x.op.Kind, x.moving = channel.Send, true
		g.line.post(&x.op, g.line.key(laneData, 0, x.id), (*data)(x), x.local()...)
	}
}

// answer takes a record of the target.
func (a *rankActor) answer(g *Target, r record) error {
	x := g.open[r.id]
	if x == nil || x.answered {
		return nil
	}
	x.answered = true
	switch r.kind {
	case recordDone:
	case recordRefused:
		d := &decoder{b: r.body}
		if x.failed = d.cause(); x.failed == nil {
			return fmt.Errorf("%w: a transfer was refused without a reason", kolo.ErrArgument)
		}
	case recordGranted:
		if x.kind != transferGet {
			return fmt.Errorf("%w: %s was answered as a get", kolo.ErrArgument, x.what())
		}
		x.op.Kind, x.moving = channel.Recv, true
		g.line.post(&x.op, g.line.key(laneData, 0, x.id), (*data)(x), x.local()...)
		return nil
	default:
		return fmt.Errorf("%w: a target has sent a record of kind %d", kolo.ErrArgument, r.kind)
	}
	if !x.moving {
		a.finish(x)
	}
	return nil
}

// data is a Transfer as the channel knows it: users have no use for Complete.
type data Transfer

// Complete hears that the data has been moved by the channel.
func (d *data) Complete(op *channel.Op) {
	x := (*Transfer)(d)
	g := x.target
	a := g.win.world.actor
	x.moving = false
	if op.Err != nil {
		a.breakTarget(g, op.Err)
	}
	if x.answered && op.Err == nil || g.ended.Load() != nil {
		a.finish(x)
	}
}

// beginDirect does a transfer by the engine, without the target.
func (a *rankActor) beginDirect(x *Transfer) {
	g := x.target
	there, used, err := g.there.acquire(x.places())
	if err != nil {
		x.failed = err
		a.finish(x)
		return
	}
	x.used = used
	t := g.order.join(nil)
	t.give = func() {
		if n := x.notice; n != nil && x.failed == nil {
			x.failed = g.there.notify(Notice{From: a.rank, Name: n.Name, Message: append([]byte(nil), n.Message...)})
		}
		a.finish(x)
	}
	x.turn = t
	if x.size == 0 {
		a.moved(&moved{x: x})
		return
	}
	from, to := x.local(), there
	if x.kind == transferGet {
		from, to = there, from
	}
	x.moving = true
	x.job.Reset()
	x.job.AddMove(to, from)
	x.job.Done = func(t channel.Turn, err error) { a.tell(t, &moved{x, err}) }
	a.p.engine.Start(a.shard, &x.job)
}

// moved hears that the engine is done with a transfer.
func (a *rankActor) moved(m *moved) {
	x := m.x
	g := x.target
	x.moving = false
	g.there.release(x.used)
	if m.err != nil {
		a.failTarget(g, m.err, true)
	}
	if g.ended.Load() != nil || x.notice == nil && x.kind != transferNotify {
		a.finish(x) // it does not wait for its turn
	}
	g.order.settle(x.turn)
}

// tickOneSided looks at the deadlines of transfers.
func (a *rankActor) tickOneSided(now time.Time) {
	for _, g := range a.targets {
		if g.ended.Load() != nil {
			a.giveUp(g, now)
			continue
		}
		if g.loss != nil {
			if now.Before(g.patience) {
				a.p.watch.arm(g.patience)
				continue
			}
			a.failTarget(g, g.loss, true)
			continue
		}
		for _, x := range g.open {
			if x.deadline.IsZero() {
				continue
			}
			if now.Before(x.deadline) {
				a.p.watch.arm(x.deadline)
				continue
			}
			a.failTarget(g, fmt.Errorf("%w: after %v %s has not ended", kolo.ErrDeadline, g.win.timeout, x.what()), true)
			break
		}
	}
}

// giveUp ends the transfers whose memory the driver does not give back in time.
func (a *rankActor) giveUp(g *Target, now time.Time) {
	if now.Before(g.patience) {
		a.p.watch.arm(g.patience)
		return
	}
	for _, x := range g.open {
		x.failed = fmt.Errorf("%w; %s", x.failed, abandoned)
		a.finish(x)
	}
}

// cutOneSided ends the connections with ranks that are gone.
func (a *rankActor) cutOneSided(m *cut) {
	gone := map[kolo.Rank]bool{}
	for _, r := range m.ranks {
		gone[r] = true
	}
	for _, g := range a.targets {
		if gone[g.peer] {
			a.failTarget(g, m.cause, false)
		}
	}
	for _, p := range a.patrons {
		if gone[p.peer] {
			p.end(m.cause)
		}
	}
}

// quitOneSided ends all connections.
func (a *rankActor) quitOneSided(cause error) {
	for _, g := range a.targets {
		a.failTarget(g, cause, true)
	}
	for _, p := range a.patrons {
		p.leave(cause)
	}
	for _, m := range a.hellos {
		a.p.repel(a.shard, m, cause)
	}
	a.hellos = nil
	for _, c := range a.closing {
		close(c.ended)
	}
	a.closing = nil
}
