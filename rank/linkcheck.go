package rank

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/internal/ctxerr"
)

// linkCheck asks a rank actor which of its links are broken. Each is given a receive that
// nobody sends for, and has it back by an abort: one that is broken ends it with another cause.
//
// Or the links are tried with a message each way, for which the other ends do the same. Then
// a link that swallows what it is given is found by its driver.
type linkCheck struct {
	with   map[kolo.Rank]uint64 // whom to send to and the number of that, or nil
	left   int                  // ops that have not ended, and one
	opened []kolo.Rank          // whom there is a link to
	dead   map[kolo.Rank]error
	done   chan struct{}
}

// linkTrial is an op of a check.
type linkTrial struct {
	op   channel.Op
	of   *linkCheck
	peer kolo.Rank
}

// linkCheckEnd ends a check that has not ended.
type linkCheckEnd struct {
	of    *linkCheck
	cause error
}

const (
	// linkCheckGroup is in place of a group's number, and those below it where messages are
	// sent: a driver drops what comes for a group that was aborted.
	linkCheckGroup = ^uint64(0)
	linkCheckTime  = time.Second // how long a rank actor has to answer
)

var (
	errLinkWorks  = fmt.Errorf("%w: no fault is known", kolo.ErrAborted)
	errLinkSilent = fmt.Errorf("%w: it has not carried a message in %v", kolo.ErrLost, settleTime)
)

func (*linkCheck) isMessage()    {}
func (*linkCheckEnd) isMessage() {}

// checkLinks finds the links of this rank that are known to be broken. Those of an actor
// that does not answer in time are taken to work.
func (w *World) checkLinks() *linkCheck {
	c := &linkCheck{left: 1, dead: map[kolo.Rank]error{}, done: make(chan struct{})}
	w.actor.tell(nil, c)
	if !c.wait() {
		return &linkCheck{}
	}
	return c
}

// wait waits for what takes no time.
func (c *linkCheck) wait() bool {
	t := time.NewTimer(linkCheckTime)
	defer t.Stop()
	select {
	case <-c.done:
		return true
	case <-t.C:
		return false
	}
}

// tryLinks sends the others of a view a message by the links that there are, waits for
// theirs, and says what has become of that. A link that neither carries anything nor breaks in
// settleTime counts as broken.
func (w *World) tryLinks(ctx context.Context, v *view, late <-chan time.Time) error {
	c := &linkCheck{with: v.try, left: 1, dead: map[kolo.Rank]error{}, done: make(chan struct{})}
	w.actor.tell(nil, c)
	silent := time.NewTimer(settleTime)
	defer silent.Stop()
	end := func(cause error) bool {
		w.actor.tell(nil, &linkCheckEnd{c, cause})
		return c.wait()
	}
	stuck := false
	for news, ended := v.news, false; !ended; {
		select {
		case <-c.done:
			ended = true
		case <-news:
			if news = w.p.news(); !w.p.tries(v.list) {
				end(errLinkWorks)
				return nil
			}
		case <-silent.C:
			if ended = end(errLinkSilent); !ended {
				if stuck {
					return fmt.Errorf("%w: a driver does not give back what it was given to try the data links: close this World", kolo.ErrLost)
				}
				stuck = true // or the machine is busy
				silent.Reset(settleTime)
			}
		case <-late:
			end(errLinkWorks)
			return v.awaits
		case <-w.canceling(ctx):
			end(errLinkWorks)
			return errors.Join(ctxerr.Of(ctx), v.awaits)
		}
	}
	w.p.haveTried(w.rank)
	w.p.state(w.rank, c)
	return nil
}

// check begins a check.
func (a *rankActor) check(c *linkCheck) {
	for peer := range a.channels {
		if c.opened = append(c.opened, peer); c.with == nil {
			c.post(a.channels[peer], channel.Recv, 0)
		}
	}
	for peer, number := range c.with {
		ch, err := a.channel(peer)
		if err != nil {
			c.dead[peer] = err
			continue
		}
		c.post(ch, channel.Recv, number)
		c.post(ch, channel.Send, number)
	}
	if c.with == nil {
		a.endCheck(c, errLinkWorks)
	}
	c.ended()
}

func (c *linkCheck) post(ch *channel.Channel, kind channel.Kind, number uint64) {
	t := &linkTrial{of: c, peer: ch.Peer}
	t.op.Kind, t.op.Sink, t.op.Key = kind, t, channel.Key{Group: linkCheckGroup - number, Class: channel.Message}
	c.left++
	ch.Post(&t.op)
}

// endCheck ends what is left of a check.
func (a *rankActor) endCheck(c *linkCheck, cause error) {
	for peer, ch := range a.channels {
		ch.Abort(linkCheckGroup-c.with[peer], cause)
	}
}

// Complete takes note of how an op has ended.
func (t *linkTrial) Complete(op *channel.Op) {
	if op.Err != nil && !errors.Is(op.Err, errLinkWorks) {
		t.of.dead[t.peer] = op.Err
	}
	t.of.ended()
}

func (c *linkCheck) ended() {
	if c.left--; c.left == 0 {
		close(c.done)
	}
}
