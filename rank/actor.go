package rank

import (
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/actor"
	"github.com/kolo-ccl/kolo/channel"
)

// rankActor is the actor of one rank: it runs the rank's Programs, posts its
// messages, and opens its channels when they are first needed. It and its channels
// live on one shard.
type rankActor struct {
	p     *process
	rank  kolo.Rank // in the world
	shard *actor.Shard
	self  actor.Ref[message]

	endpoint channel.Endpoint
	channels map[kolo.Rank]*channel.Channel
	messages []*ticket              // sends and receives in flight
	busy     atomic.Pointer[string] // what the rank says that it does; see World.Busy
	steps    *stepRun               // free list
	closed   error
	flying   atomic.Int64        // messages; read by hubs
	cut      map[kolo.Rank]error // ranks that are gone with their process
	onesided
}

// message is what a rank actor handles.
type message interface{ isMessage() }

func (*run) isMessage()      {} // start
func (*abortRun) isMessage() {}
func (*stepRun) isMessage()  {} // its job has ended
func (*ticket) isMessage()   {} // a send or receive to post
func (*lost) isMessage()     {}
func (*quit) isMessage()     {}
func (tick) isMessage()      {}
func (*cut) isMessage()      {}

// abortRun ends a run with a cause as soon as its memory is free.
type abortRun struct {
	run   *run
	cause error
}

// lost says that a rank of a group is gone, or with NoRank that the group has failed.
type lost struct {
	hub   *hub
	rank  kolo.Rank
	cause error
}

// cut ends the channels to ranks that are gone with their process.
type cut struct {
	ranks []kolo.Rank
	cause error
}

// quit closes the rank's channels.
type quit struct {
	cause error
	done  chan struct{}
	err   error // of closing; behind done
}

func newRankActor(p *process, r kolo.Rank) (*rankActor, error) {
	a := &rankActor{p: p, rank: r, channels: map[kolo.Rank]*channel.Channel{}}
	a.shard = p.sys.NewShard(r.String())
	err := a.guarded(func() (err error) {
		a.endpoint, err = p.driver.Open(r)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open endpoint of %v: %w", r, err)
	}
	a.self, err = actor.Spawn[message](a.shard, actor.Props{Name: r.String(), Limit: 1 << 24, OnExit: a.exited, Dropped: a.dropped}, a)
	if err != nil {
		return nil, errors.Join(err, a.closeEndpoint())
	}
	return a, nil
}

// tell sends a message from the turn of a shard, or from outside with nil.
func (a *rankActor) tell(from *actor.Shard, m message) {
	if err := a.self.From(from).Tell(m); err != nil {
		a.refuse(from, m, err)
	}
}

// refuse answers a message that the actor, which has ended, did not take.
func (a *rankActor) refuse(from *actor.Shard, m message, err error) {
	switch m := m.(type) {
	case *run:
		m.err = err
		m.hub.tell(from, m)
	case *inquiry:
		m.answer(from)
	case *query:
		m.answer(a.who())
	case *runQuery:
		m.q.answer(a.who(), m.p)
	case *ticket:
		if m.stream != nil {
			m.stream.turn = from
		}
		m.resolve(m.dress(err))
	case *linkCheck:
		close(m.done)
	case *quit:
		m.err = a.closeEndpoint()
		close(m.done)
	default:
		a.refuseOneSided(from, m, err)
	}
}

// dropped answers a message that the actor took and did not live to handle.
func (a *rankActor) dropped(m any, err error) { a.refuse(a.shard, m.(message), err) }

// exited fails every group of the rank if the actor, or one of its channels, has
// ended by a panic. What it was doing will not end by itself any more: messages are
// resolved here, and the hubs are told not to wait for its runs.
func (a *rankActor) exited(err error) {
	if err == nil {
		return
	}
	if a.closed == nil {
		a.closed = err
	}
	a.quitOneSided(err)
	for _, c := range a.channels {
		c.Close(err)
	}
	list := a.messages
	a.messages = nil
	a.flying.Store(0)
	for _, t := range list {
		t.resolve(t.dress(err))
	}
	for _, h := range a.p.allHubs() {
		if r := slices.Index(h.ranks, a.rank); r >= 0 {
			h.tell(a.shard, &failure{err: err, dead: true, rank: kolo.Rank(r)})
		}
	}
}

// stop closes the channels, ends the actor, and waits for that, for Config.CloseTimeout.
func (a *rankActor) stop(cause error) error {
	q := &quit{cause: cause, done: make(chan struct{})}
	a.tell(nil, q)
	if err := a.p.answered(q.done, fmt.Sprintf("the actor of %v", a.rank)); err != nil {
		return err
	}
	return q.err
}

const heldUp = "a callback that does not return, as Config.Warned, may hold up the runtime"

// answered waits for an actor, for Config.CloseTimeout.
func (p *process) answered(done <-chan struct{}, who string) error {
	t := time.NewTimer(p.cfg.CloseTimeout)
	defer t.Stop()
	select {
	case <-done:
		return nil
	case <-t.C:
		return fmt.Errorf("%w: %s has not answered for %v: %s", kolo.ErrDeadline, who, p.cfg.CloseTimeout, heldUp)
	}
}

// Handle does what the message says.
func (a *rankActor) Handle(m message) error {
	switch m := m.(type) {
	case *run:
		m.start()
	case *stepRun:
		m.folded()
	case *abortRun:
		m.run.abort(m.cause)
	case *ticket:
		a.post(m)
	case *inquiry:
		a.inquired(m)
	case *query:
		a.look(m)
	case *runQuery:
		m.look()
	case *lost:
		a.lose(m)
	case tick:
		a.tick()
	case *cut:
		a.cutOff(m)
	case *linkCheck:
		a.check(m)
	case *linkCheckEnd:
		a.endCheck(m.of, m.cause)
	case *quit:
		a.quit(m)
	default:
		a.oneSided(m)
	}
	return nil
}

// channel is the channel to a world rank, opened at its first use.
func (a *rankActor) channel(peer kolo.Rank) (*channel.Channel, error) {
	if c := a.channels[peer]; c != nil {
		return c, nil
	}
	if a.closed != nil {
		return nil, a.closed
	}
	if err := a.cut[peer]; err != nil {
		return nil, err
	}
	conn, err := a.connect(peer)
	if err != nil {
		return nil, fmt.Errorf("connect to %v: %w", peer, err)
	}
	c, err := channel.Spawn(a.shard, fmt.Sprintf("%v to %v", a.rank, peer), peer, conn, a.exited)
	if err != nil {
		return nil, err
	}
	if a.p.cfg.Engine != nil && a.p.staged(a.rank, peer) {
		c.Stage(a.p.engine)
	}
	a.channels[peer] = c
	return c, nil
}

// connect asks the driver for a Conn.
func (a *rankActor) connect(peer kolo.Rank) (c channel.Conn, err error) {
	err = a.guarded(func() (err error) {
		c, err = a.endpoint.Connect(peer)
		return err
	})
	return c, err
}

// closeEndpoint gives the endpoint back to the driver.
func (a *rankActor) closeEndpoint() error {
	return a.guarded(func() error { a.endpoint.Close(); return nil })
}

// guarded calls the driver.
func (a *rankActor) guarded(f func() error) error {
	return guarded(fmt.Sprintf("driver of %v", a.rank), f)
}

// guarded calls what is not of this module, as a driver: its panic is an error of the caller's.
func guarded(what string, f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &actor.PanicError{Actor: what, Value: v, Stack: debug.Stack()}
		}
	}()
	return f()
}

// cutOff closes the channels to ranks that will not answer any more.
func (a *rankActor) cutOff(m *cut) {
	if a.cut == nil {
		a.cut = map[kolo.Rank]error{}
	}
	for _, r := range m.ranks {
		a.cut[r] = m.cause
		if c := a.channels[r]; c != nil {
			c.Close(m.cause)
		}
	}
	a.cutOneSided(m)
}

func (a *rankActor) quit(m *quit) {
	a.closed = m.cause
	a.quitOneSided(m.cause)
	a.explain(&lost{rank: kolo.NoRank, cause: m.cause})
	for _, c := range a.channels {
		c.Close(m.cause)
	}
	m.err = a.closeEndpoint()
	a.self.From(a.shard).Stop()
	close(m.done)
}
