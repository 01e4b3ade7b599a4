package rank

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
)

// post starts a send or a receive. It is matched by group, peer and tag; several
// with one tag in the order of the calls.
func (a *rankActor) post(t *ticket) {
	h, peer := t.group.hub, t.call.Root
	if s := t.stream; s != nil {
		s.turn = a.shard
		s.tell(a.shard, StageReady)
		s.tell(a.shard, StageBegun)
	}
	a.flying.Store(int64(len(a.messages)) + 1) // before broken and gone are read; see hub.wake
	defer a.countMessages()
	if err := h.broken.Load(); err != nil {
		t.resolve(t.dress(*err))
		return
	}
	left := h.gone[peer].Load()
	if left != nil && (t.call.Collective == kolo.Send || !t.mayEnd(left)) {
		a.failMessage(t, left)
		return
	}
	c, err := a.channel(h.ranks[peer])
	if err != nil {
		a.failMessage(t, err)
		return
	}
	op := &t.op
	op.Kind, op.Mem = channel.Recv, append(op.Mem[:0], t.out)
	if t.call.Collective == kolo.Send {
		op.Kind, op.Mem = channel.Send, append(op.Mem[:0], t.in)
	}
	op.Key = channel.Key{Group: h.id, Call: t.tag, Class: channel.Message}
	op.Size = op.Mem[0].Len()
	op.DType = t.call.DType
	op.Job.Priority = h.cfg.Priority
	t.patience, t.grace, t.loss = time.Time{}, time.Time{}, nil
	if left != nil {
		a.giveGrace(t)
	}
	if h.cfg.Timeout > 0 {
		t.issued = a.p.now()
		a.p.watch.arm(t.issued.Add(h.cfg.Timeout))
	}
	a.messages = append(a.messages, t)
	c.Post(op)
}

// Complete is called by the channel actor when the transfer has ended.
func (t *ticket) Complete(*channel.Op) {
	t.group.world.actor.messageDone(t)
}

func (a *rankActor) countMessages() { a.flying.Store(int64(len(a.messages))) }

// messageDone handles the end of a transfer. A link that has broken to a rank of another
// process has a moment to be explained: whether that rank has left is told by a control
// message, which may come a little later.
func (a *rankActor) messageDone(t *ticket) {
	if !slices.Contains(a.messages, t) {
		return // the actor has ended and has resolved it
	}
	h, err := t.group.hub, t.op.Err
	if err == nil {
		a.unlist(t)
		t.resolve(nil)
		return
	}
	why := h.ending(t.call.Root)
	switch lost := errors.Is(err, kolo.ErrLost); {
	case why != nil && (lost || h.broken.Load() != nil):
		err = why // the link is closed because the rank has left
	case lost && why == nil && a.closed == nil && !h.isMine(t.call.Root):
		t.loss, t.patience = err, a.p.now().Add(lossTime)
		a.p.watch.arm(t.patience)
		return
	}
	a.unlist(t)
	a.failMessage(t, err)
}

// mayEnd says whether a message may still end well though its peer has left: unless both
// ends of it end at one moment, what was sent before, or the word that it was received, may come
// behind the word that the peer has left.
func (t *ticket) mayEnd(gone error) bool {
	return errors.Is(gone, kolo.ErrLeft) && !t.group.world.actor.direct(t.group.hub.ranks[t.call.Root])
}

// giveGrace lets a message wait for what is on its way.
func (a *rankActor) giveGrace(t *ticket) {
	if t.grace.IsZero() {
		t.grace = a.p.now().Add(lossTime)
		a.p.watch.arm(t.grace)
	}
}

// ending is why there is nothing to be had of a member any more: the failure of the group,
// or that the member is gone; else nil.
func (h *hub) ending(r kolo.Rank) error {
	if first := h.broken.Load(); first != nil {
		return *first
	}
	if gone := h.gone[r].Load(); gone != nil {
		return gone
	}
	return nil
}

// unlist takes a message out of the list of those in flight.
func (a *rankActor) unlist(t *ticket) {
	i, last := slices.Index(a.messages, t), len(a.messages)-1
	a.messages[i], a.messages[last] = a.messages[last], nil
	a.messages = a.messages[:last]
	a.countMessages()
}

// explain ends the messages whose links have broken, with the cause that has come: those
// of a group with a rank, or with NoRank all of the group, or with a nil hub all.
func (a *rankActor) explain(m *lost) {
	for _, t := range slices.Clone(a.messages) {
		if t.loss != nil && (m.hub == nil || m.hub == t.group.hub) && (m.rank == kolo.NoRank || m.rank == t.call.Root) {
			a.unlist(t)
			a.failMessage(t, m.cause)
		}
	}
}

// failMessage fails a message and with it the group.
func (a *rankActor) failMessage(t *ticket, err error) {
	e := t.dress(err)
	e.Peer = t.call.Root
	t.group.hub.tell(a.shard, &failure{err: e})
	t.resolve(e)
}

// lose ends the messages that wait for a rank that is gone, or all of a group that
// has failed.
func (a *rankActor) lose(m *lost) {
	if a.explain(m); len(a.messages) == 0 {
		return
	}
	for r, c := range a.channels {
		g := slices.Index(m.hub.ranks, r)
		if g < 0 || m.rank != kolo.NoRank && kolo.Rank(g) != m.rank {
			continue
		}
		found := false
		for _, t := range a.messages {
			if t.group.hub == m.hub && t.call.Root == kolo.Rank(g) {
				if m.rank != kolo.NoRank && t.mayEnd(m.cause) {
					a.giveGrace(t)
					continue
				}
				patience := a.p.cfg.CloseTimeout
				if errors.Is(m.cause, kolo.ErrLost) {
					patience = min(patience, lossTime)
				}
				found, t.patience = true, a.p.now().Add(patience)
				a.p.watch.arm(t.patience)
			}
		}
		if found {
			c.Abort(m.hub.id, m.cause)
		}
	}
}

// tick fails the groups of messages that are past their deadline.
func (a *rankActor) tick() {
	now := a.p.now()
	a.tickOneSided(now)
	for _, t := range slices.Clone(a.messages) {
		h := t.group.hub
		if !t.patience.IsZero() {
			if now.Before(t.patience) {
				a.p.watch.arm(t.patience)
				continue
			}
			a.unlist(t)
			if t.loss != nil {
				a.failMessage(t, t.loss)
				continue
			}
			a.failMessage(t, fmt.Errorf("%w; %s", h.ending(t.call.Root), abandoned))
			continue
		}
		if !t.grace.IsZero() {
			a.endGrace(t, now)
			continue
		}
		if h.cfg.Timeout <= 0 {
			continue
		}
		if end := t.issued.Add(h.cfg.Timeout); now.Before(end) {
			a.p.watch.arm(end)
			continue
		}
		e := t.failure(fmt.Errorf("%w: after %v %s", kolo.ErrDeadline, h.cfg.Timeout, t.waitsFor()))
		e.Peer = t.call.Root
		h.tell(a.shard, &failure{why: func(h *hub) { h.inquire(e, []kolo.Rank{e.Peer}) }})
	}
}

// endGrace gives a message up when nothing has come of a rank that has left.
func (a *rankActor) endGrace(t *ticket, now time.Time) {
	if now.Before(t.grace) {
		a.p.watch.arm(t.grace)
		return
	}
	h := t.group.hub
	t.grace, t.patience = time.Time{}, now.Add(a.p.cfg.CloseTimeout)
	a.p.watch.arm(t.patience)
	if c := a.channels[h.ranks[t.call.Root]]; c != nil {
		c.Abort(h.id, h.ending(t.call.Root))
	}
}

// waitsFor says what a message waits for.
func (t *ticket) waitsFor() string {
	peer, me, done := int(t.call.Root), int(t.group.rank), "received from"
	if t.call.Collective == kolo.Recv {
		done = "sent to"
	}
	return fmt.Sprintf("rank %d has not %s rank %d (%v, tag %d)", peer, done, me, &t.call, t.tag)
}
