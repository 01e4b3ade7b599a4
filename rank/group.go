package rank

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/internal/ctxerr"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/plan"
)

// GroupConfig says what a group is. Every member makes the group with the same
// values; a difference is kolo.ErrMismatch on all of them.
type GroupConfig struct {
	// Name is for messages, and tells the groups of a rank apart: the n-th group of a
	// name that each member makes is the same for all of them. Groups that have no
	// member in common may have one name. Empty: a name made from Ranks.
	Name string
	// Ranks are the members, in world numbering. Their order is the group's numbering.
	Ranks []kolo.Rank
	// Algorithm overrides Config.Algorithm for the group. Empty does not.
	Algorithm string
	// Timeout overrides Config.Timeout for the group. 0 does not; negative means no deadline.
	Timeout time.Duration
	// Priority of the group's data over that of others: larger first, 0 in the middle.
	Priority int
}

// Group is one rank's handle of a group. Its methods and calls may be used by any
// goroutine.
type Group struct {
	world *World
	hub   *hub
	rank  kolo.Rank // in the group's numbering

	calls    atomic.Uint64 // collective calls made, and the kept ticket's state: see keep
	kept     *ticket       // guarded by calls
	_        [cacheLine - 16]byte
	flying   atomic.Int64 // calls not resolved, but for the kept ticket's
	async    atomic.Int64 // Works not waited for
	looked   atomic.Int64 // when a call last waited for others: see look
	closed   atomic.Bool
	draining atomic.Bool
	idle     chan struct{}
	left     chan struct{}          // closed when Close has done its work
	spare    atomic.Pointer[ticket] // one free ticket, without a lock

	mu       sync.Mutex
	free     *ticket
	notifies []npu.Notify // made for calls between streams
}

// NewGroup makes this rank a member of a group. Only the members call it, in any
// order; it waits for nobody, and costs nothing on other ranks. A rank that is not
// in Ranks gets kolo.ErrNotMember. A member that never makes the group is named by
// the deadline error of the others' first call.
func (w *World) NewGroup(c GroupConfig) (*Group, error) {
	me := slices.Index(c.Ranks, w.rank)
	if c.Name == "" && len(c.Ranks) > 0 {
		c.Name = nameOf(c.Ranks)
	}
	if err := w.checkRanks(c.Ranks); err != nil {
		return nil, fmt.Errorf("new group %q: %w", c.Name, err)
	}
	if me < 0 {
		return nil, &kolo.Error{Group: c.Name, Rank: w.rank, Peer: kolo.NoRank,
			Err: fmt.Errorf("%w: the group is of world ranks %s; only they make it", kolo.ErrNotMember, kolo.RankList(c.Ranks))}
	}
	if err := w.p.cfg.checkAlgorithm(c.Algorithm); err != nil {
		return nil, fmt.Errorf("new group %q: GroupConfig.Algorithm: %w", c.Name, err)
	}
	g := &Group{world: w, rank: kolo.Rank(me), idle: make(chan struct{}, 1), left: make(chan struct{})}
	h, err := w.enter(c, g)
	if err != nil && h != nil {
		h.tell(nil, &failure{err: err}) // under no lock: the hub may run here
	}
	if err != nil {
		return nil, err
	}
	if h.far != nil {
		h.tell(nil, &parcel{})
	}
	w.p.failLost(h)
	return g, nil
}

// maxListed is the most ranks that kolo.RankList writes.
const maxListed = 16

// nameOf is the name of a group that was given none. Lists that are too long to be
// written whole are told apart by a number made of them.
func nameOf(ranks []kolo.Rank) string {
	name := "ranks " + kolo.RankList(ranks)
	if len(ranks) <= maxListed {
		return name
	}
	h := fnv.New64a()
	for _, r := range ranks {
		fmt.Fprintf(h, "%d ", int(r))
	}
	return fmt.Sprintf("%s (%016x)", name, h.Sum64())
}

// enter makes g a member of its hub. An error with a hub is to fail that hub.
func (w *World) enter(c GroupConfig, g *Group) (*hub, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, fmt.Errorf("new group %q: %w", c.Name, kolo.ErrClosed)
	}
	nth := w.made.get(c.Name)
	w.made.set(c.Name, nth+1)
	h, err := w.p.join(hubKey{c.Name, nth}, c, g)
	if err != nil {
		return h, err
	}
	g.hub = h
	w.groups = append(w.groups, g)
	return h, nil
}

func (w *World) checkRanks(ranks []kolo.Rank) error {
	if len(ranks) == 0 {
		return fmt.Errorf("%w: GroupConfig.Ranks is empty", kolo.ErrArgument)
	}
	seen := make([]uint64, (w.Size()+63)/64) // a bit for each rank: every rank makes the group, so it counts n times
	for i, r := range ranks {
		if r < 0 || int(r) >= w.Size() {
			return fmt.Errorf("%w: GroupConfig.Ranks[%d] is %d; the world has ranks 0 to %d", kolo.ErrArgument, i, int(r), w.Size()-1)
		}
		if seen[r/64]&(1<<(r%64)) != 0 {
			return fmt.Errorf("%w: GroupConfig.Ranks[%d]: rank %d is in the list twice", kolo.ErrArgument, i, int(r))
		}
		seen[r/64] |= 1 << (r % 64)
	}
	return nil
}

// Name is the group's name.
func (g *Group) Name() string { return g.hub.key.name }

// Rank is this rank's number in the group.
func (g *Group) Rank() kolo.Rank { return g.rank }

// Size is the number of members.
func (g *Group) Size() int { return len(g.hub.ranks) }

// WorldRank is the world number of member r, or kolo.NoRank.
func (g *Group) WorldRank(r kolo.Rank) kolo.Rank {
	if r < 0 || int(r) >= len(g.hub.ranks) {
		return kolo.NoRank
	}
	return g.hub.ranks[r]
}

// RankOf is the number in the group of a world rank, or kolo.NoRank.
func (g *Group) RankOf(world kolo.Rank) kolo.Rank {
	return kolo.Rank(slices.Index(g.hub.ranks, world)) // -1 is NoRank
}

// World is the world of this rank.
func (g *Group) World() *World { return g.world }

// Calls is the number of collective calls that this rank has made on the group.
func (g *Group) Calls() uint64 {
	return g.calls.Load() / oneCall
}

// Explain says which algorithm a call of the group would take, with the cost of
// every other and why it lost.
func (g *Group) Explain(c kolo.Call) (plan.Choice, error) {
	if c.Collective.Rooted() && (c.Root < 0 || int(c.Root) >= g.Size()) {
		return plan.Choice{}, fmt.Errorf("%w: root %d; the group has ranks 0 to %d", kolo.ErrArgument, int(c.Root), g.Size()-1)
	}
	return g.hub.choose(&c)
}

// Abort fails the group on all members: every outstanding call resolves with
// kolo.ErrAborted and the cause, and later calls do too. It waits for nobody.
func (g *Group) Abort(cause error) {
	err := kolo.ErrAborted
	if cause != nil {
		err = fmt.Errorf("%w by rank %d: %w", err, int(g.rank), cause)
	}
	g.hub.tell(nil, &failure{err: err})
}

// Left lists the members that this rank knows to have left the group, or to be lost.
func (g *Group) Left() []kolo.Rank {
	var list []kolo.Rank
	for r := range g.hub.gone {
		if g.hub.gone[r].Load() != nil {
			list = append(list, kolo.Rank(r))
		}
	}
	return list
}

// Err is the cause for which the group has failed, or nil.
func (g *Group) Err() error {
	if e := g.hub.broken.Load(); e != nil {
		return *e
	}
	return nil
}

// Close leaves the group, after this rank's calls in flight have ended; when ctx or
// Config.CloseTimeout ends first they are aborted. The other members hear of it at
// once. It may be called again, and then waits for the first Close or for ctx.
func (g *Group) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, g.world.p.cfg.CloseTimeout)
	defer cancel()
	return g.leave(ctx, nil)
}

func (g *Group) leave(ctx context.Context, cause error) error {
	if g.closed.Swap(true) {
		if err := closedBy(ctx, g.left); err != nil && cause == nil {
			return &kolo.Error{Group: g.Name(), Rank: g.rank, Peer: kolo.NoRank, Err: err}
		}
		return nil
	}
	defer close(g.left)
	g.calls.Or(keptClosed)
	var errs []error
	if cause == nil && !g.drain(ctx) {
		cause = fmt.Errorf("%w: Close waited for %d calls in flight", kolo.ErrDeadline, g.inFlight())
		errs = append(errs, &kolo.Error{Group: g.Name(), Rank: g.rank, Peer: kolo.NoRank, Err: cause})
	}
	m := &leave{rank: g.rank, cause: cause}
	if g.hub.far != nil {
		m.done = make(chan struct{})
	}
	g.hub.tell(nil, m)
	if m.done != nil { // before others hear that the rank has closed its world
		errs = append(errs, g.world.p.answered(m.done, fmt.Sprintf("the hub of group %q", g.Name())))
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), g.world.p.cfg.CloseTimeout)
	defer cancel()
	if !g.drain(end) { // the hub resolves what is left at once
		errs = append(errs, &kolo.Error{Group: g.Name(), Rank: g.rank, Peer: kolo.NoRank,
			Err: fmt.Errorf("%w: %d calls do not end: %s", kolo.ErrDeadline, g.inFlight(), heldUp)})
	}
	g.closeNotifies()
	if n := g.async.Load(); n > 0 && cause == nil {
		errs = append(errs, &kolo.Error{Group: g.Name(), Rank: g.rank, Peer: kolo.NoRank,
			Err: fmt.Errorf("%w: %d asynchronous calls were never waited for", kolo.ErrArgument, n)})
	}
	w := g.world
	w.mu.Lock()
	w.groups = slices.DeleteFunc(w.groups, func(x *Group) bool { return x == g })
	w.mu.Unlock()
	return errors.Join(errs...)
}

// closedBy waits for a first Close, or for ctx.
func closedBy(ctx context.Context, left <-chan struct{}) error {
	select {
	case <-left:
		return nil
	case <-ctx.Done():
	}
	select {
	case <-left: // both are true: it is closed
		return nil
	default:
		return fmt.Errorf("the first Close goes on: %w", ctxerr.Of(ctx))
	}
}

// drain waits until no call of this rank is in flight, and says whether that came
// before the end of ctx.
func (g *Group) drain(ctx context.Context) bool {
	g.draining.Store(true)
	for g.inFlight() > 0 {
		select {
		case <-g.idle:
		case <-ctx.Done():
			return g.inFlight() == 0
		}
	}
	return true
}

// take gives out a ticket for a call.
func (g *Group) take() (*ticket, error) {
	g.flying.Add(1) // before closed is read: Close sets closed and then waits
	if g.closed.Load() {
		g.landed()
		return nil, fmt.Errorf("%w: the group was closed by this rank", kolo.ErrClosed)
	}
	t := g.spare.Swap(nil)
	if t == nil {
		g.mu.Lock()
		if t = g.free; t != nil {
			g.free, t.next = t.next, nil
		}
		g.mu.Unlock()
	}
	if t == nil {
		t = newTicket(g)
	}
	t.state.Store(ticketOpen)
	if t.since.Load() != 0 {
		t.since.Store(0)
	}
	return t, nil
}

func newTicket(g *Group) *ticket {
	t := &ticket{group: g, park: make(chan struct{}, 1)}
	t.op.Sink = t
	return t
}

// room refuses an asynchronous call if so many of this rank are pending that no more are
// taken. It has no number then, and the group goes on. A blocking call waits for those anyway.
func (g *Group) room(r *Request) error {
	if g.flying.Load() < maxAhead || isMessage(r.Collective) || g.Calls()-g.hub.passed.Load() < maxAhead {
		return nil
	}
	return fmt.Errorf("%w: %d calls of this rank have not ended; wait for some of them, or for the ranks that are behind", kolo.ErrLimit, maxAhead)
}

// landed notes that a call is no longer in flight.
func (g *Group) landed() {
	if g.flying.Add(-1) == 0 && g.draining.Load() {
		g.signalIdle()
	}
}

// putBack takes back a ticket whose call is refused with err.
func (g *Group) putBack(t *ticket, err error) {
	if t.kept {
		g.takeBack(t, err)
		return
	}
	g.recycle(t)
	g.landed()
}

// recycle makes a ticket free for another call. Nobody else may know it any more.
func (g *Group) recycle(t *ticket) {
	t.in.Host, t.out.Host, t.err = nil, nil, nil // the buffers are the caller's again
	clear(t.tensors)
	if g.spare.CompareAndSwap(nil, t) {
		return
	}
	g.mu.Lock()
	t.next, g.free = g.free, t
	g.mu.Unlock()
}

// finish is called by whoever has waited for the ticket of a blocking call: after
// success it may be used again.
func (g *Group) finish(t *ticket, err error) error {
	if t.kept {
		return g.giveBack(err)
	}
	if err == nil {
		g.recycle(t)
	}
	return err
}

// finishWork is called by Wait, perhaps more than once. A ticket that was watched or
// that has failed stays what it is, so that the Work can be asked again.
func (g *Group) finishWork(t *ticket, err error) error {
	g.mu.Lock()
	first := t.async
	t.async = false
	s := t.signal.Load()
	if first && s == nil && err == nil {
		t.gen.Add(1) // from here on the Work means nothing
	}
	g.mu.Unlock()
	if !first {
		return err
	}
	g.async.Add(-1)
	if s != nil {
		s.close()
	} else if err == nil {
		g.recycle(t)
	}
	return err
}

// watch makes the signal of a ticket.
func (g *Group) watch(t *ticket, gen uint64) *signal {
	g.mu.Lock()
	defer g.mu.Unlock()
	if t.gen.Load() != gen {
		s := newSignal()
		s.close()
		return s
	}
	s := t.signal.Load()
	if s == nil {
		s = newSignal()
		t.signal.Store(s)
		t.state.CompareAndSwap(ticketOpen, ticketWatched)
	}
	if t.state.Load() == ticketDone {
		s.close()
	}
	return s
}
