package rank

import "context"

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

// keep takes the kept ticket, or returns nil.
func (g *Group) keep() *ticket {
	if w := g.calls.Load(); w&(keptTaken|keptClosed) != 0 || !g.calls.CompareAndSwap(w, w|keptTaken) {
		return nil
	}
	t := g.kept
	if t == nil {
		t = newTicket(g)
		t.kept = true
		g.kept = t
		return t
	}
	if t.state.Load() != ticketOpen {
		t.state.Store(ticketOpen)
	}
	if t.since.Load() != 0 {
		t.since.Store(0)
	}
	return t
}

// giveBack returns the kept ticket, whose call has ended or was not made. After a
// failure others may look at the ticket still, and the next call gets another one.
func (g *Group) giveBack(err error) {
	if err != nil {
		g.kept = nil
	} else if t := g.kept; t.large {
		t.turns.ended(t)
	}
	if g.calls.Add(^uint64(0))&keptClosed != 0 { // keptTaken is the lowest bit
		g.signalIdle()
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

// again makes a call that is the same as the last one of the kept ticket, and waits
// for it. Where it is another it does nothing and returns false.
func (g *Group) again(ctx context.Context, w what, scale float64, in, out extent) (made bool, err error) {
	if g.world.ended(ctx) != nil || g.world.p.cfg.Diagnose != 0 {
		return false, nil
	}
	t := g.keep()
	if t == nil {
		return false, nil
	}
	if !t.known.is(w, scale, in, out) {
		g.giveBack(nil)
		return false, nil
	}
	t.seq = g.number()
	g.hub.meet(t)
	err = t.wait(ctx)
	g.giveBack(err)
	return true, err
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
	for _, r := range h.mine {
		t := rd.tickets[r]
		if !t.kept {
			h.made = h.made[:0]
			return
		}
		h.made = append(h.made, askedBy{t, t.edition})
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
