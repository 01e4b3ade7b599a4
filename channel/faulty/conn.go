package faulty

import (
	"fmt"
	"slices"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/actor"
	"github.com/kolo-ccl/kolo/channel"
)

// conn is one end of a link. The faults of a way are made at its sender's end.
//
//	Post send -> judge -> lose:            completed at once
//	                   -> delay:           late, a queue in order of posting
//	                   -> else:            late if that is not empty, else inner.Post
//	timer     -> postman -> late items that are due -> inner.Post, or the cut
//
// All of it, the postman's turns included, runs on the shard of the rank.
type conn struct {
	d        *Driver
	inner    channel.Conn
	me, peer kolo.Rank
	sends    int64 // messages judged
	late     []item
	gone     error // why the link is closed
	timer    *time.Timer
	postman  actor.Ref[*ring]
	shard    channel.Turn
	bell     ring
}

// item is a message that waits for its time, or behind one that does.
type item struct {
	op   *channel.Op
	send int64
	cut  int // line of the rule that cuts the link in front of the message, or 0
	due  time.Time
}

// ring tells the postman that an item may be due.
type ring struct{}

// Post posts a receive as it is, and a message if and when the script lets it pass.
func (c *conn) Post(t channel.Turn, op *channel.Op) {
	switch {
	case c.gone != nil:
		op.Complete(t, c.gone)
		return
	case op.Kind != channel.Send:
		c.inner.Post(t, op)
		return
	}
	k := c.sends
	c.sends++
	c.d.sends.Add(1)
	v := c.d.script.judge(c.d.seed, c.me, c.peer, k)
	it := item{op: op, send: k}
	switch {
	case v.cut:
		it.cut = v.line
	case v.lose:
		c.d.note(Fault{What: Lose, From: c.me, To: c.peer, Send: k})
		op.Complete(t, nil)
		return
	case v.delay > 0:
		c.d.note(Fault{What: Delay, From: c.me, To: c.peer, Send: k, Delay: v.delay})
		c.wait(t, it, v.delay)
		return
	}
	if len(c.late) > 0 {
		c.wait(t, it, 0)
		return
	}
	c.pass(t, it)
}

// pass hands a message on, or cuts the link.
func (c *conn) pass(t channel.Turn, it item) {
	if it.cut == 0 {
		c.inner.Post(t, it.op)
		return
	}
	c.d.note(Fault{What: Cut, From: c.me, To: c.peer, Send: it.send})
	gone := fmt.Errorf("%w: the link of %v to %v was cut before message %d (script line %d)", kolo.ErrLost, c.me, c.peer, it.send, it.cut)
	it.op.Complete(t, gone)
	c.end(t, gone)
}

// wait puts a message behind those that are late.
func (c *conn) wait(t channel.Turn, it item, delay time.Duration) {
	if !c.postman.Valid() {
		c.shard = t
		ref, err := actor.Spawn[*ring](t, actor.Props{Name: fmt.Sprintf("late messages of %v to %v", c.me, c.peer), OnExit: c.exited}, c)
		if err != nil {
			it.op.Complete(t, fmt.Errorf("%w: %w", kolo.ErrLost, err))
			return
		}
		c.postman = ref
	}
	it.due = time.Now().Add(delay)
	if n := len(c.late); n > 0 && it.due.Before(c.late[n-1].due) {
		it.due = c.late[n-1].due
	}
	if c.late = append(c.late, it); len(c.late) == 1 {
		c.arm()
	}
}

// arm sets the timer for the first late message.
func (c *conn) arm() {
	wait := time.Until(c.late[0].due)
	if c.timer == nil {
		c.timer = time.AfterFunc(wait, c.knock)
	} else {
		c.timer.Reset(wait)
	}
}

// knock is called by the timer.
func (c *conn) knock() {
	_ = c.postman.Tell(&c.bell) // a postman that has ended has nothing to deliver
}

// Handle lets the messages pass that are due.
func (c *conn) Handle(*ring) error {
	for len(c.late) > 0 {
		if c.late[0].due.After(time.Now()) {
			c.arm()
			break
		}
		it := c.late[0]
		c.late = slices.Delete(c.late, 0, 1)
		c.pass(c.shard, it)
	}
	return nil
}

// exited closes the link if the driver inside has panicked on a late message; that
// one may never complete.
func (c *conn) exited(err error) {
	if err != nil && c.gone == nil {
		c.end(c.shard, fmt.Errorf("%w: late messages of %v to %v: %w", kolo.ErrLost, c.me, c.peer, err))
	}
}

// Release gives back the memory of a View.
func (c *conn) Release(t channel.Turn, op *channel.Op) { c.inner.Release(t, op) }

// Carried is what the link below has carried, if it counts.
func (c *conn) Carried() int64 {
	if m, ok := c.inner.(channel.Meter); ok {
		return m.Carried()
	}
	return 0
}

// Abort completes the late messages of the group too.
func (c *conn) Abort(t channel.Turn, group uint64, cause error) {
	var ops []*channel.Op
	c.late = slices.DeleteFunc(c.late, func(it item) bool {
		if it.op.Key.Group != group {
			return false
		}
		ops = append(ops, it.op)
		return true
	})
	for _, op := range ops {
		op.Complete(t, cause)
	}
	c.inner.Abort(t, group, cause)
}

// Close completes the late messages too. After a cut there is nothing to do.
func (c *conn) Close(t channel.Turn, cause error) {
	if c.gone == nil {
		c.end(t, cause)
	}
}

// end closes the link with cause.
func (c *conn) end(t channel.Turn, cause error) {
	c.gone = cause
	late := c.late
	c.late = nil
	if c.timer != nil {
		c.timer.Stop()
	}
	if c.postman.Valid() {
		c.postman.From(t).Stop()
	}
	for _, it := range late {
		it.op.Complete(t, cause)
	}
	c.inner.Close(t, cause)
}
