package rank

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/plan"
)

// far is what the hub of a group has besides when the group spans processes: each of
// them has a hub of the group for its own ranks, and these tell each other what the
// group must know as a whole.
//
//	made    the group exists, with these members and settings
//	calls   what the ranks here have called: before data moves where Config.Check is
//	        Strict, else when a round is slow or two calls are known to differ
//	failed  the first cause; the others fail with it
//	left    a rank has left, after so many calls
//	ask     which of your ranks have come to a call that is late, and what do they do?
//
// A round begins when the ranks of this process have called; data of ranks that are
// not there yet waits in the drivers. Each transfer carries a digest of the call, so that
// two calls that differ are found where their data meets, before it is written.
type far struct {
	h     *hub
	procs []int // the other processes, ascending
	where []int // the process of each member, by group rank
	basis uint64

	medium    channel.Medium // does collectives of the group; nil if there is none
	board     channel.Board  // this process's part of it, made at the first use
	onBoard   channel.Round  // the running round
	posting   bool           // Post is on the stack
	posted    bool           // the running round goes by the board
	given     bool           // and is on it
	stage     int            // the way of its memory, if that is of devices
	staging   channel.Job    // moves the inputs
	results   channel.Job    // moves the outputs
	bounce    []byte         // what the board has in place of them
	boardDone *jobDone       // the round has ended inside Post
	algorithm string         // of the running round
	digest    uint64         // of the running round
	lastOf    kolo.Call      // the call that digest was made of
	lastBy    string         // and with which algorithm
	recent    [recentCalls]pastCall
	heard     map[uint64]map[int]*callsLetter // by call and process
	dispute   *dispute
	loss      *loss
	distant   bool // the failure was told by another process
	relayed   bool // and was told again
	early     []*parcel
}

const (
	recentCalls = 8                      // calls that are remembered after they have ended
	maxHeard    = 64                     // calls for which letters are kept
	slowRound   = 100 * time.Millisecond // a round that takes longer compares its calls
	farTime     = time.Second            // how long the hubs of other processes have to answer
	lossTime    = 250 * time.Millisecond // how long a broken link waits for an explanation
)

// pastCall is a call that has ended.
type pastCall struct {
	seq   uint64
	entry entry
}

// dispute is a round whose calls are known to differ: the hubs tell each other all
// they know, and then each finds the same error.
type dispute struct {
	seq   uint64
	cause error
	told  bool      // what the ranks here have called
	late  time.Time // when it is told although some have not called
	end   time.Time // of the patience
	heard []int     // processes that have told their calls
}

// loss is a link that has broken in the running round. Whether its other end has left or
// is lost, and why, is told by control messages, which may come a little later.
type loss struct {
	err error
	end time.Time
}

// parcel is a letter from the hub of another process; without a letter it asks to open
// those that came before the group was made here.
type parcel struct {
	from int
	m    letter
}

// lostProcess says that a process is gone with its ranks.
type lostProcess struct {
	process int
	cause   error
}

// place finds out which members are here, and sets up what depends on it.
func (h *hub) place() error {
	p := h.p
	o := p.outside
	if o == nil {
		for i := range h.ranks {
			h.mine = append(h.mine, kolo.Rank(i))
		}
		p.nextID++
		h.id, h.topo = p.nextID, p.cfg.Topology.Sub(h.ranks)
		h.plans.init(h.topo, p.probe, &p.cfg, h.cfg.Algorithm)
		return nil
	}
	f := &far{h: h, where: make([]int, len(h.ranks)), heard: map[uint64]map[int]*callsLetter{}}
	for i, r := range h.ranks {
		q := o.part.Processes[r]
		if f.where[i] = q; q == o.part.Process {
			h.mine = append(h.mine, kolo.Rank(i))
		} else if at, ok := slices.BinarySearch(f.procs, q); !ok {
			f.procs = slices.Insert(f.procs, at, q)
		}
	}
	h.id = o.groupID(h.key, h.ranks)
	if len(f.procs) == 0 {
		h.topo = plan.OneProcess(len(h.ranks))
		h.plans.init(h.topo, p.probe, &p.cfg, h.cfg.Algorithm)
		return nil
	}
	if other := o.hubs[h.id]; other != nil {
		return fmt.Errorf("new group %q: %w: its number %#x is that of group %q; give it another name", h.key.name, kolo.ErrMismatch, h.id, other.key.name)
	}
	if m, ok := p.driver.(channel.Medium); ok && m.Spans(h.ranks) {
		f.medium, f.onBoard.Done = m, f.boardEnded
	}
	f.plan(p.cfg.Topology)
	h.far = f
	if h.key.name == worldName { // which every rank has
		for i := range h.members {
			h.members[i].joined.Store(true)
		}
	}
	return nil
}

// plan sets up how the group's calls are chosen where t is the topology of the world.
func (f *far) plan(t *plan.Topology) {
	h, c := f.h, &f.h.p.cfg
	h.topo = t.Sub(h.ranks)
	h.topo.Medium = false // what the ranks of one process share is not all ranks'
	h.plans.init(h.topo, nil, c, h.cfg.Algorithm)
	h.plans.blind = true
	if f.medium != nil {
		h.plans.useBoard()
	}
	f.basis = mix(h.topo.Digest(), uint64(c.Choice), boolBit(c.Reproducible), c.Plans.Digest(), tuningDigest(c.Tuning))
	f.basis = mixText(f.basis, h.cfg.Algorithm)
}

// isMine says whether a member is in this process.
func (h *hub) isMine(r kolo.Rank) bool {
	return h.far == nil || h.far.where[r] == h.p.outside.part.Process
}

// slot is the place of a member of this process in mine, and of its run in runs.
func (h *hub) slot(r kolo.Rank) int {
	if h.far == nil {
		return int(r)
	}
	i, _ := slices.BinarySearch(h.mine, r)
	return i
}

// tell sends a letter to the hubs of all other processes. One that is gone needs none.
func (f *far) tell(m letter) {
	b := pack(m)
	for _, q := range f.procs {
		_ = f.h.p.outside.part.Control.Tell(q, b) // who is lost is reported by Lost
	}
}

// opened handles a letter.
func (h *hub) opened(p *parcel) {
	f := h.far
	switch m := p.m.(type) {
	case nil:
		h.p.mu.Lock()
		early := f.early
		f.early = nil
		h.p.mu.Unlock()
		for _, e := range early {
			h.opened(e)
		}
	case *madeLetter:
		f.made(p.from, m)
	case *callsLetter:
		f.hear(p.from, m)
	case *failedLetter:
		if h.failed == nil {
			f.distant = true
			h.fail(m.err)
		}
	case *leftLetter:
		if m.rank >= 0 && int(m.rank) < len(h.ranks) && f.where[m.rank] == p.from {
			h.leave(&leave{rank: m.rank, cause: m.cause, calls: m.calls})
		}
	case *askLetter:
		f.asked(p.from, m)
	default:
		panic(fmt.Sprintf("rank: unknown letter %T", m))
	}
}

// made compares how another process has made the group.
func (f *far) made(from int, m *madeLetter) {
	h := f.h
	who := kolo.NoRank
	for _, r := range m.ranks {
		if int(r) < len(h.p.outside.part.Processes) && h.p.outside.part.Processes[r] == from {
			who = r
			break
		}
	}
	c := GroupConfig{Name: m.name, Ranks: m.ranks, Algorithm: m.algorithm, Timeout: m.timeout, Priority: m.priority}
	err := h.sameGroup(c, who)
	if err == nil {
		for i := range h.ranks {
			if f.where[i] == from {
				h.members[i].joined.Store(true)
			}
		}
		return
	}
	e := err.(*kolo.Error)
	if m.id != h.id {
		_ = h.p.outside.part.Control.Tell(from, pack(&failedLetter{id: m.id, err: e})) // who is lost is reported by Lost
	}
	h.fail(e)
}

// lose fails the group for the ranks of a process that is gone.
func (h *hub) lose(m *lostProcess) {
	var ranks []kolo.Rank
	for i := range h.ranks {
		mem := &h.members[i]
		if h.far.where[i] != m.process || mem.left {
			continue
		}
		mem.left, mem.lost, mem.cause = true, true, m.cause
		h.left++
		ranks = append(ranks, kolo.Rank(i))
		h.gone[i].Store(h.leftError(kolo.Rank(i), nil, 0))
	}
	if len(ranks) == 0 {
		return
	}
	e := &kolo.Error{Group: h.key.name, Rank: kolo.NoRank, Peer: kolo.NoRank, Ranks: ranks}
	if len(ranks) == 1 {
		e.Peer = ranks[0]
	}
	e.Err = fmt.Errorf("the process of rank %s is gone: %w", kolo.RankList(ranks), m.cause)
	if !errors.Is(m.cause, kolo.ErrLost) {
		e.Err = fmt.Errorf("%w: %w", kolo.ErrLost, e.Err)
	}
	if h.far.distant = h.failed == nil; h.failed == nil { // the others find it out by themselves
		h.fail(e)
	}
	for _, r := range ranks {
		h.wake(&lost{hub: h, rank: r, cause: h.gone[r].Load()}, kolo.NoRank)
	}
	if h.running { // a process that was stopped gives nothing back; at most it reads what it was sent
		h.patience = h.p.now().Add(lossTime)
		h.p.watch.arm(h.patience)
	}
}

// failed tells the others that the group has failed here, and ends a dispute.
func (f *far) failed(err error) {
	h := f.h
	if !f.distant {
		f.tellFailed(err)
	}
	if f.dispute != nil || f.loss != nil {
		f.dispute, f.loss = nil, nil
		if h.running && h.rounds[0].ended == len(h.mine) {
			h.finish(err)
		}
	}
}

func (f *far) tellFailed(err error) {
	e, ok := err.(*kolo.Error)
	if !ok {
		e = &kolo.Error{Group: f.h.key.name, Rank: kolo.NoRank, Peer: kolo.NoRank, Err: err}
	}
	f.tell(&failedLetter{id: f.h.id, err: e})
}

// sayWhy tells a failure that others have told, once, before a rank leaves for it: who hears
// of the rank before it hears of the failure would take the one for the other.
func (f *far) sayWhy() {
	if f.h.failed != nil && f.distant && !f.relayed {
		f.relayed = true
		f.tellFailed(f.h.failed)
	}
}

// roundEnded remembers the call of a round.
func (f *far) roundEnded(rd *round) {
	seq := f.h.base - 1
	t := rd.tickets[f.h.mine[0]]
	c := t.call
	if c.Collective == kolo.AllToAllV {
		c.Counts, c.RecvCounts = nil, nil
	}
	c.Counts = slices.Clone(c.Counts)
	f.recent[seq%recentCalls] = pastCall{seq: seq + 1, entry: entry{ranks: f.h.mine, call: c, algorithm: f.algorithm}}
	f.algorithm = ""
	if len(f.heard) > 0 {
		for s := range f.heard {
			if s+recentCalls <= seq {
				delete(f.heard, s)
			}
		}
	}
}

// admits says whether the first round, for which all ranks here have come, may begin.
func (f *far) admits(rd *round) bool {
	if f.dispute != nil {
		return false
	}
	if f.h.p.cfg.Check != Strict {
		return true
	}
	seq := f.h.base
	f.inform(seq, rd)
	if len(f.heard[seq]) < len(f.procs) {
		return false
	}
	if err := f.compare(seq); err != nil {
		f.quarrel(seq, err)
		return false
	}
	return true
}

// inform tells the others once what the ranks here have called.
func (f *far) inform(seq uint64, rd *round) {
	if !rd.told {
		rd.told = true
		f.tell(&callsLetter{id: f.h.id, seq: seq, entries: f.entries(seq)})
	}
}

// begin notes what the running round is.
func (f *far) begin(c *kolo.Call, algorithm string) {
	f.algorithm = algorithm
	if algorithm == f.lastBy && sameLine(c, &f.lastOf) {
		return // with the digest of the call before
	}
	f.digest = callDigest(f.basis, c, algorithm)
	f.lastOf, f.lastBy = *c, algorithm
}

// sameLine says whether two calls are the same without a look at lists, which neither
// has.
func sameLine(a, b *kolo.Call) bool {
	return a.Counts == nil && b.Counts == nil && a.RecvCounts == nil && b.RecvCounts == nil &&
		a.Collective == b.Collective && a.DType == b.DType && a.Op == b.Op && a.Root == b.Root && a.Count == b.Count
}

// callDigest is a number that two calls share only if data of one may be taken for
// data of the other. It is never 0.
func callDigest(basis uint64, c *kolo.Call, algorithm string) uint64 {
	s := c.Signature()
	d := mix(basis, uint64(s.Collective), uint64(s.DType), uint64(s.Op.Kind), floatBits(s.Op.Scale), uint64(s.Root), uint64(s.Count), s.Digest)
	return mixText(d, algorithm) | 1
}

// entries lists what the ranks here have called under a number, as far as it is known.
func (f *far) entries(seq uint64) []entry {
	h := f.h
	if seq < h.base {
		if p := &f.recent[seq%recentCalls]; p.seq == seq+1 {
			return []entry{p.entry}
		}
		return nil
	}
	i := int(seq - h.base)
	if i >= len(h.rounds) {
		return nil
	}
	algorithm := ""
	if i == 0 && h.running {
		algorithm = f.algorithm
	}
	var list []entry
	for _, r := range h.mine {
		t := h.rounds[i].tickets[r]
		if t == nil {
			continue
		}
		at := slices.IndexFunc(list, func(n entry) bool { return sameCall(&n.call, &t.call) && t.call.Collective != kolo.AllToAllV })
		if at < 0 {
			at, list = len(list), append(list, entry{call: t.call, algorithm: algorithm})
		}
		list[at].ranks = append(list[at].ranks, r)
	}
	return list
}

// hear takes note of what another process's ranks have called.
func (f *far) hear(from int, m *callsLetter) {
	h := f.h
	if h.failed != nil || m.seq+recentCalls < h.base || m.seq >= h.base+2*maxAhead || !slices.Contains(f.procs, from) {
		return
	}
	for _, n := range m.entries {
		for _, r := range n.ranks {
			if int(r) >= len(h.ranks) || f.where[r] != from {
				return
			}
		}
	}
	if f.heard[m.seq] == nil {
		if len(f.heard) >= maxHeard {
			return
		}
		f.heard[m.seq] = map[int]*callsLetter{}
	}
	f.heard[m.seq][from] = m
	switch {
	case m.dispute:
		f.quarrel(m.seq, nil)
		if f.dispute != nil && f.dispute.seq == m.seq {
			f.dispute.heard = append(f.dispute.heard, from)
			f.settleIfAll()
		}
	case f.compare(m.seq) != nil:
		f.quarrel(m.seq, f.compare(m.seq))
	default:
		h.advance()
	}
}

// calls are the calls under a number by rank, nil where it is not known.
func (f *far) calls(seq uint64) []*kolo.Call {
	calls := make([]*kolo.Call, len(f.h.ranks))
	add := func(list []entry) {
		for i := range list {
			for _, r := range list[i].ranks {
				calls[r] = &list[i].call
			}
		}
	}
	add(f.entries(seq))
	for _, m := range f.heard[seq] {
		add(m.entries)
	}
	return calls
}

// compare says how the calls that are known under a number differ, or nil.
func (f *far) compare(seq uint64) error {
	calls := f.calls(seq)
	at := slices.IndexFunc(calls, func(c *kolo.Call) bool { return c != nil })
	if at < 0 {
		return nil
	}
	for _, c := range calls[at:] {
		if c != nil && !sameCall(calls[at], c) {
			return f.h.mismatch(calls, seq)
		}
	}
	if calls[at].Collective == kolo.AllToAllV {
		return f.h.checkPairs(calls, seq)
	}
	return nil
}

// quarrel begins a dispute over a call, unless there is one.
func (f *far) quarrel(seq uint64, cause error) {
	h := f.h
	if f.dispute != nil || h.failed != nil {
		return
	}
	now := h.p.now()
	f.dispute = &dispute{seq: seq, cause: cause, late: now.Add(farTime / 2), end: now.Add(farTime)}
	h.p.watch.arm(f.dispute.late)
	f.tellCalls(false)
}

// tellCalls tells the others once what the ranks here have called in a dispute, when
// all have, or at last.
func (f *far) tellCalls(atLast bool) {
	h, d := f.h, f.dispute
	i := int(d.seq - h.base)
	if d.told || !atLast && i >= 0 && (i >= len(h.rounds) || h.rounds[i].arrived < len(h.mine)) {
		return
	}
	d.told = true
	f.tell(&callsLetter{id: h.id, seq: d.seq, dispute: true, entries: f.entries(d.seq)})
	f.settleIfAll()
}

// settleIfAll ends a dispute when all processes have told their calls.
func (f *far) settleIfAll() {
	if d := f.dispute; d != nil && d.told && len(d.heard) >= len(f.procs) {
		f.settle()
	}
}

// settle fails the group with what is known of a dispute.
func (f *far) settle() {
	d := f.dispute
	err := f.compare(d.seq)
	if err == nil {
		err = f.otherPlans(d)
	}
	f.h.fail(err)
}

// otherPlans is the error of a round whose calls are the same, as far as is known, but
// whose data is not.
func (f *far) otherPlans(d *dispute) error {
	byName := map[string][]kolo.Rank{}
	note := func(list []entry) {
		for _, n := range list {
			if n.algorithm != "" {
				byName[n.algorithm] = append(byName[n.algorithm], n.ranks...)
			}
		}
	}
	note(f.entries(d.seq))
	for _, m := range f.heard[d.seq] {
		note(m.entries)
	}
	if len(byName) > 1 {
		var parts []string
		for name, ranks := range byName {
			slices.Sort(ranks)
			parts = append(parts, fmt.Sprintf("%s on rank %s", name, kolo.RankList(ranks)))
		}
		slices.Sort(parts)
		return &kolo.Error{Group: f.h.key.name, Rank: kolo.NoRank, Peer: kolo.NoRank, Seq: d.seq,
			Err: fmt.Errorf("%w: the processes have chosen different algorithms: %s", kolo.ErrMismatch, strings.Join(parts, "; "))}
	}
	if d.cause != nil {
		return d.cause
	}
	return &kolo.Error{Group: f.h.key.name, Rank: kolo.NoRank, Peer: kolo.NoRank, Seq: d.seq,
		Err: fmt.Errorf("%w: another process has found data of another call", kolo.ErrMismatch)}
}

// refuseRound fails the group for the round that runs, or that was about to. Calls
// that differ are first told to the other processes, and a broken link has a moment to
// be explained.
func (h *hub) refuseRound(err error) {
	f := h.far
	switch {
	case f == nil || h.failed != nil:
		h.fail(err)
	case errors.Is(err, kolo.ErrMismatch):
		f.quarrel(h.base, err)
	case f.dispute != nil: // which explains it, or ends soon
	case errors.Is(err, kolo.ErrLost) && f.loss == nil:
		f.loss = &loss{err, h.p.now().Add(lossTime)}
		h.p.watch.arm(f.loss.end)
		h.missLeft()
	case f.loss == nil:
		h.fail(err)
	}
}

// tick looks at a dispute and at the round that runs.
func (f *far) tick(now time.Time) {
	h := f.h
	if d := f.dispute; d != nil {
		if !now.Before(d.end) {
			f.settle()
			return
		}
		if h.p.watch.arm(d.end); !now.Before(d.late) {
			f.tellCalls(true)
			return
		}
		h.p.watch.arm(d.late)
	}
	if l := f.loss; l != nil {
		if !now.Before(l.end) {
			h.fail(l.err)
			return
		}
		h.p.watch.arm(l.end)
	}
	if len(h.rounds) == 0 || h.rounds[0].arrived < len(h.mine) || h.rounds[0].told {
		return
	}
	rd := h.rounds[0]
	h.opens(rd)
	if end := rd.opened.Add(slowRound); now.Before(end) {
		h.p.watch.arm(end)
		return
	}
	f.inform(h.base, rd)
}

// asked answers which ranks here have come to a call, and what the others do.
func (f *far) asked(from int, m *askLetter) {
	h := f.h
	q := &inquiry{about: m.about}
	if m.inCall {
		q.about = nil
		for _, r := range h.mine {
			s := state{rank: r, arrived: m.seq < h.base, last: strings.TrimPrefix(h.lastCallOf(int(r)), " after")}
			if i := int(m.seq - h.base); !s.arrived && i < len(h.rounds) && h.rounds[i].tickets[r] != nil {
				s.arrived = true
			}
			if h.heldBy(r, m.seq) {
				s.last += ", and its stream has not come to the call"
			}
			if !s.arrived {
				q.about = append(q.about, h.ranks[r])
			}
			q.states = append(q.states, s)
		}
	}
	h.p.outside.inquire(q, h.shard, from, m.token, h)
}
