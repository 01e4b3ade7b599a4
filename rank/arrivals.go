package rank

import (
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/kolo-ccl/kolo"
)

// arrivals is where ranks of a group meet on the way to the hub: they put their calls of
// one number here, and whoever comes last takes all of them to the hub as one message.
// So a round costs the hub one message for placeRanks ranks and not one per rank.
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
	state  atomic.Uint64 // call number << numberShift | closedArrivals | otherCall | a bit for each rank whose call is here
	over   atomic.Uint64 // number of the latest call met for here that has ended well for all at once, plus 1
	parked atomic.Int32  // ranks that are parked until over says so
	_      [4]byte
	from   kolo.Rank // the first rank, in the group
	all    uint64    // the bits of all ranks
	calls  []*ticket // by rank; each guarded by its bit
	_      [cacheLine - 64]byte
}

// cacheLine is what processors move at a time, in pairs of lines.
const cacheLine = 128

// The state of arrivals. The number is that of the call, of which placeRanks bits tell all
// calls apart that can be under way at a time.
const (
	placeRanks     = 32            // the most ranks that meet at one place
	otherCall      = 1 << 32       // one of the calls is not, or not known to be, the same as its rank's last
	closedArrivals = 1 << 33       // no more calls are taken
	numberShift    = 34            // of the call number
	numbers        = 1<<30 - 1     // its bits
	everybody      = otherCall - 1 // the bits of the ranks
)

// arrivalsAhead is the number of calls, from the one that is running on, that ranks
// may meet for. Those of a rank that is further ahead are messages.
const arrivalsAhead = 8

func (*arrivals) isHubMessage() {} // all ranks have come

// open makes the place ready for call number seq.
func (a *arrivals) open(seq uint64) { a.state.Store(seq << numberShift) }

// close takes no more calls, of whatever number it is for, and returns what the state was.
func (a *arrivals) close() uint64 { return a.state.Or(closedArrivals) }

// complete says whether all ranks have come and the hub has not taken their calls.
func (a *arrivals) complete(state uint64) bool { return state&(closedArrivals|everybody) == a.all }

// isFor says whether the place is open for call number seq.
func isFor(state, seq uint64) bool {
	return state>>numberShift == seq&numbers && state&closedArrivals == 0
}

// come is the call number seq of rank r, or nil if it is not here.
func (a *arrivals) come(state, seq uint64, r kolo.Rank) *ticket {
	if i := r - a.from; isFor(state, seq) && state>>i&1 != 0 {
		return a.calls[i]
	}
	return nil
}

// missing is the number of ranks that have not come.
func (a *arrivals) missing() int { return bits.OnesCount64(a.all &^ a.state.Load()) }

// receipt is the answer to a deposit.
type receipt uint8

const (
	refused   receipt = iota // the call is to go to the hub as a message
	deposited                // the hub has it, or will get it from who comes last
	last                     // the hub is to be told
)

// deposit puts a call where the others of its number are. A repeated one is known to be
// the same as the last that its rank has made with this ticket.
func (a *arrivals) deposit(t *ticket, repeated bool) receipt {
	s := a.state.Load()
	if !isFor(s, t.seq) {
		return refused
	}
	i := t.group.rank - a.from
	if a.calls[i] != t {
		a.calls[i] = t
	}
	set := uint64(1) << i
	if !repeated {
		set |= otherCall
	}
	for !a.state.CompareAndSwap(s, s|set) {
		if s = a.state.Load(); !isFor(s, t.seq) {
			return refused
		}
	}
	if (s|set)&everybody == a.all {
		return last
	}
	return deposited
}

// meet sends a call on its way to the hub.
func (h *hub) meet(t *ticket, repeated bool) {
	if t.turns.seq == t.seq && t.seq > 0 {
		t.turns.begun(t)
	}
	t.beside = t.kept && h.far == nil && t.takesTurnsBeside()
	t.lends = t.large && !t.beside && !(t.kept && h.far == nil && t.takesTurns())
	a := h.placeFor(t.seq, t.group.rank)
	t.place = a
	switch a.deposit(t, repeated && !t.lends) {
	case refused:
		h.tell(nil, t)
	case last:
		h.tell(nil, a)
	}
}

// meets says whether ranks may meet: not where the hub must hear of every call by
// itself, nor where some of the ranks are in other processes.
func (h *hub) meets() bool { return h.failed == nil && h.left == 0 && h.far == nil }

// openPlaces makes the places for the first calls.
func (h *hub) openPlaces() {
	n := len(h.ranks)
	rows := (n + placeRanks - 1) / placeRanks
	h.places = make([]arrivals, arrivalsAhead*rows)
	for i := range h.places {
		a := &h.places[i]
		a.from = kolo.Rank(i % rows * placeRanks)
		a.calls = make([]*ticket, min(placeRanks, n-int(a.from)))
		a.all = 1<<len(a.calls) - 1
		a.open(uint64(i / rows))
		if !h.meets() {
			a.close()
		}
	}
}

// placesOf are the places where the ranks meet for a call: one for each placeRanks ranks.
func (h *hub) placesOf(seq uint64) []arrivals {
	n := len(h.places) / arrivalsAhead
	i := int(seq%arrivalsAhead) * n
	return h.places[i : i+n]
}

// placeFor is where rank r meets others for a call.
func (h *hub) placeFor(seq uint64, r kolo.Rank) *arrivals {
	return &h.places[int(seq%arrivalsAhead)*(len(h.places)/arrivalsAhead)+int(r)/placeRanks]
}

// reopen gives the places of a round that has ended to a later call, unless some of
// those calls have come to the hub already.
func (h *hub) reopen(seq uint64) {
	seq += arrivalsAhead
	i := int(seq - h.base)
	if !h.meets() || i < len(h.rounds) && h.rounds[i].arrived > 0 {
		return
	}
	list := h.placesOf(seq)
	for i := range list {
		list[i].open(seq)
	}
}

// take closes the places of the i-th pending round and moves the calls that have come
// to the round.
func (h *hub) take(i int) {
	if i >= arrivalsAhead {
		return
	}
	seq := h.base + uint64(i)
	list := h.placesOf(seq)
	for i := range list {
		h.takeFrom(&list[i], seq)
	}
}

// takeFrom is take of one place.
func (h *hub) takeFrom(a *arrivals, seq uint64) {
	if a.state.Load()&closedArrivals != 0 {
		return
	}
	for here := a.close() & everybody; here != 0; here &= here - 1 {
		h.note(a.calls[bits.TrailingZeros64(here)], seq)
	}
}

// takeAll closes every place, so that the rounds say who has come.
func (h *hub) takeAll() {
	for i := range arrivalsAhead {
		h.take(i)
	}
}

// note puts a call into its round.
func (h *hub) note(t *ticket, seq uint64) *round {
	me := t.group.rank
	if m := &h.members[me]; seq >= m.calls { // streams come to their calls in any order
		m.calls = seq + 1
		if h.p.cfg.Diagnose&CallSites != 0 {
			m.site = t.site
		}
	}
	i := int(seq - h.base)
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

// callsOf is the number of collective calls that rank r has made, as far as the hub knows.
func (h *hub) callsOf(r kolo.Rank) uint64 {
	if n := h.members[r].calls; n > h.base || !h.isMine(r) {
		return n
	}
	return h.base // rounds that were repeated are counted for all at once
}

// endAll resolves the calls of a round, all of which use tickets that their groups
// keep, at once.
func (h *hub) endAll(seq uint64, calls []*ticket) {
	list := h.placesOf(seq)
	for i := range list {
		a := &list[i]
		a.over.Store(seq + 1)
		if a.parked.Load() == 0 { // who parks from here on looks at over behind that
			continue
		}
		for _, t := range calls[a.from : int(a.from)+len(a.calls)] {
			if t.state.CompareAndSwap(parkedFor(seq), ticketDone) { // else it may be in another call by now
				t.park <- struct{}{}
			}
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
