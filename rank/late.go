package rank

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kolo-ccl/kolo"
)

// whoIsLate fails the group for a round that has taken too long, when the other
// processes have said which of their ranks have come to it.
func (f *far) whoIsLate(e *kolo.Error, rd *round, cause error) {
	h := f.h
	q := &inquiry{hub: h, err: e, late: &lateCall{*rd.firstCall(), cause}}
	var there []kolo.Rank
	for i := range h.ranks {
		switch {
		case !h.isMine(kolo.Rank(i)):
			there = append(there, kolo.Rank(i))
		case rd.tickets[i] == nil:
			q.about = append(q.about, h.ranks[i])
		}
	}
	h.startInquiry(q, there)
}

// late makes the error of a late call of what the processes have answered. It is false
// if the call has ended by itself.
func (f *far) late(q *inquiry, states []state, silent []int) bool {
	h, e := f.h, q.err
	if e.Seq < h.base || h.failed != nil {
		return false
	}
	var arrived []bool
	missing, parts := f.lateRanks(e.Seq, states, silent, &arrived)
	came := 0
	for _, a := range arrived {
		if a {
			came++
		}
	}
	if len(missing) == 0 {
		e.Err = fmt.Errorf("%w, all ranks that answer have called, but the data has not come through", q.late.cause)
		if len(h.runs) > 0 && h.running {
			h.stall = e
		}
		return true
	}
	if e.Ranks = missing; len(missing) == 1 {
		e.Peer = missing[0]
	}
	e.Err = fmt.Errorf("%w, rank %s not arrived (%s); %d of %d ranks wait in %v",
		q.late.cause, haveNot(missing), strings.Join(parts, "; "), came, len(h.ranks), &q.late.call)
	return true
}

// lateRanks lists the ranks that have not come to a call, with what they did last, and
// marks those that have. Ranks of silent processes are neither.
func (f *far) lateRanks(seq uint64, states []state, silent []int, arrived *[]bool) (missing []kolo.Rank, parts []string) {
	h := f.h
	*arrived = make([]bool, len(h.ranks))
	last := make([]string, len(h.ranks))
	for _, s := range states {
		if s.rank >= 0 && int(s.rank) < len(last) && !h.isMine(s.rank) {
			(*arrived)[s.rank], last[s.rank] = s.arrived, s.last
		}
	}
	i := int(seq - h.base)
	for r := range h.ranks {
		if h.isMine(kolo.Rank(r)) {
			(*arrived)[r] = i < len(h.rounds) && h.rounds[i].tickets[r] != nil
			last[r] = strings.TrimPrefix(h.lastCallOf(r), " after")
			if h.heldBy(kolo.Rank(r), seq) {
				last[r] += ", and its stream has not come to the call"
			}
		}
		if (*arrived)[r] || slices.Contains(silent, f.where[r]) {
			continue
		}
		if last[r] == "" {
			last[r] = " nothing: it has not made the group"
		}
		switch missing = append(missing, kolo.Rank(r)); {
		case len(parts) < maxWaits:
			parts = append(parts, fmt.Sprintf("rank %d last called%s", r, last[r]))
		case len(parts) == maxWaits:
			parts = append(parts, "and so on")
		}
	}
	return missing, parts
}

// silent says which processes have not answered.
func (f *far) silent(procs []int) string {
	slices.Sort(procs)
	var parts []string
	for _, p := range procs {
		var ranks []kolo.Rank
		for i, q := range f.where {
			if q == p {
				ranks = append(ranks, kolo.Rank(i))
			}
		}
		if len(parts) < maxWaits {
			parts = append(parts, kolo.RankList(ranks))
		}
	}
	return fmt.Sprintf("no answer within %v from the process of rank %s", farTime, strings.Join(parts, ", nor from that of rank "))
}
