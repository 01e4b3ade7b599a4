package rank

import (
	"time"

	"github.com/kolo-ccl/kolo/channel"
)

// turns is whether a rank that waits takes turns with the others on one processor. It does so
// where ranks do next to nothing between their calls: to go from one rank to the next costs less
// than to bring all that a call has written from one processor's cache to another's. For a large
// call the other processors are left to the engine's workers, which need little of that; else a
// rank helps the engine itself. Where ranks compute between the calls, each is to have a processor
// of its own, or its share of several: see look. And where other jobs go on, who does those gives way
// to ranks that help.
//
// Where all those jobs are less urgent, ranks take turns beside them too, and hand the processor from one to
// the other: who waits parks at once, and who ends the call starts it next, before all that is in
// the processor's queue. So that these are not kept from it, the group gives way from time to time.
//
// The clock is looked at twice in gapEach calls, or gapOfSmall. Only who has the ticket touches it.
type turns struct {
	taken bool
	slow  bool   // the gap before was too long
	seq   uint64 // the call that follows the one at whose end gap began; 0: none
	gap   int64  // ns since the process began
}

const (
	gapEach    = 16
	gapOfSmall = 64      // a multiple of gapEach
	idleGap    = 1000    // ns between calls of ranks that do nothing; each turn saves about as much
	turnsFor   = 15000   // ns of turns beside less urgent jobs, after which a group gives way to a block of them, 5 to 10 us
	gapBytes   = 4 << 10 // and 1 more for so many bytes that a call touches: what it has to do then is in no cache
)

// takesTurns says whether the call of t, which is about to be made, is such a call.
func (t *ticket) takesTurns() bool {
	return t.turns.taken && t.touches() <= channel.MaxAwaited && !t.group.hub.p.host.Busy()
}

// takesTurnsBeside says whether it is one while other jobs go on, all of them less urgent.
func (t *ticket) takesTurnsBeside() bool {
	return t.turns.taken && t.touches() <= channel.MaxAwaited && t.group.hub.p.host.Yields(t.class())
}

// giveWay lets less urgent jobs have the processor, if the group has had it for turnsFor.
func (h *hub) giveWay() {
	if now := int64(time.Since(h.p.began)); now-h.gaveWay.Load() > turnsFor {
		h.gaveWay.Store(now)
		h.p.host.GiveWay()
	}
}

// begun looks at the gap that ends with t's call.
func (u *turns) begun(t *ticket) {
	slow := int64(time.Since(t.group.hub.p.began))-u.gap > idleGap+t.touches()/gapBytes
	u.taken = !slow || u.taken && !u.slow // one may have been an interruption
	u.slow = slow
}

// ended notes the end of a call behind which the gap is looked at.
func (u *turns) ended(t *ticket) {
	u.seq, u.gap = t.seq+1, int64(time.Since(t.group.hub.p.began))
}
