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
// messages, and to the other hubs, for their collectives. All answer at once, as no
// handler waits for anything; the group fails without an answer that is late, since
// a deadline holds whatever may be stuck.
type inquiry struct {
	hub   *hub
	err   *kolo.Error // for which the group will fail
	about []kolo.Rank // world ranks
	end   time.Time   // of the patience with late answers

	mu    sync.Mutex
	left  int // answers to come
	found []string
}

func (*inquiry) isMessage()    {}
func (*inquiry) isHubMessage() {}

// inquiryTime is how long a hub waits for late answers.
const inquiryTime = 100 * time.Millisecond

// inquire fails the group with e when it is known what the ranks about are doing.
func (h *hub) inquire(e *kolo.Error, about []kolo.Rank) {
	if h.failed != nil || h.asking != nil {
		return
	}
	q := &inquiry{hub: h, err: e, end: h.p.now().Add(inquiryTime)}
	for _, r := range about {
		q.about = append(q.about, h.ranks[r])
	}
	var hubs []*hub
	for _, o := range h.p.allHubs() {
		if o != h && slices.ContainsFunc(q.about, func(w kolo.Rank) bool { return slices.Contains(o.ranks, w) }) {
			hubs = append(hubs, o)
		}
	}
	h.asking = q
	h.p.watch.arm(q.end)
	q.left = len(hubs) + len(q.about)
	for _, o := range hubs {
		o.tell(h.shard, q)
	}
	for _, w := range q.about {
		h.p.actors[w].tell(h.shard, q)
	}
}

// answer adds what one actor knows; from is its turn.
func (q *inquiry) answer(from *actor.Shard, lines ...string) {
	q.mu.Lock()
	q.left--
	q.found = append(q.found, lines...)
	last := q.left == 0
	q.mu.Unlock()
	if last {
		q.hub.tell(from, q)
	}
}

// answered fails the group with all that was found.
func (h *hub) answered() {
	q := h.asking
	h.asking = nil
	q.mu.Lock()
	found := slices.Sorted(slices.Values(q.found))
	q.mu.Unlock()
	if more := len(found) - maxWaits; more > 0 {
		found = append(found[:maxWaits], fmt.Sprintf("and %d more", more))
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
			missing, _ := h.missing(rd, h.base+uint64(i))
			lines = append(lines, fmt.Sprintf("world rank %d waits in %v #%d of group %q, where rank %s not arrived",
				int(h.ranks[r]), &t.call, h.base+uint64(i), h.key.name, haveNot(missing)))
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
