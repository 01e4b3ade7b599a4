package rank

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/actor"
)

// inquiry is a question of a hub whose call is past its deadline: what are the ranks
// waiting for that have not come? It goes to the actors of those ranks, for their
// messages, to the other hubs, for their collectives, and to the processes of ranks
// that are elsewhere, each of which makes an inquiry of its own and sends the answer.
// All answer at once, as no handler waits for anything; the group fails without an
// answer that is late, since a deadline holds whatever may be stuck.
type inquiry struct {
	hub   *hub        // that asks; nil: another process
	err   *kolo.Error // for which the group will fail
	late  *lateCall   // of a group that spans processes
	about []kolo.Rank // world ranks
	end   time.Time   // of the patience with late answers
	done  func(from *actor.Shard)

	mu      sync.Mutex
	left    int // answers to come
	found   []string
	states  []state
	awaited map[uint64]int // by token: the processes that have not answered
}

// lateCall is a call of a group that spans processes, and why it is asked for.
type lateCall struct {
	call  kolo.Call
	cause error
}

func (*inquiry) isMessage()    {}
func (*inquiry) isHubMessage() {}

// inquiryTime is how long a hub waits for late answers within the process.
const inquiryTime = 100 * time.Millisecond

// inquire fails the group with e when it is known what the ranks about are doing.
func (h *hub) inquire(e *kolo.Error, about []kolo.Rank) {
	q := &inquiry{hub: h, err: e}
	var there []kolo.Rank
	for _, r := range about {
		if q.about = append(q.about, h.ranks[r]); !h.isMine(r) {
			there = append(there, r)
		}
	}
	h.startInquiry(q, there)
}

// startInquiry asks, also the processes of the ranks there.
func (h *hub) startInquiry(q *inquiry, there []kolo.Rank) {
	if h.failed != nil || h.asking != nil {
		return
	}
	patience := inquiryTime
	if len(there) > 0 {
		patience = farTime
	}
	q.end = h.p.now().Add(patience)
	q.done = func(from *actor.Shard) { h.tell(from, q) }
	h.asking = q
	h.p.watch.arm(q.end)
	q.left = 1 // until all have been asked
	if len(there) > 0 {
		h.p.outside.send(q, h, there)
		q.about = h.p.outside.local(q.about)
	}
	q.ask(h.p, h.shard, h)
	q.answer(h.shard)
}

// ask asks the actors of this process; turn is that of who asks.
func (q *inquiry) ask(p *process, turn *actor.Shard, except *hub) {
	var hubs []*hub
	for _, o := range p.allHubs() {
		if o != except && slices.ContainsFunc(q.about, func(w kolo.Rank) bool { return slices.Contains(o.ranks, w) }) {
			hubs = append(hubs, o)
		}
	}
	q.mu.Lock()
	q.left += len(hubs) + len(q.about) + 1
	q.mu.Unlock()
	for _, o := range hubs {
		o.tell(turn, q)
	}
	for _, w := range q.about {
		p.actors[w].tell(turn, q)
	}
	q.answer(turn)
}

// answer adds what one actor knows; from is its turn.
func (q *inquiry) answer(from *actor.Shard, lines ...string) {
	q.mu.Lock()
	q.left--
	q.found = append(q.found, lines...)
	last := q.left == 0
	q.mu.Unlock()
	if last {
		q.done(from)
	}
}

// answered fails the group with all that was found.
func (h *hub) answered() {
	q := h.asking
	h.asking = nil
	q.mu.Lock()
	found, states := slices.Sorted(slices.Values(q.found)), slices.Clone(q.states)
	var silent []int
	for _, p := range q.awaited {
		silent = append(silent, p)
	}
	q.mu.Unlock()
	if h.far != nil {
		h.p.outside.forget(q)
	}
	if more := len(found) - maxWaits; more > 0 {
		found = append(found[:maxWaits], fmt.Sprintf("and %d more", more))
	}
	if q.late != nil && !h.far.late(q, states, silent) {
		return
	}
	if len(silent) > 0 {
		found = append(found, h.far.silent(silent))
	}
	if len(found) > 0 {
		q.err.Err = fmt.Errorf("%w; %s", q.err.Err, strings.Join(found, "; "))
	}
	h.fail(q.err)
}

// inquired answers for the collectives of another group, or hears that all have
// answered.
func (h *hub) inquired(q *inquiry) {
	if q.hub == h {
		if h.asking == q && h.failed == nil {
			h.answered()
		}
		return
	}
	var lines []string
	for i, rd := range h.rounds {
		for r, t := range rd.tickets {
			if t == nil || !slices.Contains(q.about, h.ranks[r]) || rd.arrived == len(h.ranks) {
				continue
			}
			line := fmt.Sprintf("world rank %d waits in %v #%d of group %q", int(h.ranks[r]), &t.call, h.base+uint64(i), h.key.name)
			if missing, _ := h.missing(rd, h.base+uint64(i)); len(missing) > 0 {
				line += fmt.Sprintf(", where rank %s not arrived", haveNot(missing))
			}
			lines = append(lines, line)
		}
	}
	q.answer(h.shard, lines...)
}

// inquired answers for the messages of a rank.
func (a *rankActor) inquired(q *inquiry) {
	var lines []string
	for _, t := range a.messages {
		to := "to"
		if t.call.Collective == kolo.Recv {
			to = "from"
		}
		lines = append(lines, fmt.Sprintf("world rank %d waits in %v %s rank %d of group %q (tag %d)",
			int(a.rank), &t.call, to, int(t.call.Root), t.group.Name(), t.tag))
	}
	q.answer(a.shard, lines...)
}
