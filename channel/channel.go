package channel

import (
	"fmt"
	"runtime/debug"
	"sync/atomic"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/actor"
)

// Channel is the actor of one rank's link to one peer. It owns the Conn: what is
// posted, what has completed, abort and loss. It lives on its rank's shard.
type Channel struct {
	Peer kolo.Rank // world rank

	shard   *actor.Shard
	conn    Conn
	engine  Engine // stages the memory of devices; nil if the Conn takes it
	aside   []*Op  // sends that are not posted yet, as they or those in front are staged
	self    actor.Ref[message]
	open    int // ops posted and not completed, those in the mailbox included
	closing bool
	lost    error       // the driver has panicked; the channel takes no op any more
	broken  atomic.Bool // lost is set
}

// maxWaiting is the most messages of a channel: ops that a rank has posted in one
// turn, and completions that its shard has not come to.
const maxWaiting = 1 << 24

// message is what a Channel handles: an Op to post or one that has completed, a bounce
// whose bytes were moved, or a command.
type message interface{ isMessage() }

func (*Op) isMessage()     {}
func (*abort) isMessage()  {}
func (*hangUp) isMessage() {}

type abort struct {
	group uint64
	cause error
}

type hangUp struct{ cause error }

// Spawn starts the actor of a Conn on a rank's shard. A panic of the driver breaks
// the channel: all its ops end with that. A panic in a Sink ends the actor, of which
// onExit, if not nil, hears; what was posted may then never complete.
func Spawn(s *actor.Shard, name string, peer kolo.Rank, conn Conn, onExit func(error)) (*Channel, error) {
	c := &Channel{Peer: peer, shard: s, conn: conn}
	exit := func(err error) {
		if err != nil {
			c.hangUp(err)
		}
		if onExit != nil {
			onExit(err)
		}
	}
	ref, err := actor.Spawn[message](s, actor.Props{Name: name, Limit: maxWaiting, OnExit: exit, Dropped: c.dropped}, c)
	if err != nil {
		return nil, fmt.Errorf("channel to %v: %w", peer, err)
	}
	c.self = ref
	return c, nil
}

// Post tells the channel to start op. It is called by actors of the channel's own
// shard; op.Sink hears of the completion on that shard. If the channel has ended,
// that is before Post returns.
func (c *Channel) Post(op *Op) {
	op.conn, op.Err, op.Taken = c, nil, false
	op.state.Store(opPosted)
	if err := c.tell(op); err != nil {
		c.refuse(op, err)
		return
	}
	c.open++
}

// Release gives back the memory of a completed View op. It may be called after
// Close.
func (c *Channel) Release(op *Op) {
	defer c.survive()
	c.conn.Release(c.shard, op)
}

// Abort completes what is left of a group's ops with cause.
func (c *Channel) Abort(group uint64, cause error) {
	_ = c.tell(&abort{group, cause}) // a channel that has ended has no ops
}

// Close completes all that is left with cause. The actor ends when the last op has
// completed. It may be called again.
func (c *Channel) Close(cause error) {
	_ = c.tell(&hangUp{cause}) // a channel that has ended is closed
}

// Carried is what the Conn has carried so far, in bytes, both ways; 0 if it does not
// count. It is called by actors of the channel's own shard.
func (c *Channel) Carried() int64 {
	if m, ok := c.conn.(Meter); ok && c.lost == nil {
		return m.Carried()
	}
	return 0
}

func (c *Channel) tell(m message) error { return c.self.From(c.shard).Tell(m) }

// refuse ends an op that the actor's mailbox did not take.
func (c *Channel) refuse(op *Op, err error) {
	if op.aside != nil {
		op.Mem, op.aside = op.aside.mem, nil // the buffer may be in use: it is left to the collector
	}
	op.Err = fmt.Errorf("%w: channel to %v: %w", kolo.ErrLost, c.Peer, err)
	op.Sink.Complete(op)
}

// dropped ends an op that the actor took and did not live to handle.
func (c *Channel) dropped(m any, err error) {
	switch m := m.(type) {
	case *Op:
		c.refuse(m, err)
	case *bounce:
		c.refuse(m.op, err)
	}
}

// survive is deferred around calls of the driver. A panic in one breaks the
// channel: what the driver has taken is asked back by Close.
func (c *Channel) survive() {
	v := recover()
	if v == nil || c.lost != nil {
		return
	}
	c.lost = Panicked(fmt.Sprintf("driver of the channel to %v", c.Peer), v)
	c.broken.Store(true)
	c.hangUp(c.lost)
}

// Panicked is the error for a panic with v, just recovered, in a part that is no
// actor: a driver, or a kernel in an engine. It is a kolo.ErrPanic and has the stack.
func Panicked(what string, v any) error {
	return &actor.PanicError{Actor: what, Value: v, Stack: debug.Stack()}
}

// post hands op to the driver. If that panics and does not give op back at Close, op
// ends here.
func (c *Channel) post(op *Op) {
	if c.lost == nil && c.start(op) {
		return
	}
	op.Complete(c.shard, c.lost)
}

// start says whether the driver has taken op. If it has not, a peer that met op
// before the panic may still complete it.
func (c *Channel) start(op *Op) (taken bool) {
	defer c.survive()
	c.conn.Post(c.shard, op)
	return true
}

func (c *Channel) abort(m *abort) {
	defer c.survive()
	c.abortAside(m.group, m.cause)
	c.conn.Abort(c.shard, m.group, m.cause)
}

func (c *Channel) hangUp(cause error) {
	defer c.survive()
	c.conn.Close(c.shard, cause)
}

// completed is called by the driver through Op.Complete, in any turn.
func (c *Channel) completed(t Turn, op *Op, err error) {
	if !op.state.CompareAndSwap(opPosted, opDone) {
		if c.broken.Load() {
			return // ended by post or by the peer, whoever came first
		}
		panic(fmt.Sprintf("channel: a %v with %v completed twice", op.Kind, c.Peer))
	}
	op.Err = err
	if err := c.self.From(t).Tell(op); err != nil { // after a panic of the driver: there is no shard to say it on
		c.refuse(op, err)
	}
}

// Handle does what the message says.
func (c *Channel) Handle(m message) error {
	switch m := m.(type) {
	case *Op:
		if m.state.Load() == opDone {
			if m.arrived() {
				c.deliver(m)
			}
			return nil
		}
		if !c.setAside(m) {
			c.post(m)
		}
	case *bounce:
		c.moved(m)
	case *abort:
		c.abort(m)
	case *hangUp:
		if !c.closing {
			c.closing = true
			c.hangUp(m.cause)
		}
		c.endIfIdle()
	default:
		panic(fmt.Sprintf("channel: unknown message %T", m))
	}
	return nil
}

// endIfIdle ends the actor of a closed channel when no op is open. Before that, a
// completion would find nobody to tell it on the rank's shard.
func (c *Channel) endIfIdle() {
	if c.closing && c.open == 0 {
		c.self.From(c.shard).Stop()
	}
}
