package rank

import (
	"context"
	"fmt"

	"github.com/kolo-ccl/kolo"
)

// A group keeps one ticket for blocking collectives, since a rank mostly makes one call
// at a time. Whoever makes a call takes it, if it is there and nobody closes the group.
// It knows what it was last used for, so that the same call of the same buffers is made
// without looking at them again, and it is counted by one word with the calls:
//
//	calls made << 2 | keptClosed | keptTaken
//
// What the word counts is in flight while it is taken.
const (
	keptTaken  = 1
	keptClosed = 2
	oneCall    = 4
)

// keep takes the kept ticket for the next call, which is counted, or returns nil.
func (g *Group) keep() *ticket {
	w := g.calls.Load()
	if w&(keptTaken|keptClosed) != 0 || !g.calls.CompareAndSwap(w, w+oneCall+keptTaken) {
		return nil
	}
	t := g.kept
	if t == nil {
		t = newTicket(g)
		t.kept = true
		g.kept = t
	}
	t.seq = w / oneCall
	if t.state.Load() != ticketOpen {
		t.state.Store(ticketOpen)
	}
	if t.since.Load() != 0 {
		t.since.Store(0)
	}
	return t
}

// giveBack returns the kept ticket, whose call has ended. After a failure others may look
// at the ticket still, and the next call gets another one.
func (g *Group) giveBack(err error) error {
	if err != nil {
		g.kept = nil
	} else if t := g.kept; t.seq%gapEach == gapEach-1 && (t.large || t.seq%gapOfSmall == gapOfSmall-1) {
		t.turns.ended(t)
	}
	if g.calls.Add(^uint64(0))&keptClosed != 0 { // keptTaken is the lowest bit
		g.signalIdle()
	}
	return err
}

// takeBack returns the kept ticket and the number of its call, which is refused with err. If another
// goroutine of the rank has made a call meanwhile, that has the number behind it and
// would wait for this one for ever: then the group fails.
func (g *Group) takeBack(t *ticket, err error) {
	for {
		w := g.calls.Load()
		if w/oneCall != t.seq+1 {
			e := &kolo.Error{Group: g.Name(), Rank: g.rank, Peer: kolo.NoRank, Seq: t.seq,
				Err: fmt.Errorf("call #%d was refused while another goroutine of the rank made the call behind it: %w", t.seq, err)}
			_ = g.giveBack(e) // it is told below
			g.hub.tell(nil, &failure{err: e})
			return
		}
		if g.calls.CompareAndSwap(w, w-oneCall-keptTaken) {
			if w&keptClosed != 0 {
				g.signalIdle()
			}
			return
		}
	}
}

// number counts a call and returns its number.
func (g *Group) number() uint64 { return g.calls.Add(oneCall)/oneCall - 1 }

// inFlight is the number of calls that have not ended.
func (g *Group) inFlight() int64 { return g.flying.Load() + int64(g.calls.Load()&keptTaken) }

// signalIdle lets drain look again.
func (g *Group) signalIdle() {
	select {
	case g.idle <- struct{}{}:
	default:
	}
}

// begin makes a call of at most one input and one output in host memory. The one that is the same
// as the last of the kept ticket is on its way without a Request; if it is not over at once, begin
// returns its ticket, and the rank is to give its processor away and to call end. Any other has
// ended when begin returns.
//
// Who calls begin gives the processor away himself, since each function that is left behind a
// change of goroutines costs 6 ns: a processor predicts where calls return to, and is wrong then.
func (g *Group) begin(ctx context.Context, w what, scale float64, in, out []byte) (*ticket, error) {
	var t *ticket
	if g.world.p.cfg.Diagnose == 0 && g.world.ended(ctx) == nil {
		if t = g.keep(); t != nil && t.known.is(w, scale, extentOf(in), extentOf(out)) {
			g.hub.meet(t, true)
			switch {
			case t.place.over.Load() > t.seq:
				return nil, g.giveBack(nil)
			case t.lends || t.beside || t.polls(): // a rank alone in its process has nobody to give the processor to
				return nil, g.giveBack(t.waitOn(ctx))
			}
			return t, nil
		}
	}
	r := w.request(scale, in, out)
	return nil, doWith(ctx, g, t, &r)
}

// end waits for a call that was begun, and whose rank has given its processor away.
func (g *Group) end(ctx context.Context, t *ticket) error {
	if t.place.over.Load() > t.seq {
		return g.giveBack(nil)
	}
	return g.giveBack(t.waitOn(ctx))
}

// askedBy is what a kept ticket was used for.
type askedBy struct {
	t       *ticket
	edition int
}

// learn notes of which calls the job was made, if they use kept tickets.
func (h *hub) learn(rd *round) {
	if h.plans.trial != nil || h.p.cfg.Diagnose != 0 {
		return
	}
	h.large = true
	for _, r := range h.mine {
		t := rd.tickets[r]
		if !t.kept {
			h.made = h.made[:0]
			return
		}
		h.made = append(h.made, askedBy{t, t.edition})
		h.large = h.large && t.large
	}
}

// repeats says whether a round is of the same calls as the job, or as the round of the
// medium between processes. They agree then, and what was chosen for them and the job
// itself are as good as they were.
func (h *hub) repeats(rd *round) bool {
	if len(h.made) == 0 {
		return false
	}
	for i, r := range h.mine {
		t := rd.tickets[r]
		if m := &h.made[i]; m.t != t || m.edition != t.edition {
			return false
		}
	}
	return true
}

// repeat does the round of calls that are at a, all of which repeat those that the job was
// made of, as soon as all have come. It says whether it has.
func (h *hub) repeat(a *arrivals, seq uint64) bool {
	if len(h.made) != len(a.calls) || len(h.rounds) > 0 || h.running || h.failed != nil || seq != h.base {
		return false
	}
	h.jobHere = false
	h.await(h.large)
	h.p.engine.Start(h.shard, &h.job)
	if !h.jobHere { // its end comes as a message
		h.running = true
		h.takeFrom(a, seq)
		return true
	}
	if h.base++; h.base%passedEach == 0 {
		h.passed.Store(h.base)
	}
	a.open(seq + arrivalsAhead)
	h.endAll(seq, a.calls)
	return true
}
