package rank

import (
	"fmt"
	"slices"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
)

// post starts a send or a receive. It is matched by group, peer and tag; several
// with one tag in the order of the calls.
func (a *rankActor) post(t *ticket) {
	h, peer := t.group.hub, t.call.Root
	if err := h.broken.Load(); err != nil {
		t.resolve(t.dress(*err))
		return
	}
	if h.gone[peer].Load() {
		e := t.failure(fmt.Errorf("%w: rank %d has left the group before this %v", kolo.ErrLeft, int(peer), t.call.Collective))
		e.Peer = peer
		h.tell(a.shard, &failure{err: e})
		t.resolve(e)
		return
	}
	c, err := a.channel(h.ranks[peer])
	if err != nil {
		t.resolve(t.failure(err))
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

func (a *rankActor) messageDone(t *ticket) {
	if i := slices.Index(a.messages, t); i >= 0 {
		last := len(a.messages) - 1
		a.messages[i], a.messages[last] = a.messages[last], nil
		a.messages = a.messages[:last]
	}
	err := t.op.Err
	if err == nil {
		t.resolve(nil)
		return
	}
	e := t.dress(err)
	e.Peer = t.call.Root
	t.group.hub.tell(a.shard, &failure{err: e})
	t.resolve(e)
}

// lose ends the messages that wait for a rank that is gone, or all of a group that
// has failed.
func (a *rankActor) lose(m *lost) {
	if len(a.messages) == 0 {
		return
	}
	for r, c := range a.channels {
		g := slices.Index(m.hub.ranks, r)
		if g < 0 || m.rank != kolo.NoRank && kolo.Rank(g) != m.rank {
			continue
		}
		if slices.ContainsFunc(a.messages, func(t *ticket) bool { return t.group.hub == m.hub && t.call.Root == kolo.Rank(g) }) {
			c.Abort(m.hub.id, m.cause)
		}
	}
}

// tick fails the groups of messages that are past their deadline.
func (a *rankActor) tick() {
	now := a.p.now()
	for _, t := range a.messages {
		h := t.group.hub
		if h.cfg.Timeout <= 0 {
			continue
		}
		if end := t.issued.Add(h.cfg.Timeout); now.Before(end) {
			a.p.watch.arm(end)
			continue
		}
		e := t.failure(fmt.Errorf("%w: %s", kolo.ErrDeadline, a.waitsFor(t)))
		e.Peer = t.call.Root
		h.tell(a.shard, &failure{err: e})
	}
}

// waitsFor says what a message waits for, and what else this rank waits for.
func (a *rankActor) waitsFor(t *ticket) string {
	me, peer := int(t.group.rank), int(t.call.Root)
	s := fmt.Sprintf("rank %d has not received from rank %d for %v", peer, me, t.group.hub.cfg.Timeout)
	if t.call.Collective == kolo.Recv {
		s = fmt.Sprintf("rank %d has not sent to rank %d for %v", peer, me, t.group.hub.cfg.Timeout)
	}
	s += fmt.Sprintf(" (tag %d)", t.tag)
	return s
}
