package rank

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/internal/ctxerr"
	"github.com/kolo-ccl/kolo/plan"
)

// Progress is how far one call of one rank has come: a call that was made and has not
// ended, or a transfer of a window. It is a look at a moment, and a value: two looks at a
// call say whether it moves (Stuck). That a call has begun on every rank says nothing of
// whether it will ever end.
type Progress struct {
	Group  string    // of a transfer empty
	Window string    // of a transfer the window's name
	Rank   kolo.Rank // of whom the call is, in the group; of a transfer in the world
	Call   kolo.Call // of a Send or Recv Root is the peer; of a transfer kolo.NoCollective
	Seq    uint64    // the call's number, of a collective; of a transfer that on its connection
	Tag    uint64    // of a Send or Recv; of a transfer its connection
	Phase  Phase
	// Since is when the rank began to wait for the call; zero if it does not wait yet, or
	// if nobody has noted it (messages and transfers without a Timeout).
	Since     time.Time
	Algorithm string // of a collective that runs
	// Steps are those of this rank's choreography, or the blocks of a medium; 0 where
	// nobody counts them. Bytes are what this rank sends and receives in the steps, or has
	// in the blocks.
	StepsDone, Steps int
	BytesDone, Bytes int64
	// Waits is all that the call waits for on this rank, and on whom.
	Waits []Wait
}

// Phase is the part of its way that a call is in.
type Phase uint8

// The phases of a call.
const (
	Ended     Phase = iota // only Work.Progress tells of such a call
	Queued                 // calls of the group before it have not ended
	Gathering              // ranks of this process, or the rank's stream, have not come to it
	Running                // its data moves, or should
)

// String is the phase in a word.
func (p Phase) String() string {
	switch p {
	case Ended:
		return "ended"
	case Queued:
		return "queued"
	case Gathering:
		return "gathering"
	case Running:
		return "running"
	}
	return fmt.Sprintf("Phase(%d)", uint8(p))
}

// Wait is one thing that a call waits for.
type Wait struct {
	// For is what: WaitCall, WaitStream, WaitEnd or WaitMedium, the opcode of a step (send,
	// recv, recv-reduce, copy, reduce, scale), of a message send or receive, of a transfer
	// put, get or notify.
	For   string
	Peers []kolo.Rank // ranks, of Progress.Group or the world, who are to do it; none: this rank's own engine or stream
	Step  int         // its index; -1: it is no step
	Bytes int64       // of a step, a message or a transfer
	// Carried is what the driver has carried between this rank and the peers since they
	// connected, in bytes, for all calls and with what it adds. It grows while a message is
	// on its way. 0 where the driver does not count.
	Carried int64
	// Last is what the peers of WaitCall did last and say that they do (World.Busy).
	Last string
}

// What a call waits for beside steps.
const (
	WaitCall   = "call"   // the peers have not made the call; only ranks of this process are listed
	WaitStream = "stream" // this rank's own stream has not come to the call
	WaitEnd    = "end"    // this rank's part is done, that of the peers, of this process, is not
	WaitMedium = "medium" // the peers have not done their part of what shared memory does
)

// String is the call, and what it waits for, in a sentence.
func (p Progress) String() string {
	var b strings.Builder
	switch {
	case p.Call.Collective == kolo.NoCollective:
		fmt.Fprintf(&b, "rank %d: transfer #%d of window %q, %v", int(p.Rank), p.Seq, p.Window, p.Phase)
	case isMessage(p.Call.Collective):
		fmt.Fprintf(&b, "rank %d: %v (tag %d) of group %q, %v", int(p.Rank), &p.Call, p.Tag, p.Group, p.Phase)
	default:
		fmt.Fprintf(&b, "rank %d: %v #%d of group %q, %v", int(p.Rank), &p.Call, p.Seq, p.Group, p.Phase)
	}
	if !p.Since.IsZero() {
		fmt.Fprintf(&b, " since %s", p.Since.Format("15:04:05.000"))
	}
	if p.Steps > 0 {
		fmt.Fprintf(&b, ", %d of %d steps of %s and %d of %d bytes done", p.StepsDone, p.Steps, p.Algorithm, p.BytesDone, p.Bytes)
	}
	for i := range p.Waits {
		fmt.Fprintf(&b, "; waits %v", &p.Waits[i])
	}
	return b.String()
}

// String is what is waited for, as a clause behind "waits".
func (w *Wait) String() string {
	switch w.For {
	case WaitCall:
		return fmt.Sprintf("for rank %s to make the call (%s)", kolo.RankList(w.Peers), w.Last)
	case WaitStream:
		return "for its stream to come to the call"
	case WaitEnd:
		return fmt.Sprintf("for rank %s to end its part", kolo.RankList(w.Peers))
	case WaitMedium:
		return fmt.Sprintf("for rank %s to do its part in shared memory", kolo.RankList(w.Peers))
	}
	text := fmt.Sprintf("(%s of %d bytes)", w.For, w.Bytes)
	if w.Step >= 0 {
		text = fmt.Sprintf("in step %d %s", w.Step, text)
	}
	if len(w.Peers) > 0 {
		text += " for rank " + kolo.RankList(w.Peers)
	}
	if w.Carried > 0 {
		text += fmt.Sprintf(", %d bytes carried so far", w.Carried)
	}
	return text
}

// is says whether two looks are at one call.
func (p *Progress) is(q *Progress) bool {
	same := p.Group == q.Group && p.Window == q.Window && p.Rank == q.Rank && p.Seq == q.Seq && p.Tag == q.Tag && p.Call.Collective == q.Call.Collective
	return same && (!isMessage(p.Call.Collective) || p.Call.Root == q.Call.Root && p.Since.Equal(q.Since))
}

// stands says whether nothing has moved between two looks at one call.
func (p *Progress) stands(q *Progress) bool {
	return p.Phase == q.Phase && p.StepsDone == q.StepsDone && p.BytesDone == q.BytesDone &&
		slices.EqualFunc(p.Waits, q.Waits, func(a, b Wait) bool {
			return a.For == b.For && a.Step == b.Step && a.Carried == b.Carried && slices.Equal(a.Peers, b.Peers)
		})
}

// Stuck lists the calls of a later look that were in an earlier one too and have not moved
// in between: no step or block has ended, no driver that counts has carried a byte, nobody
// who is waited for has come. Calls that are queued behind others are left out. Whether
// that is a fault is for the caller to say: it knows how long it has waited between the
// looks, how long a step of its size may take over its slowest link where the driver does
// not count, and for how long a rank may compute. Looks of different ranks may be joined.
func Stuck(earlier, later []Progress) []Progress {
	var list []Progress
	for i := range later {
		p := &later[i]
		if p.Phase == Queued {
			continue
		}
		if slices.ContainsFunc(earlier, func(q Progress) bool { return p.is(&q) && p.stands(&q) }) {
			list = append(list, *p)
		}
	}
	return list
}

// Progress lists the calls of this rank in all groups and the transfers of its windows that
// have been made and have not ended, by group, window and number. It asks the actors that have them, which answer at once and
// are not held up; a call that nobody looks at costs nothing for it. It returns by the end
// of ctx, and after a second at the latest, with what was answered by then and an error
// that names who has not: something blocks that actor, a driver most likely. Any goroutine
// may call it, as often as it likes. A transfer is listed by the rank that has asked for it.
func (w *World) Progress(ctx context.Context) ([]Progress, error) {
	return w.look(ctx, &query{}, w.Groups())
}

// Progress is World.Progress for the calls of one group.
func (g *Group) Progress(ctx context.Context) ([]Progress, error) {
	return g.world.look(ctx, &query{hub: g.hub}, []*Group{g})
}

// Progress is how far the call has come, on this rank; see World.Progress. The Phase of a
// call that has ended, or was refused, is Ended.
func (w Work) Progress(ctx context.Context) (Progress, error) {
	if w.t == nil || w.t.gen.Load() != w.gen || w.t.state.Load() == ticketDone {
		return Progress{}, nil
	}
	g := w.t.group
	list, err := g.world.look(ctx, &query{hub: g.hub, work: w}, []*Group{g})
	if len(list) == 0 {
		return Progress{}, err
	}
	return list[0], err
}

// lookTime is how long a look waits for the actors.
const lookTime = time.Second

// query is a look at the calls of a rank. It goes to the hubs of its groups, by them to
// the rank actor for what runs, and to the rank actor for its messages.
type query struct {
	rank kolo.Rank // in the world
	hub  *hub      // if set, for calls of that group only
	work Work      // if set, for that call only

	mu    sync.Mutex
	left  []string // who has not answered
	found []Progress
	done  chan struct{} // closed when all have answered
}

// runQuery asks the rank actor how far a run of the hub's is.
type runQuery struct {
	q   *query
	run *run
	p   Progress
}

func (*query) isHubMessage() {}
func (*query) isMessage()    {}
func (*runQuery) isMessage() {}

// look asks the hubs of groups and the rank actor.
func (w *World) look(ctx context.Context, q *query, groups []*Group) ([]Progress, error) {
	q.rank, q.done = w.rank, make(chan struct{})
	q.expect(w.actor.who()) // all before the first answers
	for _, g := range groups {
		q.expect(g.hub.who())
	}
	for _, g := range groups {
		g.hub.tell(nil, q)
	}
	w.actor.tell(nil, q)
	timer := time.NewTimer(lookTime)
	defer timer.Stop()
	var err error
	select {
	case <-q.done:
	case <-ctx.Done():
		err = ctxerr.Of(ctx)
	case <-timer.C:
		err = fmt.Errorf("%w: %v, a call into a driver or a device blocks it", kolo.ErrDeadline, lookTime)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	found := slices.Clone(q.found)
	slices.SortStableFunc(found, func(a, b Progress) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Window, b.Window), cmp.Compare(a.Seq, b.Seq), cmp.Compare(a.Tag, b.Tag))
	})
	if len(q.left) == 0 {
		return found, nil
	}
	return found, &kolo.Error{Rank: w.rank, Peer: kolo.NoRank, Err: fmt.Errorf("no answer from %s: %w", strings.Join(q.left, ", "), err)}
}

// answer adds what one actor knows.
func (q *query) answer(who string, list ...Progress) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := slices.Index(q.left, who); i >= 0 {
		q.left = slices.Delete(q.left, i, i+1)
	}
	if q.found = append(q.found, list...); len(q.left) == 0 {
		close(q.done)
	}
}

// wants says whether the query is for a call.
func (q *query) wants(t *ticket) bool {
	return q.work.t == nil || q.work.t == t && t.gen.Load() == q.work.gen
}

// expect adds one who will answer.
func (q *query) expect(who string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.left = append(q.left, who)
}

// who is the hub in the words of an error.
func (h *hub) who() string { return fmt.Sprintf("the hub of group %q", h.key.name) }

// who is the actor in the words of an error.
func (a *rankActor) who() string { return fmt.Sprintf("the actor of %v", a.rank) }

// progress is the head of a look at a call.
func (t *ticket) progress(phase Phase) Progress {
	p := Progress{Group: t.group.Name(), Rank: t.group.rank, Call: t.call, Phase: phase}
	p.Call.Counts, p.Call.RecvCounts = slices.Clone(p.Call.Counts), slices.Clone(p.Call.RecvCounts)
	if isMessage(t.call.Collective) {
		p.Tag = t.tag
		return p
	}
	p.Seq = t.seq
	if d := t.since.Load(); d != 0 {
		p.Since = t.group.hub.p.began.Add(time.Duration(d - 1))
	}
	return p
}

// look answers for the collectives of a rank. Calls that the hub has not taken are looked
// at where they are, so that those which follow meet as if nobody had looked.
func (h *hub) look(q *query) {
	me := kolo.Rank(slices.Index(h.ranks, q.rank))
	var list []Progress
	for _, s := range h.held {
		if t := s.t; t.group.rank == me && q.wants(t) {
			p := t.progress(Gathering)
			p.Waits = []Wait{{For: WaitStream, Step: -1}}
			list = append(list, p)
		}
	}
	for i := range max(len(h.rounds), arrivalsAhead) {
		t := h.comeTo(i, me)
		if t == nil || !q.wants(t) {
			continue
		}
		p := t.progress(Queued)
		switch {
		case i > 0:
		case !h.running:
			p.Phase, p.Waits = Gathering, h.waitsForCalls()
		default:
			p.Phase = Running
			if h.lookAtRound(q, &p) {
				continue
			}
		}
		list = append(list, p)
	}
	q.answer(h.who(), list...)
}

// comeTo is the call of rank r in the i-th pending round, or nil if it has not come. While
// the hub has its turn, a place that is open stays so, and nobody takes a call back from it.
func (h *hub) comeTo(i int, r kolo.Rank) *ticket {
	if i < len(h.rounds) && h.rounds[i].tickets[r] != nil {
		return h.rounds[i].tickets[r]
	}
	if i >= arrivalsAhead {
		return nil
	}
	seq := h.base + uint64(i)
	a := h.placeFor(seq, r)
	return a.come(a.state.Load(), seq, r)
}

// waitsForCalls is who has not made the call that is next.
func (h *hub) waitsForCalls() []Wait {
	w := Wait{For: WaitCall, Step: -1}
	var last []string
	for _, r := range h.mine {
		if h.comeTo(0, r) != nil {
			continue
		}
		switch w.Peers = append(w.Peers, r); {
		case len(last) < maxWaits && h.heldBy(r, h.base):
			last = append(last, fmt.Sprintf("rank %d has called, and its stream has not come to the call", int(r)))
		case len(last) < maxWaits:
			last = append(last, fmt.Sprintf("rank %d last called%s", int(r), strings.TrimPrefix(h.lastCallOf(int(r)), " after")))
		case len(last) == maxWaits:
			last = append(last, "and so on")
		}
	}
	if h.far != nil && len(w.Peers) == 0 { // Strict: the other processes have not said what they call
		for i, q := range h.far.where {
			if !h.isMine(kolo.Rank(i)) && h.far.heard[h.base][q] == nil {
				w.Peers = append(w.Peers, kolo.Rank(i))
			}
		}
		last = append(last, "their processes have not told of it")
	}
	if w.Last = strings.Join(last, "; "); len(w.Peers) == 0 {
		return nil
	}
	return []Wait{w}
}

// lookAtRound looks at the round that runs. It is true if the rank actor answers.
func (h *hub) lookAtRound(q *query, p *Progress) bool {
	byRuns := false
	var behind []kolo.Rank
	for _, r := range h.runs {
		if !r.over {
			byRuns, behind = true, append(behind, r.rank)
		}
	}
	switch {
	case h.far != nil && h.far.posted:
		p.Algorithm = fabricName
		h.far.lookAtBoard(p)
	case byRuns:
		r := h.runs[h.slot(p.Rank)]
		if !r.over {
			m := &runQuery{q: q, run: r, p: *p}
			q.expect(r.actor.who())
			r.actor.tell(h.shard, m)
			return true
		}
		p.Algorithm, p.StepsDone, p.Steps = r.program.Algorithm, len(r.program.Steps), len(r.program.Steps)
		p.Waits = []Wait{{For: WaitEnd, Peers: behind, Step: -1}}
	default:
		p.Algorithm = fabricName
		if h.p.engine == h.p.host { // which counts
			done, all := h.job.Blocks()
			p.blocks(h.rounds[0].tickets[p.Rank], done, all)
		}
	}
	return false
}

// blocks notes how many blocks of a round by a medium are done.
func (p *Progress) blocks(t *ticket, done, all int64) {
	if all > 0 {
		p.StepsDone, p.Steps = int(done), int(all)
		p.Bytes = t.size()
		p.BytesDone = p.Bytes / all * done
	}
}

// lookAtBoard looks at a round between processes that goes by their shared memory.
func (f *far) lookAtBoard(p *Progress) {
	b, ok := f.board.(channel.Gauge)
	if !ok || !f.given {
		return
	}
	done, all, behind := b.Level(f.h.shard)
	p.blocks(f.h.rounds[0].tickets[p.Rank], done, all)
	w := Wait{For: WaitMedium, Step: -1}
	for _, i := range behind {
		w.Peers = append(w.Peers, kolo.Rank(i))
	}
	if len(w.Peers) > 0 {
		p.Waits = []Wait{w}
	}
}

// look answers for a run, unless it has ended: it may be the hub's again then.
func (m *runQuery) look() {
	if r := m.run; r.live && r.ticket.seq == m.p.Seq {
		r.look(&m.p)
	}
	m.q.answer(m.run.actor.who(), m.p)
}

// look notes which steps have ended and what the others that have begun wait for. It is
// called on the rank's shard.
func (r *run) look(p *Progress) {
	p.Algorithm = r.program.Algorithm
	p.StepsDone, p.Steps = r.machine.Progress()
	for i := range r.program.Steps {
		st := &r.program.Steps[i]
		n := r.bytesOf(st)
		p.Bytes += n * int64(len(st.Peers))
		if begun, ended := r.machine.State(i); ended {
			p.BytesDone += n * int64(len(st.Peers))
		} else if begun {
			w := Wait{For: st.Op.String(), Step: i, Bytes: n}
			for _, q := range st.Peers {
				peer := r.program.Peer(q)
				w.Peers = append(w.Peers, peer)
				w.Carried += r.actor.carried(r.hub.ranks[peer])
			}
			p.Waits = append(p.Waits, w)
		}
	}
}

// bytesOf is how much a step sends to or takes from each of its peers, or moves.
func (r *run) bytesOf(st *plan.Step) (n int64) {
	spans := st.Dst
	if st.Op == plan.Send {
		spans = st.Src
	}
	r.segs = r.layout.Segments(r.segs[:0], r.program.Program, spans)
	for _, s := range r.segs {
		n += s.Len
	}
	return n
}

// carried is what the driver says that it has carried between the rank and a peer.
func (a *rankActor) carried(peer kolo.Rank) int64 {
	if c := a.channels[peer]; c != nil {
		return c.Carried()
	}
	return 0
}

// look answers for the messages and the transfers of the rank.
func (a *rankActor) look(q *query) {
	var list []Progress
	for _, t := range a.messages {
		if q.hub != nil && q.hub != t.group.hub || !q.wants(t) {
			continue
		}
		p := t.progress(Running)
		p.Since = t.issued
		w := Wait{For: channel.Send.String(), Step: -1, Peers: []kolo.Rank{t.call.Root}, Bytes: t.op.Size, Carried: a.carried(t.group.hub.ranks[t.call.Root])}
		if t.call.Collective == kolo.Recv {
			w.For = channel.Recv.String()
		}
		p.Bytes, p.Waits = t.op.Size, []Wait{w}
		list = append(list, p)
	}
	if q.hub == nil {
		for _, g := range a.targets {
			for _, x := range g.open {
				list = append(list, a.lookAtTransfer(x))
			}
		}
	}
	q.answer(a.who(), list...)
}

// lookAtTransfer is how far a transfer is that this rank has asked for. Its end is the
// peer's word, or the engine's where that reaches both.
func (a *rankActor) lookAtTransfer(x *Transfer) Progress {
	g := x.target
	p := Progress{Window: g.win.name, Rank: a.rank, Seq: x.id, Tag: g.conn, Phase: Running, Bytes: x.size}
	w := Wait{For: transferNames[x.kind], Step: -1, Bytes: x.size}
	if g.there == nil {
		w.Peers, w.Carried = []kolo.Rank{g.peer}, a.carried(g.peer)
	}
	if !x.deadline.IsZero() {
		p.Since = x.deadline.Add(-g.win.timeout)
	}
	p.Waits = []Wait{w}
	return p
}
