package rank

import (
	"time"

	"github.com/kolo-ccl/kolo/channel"
)

// turns is whether a rank that waits for a large call takes turns with the others on one
// processor, as look says for small calls, and leaves the other processors to the engine's
// workers; else it helps the engine itself. It does so where ranks do next to nothing between
// their calls: to go from one rank to the next costs less than to bring all that a call
// has written from one processor's cache to another's, and a worker needs little of it.
// Where they compute between the calls, each is to have a processor; and where other jobs
// go on, who does those gives way to ranks that help.
//
// The clock is looked at twice in gapEach calls. Only who has the ticket touches it.
type turns struct {
	taken bool
	slow  bool   // the gap before was too long
	seq   uint64 // the call that follows the one at whose end gap began; 0: none
	gap   int64  // ns since the process began
}

const (
	gapEach  = 16
	idleGap  = 1000    // ns between calls of ranks that do nothing; each turn saves about as much
	gapBytes = 4 << 10 // and 1 more for so many bytes that a call touches: what it has to do then is in no cache
)

// takesTurns says whether the call of t, which is about to be made, is such a call.
func (t *ticket) takesTurns() bool {
	u, h := &t.turns, t.group.hub
	if u.seq == t.seq && u.seq > 0 {
		slow := int64(time.Since(h.p.began))-u.gap > idleGap+t.touches()/gapBytes
		u.taken = !slow || u.taken && !u.slow // one may have been an interruption
		u.slow = slow
	}
	return u.taken && t.touches() <= channel.MaxAwaited && !h.p.host.Busy()
}

// ended notes the end of t's call.
func (u *turns) ended(t *ticket) {
	if (t.seq+1)%gapEach == 0 {
		u.seq, u.gap = t.seq+1, int64(time.Since(t.group.hub.p.began))
	}
}
