package rank

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/actor"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/plan"
)

// hub is the actor of one group in one process. All calls of the group meet here:
// it compares them, chooses the algorithm, lets the medium or the rank actors do the
// work, one collective at a time, and it alone decides that the group has failed.
//
//	          ticket of each rank          all are here: check, choose
//	collecting ------------------> complete -------------------------> running
//	     ^                                                                |
//	     |                 tickets resolved, next round                   |
//	     +-------------------------- job done, or every run ended <-------+
//
// A failure ends the running round as soon as no rank's memory is in use, and all
// other rounds at once. A hub that has failed stays so.
type hub struct {
	p     *process
	key   hubKey
	id    uint64
	ranks []kolo.Rank // world ranks, by group rank
	cfg   GroupConfig
	topo  *plan.Topology
	plans plans
	mine  []kolo.Rank // the members in this process, by group rank, ascending
	far   *far        // the hubs of the other processes; nil if there are none

	shard *actor.Shard
	self  actor.Ref[hubMessage]

	places  []arrivals // where the calls of base and the next come, by call number: see placesOf
	rounds  []*round   // pending, by call number from base on
	base    uint64
	gaveWay atomic.Int64  // when the ranks last gave way to less urgent jobs, in ns since the process began
	passed  atomic.Uint64 // base, of every passedEach-th
	spare   []*round
	running bool // rounds[0] is being done
	_       [cacheLine]byte
	job     channel.Job // with no word near that each call writes: the engine's workers read it
	_       [cacheLine]byte
	made    []askedBy // the calls that job was made of, if a round of the same needs no look at them
	large   bool      // of each of them the ranks would help the engine while they wait
	jobHere bool      // the job has ended inside Start
	jobDone jobDone
	runs    []*run
	members []member
	seen    []spans // buffers that were checked for overlap
	apart   []owned // tensors that were
	left    int
	leftOf  int           // of mine
	held    []*streamCall // calls whose streams have not come to them

	failed error
	asking *inquiry // the group is about to fail
	// When a failed round is no longer waited for.
	patience time.Time
	stall    *kolo.Error // the failure is that the data stands still
	broken   atomic.Pointer[error]
	gone     []atomic.Pointer[kolo.Error] // of ranks that have left: how
	lastOf   kolo.Call                    // the call of the latest round that ended
}

// passedEach is after how many calls the ranks are told how many have ended.
const passedEach = 64

type hubKey struct {
	name string
	nth  int
}

// member is what the hub knows of one rank.
type member struct {
	joined atomic.Bool
	left   bool
	lost   bool   // with its process
	cause  error  // why it left, nil for a clean exit
	calls  uint64 // collective calls seen
	site   site   // of the latest, if Config.Diagnose says so
}

// round is one collective call of the group: the tickets of its ranks.
type round struct {
	tickets []*ticket
	arrived int
	turns   int       // of them whose ranks take turns
	kept    int       // of them that use the ticket that a group keeps, and are waited for without the engine
	streams int       // of them that are between streams
	told    bool      // the other processes have been told of it
	warned  bool      // Config.Warned knows
	opened  time.Time // when the first rank began to wait; zero until the hub asks
	ended   int       // runs that have ended
	cause   error
}

// hubMessage is what a hub handles.
type hubMessage interface{ isHubMessage() }

func (*ticket) isHubMessage()        {} // a rank has made a call
func (*run) isHubMessage()           {} // a rank's run has ended
func (*failure) isHubMessage()       {}
func (*leave) isHubMessage()         {}
func (tick) isHubMessage()           {}
func (*jobDone) isHubMessage()       {}
func (*vectorsStaged) isHubMessage() {}
func (*parcel) isHubMessage()        {}
func (*lostProcess) isHubMessage()   {}
func (*replan) isHubMessage()        {}

// failure fails the group.
type failure struct {
	err  error
	dead bool       // the actor of rank has ended: its run will not
	rank kolo.Rank  // in the group
	why  func(*hub) // if set, called in place of failing with err
}

// leave says that a rank has left, with a cause if it failed.
type leave struct {
	rank  kolo.Rank
	cause error
	calls uint64        // of a rank in another process: the collectives that it has made
	done  chan struct{} // if set, closed when the hub has taken note
}

// tick asks to look at the deadlines.
type tick struct{}

// jobDone says that the medium has done the running round.
type jobDone struct{ err error }

// join makes g a member of the hub under key, which is made by the first. An error
// with a hub says that the members disagree: the hub is to be told.
func (p *process) join(key hubKey, c GroupConfig, g *Group) (*hub, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.outside != nil {
		p.outside.made[g.world.rank].set(key.name, key.nth+1)
	}
	list := p.hubs[key]
	i := slices.IndexFunc(list, func(h *hub) bool {
		return slices.ContainsFunc(h.ranks, func(r kolo.Rank) bool { return slices.Contains(c.Ranks, r) })
	})
	if i < 0 {
		h, err := p.newHub(key, c)
		if err != nil {
			return nil, err
		}
		i, list = len(list), append(list, h)
		p.hubs[key] = list
	}
	h := list[i]
	if err := h.sameGroup(c, g.world.rank); err != nil {
		return h, err
	}
	h.members[g.rank].joined.Store(true)
	return h, nil
}

// allHubs lists the hubs of the process.
func (p *process) allHubs() []*hub {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []*hub
	for _, list := range p.hubs {
		all = append(all, list...)
	}
	return all
}

// forget takes a hub out of the list, which all its members have left.
func (p *process) forget(h *hub) {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := slices.DeleteFunc(p.hubs[h.key], func(x *hub) bool { return x == h })
	if p.hubs[h.key] = list; len(list) == 0 {
		delete(p.hubs, h.key)
	}
	if h.far != nil {
		delete(p.outside.hubs, h.id)
	}
}

func (p *process) newHub(key hubKey, c GroupConfig) (*hub, error) {
	n := len(c.Ranks)
	c.Ranks = slices.Clone(c.Ranks)
	if c.Timeout == 0 {
		c.Timeout = p.cfg.Timeout
	}
	if c.Algorithm == "" {
		c.Algorithm = p.cfg.Algorithm
	}
	h := &hub{p: p, key: key, ranks: c.Ranks, cfg: c,
		members: make([]member, n), gone: make([]atomic.Pointer[kolo.Error], n), seen: make([]spans, n)}
	if err := h.place(); err != nil {
		return nil, err
	}
	h.shard = p.sys.NewShard("hub " + key.name)
	h.job.Priority = c.Priority
	h.job.Done = h.jobEnded
	ref, err := actor.Spawn[hubMessage](h.shard, actor.Props{Name: "hub " + key.name, Limit: 1 << 24, OnExit: h.exited, Dropped: h.dropped}, h)
	if err != nil {
		return nil, fmt.Errorf("new group %q: %w", key.name, err)
	}
	h.self = ref
	for i, r := range h.ranks {
		if d := p.parted[r]; d != nil { // p.mu is held: nobody else knows the hub yet
			h.members[i].left, h.members[i].lost, h.members[i].cause = true, d.lost, d.cause
			h.gone[i].Store(h.leftError(kolo.Rank(i), nil, 0))
			h.left++
		}
	}
	h.openPlaces()
	if h.far != nil {
		p.outside.opened(h)
	}
	return h, nil
}

// sameGroup says how c differs from what the first member made; p.mu is held.
func (h *hub) sameGroup(c GroupConfig, who kolo.Rank) error {
	var diff string
	switch {
	case !slices.Equal(c.Ranks, h.ranks):
		diff = fmt.Sprintf("ranks [%s] instead of [%s]", kolo.RankList(c.Ranks), kolo.RankList(h.ranks))
		if i := firstDifference(c.Ranks, h.ranks); i >= maxListed {
			diff += fmt.Sprintf(", which begin to differ at Ranks[%d]", i)
		}
	case c.Algorithm != "" && c.Algorithm != h.cfg.Algorithm, c.Algorithm == "" && h.cfg.Algorithm != h.p.cfg.Algorithm:
		diff = fmt.Sprintf("algorithm %q instead of %q", c.Algorithm, h.cfg.Algorithm)
	case c.Timeout != 0 && c.Timeout != h.cfg.Timeout, c.Timeout == 0 && h.cfg.Timeout != h.p.cfg.Timeout:
		diff = fmt.Sprintf("timeout %v instead of %v", c.Timeout, h.cfg.Timeout)
	case c.Priority != h.cfg.Priority:
		diff = fmt.Sprintf("priority %d instead of %d", c.Priority, h.cfg.Priority)
	default:
		return nil
	}
	return &kolo.Error{Group: h.key.name, Rank: who, Peer: kolo.NoRank, Ranks: []kolo.Rank{who},
		Err: fmt.Errorf("%w: world rank %d makes the group with %s", kolo.ErrMismatch, int(who), diff)}
}

// firstDifference is the first index at which two lists differ.
func firstDifference(a, b []kolo.Rank) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

// tell sends a message from the turn of a shard, or from outside with nil. A hub
// that has ended has resolved every ticket it took; one that comes later is resolved
// here.
func (h *hub) tell(from *actor.Shard, m hubMessage) {
	if err := h.self.From(from).Tell(m); err != nil {
		h.refuse(from, m, err)
	}
}

// refuse answers a message that the hub did not handle.
func (h *hub) refuse(from *actor.Shard, m hubMessage, err error) {
	switch m := m.(type) {
	case *ticket:
		if e := h.broken.Load(); e != nil {
			err = *e
		}
		if m.stream != nil {
			m.stream.turn = from
		}
		m.resolve(m.dress(err))
	case *held:
		h.refuse(from, m.s.t, err)
	case *inquiry:
		if m.hub != h {
			m.answer(from)
		}
	case *query:
		m.answer(h.who())
	case *leave:
		if m.done != nil {
			close(m.done)
		}
	case *replan:
		m.answer(err)
	}
}

// dropped answers a message that the hub took and did not live to handle.
func (h *hub) dropped(m any, err error) { h.refuse(h.shard, m.(hubMessage), err) }

// exited is called when the actor has ended, by a panic or by stop.
func (h *hub) exited(err error) {
	if err == nil {
		err = kolo.ErrClosed
		if h.far != nil {
			h.far.distant = true // nothing has failed: all ranks here have left
		}
	}
	h.fail(err)
	h.running = false
	for _, rd := range h.rounds {
		h.resolveAll(rd, err)
	}
	h.rounds = nil
	if h.far != nil {
		h.far.closeBoard()
	}
	h.p.forget(h)
}

// Handle does what the message says.
func (h *hub) Handle(m hubMessage) error {
	switch m := m.(type) {
	case *arrivals:
		h.met(m)
		return nil
	case *ticket:
		h.arrive(m)
		return nil
	case *run:
		h.runEnded(m, m.err)
		return nil
	case *jobDone:
		if h.far != nil {
			h.far.roundOnBoardDone(m.err)
		} else {
			h.finish(m.err)
		}
		return nil
	case *vectorsStaged:
		h.far.vectorsStaged(m.err)
		return nil
	case *held:
		h.hold(m.s)
		return nil
	case *produced:
		h.producerCame(m)
		return nil
	case *query:
		h.look(m)
		return nil
	}
	h.takeAll()
	defer h.advance()
	return h.trouble(m)
}

// trouble handles the messages for which the hub must know who has come.
func (h *hub) trouble(m hubMessage) error {
	switch m := m.(type) {
	case *inquiry:
		h.inquired(m)
	case *failure:
		if m.why != nil {
			m.why(h)
			return nil
		}
		h.fail(m.err)
		if m.dead && h.running && len(h.runs) > 0 {
			h.runEnded(h.runs[h.slot(m.rank)], m.err)
		}
	case *leave:
		h.leave(m)
	case *parcel:
		h.opened(m)
	case *lostProcess:
		h.lose(m)
	case *replan:
		m.answer(h.replan(m.topology))
	case tick:
		h.tick()
	default:
		panic(fmt.Sprintf("rank: unknown hub message %T", m))
	}
	return nil
}

// met takes the calls of a round for which all ranks have come.
func (h *hub) met(a *arrivals) {
	s := a.state.Load()
	if !a.complete(s) {
		h.advance()
		return
	}
	seq := h.base + (s>>numberShift-h.base)&numbers
	if s&otherCall == 0 && h.repeat(a, seq) {
		return
	}
	h.takeFrom(a, seq)
	h.advance()
}

// arrive takes the call of one rank.
func (h *hub) arrive(t *ticket) {
	if h.failed != nil {
		t.resolve(t.dress(h.failed))
		return
	}
	if h.tooFarAhead(t) {
		return
	}
	h.take(int(t.seq - h.base))
	rd := h.note(t, t.seq)
	if t.stream != nil {
		rd.streams++
		h.opens(rd)
		t.stream.tell(h.shard, StageReady)
	}
	if h.left > 0 {
		h.missLeft()
	}
	if h.far != nil && h.far.dispute != nil {
		h.far.tellCalls(false)
	}
	h.advance()
}

// tooFarAhead fails the group for a call that is too many ahead, though calls are refused
// before they have a number where one rank has made too many: so many goroutines at once.
func (h *hub) tooFarAhead(t *ticket) bool {
	i := int(t.seq - h.base)
	if i < 2*maxAhead {
		return false
	}
	me := t.group.rank
	h.members[me].calls = max(h.members[me].calls, t.seq+1)
	t.resolve(t.failure(fmt.Errorf("%w: this rank is %d calls ahead of the slowest", kolo.ErrLimit, i)))
	h.fail(fmt.Errorf("%w: rank %d is %d calls ahead of the slowest", kolo.ErrLimit, int(t.group.rank), i))
	return true
}

func (h *hub) newRound() *round {
	if n := len(h.spare); n > 0 {
		rd := h.spare[n-1]
		h.spare = h.spare[:n-1]
		return rd
	}
	return &round{tickets: make([]*ticket, len(h.ranks))}
}

// advance begins rounds while the first one is complete and none is running.
func (h *hub) advance() {
	for !h.running && h.failed == nil && len(h.rounds) > 0 && h.rounds[0].arrived == len(h.mine) {
		if h.far != nil && !h.far.admits(h.rounds[0]) {
			return
		}
		h.begin(h.rounds[0])
	}
}

// startJob lets the medium do the running round.
func (h *hub) startJob() {
	h.jobHere = false
	h.await(h.rounds[0].turns == len(h.mine))
	h.p.engine.Start(h.shard, &h.job)
	if h.jobHere {
		h.finish(nil)
	}
}

// await says whether all ranks do nothing but wait for the job.
func (h *hub) await(all bool) {
	if h.job.Awaited != all { // else the job is not written to
		h.job.Awaited = all
	}
}

// begin does the round for which all ranks have come.
func (h *hub) begin(rd *round) {
	if h.repeats(rd) {
		h.running = true
		if h.far != nil {
			h.far.again()
		} else {
			h.startJob()
		}
		return
	}
	h.made = h.made[:0]
	err := h.check(rd)
	if err == nil {
		err = h.changed(rd, false, "before its data has moved")
	}
	if err == nil {
		err = h.overflow(rd)
	}
	if err != nil {
		h.refuseRound(err)
		return
	}
	algorithm, err := h.plans.algorithm(rd)
	if err != nil {
		h.pop(err)
		return
	}
	h.running = true
	if rd.streams > 0 {
		h.begun(rd)
	}
	h.plans.trial.start(h.p.now)
	if algorithm == fabricName && h.far != nil {
		h.far.post(rd)
		return
	}
	if algorithm == fabricName {
		h.fabric(rd)
		h.learn(rd)
		h.startJob()
		return
	}
	if err := h.startRuns(rd, algorithm); err != nil {
		h.running = false
		h.pop(err)
	}
}

// jobEnded is called by the engine.
func (h *hub) jobEnded(t channel.Turn, err error) {
	if t == h.shard && err == nil {
		h.jobHere = true
		return
	}
	if err != nil {
		h.tell(t, &jobDone{err})
		return
	}
	h.tell(t, &h.jobDone)
}

// runEnded counts the ranks that have done their Program.
func (h *hub) runEnded(r *run, err error) {
	if len(h.rounds) == 0 || !h.running || r.over {
		return
	}
	r.over = true
	rd := h.rounds[0]
	rd.ended++
	if err != nil {
		if rd.cause == nil {
			rd.cause = err
		}
		h.refuseRound(err)
	}
	if rd.ended == len(h.mine) && (h.far == nil || h.far.dispute == nil && h.far.loss == nil) {
		h.finish(rd.cause)
	}
}

// finish ends the running round: no rank's memory is in use any more.
func (h *hub) finish(err error) {
	h.running = false
	h.plans.trial.end(h.p.now, err)
	if h.stall != nil {
		h.failed = h.whatStalled()
		h.broken.Store(&h.failed)
	}
	if d := h.p.cfg.Diagnose; d != 0 && err == nil && len(h.rounds) > 0 {
		if err = h.changed(h.rounds[0], true, "at its end"); err == nil {
			err = h.differing(h.rounds[0])
		}
	}
	if err != nil && h.failed == nil {
		h.fail(err)
	}
	if h.failed != nil && err != nil {
		err = h.failed
	}
	h.pop(err)
	if h.failed != nil {
		h.drop()
	}
	h.advance()
}

// pop resolves the first round and forgets it.
func (h *hub) pop(err error) {
	rd := h.rounds[0]
	n := copy(h.rounds, h.rounds[1:])
	h.rounds[n] = nil
	h.rounds = h.rounds[:n]
	if h.base++; h.base%passedEach == 0 {
		h.passed.Store(h.base)
	}
	h.lastOf = rd.tickets[h.mine[0]].call
	if h.far != nil {
		h.far.roundEnded(rd)
	}
	h.reopen(h.base - 1)
	if err == nil && rd.kept == len(h.mine) {
		h.endAll(h.base-1, rd.tickets)
	} else {
		h.resolveAll(rd, err)
	}
	clear(rd.tickets)
	rd.arrived, rd.kept, rd.turns, rd.streams, rd.ended = 0, 0, 0, 0, 0
	rd.told, rd.warned, rd.cause, rd.opened = false, false, nil, time.Time{}
	h.spare = append(h.spare, rd)
}

func (h *hub) resolveAll(rd *round, err error) {
	for i, t := range rd.tickets {
		if t == nil {
			continue
		}
		rd.tickets[i] = nil
		if err == nil {
			t.resolve(nil)
		} else {
			t.resolve(t.dress(err))
		}
	}
}

// fail fails the group; the first cause counts. The running round ends when its
// runs have; all others end here.
func (h *hub) fail(err error) {
	if h.failed != nil {
		return
	}
	h.takeAll()
	h.failed = err
	h.broken.Store(&err)
	if h.running {
		h.patience = h.p.now().Add(h.p.cfg.CloseTimeout)
		h.p.watch.arm(h.patience)
		for _, r := range h.runs {
			r.actor.tell(h.shard, &abortRun{r, err})
		}
		if h.far != nil {
			h.far.cancel(err)
		}
	} else {
		h.drop()
	}
	h.dropHeld()
	h.wake(&lost{hub: h, rank: kolo.NoRank, cause: err}, kolo.NoRank)
	if h.far != nil {
		h.far.failed(err)
	}
}

// drop resolves every round that is not running with the cause of the failure.
func (h *hub) drop() {
	first := 0
	if h.running {
		first = 1
	}
	for _, rd := range h.rounds[first:] {
		h.resolveAll(rd, h.failed)
	}
	h.rounds = h.rounds[:first]
}

// leave notes that a rank has left. What misses it, now or later, fails the group.
func (h *hub) leave(m *leave) {
	if m.done != nil {
		defer close(m.done)
	}
	mem := &h.members[m.rank]
	if mem.left {
		return
	}
	mem.left, mem.cause = true, m.cause
	if mem.calls = max(h.callsOf(m.rank), m.calls); h.isMine(m.rank) {
		h.leftOf++
		if h.far != nil {
			h.far.sayWhy()
			h.far.tell(&leftLetter{id: h.id, rank: m.rank, calls: mem.calls, cause: m.cause})
		}
	}
	gone := h.leftError(m.rank, nil, 0)
	h.gone[m.rank].Store(gone)
	h.left++
	h.missLeft()
	if h.failed == nil && h.holds(m.rank) {
		h.fail(gone)
	}
	h.wake(&lost{hub: h, rank: m.rank, cause: gone}, m.rank)
	if h.leftOf == len(h.mine) {
		h.p.forget(h)
		h.self.From(h.shard).Stop()
	}
}

// wake tells the members in this process that have messages in flight of a rank that
// is gone, or with NoRank of a failure. Those of the rank itself end too. Who posts a
// message later looks at gone and broken by itself, after it has counted the message.
func (h *hub) wake(m *lost, r kolo.Rank) {
	for _, k := range h.mine {
		a := h.p.actors[h.ranks[k]]
		if a.flying.Load() == 0 {
			continue
		}
		if k == r {
			a.tell(h.shard, &lost{hub: h, rank: kolo.NoRank, cause: m.cause})
		} else {
			a.tell(h.shard, m)
		}
	}
}

// holds says whether a round has a call of rank r, whose memory must be free once it
// has left. What the medium is doing ends by itself.
func (h *hub) holds(r kolo.Rank) bool {
	if h.holdsStream(r) {
		return true
	}
	for i, rd := range h.rounds {
		byMedium := i == 0 && h.running && (h.far == nil || !h.far.posted) && !slices.ContainsFunc(h.runs, func(r *run) bool { return !r.over })
		if rd.tickets[r] != nil && !byMedium {
			return true
		}
	}
	return false
}

// missLeft fails the group if a round waits for a rank that has left.
func (h *hub) missLeft() {
	if h.failed != nil || h.left == 0 {
		return
	}
	for i, rd := range h.rounds {
		if rd.arrived == 0 || rd.arrived == len(h.ranks) {
			continue
		}
		for r := range h.members {
			if h.members[r].left && rd.tickets[r] == nil && (h.isMine(kolo.Rank(r)) || h.callsOf(kolo.Rank(r)) <= h.base+uint64(i)) {
				h.fail(h.leftError(kolo.Rank(r), &rd.firstTicket().call, h.base+uint64(i)))
				return
			}
		}
	}
}

// firstCall is the call of the first rank that has made one.
func (rd *round) firstCall() *kolo.Call { return &rd.firstTicket().call }

func (rd *round) firstTicket() *ticket {
	for _, t := range rd.tickets {
		if t != nil {
			return t
		}
	}
	return nil
}
