package cluster

import (
	"fmt"
	"slices"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/internal/cover"
)

// Who is left is agreed on. A process that is gone is missed by all others, each by
// itself. Where only the link between two processes breaks, these miss each other and the
// rest misses nobody; so each process tells those that it reaches whom it has lost, and
// one that reaches both ends of a broken link sees that one of them must go:
//
//   - It waits until both ends have been heard after the news, and settle long: who is
//     really gone is missed by then.
//   - As few go as can be so that no broken link is left, and of equal choices those with
//     the higher numbers (cover.Fewest).
//   - It tells everybody, the one that goes first of all. Whoever hears of it from a process
//     that it reaches does the same. That is never taken back, so that processes which have
//     heard the news in different orders end with the same members.
//   - Who is told that it goes has lost all others, and World.Shrink says so.
//
// Where nobody reaches both sides the network has fallen in parts. A part whose ranks are
// more than those that have fallen silent goes on; where they are equally many, the one with the lowest
// rank does. World.Shrink of the others says so. Who is known to have ended, or is stopped on
// the same network, does not count: only what may go on elsewhere does.

// suspicion is what a process tells of the others.
type suspicion struct {
	Cut []int       // whose links to it have broken
	Out []expulsion // who goes
}

// expulsion is a process that goes although it lives.
type expulsion struct {
	Process int
	Why     string
}

// settles is the part of Config.Silence that a broken link between two others must be
// known for.
const settles = 4

// share tells the others whom this process has lost.
func (h *heart) share() {
	var s suspicion
	for q, state := range h.state {
		if state == lost {
			s.Cut = append(s.Cut, q)
		}
	}
	s.Out = h.out
	b := encode(s)
	for q, l := range h.p.everyLink() {
		if l != nil && h.state[q] == alive {
			l.frame(frameSuspicion, b)
		}
	}
}

// hear takes note of what another process tells.
func (h *heart) hear(from int, s *suspicion) {
	if h.state[from] != alive {
		return
	}
	other := func(q int) bool { return q >= 0 && q < len(h.state) && q != from }
	for _, x := range s.Out {
		switch {
		case !other(x.Process):
		case x.Process == h.p.self:
			h.leave(from, x.Why)
			return
		case h.state[x.Process] == alive:
			h.expel(x.Process, x.Why)
		}
	}
	for _, q := range s.Cut {
		edge := [2]int{min(q, from), max(q, from)}
		if _, known := h.cut[edge]; other(q) && q != h.p.self && !known {
			h.cut[edge] = cutLink{time.Now(), h.heardOf(edge)}
		}
	}
}

// cutLink is what is known of a link between two others of which one has told that it has broken.
type cutLink struct {
	since time.Time
	heard [2]uint64 // how many frames of its ends had come then
}

// heardOf is how many frames of two processes have come, 0 of one that has no link.
func (h *heart) heardOf(pair [2]int) (n [2]uint64) {
	for i, q := range pair {
		if l := h.p.links[q].Load(); l != nil {
			n[i] = l.heard.Load()
		}
	}
	return n
}

// decide expels who has to go for links between others that have broken.
func (h *heart) decide(now time.Time) {
	var edges [][2]int
	for edge, cut := range h.cut {
		ripe := now.Sub(cut.since) >= h.silence/settles
		for i, n := range h.heardOf(edge) {
			ripe = ripe && h.state[edge[i]] == alive && n > cut.heard[i]
		}
		if ripe {
			edges = append(edges, edge)
		}
	}
	for _, q := range cover.Fewest(edges) {
		var others []kolo.Rank
		for _, edge := range edges {
			if i := slices.Index(edge[:], q); i >= 0 {
				others = append(others, h.p.roster.Members[edge[1-i]].Ranks...)
			}
		}
		slices.Sort(others)
		h.expel(q, fmt.Sprintf("its link to rank %s has broken, and of the ends of broken links as few go as can be, of equal choices the higher", kolo.RankList(others)))
	}
}

// expel makes a process go that lives, and tells it and the others.
func (h *heart) expel(q int, why string) {
	h.out = append(h.out, expulsion{q, why})
	h.share() // q is among those that hear it
	h.state[q] = lost
	h.cause[q] = fmt.Errorf("%w: %v was left out: %s", kolo.ErrLost, &h.p.roster.Members[q], why)
	if l := h.p.everyLink()[q]; l != nil {
		l.farewell()
		cause := h.cause[q]
		// ended by shut, or soon
		h.p.tasks.Go(func() {
			t := time.NewTimer(farewellTime)
			defer t.Stop()
			select {
			case <-l.ended: // it has heard it and hung up; to do so before could overtake what was sent
			case <-t.C:
			case <-h.p.closing:
			}
			l.close(cause)
		})
	}
	h.tell(q)
}

// outvoted is why this process may not go on with those whom it reaches: those whom it
// does not may be as many, and go on.
func (h *heart) outvoted() error {
	var reached, silent []kolo.Rank
	for q, state := range h.state {
		ranks := h.p.roster.Members[q].Ranks
		switch {
		case q == h.p.self || state == alive:
			reached = append(reached, ranks...)
		case h.mute[q]:
			silent = append(silent, ranks...)
		}
	}
	if hasMajority(reached, silent) {
		return nil
	}
	slices.Sort(reached)
	slices.Sort(silent)
	return fmt.Errorf("%w: %w: this process was left out of the world: it reaches rank %s, and rank %s, which has fallen silent, may go on without it; of a network in parts the one with more ranks does, or of equal ones that with the lowest rank",
		kolo.ErrLeftOut, kolo.ErrLost, kolo.RankList(reached), kolo.RankList(silent))
}

// hasMajority says which part of a network goes on.
func hasMajority(reached, silent []kolo.Rank) bool {
	if len(reached) == len(silent) {
		return slices.Min(reached) < slices.Min(silent)
	}
	return len(reached) > len(silent)
}

// leave takes note that the others have left this process out.
func (h *heart) leave(by int, why string) {
	if !h.started {
		return
	}
	cause := fmt.Errorf("%w: %w: this process was left out of the world by %v: %s", kolo.ErrLeftOut, kolo.ErrLost, &h.p.roster.Members[by], why)
	h.p.local.LeftOut(cause)
	for q, l := range h.p.everyLink() {
		if l == nil || h.state[q] != alive {
			continue
		}
		h.state[q], h.cause[q] = lost, cause
		l.close(cause)
		h.tell(q)
	}
}
