package channel

import (
	"fmt"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/actor"
)

// Channel is the actor of one rank's link to one peer. It owns the Conn: what is
// posted, what has completed, abort and loss. It lives on its rank's shard.
type Channel struct {
	Peer kolo.Rank // world rank

	shard   *actor.Shard
	conn    Conn
	self    actor.Ref[message]
	open    int // ops posted and not completed, those in the mailbox included
	closing bool
	posts   int64
	bytes   int64
}

// maxWaiting is the most messages of a channel: ops that a rank has posted in one
// turn, and completions that its shard has not come to.
const maxWaiting = 1 << 24

// message is what a Channel handles: an Op to post or one that has completed, or
// a command.
type message interface{ isMessage() }

func (*Op) isMessage()     {}
func (*abort) isMessage()  {}
func (*hangUp) isMessage() {}

type abort struct {
	group uint64
	cause error
}

type hangUp struct{ cause error }

// Spawn starts the actor of a Conn on a rank's shard. onExit is called if it ends
// by a panic of the driver.
func Spawn(s *actor.Shard, name string, peer kolo.Rank, conn Conn, onExit func(error)) (*Channel, error) {
	c := &Channel{Peer: peer, shard: s, conn: conn}
	ref, err := actor.Spawn[message](s, actor.Props{Name: name, Limit: maxWaiting, OnExit: onExit}, c)
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
	op.conn, op.state, op.Err = c, opPosted, nil
	if err := c.tell(op); err != nil {
		c.refuse(op, err)
		return
	}
	c.open++
}

// Release gives back the memory of a completed View op. It may be called after
// Close.
func (c *Channel) Release(op *Op) { c.conn.Release(c.shard, op) }

// Abort completes what is left of a group's ops with cause.
func (c *Channel) Abort(group uint64, cause error) {
	_ = c.tell(&abort{group, cause}) // a channel that has ended has no ops
}

// Close completes all that is left with cause. The actor ends when the last op has
// completed. It may be called again.
func (c *Channel) Close(cause error) {
	_ = c.tell(&hangUp{cause}) // a channel that has ended is closed
}

// Traffic is the number of ops posted so far and of their bytes. It is called by
// actors of the channel's own shard.
func (c *Channel) Traffic() (posts, bytes int64) { return c.posts, c.bytes }

func (c *Channel) tell(m message) error { return c.self.From(c.shard).Tell(m) }

// refuse ends an op that the actor's mailbox did not take.
func (c *Channel) refuse(op *Op, err error) {
	op.Err = fmt.Errorf("%w: channel to %v: %w", kolo.ErrLost, c.Peer, err)
	op.Sink.Complete(op)
}

// completed is called by the driver through Op.Complete, in any turn.
func (c *Channel) completed(t Turn, op *Op) {
	if op.state != opPosted {
		panic(fmt.Sprintf("channel: a %v with %v completed twice", op.Kind, c.Peer))
	}
	op.state = opDone
	if err := c.self.From(t).Tell(op); err != nil { // after a panic of the driver: there is no shard to say it on
		c.refuse(op, err)
	}
}

// Handle does what the message says.
func (c *Channel) Handle(m message) error {
	switch m := m.(type) {
	case *Op:
		if m.state == opDone {
			c.open--
			m.state = opIdle
			m.Sink.Complete(m)
			c.endIfIdle()
			return nil
		}
		c.posts++
		c.bytes += m.Size
		c.conn.Post(c.shard, m)
	case *abort:
		c.conn.Abort(c.shard, m.group, m.cause)
	case *hangUp:
		if !c.closing {
			c.closing = true
			c.conn.Close(c.shard, m.cause)
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
