package rank

import (
	"sync/atomic"
	"time"
)

// arrivals is where the ranks of a group meet on the way to the hub: they put their
// calls of one number here, and whoever comes last takes all of them to the hub as
// one message. So a round costs the hub one message and not one per rank.
//
// The hub closes the place when it must know who has come: for a deadline, a rank
// that has left, a failure. It then takes what is there, and the calls of that number
// that are still to come are messages of their own.
//
//	       deposit                    the last deposit
//	open ----------> open, n calls --------------------> complete --+ the hub takes
//	  ^                   | the hub takes what is there             | the calls
//	  |                   v                                         |
//	  |  round popped   closed <------------------------------------+
//	  +-------------------+ for the call arrivalsAhead further on
type arrivals struct {
	state  atomic.Uint64 // call number << 16 | closed | calls that have come
	_      [cacheLine - 8]byte
	over   atomic.Uint64 // number of the latest call met for here that has ended well for all at once, plus 1
	parked atomic.Int32  // ranks that are parked until over says so
	_      [cacheLine - 12]byte
	slots  []slot
}

// slot is where one rank puts its call.
type slot struct {
	come atomic.Uint64 // number of the call that is here, plus 1; 0: none
	t    *ticket       // guarded by come
	_    [cacheLine - 16]byte
}

// cacheLine is what processors move at a time, in pairs of lines.
const cacheLine = 128

// closedArrivals is set in the state of arrivals that take no more calls.
const closedArrivals = 1 << 15

// arrivalsAhead is the number of calls, from the one that is running on, that ranks
// may meet for. Those of a rank that is further ahead are messages.
const arrivalsAhead = 8

// maxMeeting is the most ranks that the state counts.
const maxMeeting = closedArrivals - 1

func (*arrivals) isHubMessage() {} // all ranks have come

// open makes the place ready for call number seq.
func (a *arrivals) open(seq uint64) { a.state.Store(seq << 16) }

// close takes no more calls, of whatever number it is for.
func (a *arrivals) close() { a.state.Or(closedArrivals) }

// complete says whether all ranks have come and the hub has not taken their calls.
func (a *arrivals) complete() bool {
	s := a.state.Load()
	return s&closedArrivals == 0 && s&(closedArrivals-1) == uint64(len(a.slots))
}

// receipt is the answer to a deposit.
type receipt uint8

const (
	refused   receipt = iota // the call is to go to the hub as a message
	deposited                // the hub has it, or will get it from who comes last
	last                     // the hub is to be told
)

// deposit puts a call where the others of its number are.
func (a *arrivals) deposit(t *ticket) receipt {
	s := a.state.Load()
	if s>>16 != t.seq || s&closedArrivals != 0 {
		return refused
	}
	mine := &a.slots[t.group.rank]
	mine.t = t
	mine.come.Store(t.seq + 1)
	for !a.state.CompareAndSwap(s, s+1) {
		if s = a.state.Load(); s>>16 == t.seq && s&closedArrivals == 0 {
			continue
		}
		if mine.come.CompareAndSwap(t.seq+1, 0) {
			return refused
		}
		return deposited // the hub has taken it while it closed the place
	}
	if int(s&(closedArrivals-1))+1 == len(a.slots) {
		return last
	}
	return deposited
}

// meet sends a call on its way to the hub.
func (h *hub) meet(t *ticket) {
	t.lends = t.large && !(t.kept && h.far == nil && t.takesTurns())
	a := &h.places[t.seq%arrivalsAhead]
	switch a.deposit(t) {
	case refused:
		h.tell(nil, t)
	case last:
		h.tell(nil, a)
	}
}

// meets says whether ranks may meet: not where the hub must hear of every call by
// itself, nor where some of the ranks are in other processes.
func (h *hub) meets() bool {
	return h.failed == nil && h.left == 0 && len(h.ranks) <= maxMeeting && h.far == nil
}

// openPlaces makes the places for the first calls.
func (h *hub) openPlaces() {
	for i := range h.places {
		h.places[i].slots = make([]slot, len(h.ranks))
		h.places[i].open(uint64(i))
		if !h.meets() {
			h.places[i].close()
		}
	}
}

// reopen gives the place of a round that has ended to a later call, unless some of
// those calls have come to the hub already.
func (h *hub) reopen(seq uint64) {
	seq += arrivalsAhead
	i := int(seq - h.base)
	if !h.meets() || i < len(h.rounds) && h.rounds[i].arrived > 0 {
		return
	}
	h.places[seq%arrivalsAhead].open(seq)
}

// take closes the place of the i-th pending round and moves the calls that have come
// to the round.
func (h *hub) take(i int) {
	if i >= arrivalsAhead {
		return
	}
	seq := h.base + uint64(i)
	a := &h.places[seq%arrivalsAhead]
	if a.state.Load()&closedArrivals != 0 {
		return
	}
	all := a.complete() // then nobody takes a call back
	a.close()
	for r := range a.slots {
		if s := &a.slots[r]; all || s.come.CompareAndSwap(seq+1, 0) {
			h.note(s.t)
		}
	}
}

// takeAll closes every place, so that the rounds say who has come.
func (h *hub) takeAll() {
	for i := range arrivalsAhead {
		h.take(i)
	}
}

// note puts a call into its round.
func (h *hub) note(t *ticket) *round {
	me := t.group.rank
	if m := &h.members[me]; t.seq >= m.calls { // streams come to their calls in any order
		m.calls = t.seq + 1
		if h.p.cfg.Diagnose&CallSites != 0 {
			m.site = t.site
		}
	}
	i := int(t.seq - h.base)
	for len(h.rounds) <= i {
		h.rounds = append(h.rounds, h.newRound())
	}
	rd := h.rounds[i]
	rd.tickets[me] = t
	rd.arrived++
	if t.kept && !t.lends && h.far == nil {
		rd.kept++
		if t.large {
			rd.turns++
		}
	}
	return rd
}

// endAll resolves the calls of a round, all of which use tickets that their groups
// keep, at once.
func (h *hub) endAll(rd *round, seq uint64) {
	a := &h.places[seq%arrivalsAhead]
	a.over.Store(seq + 1)
	if a.parked.Load() == 0 { // who parks from here on looks at over behind that
		return
	}
	for _, t := range rd.tickets {
		if t != nil && t.state.CompareAndSwap(parkedFor(seq), ticketDone) { // else it may be in another call by now
			t.park <- struct{}{}
		}
	}
}

// waiting notes that a rank waits for its call from now on, for who asks how far it is, and
// so how long the deadline is off. A call that has ended by then does no harm.
func (t *ticket) waiting() {
	h := t.group.hub
	if t.since.Load() != 0 || isMessage(t.call.Collective) {
		return
	}
	now := h.p.now()
	t.since.Store(int64(now.Sub(h.p.began)) + 1)
	if look := h.firstLook(); look > 0 {
		h.p.watch.arm(now.Add(look))
	}
}

// opens sets when the first rank of a round began to wait, if nobody has yet.
func (h *hub) opens(rd *round) {
	look := h.firstLook()
	if look == 0 || rd.arrived == 0 || !rd.opened.IsZero() {
		return
	}
	first := h.p.now()
	for _, t := range rd.tickets {
		if t == nil {
			continue
		}
		if d := t.since.Load(); d != 0 {
			if at := h.p.began.Add(time.Duration(d - 1)); at.Before(first) {
				first = at
			}
		}
	}
	rd.opened = first
	h.p.watch.arm(first.Add(look))
}
