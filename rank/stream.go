package rank

import (
	"fmt"
	"slices"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/actor"
	"github.com/kolo-ccl/kolo/npu"
)

// Between is the place of a call between two streams of this rank's device: what it
// comes after, and what comes after it. Producer and Consumer may be one stream: then
// the call is one of that stream's tasks.
type Between struct {
	// Producer is the stream behind which the call begins: when all has ended that was
	// asked of it before. What is asked of it later goes on beside the call. nil: the
	// call begins at once.
	Producer npu.Stream
	// Consumer is the stream that the call holds: what is asked of it later begins when
	// the call has ended on this rank, and fails if the call fails. nil: it holds none.
	Consumer npu.Stream
	// Released is the notify that Consumer awaits, of its device. It is the call's own
	// until Consumer has passed it. nil: one is made, and closed by a later call.
	Released npu.Notify
	// Watch is told the stages of a call that was not refused, in the turn of the actor
	// that knows, which is nil outside of any. The error is that of StageEnded. It must
	// not block, and tells actors through Ref.From(turn).
	Watch func(turn *actor.Shard, s Stage, err error)
}

// Stage is how far a call has come. A call that fails may leave stages out, but never
// the last.
type Stage uint8

// The stages of a call between two streams.
const (
	StageReady Stage = iota + 1 // the Producer has come to the call
	StageBegun                  // so have all ranks, and the calls before it have ended; a message was posted
	StageEnded                  // the Consumer goes on
)

// String is the stage in a word.
func (s Stage) String() string {
	switch s {
	case StageReady:
		return "ready"
	case StageBegun:
		return "begun"
	case StageEnded:
		return "ended"
	}
	return fmt.Sprintf("Stage(%d)", uint8(s))
}

// DoOn makes a call between two streams and returns at once. The number of a collective
// in the order of the group's calls is that of DoOn; the group is held up by the call
// until the Producers of all ranks have come to it, and Config.Timeout counts from the
// first that has. A Send or Recv holds up nobody: it is posted when its Producer has come
// to it, and several of one peer and tag are in the order in which that happens.
// A Producer that fails before it comes to the call fails the group.
//
// The buffers belong to the runtime from the moment that the Producer comes to the
// call; until then what the Producer runs may write them.
func DoOn(g *Group, r Request, b Between) Work {
	t, err := g.take()
	if err != nil {
		return Work{err: g.refusal(&r, err)}
	}
	s := &streamCall{t: t, turn: g.hub.shard, watch: b.Watch}
	s.held.s, s.produced.s = s, s
	t.known = known{}
	if err = t.fill(g, &r); err == nil {
		t.bytes = t.size()
		t.large = t.bytes > lendFrom
		err = g.room(&r)
	}
	if err == nil {
		err = s.prepare(g, &b)
	}
	if err != nil {
		g.putBack(t, err)
		return Work{err: g.refusal(&r, err)}
	}
	t.async, t.stream = true, s
	g.async.Add(1)
	if t.seq, t.tag = g.Calls(), r.Tag; !isMessage(r.Collective) {
		t.seq = g.number()
	}
	w, seq := Work{t: t, gen: t.gen.Load()}, t.seq // t is the hub's, or the rank actor's, from here on
	if b.Producer == nil && isMessage(r.Collective) {
		g.world.actor.tell(nil, t)
		return w
	}
	if b.Producer == nil {
		g.hub.tell(nil, t)
		return w
	}
	g.hub.tell(nil, &s.held)
	if err = b.Producer.Callback(s.come); err != nil {
		s.come(err)
	} else if b.Producer == b.Consumer {
		if err = g.hold(b.Consumer, s.released, b.Released == nil); err != nil {
			g.hub.tell(nil, &failure{err: &kolo.Error{Op: r.Collective, Group: g.Name(), Rank: g.rank, Peer: kolo.NoRank, Seq: seq, Err: err}})
		}
	}
	return w
}

// streamCall is what a call between streams is besides a ticket. It is not used again.
type streamCall struct {
	t        *ticket
	turn     *actor.Shard // in which it ends
	released npu.Notify   // nil without a Consumer
	watch    func(*actor.Shard, Stage, error)
	held     held
	produced produced
}

// held says that a call was made, and waits for its Producer.
type held struct{ s *streamCall }

// produced says that the Producer of a call has come to it, or has failed.
type produced struct {
	s   *streamCall
	err error
}

func (*held) isHubMessage()     {}
func (*produced) isHubMessage() {}

// prepare makes the notify, if the call needs one and has none, and holds the
// Consumer. A stream that is both is held behind its callback.
func (s *streamCall) prepare(g *Group, b *Between) (err error) {
	if b.Consumer == nil {
		return nil
	}
	if s.released = b.Released; s.released == nil {
		g.closeNotifies()
		if s.released, err = b.Consumer.Device().NewNotify("a call of group " + g.Name()); err != nil {
			return err
		}
	}
	if b.Consumer == b.Producer {
		return nil
	}
	return g.hold(b.Consumer, s.released, b.Released == nil)
}

// come is called by the Producer, with why it has failed if it has.
func (s *streamCall) come(err error) {
	s.produced.err = err
	s.t.group.hub.tell(nil, &s.produced)
}

// tell tells a stage other than the last to who watches.
func (s *streamCall) tell(turn *actor.Shard, at Stage) {
	if s.watch != nil {
		s.watch(turn, at, nil)
	}
}

// end releases the Consumer, or fails it.
func (s *streamCall) end(err error) {
	if s.released != nil {
		// Refused only where the notify was closed: then nobody waits for it.
		if err != nil {
			_ = s.released.Fail(err)
		} else {
			_ = s.released.Set()
		}
	}
	if s.watch != nil {
		s.watch(s.turn, StageEnded, err)
	}
}

// hold makes a stream await a notify, which the group closes later if it is its own.
func (g *Group) hold(consumer npu.Stream, n npu.Notify, own bool) error {
	err := consumer.Await(n)
	if !own {
		return err
	}
	if err != nil {
		_ = n.Close() // nobody has it
		return err
	}
	g.mu.Lock()
	g.notifies = append(g.notifies, n)
	g.mu.Unlock()
	return nil
}

// closeNotifies gives back the notifies that their streams have passed. What is left
// when the group is closed goes with the device.
func (g *Group) closeNotifies() {
	g.mu.Lock()
	list := g.notifies
	g.notifies = nil
	g.mu.Unlock()
	list = slices.DeleteFunc(list, func(n npu.Notify) bool { return n.Close() == nil })
	if len(list) > 0 {
		g.mu.Lock()
		g.notifies = append(g.notifies, list...)
		g.mu.Unlock()
	}
}

// hold notes a call whose Producer has not come to it, so that it ends with the group.
func (h *hub) hold(s *streamCall) {
	if h.failed != nil {
		s.t.resolve(s.t.dress(h.failed))
		return
	}
	if isMessage(s.t.call.Collective) || !h.tooFarAhead(s.t) {
		h.held = append(h.held, s)
	}
}

// producerCame makes a call that was held one that has arrived.
func (h *hub) producerCame(m *produced) {
	i := slices.Index(h.held, m.s)
	if i < 0 {
		return // it has ended with the group
	}
	h.held = slices.Delete(h.held, i, i+1)
	t := m.s.t
	if m.err == nil && isMessage(t.call.Collective) {
		t.group.world.actor.tell(h.shard, t)
		return
	}
	if m.err == nil {
		h.arrive(t)
		return
	}
	e := t.failure(fmt.Errorf("the stream before the call on rank %d: %w", int(t.group.rank), m.err))
	e.Peer, e.Ranks = t.group.rank, []kolo.Rank{t.group.rank}
	h.fail(e)
	t.resolve(t.dress(h.failed))
}

// dropHeld resolves the calls that wait for their Producers: the runtime has no
// memory of theirs.
func (h *hub) dropHeld() {
	list := h.held
	h.held = nil
	for _, s := range list {
		s.t.resolve(s.t.dress(h.failed))
	}
}

// heldBy is the call of rank r with a number if it waits for its Producer.
func (h *hub) heldBy(r kolo.Rank, seq uint64) bool {
	return slices.ContainsFunc(h.held, func(s *streamCall) bool {
		return s.t.group.rank == r && s.t.seq == seq && !isMessage(s.t.call.Collective)
	})
}

// holdsStream says whether a call of rank r waits for its Producer.
func (h *hub) holdsStream(r kolo.Rank) bool {
	return slices.ContainsFunc(h.held, func(s *streamCall) bool { return s.t.group.rank == r })
}

// begun tells who watches that a round begins.
func (h *hub) begun(rd *round) {
	for _, t := range rd.tickets {
		if t != nil && t.stream != nil {
			t.stream.tell(h.shard, StageBegun)
		}
	}
}
