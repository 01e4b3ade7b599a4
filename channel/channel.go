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

	shard *actor.Shard
	conn  Conn
	self  actor.Ref[message]
	open  int // ops posted and not completed
	posts int64
	bytes int64
}

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
	ref, err := actor.Spawn[message](s, actor.Props{Name: name, OnExit: onExit}, c)
	if err != nil {
		return nil, fmt.Errorf("channel to %v: %w", peer, err)
	}
	c.self = ref
	return c, nil
}

// Post tells the channel to start op. It is called by actors of the channel's own
// shard; op.Sink hears of the completion on that shard.
func (c *Channel) Post(op *Op) {
	op.conn, op.state, op.Err = c, opIdle, nil
	c.tell(op)
}

// Release gives back the memory of a completed View op.
func (c *Channel) Release(op *Op) { c.conn.Release(c.shard, op) }

// Abort completes what is left of a group's ops with cause.
func (c *Channel) Abort(group uint64, cause error) { c.tell(&abort{group, cause}) }

// Close completes all that is left with cause, and ends the actor.
func (c *Channel) Close(cause error) { c.tell(&hangUp{cause}) }

// Traffic is the number of ops posted so far and of their bytes.
func (c *Channel) Traffic() (posts, bytes int64) { return c.posts, c.bytes }

func (c *Channel) tell(m message) {
	if err := c.self.From(c.shard).Tell(m); err != nil {
		c.refused(m, err)
	}
}

// refused ends an op that the actor's mailbox did not take.
func (c *Channel) refused(m message, err error) {
	if op, ok := m.(*Op); ok {
		op.Err = fmt.Errorf("%w: channel to %v: %w", kolo.ErrLost, c.Peer, err)
		op.Sink.Complete(op)
	}
}

// completed is called by the driver through Op.Complete, in any turn.
func (c *Channel) completed(t Turn, op *Op) {
	op.state = opDone
	if err := c.self.From(t).Tell(op); err != nil {
		c.refused(op, err)
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
			return nil
		}
		m.state = opPosted
		c.open++
		c.posts++
		c.bytes += m.Size
		c.conn.Post(c.shard, m)
	case *abort:
		c.conn.Abort(c.shard, m.group, m.cause)
	case *hangUp:
		c.conn.Close(c.shard, m.cause)
		c.self.From(c.shard).Stop()
	default:
		panic(fmt.Sprintf("channel: unknown message %T", m))
	}
	return nil
}
