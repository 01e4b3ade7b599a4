package rank

import (
	"fmt"
	"strings"

	"github.com/kolo-ccl/kolo"
)

// check compares the calls of a round, before any output byte changes.
func (h *hub) check(rd *round) error {
	first := rd.tickets[h.mine[0]]
	for _, r := range h.mine[1:] {
		if !sameCall(&first.call, &rd.tickets[r].call) {
			return h.mismatch(rd.calls(), h.base)
		}
	}
	if first.call.Collective == kolo.AllToAllV {
		if err := h.checkPairs(rd.calls(), h.base); err != nil {
			return err
		}
	}
	if len(first.tensors) > 0 {
		return h.checkTensors(rd)
	}
	return h.checkOverlap(rd)
}

// calls are the calls of a round by rank, nil where there is none.
func (rd *round) calls() []*kolo.Call {
	calls := make([]*kolo.Call, len(rd.tickets))
	for i, t := range rd.tickets {
		if t != nil {
			calls[i] = &t.call
		}
	}
	return calls
}

// sameCall compares what all ranks must agree on.
func sameCall(a, b *kolo.Call) bool {
	if a.Collective != b.Collective || a.DType != b.DType || a.Op != b.Op || a.Root != b.Root || a.Count != b.Count {
		return false
	}
	return len(a.Counts) == 0 && len(b.Counts) == 0 || len(a.Diff(b)) == 0
}

// mismatch names the ranks that differ from the most, with both calls. A call that is
// nil is not known.
func (h *hub) mismatch(calls []*kolo.Call, seq uint64) error {
	class := make([]int, len(calls)) // the first rank with the same call
	size := make([]int, len(calls))
	known := 0
	for i, c := range calls {
		if class[i] = i; c == nil {
			continue
		}
		for k := range i {
			if calls[k] != nil && sameCall(calls[k], c) {
				class[i] = class[k]
				break
			}
		}
		size[class[i]]++
		known++
	}
	most := 0
	for i := range size {
		if size[i] > size[most] {
			most = i
		}
	}
	want := calls[most]
	var odd []kolo.Rank
	var parts []string
	for i := range size {
		if size[i] == 0 || i == most {
			continue
		}
		var ranks []kolo.Rank
		for k := range class {
			if class[k] == i {
				ranks = append(ranks, kolo.Rank(k))
			}
		}
		odd = append(odd, ranks...)
		got := calls[i]
		parts = append(parts, fmt.Sprintf("rank %s called %v%s: %s", kolo.RankList(ranks), got, h.siteOf(kolo.Rank(i), seq), strings.Join(got.Diff(want), ", ")))
	}
	e := &kolo.Error{Op: want.Collective, Group: h.key.name, Rank: kolo.NoRank, Peer: kolo.NoRank, Seq: seq, Ranks: odd}
	if len(odd) == 1 {
		e.Peer = odd[0]
	}
	e.Err = fmt.Errorf("%w: %d of %d ranks called %v%s; %s", kolo.ErrMismatch, size[most], known, want, h.siteOf(kolo.Rank(most), seq), strings.Join(parts, "; "))
	return e
}

// checkPairs compares what each rank sends to each other in AllToAllV with what that
// one takes.
func (h *hub) checkPairs(calls []*kolo.Call, seq uint64) error {
	for i, c := range calls {
		if c == nil || len(c.Counts) != len(calls) {
			continue
		}
		for j, d := range calls {
			if d == nil || len(d.RecvCounts) != len(calls) {
				continue
			}
			if s, r := c.Counts[j], d.RecvCounts[i]; s != r {
				return &kolo.Error{Op: c.Collective, Group: h.key.name, Rank: kolo.NoRank, Peer: kolo.NoRank, Seq: seq,
					Ranks: []kolo.Rank{kolo.Rank(i), kolo.Rank(j)},
					Err:   fmt.Errorf("%w: rank %d sends %d elements to rank %d, which takes %d", kolo.ErrMismatch, i, s, j, r)}
			}
		}
	}
	return nil
}

// spans are the buffers of one rank's call.
type spans struct{ in, out span }

// checkOverlap refuses buffers of different ranks that overlap where one of them is
// written. Buffers that were found good stay so while they are the same.
func (h *hub) checkOverlap(rd *round) error {
	changed := false
	for _, i := range h.mine {
		t := rd.tickets[i]
		s := spans{spanOf(t.in), spanOf(t.out)}
		if s != h.seen[i] {
			h.seen[i], changed = s, true
		}
	}
	if !changed {
		return nil
	}
	if a, b, ok := overlapping(h.seen); ok {
		clear(h.seen)
		return &kolo.Error{Op: rd.tickets[h.mine[0]].call.Collective, Group: h.key.name, Rank: kolo.NoRank, Peer: kolo.NoRank, Seq: h.base,
			Ranks: []kolo.Rank{kolo.Rank(a), kolo.Rank(b)},
			Err:   fmt.Errorf("%w: the memory of rank %d and of rank %d is in part the same; give each rank buffers of its own", kolo.ErrOverlap, a, b)}
	}
	return nil
}

// leftError says that rank r has left, and which call needs it, if one does.
func (h *hub) leftError(r kolo.Rank, c *kolo.Call, seq uint64) *kolo.Error {
	m := &h.members[r]
	e := &kolo.Error{Group: h.key.name, Rank: kolo.NoRank, Peer: r, Ranks: []kolo.Rank{r}}
	what, kind := "rank %d has left the group", kolo.ErrLeft
	if m.cause != nil {
		what = "rank %d has failed"
	}
	if m.lost {
		what, kind = "rank %d is gone with its process", kolo.ErrLost
	}
	text := fmt.Sprintf(what, int(r)) + h.lastCall(r)
	if c != nil {
		e.Op, e.Seq = c.Collective, seq
	}
	e.Err = fmt.Errorf("%w: %s", kind, text)
	if m.cause != nil {
		e.Err = fmt.Errorf("%w: %s: %w", kind, text, m.cause)
	}
	return e
}

// lastCall is what rank r did last, as a clause.
func (h *hub) lastCall(r kolo.Rank) string {
	m := &h.members[r]
	switch n := h.callsOf(r); {
	case n > 0:
		return fmt.Sprintf(" after %v #%d%v", h.latest(r), n-1, &m.site)
	case !m.joined.Load():
		return " and has never made it"
	}
	return " before its first call"
}

// latest is the latest call of rank r, which has made one.
func (h *hub) latest(r kolo.Rank) *kolo.Call {
	if i := int(h.callsOf(r) - 1 - h.base); i >= 0 && i < len(h.rounds) && h.rounds[i].tickets[r] != nil {
		return &h.rounds[i].tickets[r].call
	}
	return &h.lastOf
}

// tick fails the group if a round is past its deadline.
func (h *hub) tick() {
	now := h.p.now()
	if h.asking != nil && h.failed == nil {
		if !now.Before(h.asking.end) {
			h.answered()
			return
		}
		h.p.watch.arm(h.asking.end)
		return
	}
	if h.failed != nil {
		if h.running && !now.Before(h.patience) {
			h.abandon()
		} else if h.running {
			h.p.watch.arm(h.patience)
		}
		return
	}
	if h.far != nil {
		if h.far.tick(now); h.failed != nil {
			return
		}
	}
	if h.firstLook() == 0 {
		return
	}
	for i, rd := range h.rounds {
		if rd.arrived == 0 {
			continue
		}
		h.opens(rd)
		h.warn(i, rd, now)
		if h.cfg.Timeout <= 0 {
			continue
		}
		if end := rd.opened.Add(h.cfg.Timeout); now.Before(end) {
			h.p.watch.arm(end)
			continue
		}
		h.expired(i, rd)
		return
	}
}

// expired says who is waited for.
func (h *hub) expired(i int, rd *round) {
	t := rd.firstTicket()
	e := &kolo.Error{Op: t.call.Collective, Group: h.key.name, Rank: kolo.NoRank, Peer: kolo.NoRank, Seq: h.base + uint64(i)}
	cause := fmt.Errorf("%w: %v after the first call", kolo.ErrDeadline, h.cfg.Timeout)
	switch {
	case h.far != nil:
		h.far.whoIsLate(e, rd, cause)
	case rd.arrived == len(h.ranks):
		h.stalled(e, cause)
	default:
		h.blame(e, rd, cause)
	}
}

// blame fails the group for the ranks that a round waits for.
func (h *hub) blame(e *kolo.Error, rd *round, cause error) {
	var last string
	if e.Ranks, last = h.missing(rd, e.Seq); len(e.Ranks) == 1 {
		e.Peer = e.Ranks[0]
	}
	e.Err = fmt.Errorf("%w, rank %s not arrived (%s); %d of %d ranks wait in %v",
		cause, haveNot(e.Ranks), last, rd.arrived, len(h.ranks), &rd.firstTicket().call)
	h.inquire(e, e.Ranks)
}

// missing lists the ranks that have not come to a round, and what they did last.
func (h *hub) missing(rd *round, seq uint64) (ranks []kolo.Rank, last string) {
	var parts []string
	for _, k := range h.mine {
		r := int(k)
		if rd.tickets[r] != nil {
			continue
		}
		ranks = append(ranks, kolo.Rank(r))
		switch {
		case len(parts) < maxWaits && h.heldBy(kolo.Rank(r), seq):
			parts = append(parts, fmt.Sprintf("rank %d has called, and its stream has not come to the call", r))
		case len(parts) < maxWaits:
			parts = append(parts, fmt.Sprintf("rank %d last called%s", r, strings.TrimPrefix(h.lastCallOf(r), " after")))
		case len(parts) == maxWaits:
			parts = append(parts, "and so on")
		}
	}
	return ranks, strings.Join(parts, "; ")
}

// canceled fails the group because the context of a call has ended, which is e. A
// call that has ended by itself in the meantime does no harm.
func (h *hub) canceled(e *kolo.Error) {
	if h.failed != nil || e.Seq < h.base {
		return
	}
	i := int(e.Seq - h.base)
	if i >= len(h.rounds) {
		h.fail(e)
		return
	}
	rd := h.rounds[i]
	switch {
	case rd.arrived == 0: // its stream has not come to it
		h.fail(e)
	case h.far != nil:
		h.far.whoIsLate(e, rd, e.Err)
	case rd.arrived < len(h.ranks):
		h.blame(e, rd, e.Err)
	case i == 0 && h.running:
		h.stalled(e, e.Err)
	default:
		h.fail(e)
	}
}

func haveNot(ranks []kolo.Rank) string {
	if len(ranks) == 1 {
		return kolo.RankList(ranks) + " has"
	}
	return kolo.RankList(ranks) + " have"
}

func (h *hub) lastCallOf(r int) string {
	m := &h.members[r]
	switch n := h.callsOf(kolo.Rank(r)); {
	case n > 0:
		return fmt.Sprintf(" after %v #%d%v%s", h.latest(kolo.Rank(r)), n-1, &m.site, h.busyWith(kolo.Rank(r)))
	case !m.joined.Load():
		return " nothing: it has not made the group" + h.busyWith(kolo.Rank(r))
	}
	return " nothing" + h.busyWith(kolo.Rank(r))
}

// stalled fails a round that all ranks have joined but that does not move. The
// runs say what they wait for when they are aborted.
func (h *hub) stalled(e *kolo.Error, cause error) {
	e.Err = fmt.Errorf("%w, all ranks have called, but the data has not come through", cause)
	if len(h.runs) > 0 {
		h.stall = e
	}
	h.fail(e)
}

// whatStalled is the failure with what the ranks were waiting for.
func (h *hub) whatStalled() error {
	e := *h.stall
	var waits []string
	for _, r := range h.runs {
		if r.waits != "" && len(waits) < maxWaits {
			waits = append(waits, r.waits)
		}
	}
	if len(waits) > 0 { // what is on the board has none
		e.Err = fmt.Errorf("%w; %s", e.Err, strings.Join(waits, "; "))
	}
	return &e
}

// abandon ends a failed round although the driver has not given the memory back: it
// has been asked to, and a deadline is a deadline.
func (h *hub) abandon() {
	for _, r := range h.runs {
		if !r.over {
			h.runEnded(r, fmt.Errorf("%w; %s", h.failed, abandoned))
		}
	}
}

// abandoned is said of a call that ends before its driver is done with it.
const abandoned = "the driver has not given the buffers back and may still use them"

// maxWaits is the most ranks whose wait is told in an error.
const maxWaits = 8
