package pipeline

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/actor"
	"github.com/kolo-ccl/kolo/internal/ctxerr"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/rank"
)

// urgent is a list of parts that are reduced in slices, once in each step: whenever
// a slice may go, it is one of the most urgent part that is computed (P3, Jayarajan et
// al. 2019; ByteScheduler, Peng et al. 2019).
//
// What is computed when differs from rank to rank, and the calls of a group must not.
// So rank 0 decides for all, by what is computed there, and says it by a call of 8 bytes
// for each slice, on a group of its own: the order of that group's calls is the order of
// the slices. A rank that hears of a slice that it has not computed
// yet waits for it, as a collective call would have to anyway.
//
//	rank 0   computed, and the slice before has begun -> order it: say so, and call
//	others                                   it has been said -> call, once computed
//
// The decision is taken when the slice before begins, so that it travels while that one
// is on the wire, and the wire has no gap. An urgent part therefore waits for two slices at
// most: the one on the wire, and the one behind it that is decided. That is
// ByteScheduler's credit, of two.
type urgent struct {
	name               string
	group, orders      *rank.Group
	op                 kolo.ReduceOp
	producer, consumer npu.Stream // both or none
	now                func() time.Time
	shard              *actor.Shard
	self               actor.Ref[*news]
	parts              []urgentPart
	slices             []slice
	byUrgency          []int // parts, the most urgent first
	choices            []int64

	mu        sync.Mutex
	open      bool // a step has begun and was not waited for
	closed    bool
	launching bool  // somebody packs: then others leave theirs to them
	packing   []int // parts to pack
	unmarked  int
	err       error // the first
	works     []rank.Work
	start     time.Time
	done      chan struct{} // of the step
	passed    []npu.Notify  // of earlier steps

	// Of the actor, in a step.
	ordered, begun, ended int // slices
	flying                int // calls
	line                  []int
	failed                error
	over                  bool
}

// urgentPart is a part and where it is in a step.
type urgentPart struct {
	part
	first, count int // slices
	marked       bool
	used         bool
	reduced      chan struct{}
	notify       npu.Notify
	came         news
	err          error // why it is not reduced

	// Of the actor.
	computed    bool
	at          time.Time
	next, ended int // slices
}

// slice is a piece of a part: one call.
type slice struct {
	part    int
	buffers []rank.Buffer
	slots   [2]news
	times   [2]time.Time // begun, ended
	order   news
}

// news is what the actor hears.
type news struct {
	kind newsKind
	i    int // part, slice, or order
	at   time.Time
	err  error
}

type newsKind uint8

const (
	newsStep newsKind = iota
	newsComputed
	newsOrder
	newsBegun
	newsEnded
	newsFailed
)

// DefaultSlice is the size of a Reducer's slices, in bytes. A call costs some 10 us
// whatever its size, to be started and to cross the links; by many ranks 4 MiB are on the
// wire for 150 us at 56 GB/s and 340 us at 25 GB/s, so that slicing costs 3 to 7 %. An
// urgent bucket waits for two slices at most, a third of a default bucket.
const DefaultSlice = 4 << 20

// newUrgent makes an urgent of parts, of which urgency says how urgent each is: the
// smallest first.
func newUrgent(u *urgent, parts []part, urgency []int, size int64) (*urgent, error) {
	if (u.producer == nil) != (u.consumer == nil) {
		return nil, fmt.Errorf("%w: pipeline: a Producer and a Consumer, or neither", kolo.ErrArgument)
	}
	if u.now == nil {
		u.now = time.Now
	}
	for i, p := range parts {
		pieces := sliced(p.buffers, size)
		u.parts = append(u.parts, urgentPart{part: p, first: len(u.slices), count: len(pieces)})
		for _, b := range pieces {
			u.slices = append(u.slices, slice{part: i, buffers: b})
		}
		u.byUrgency = append(u.byUrgency, i)
	}
	if len(u.slices) > maxChunks {
		return nil, fmt.Errorf("%w: %d slices, and there may be %d; make them larger", kolo.ErrLimit, len(u.slices), maxChunks)
	}
	slices.SortStableFunc(u.byUrgency, func(a, b int) int { return urgency[a] - urgency[b] })
	u.choices, u.over = make([]int64, len(u.slices)), true
	u.shard = u.group.World().NewShard(u.name)
	var err error
	if u.self, err = actor.Spawn[*news](u.shard, actor.Props{Name: u.name}, u); err != nil {
		return nil, fmt.Errorf("pipeline: %w", err)
	}
	return u, nil
}

// sliced cuts buffers, taken as one behind the other, into pieces of about a size.
func sliced(list []rank.Buffer, size int64) [][]rank.Buffer {
	total, element := int64(0), int64(list[0].DType.Size())
	for _, b := range list {
		total += b.Count()
	}
	ranges := Split(total, int((total*element+size-1)/size))
	pieces := make([][]rank.Buffer, len(ranges))
	at := int64(0) // elements before the buffer
	k := 0
	for _, b := range list {
		for from := int64(0); from < b.Count(); {
			for ranges[k].To <= at+from {
				k++
			}
			to := min(b.Count(), ranges[k].To-at)
			pieces[k] = append(pieces[k], rank.Buffer{DType: b.DType, Memory: b.Memory.Slice(from*element, (to-from)*element)})
			from = to
		}
		at += b.Count()
	}
	return pieces
}

// request is the call that reduces buffers in place.
func request(list []rank.Buffer, op kolo.ReduceOp) rank.Request {
	if len(list) == 1 {
		return rank.Request{Collective: kolo.AllReduce, In: list[0], Out: list[0], Op: op}
	}
	return rank.Request{Collective: kolo.AllReduce, Tensors: list, Op: op}
}

// begin opens a step.
func (u *urgent) begin() error {
	if err := u.opened(); err != nil {
		return err
	}
	if u.producer == nil {
		u.start = u.now()
	} else if err := u.producer.Callback(func(error) { u.start = u.now() }); err != nil {
		err = fmt.Errorf("pipeline: begin a step: %w", err)
		u.stopAll(err)
		u.mu.Lock()
		u.open = false
		u.mu.Unlock()
		return err
	}
	u.tell(nil, &news{kind: newsStep})
	return nil
}

// opened makes the step's state.
func (u *urgent) opened() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if err := u.closedOr(u.open, "the step before was not waited for"); err != nil {
		return err
	}
	if err := u.group.Err(); err != nil {
		return fmt.Errorf("pipeline: begin a step: %w", err)
	}
	u.passed = slices.DeleteFunc(u.passed, func(n npu.Notify) bool { return n.Close() == nil })
	for i := range u.parts {
		p := &u.parts[i]
		p.marked, p.used, p.err, p.reduced = false, false, nil, make(chan struct{})
		if u.consumer == nil {
			continue
		}
		n, err := u.consumer.Device().NewNotify(fmt.Sprintf("part %d of %s", i, u.name))
		if err != nil {
			return fmt.Errorf("pipeline: begin a step: %w", err)
		}
		p.notify = n
		u.passed = append(u.passed, n)
	}
	u.open, u.unmarked, u.err, u.works, u.done = true, len(u.parts), nil, u.works[:0], make(chan struct{})
	return nil
}

func (u *urgent) closedOr(bad bool, why string) error {
	return (&line{name: u.name, closed: u.closed}).closedOr(bad, why)
}

// mark says that part i is computed.
func (u *urgent) mark(i int) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if err := u.closedOr(!u.open, noStep); err != nil {
		return err
	}
	p := &u.parts[i]
	if u.err != nil && p.marked {
		return u.err // the step was aborted, which marked every part
	}
	if p.marked {
		return fmt.Errorf("%w: pipeline %s: part %d is ready twice", kolo.ErrArgument, u.name, i)
	}
	p.marked = true
	u.unmarked--
	u.packing = append(u.packing, i)
	if u.launching {
		return nil
	}
	u.launching = true
	for len(u.packing) > 0 {
		k, err := u.packing[0], u.err
		u.packing = slices.Delete(u.packing, 0, 1)
		u.mu.Unlock()
		if err == nil {
			err = u.pack(k)
		}
		u.mu.Lock()
		if u.err == nil {
			u.err = err // the actor may hear of it later
		}
	}
	u.launching = false
	return u.err
}

// pack packs part k and tells the actor when the Producer has come so far. What fails
// on this rank fails the group, as the other ranks wait for it.
func (u *urgent) pack(k int) (err error) {
	p := &u.parts[k]
	if p.pack != nil {
		err = p.pack()
	}
	come := func(err error) {
		p.came = news{kind: newsComputed, i: k, at: u.now(), err: err}
		u.tell(nil, &p.came)
	}
	switch {
	case err == nil && u.producer == nil:
		come(nil)
	case err == nil:
		err = u.producer.Callback(come)
	}
	if err != nil {
		u.stopAll(err)
	}
	return err
}

// stopAll fails the groups, and with them the step.
func (u *urgent) stopAll(cause error) {
	u.group.Abort(cause)
	u.orders.Abort(cause)
	u.tell(nil, &news{kind: newsFailed, err: cause})
}

// tell tells the actor. One that has ended, as when the world was closed under the
// step, leaves no call behind: what waits is freed here.
func (u *urgent) tell(turn *actor.Shard, m *news) {
	if err := u.self.From(turn).Tell(m); err != nil {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.give(err)
	}
}

// give frees all who wait for something that has not come, with the cause. u.mu is held.
func (u *urgent) give(err error) {
	if u.err == nil {
		u.err = err
	}
	if u.over {
		return
	}
	u.over = true
	for i := range u.parts {
		if p := &u.parts[i]; p.err == nil && (p.ended < p.count) {
			p.release(err)
		}
	}
	close(u.done)
}

// Handle takes note, and starts what may be started.
func (u *urgent) Handle(m *news) error {
	switch m.kind {
	case newsStep:
		u.ordered, u.begun, u.ended, u.flying, u.failed, u.over, u.line = 0, 0, 0, 0, nil, false, u.line[:0]
		for i := range u.parts {
			p := &u.parts[i]
			p.computed, p.next, p.ended = false, 0, 0
		}
		if u.group.Rank() != 0 {
			u.hear(0)
		}
	case newsComputed:
		p := &u.parts[m.i]
		p.computed, p.at = true, m.at
		if m.err != nil {
			u.fail(fmt.Errorf("the stream before part %d of %s: %w", m.i, u.name, m.err))
		}
	case newsOrder:
		u.flying--
		u.heard(m)
	case newsBegun:
		u.begun++
		u.slices[m.i].times[0] = m.at
	case newsEnded:
		u.flying--
		u.slices[m.i].times[1] = m.at
		u.sliceEnded(m)
	case newsFailed:
		u.fail(m.err)
	default:
		panic(fmt.Sprintf("pipeline: unknown news %d", m.kind))
	}
	u.advance()
	return nil
}

// advance orders and launches what may be, and ends the step when all has ended.
func (u *urgent) advance() {
	if u.group.Rank() == 0 {
		for u.failed == nil && u.ordered <= u.begun {
			k := u.mostUrgent()
			if k < 0 {
				break
			}
			u.choices[u.ordered] = int64(k)
			u.hear(u.ordered)
			u.ordered++
			u.launch(k)
		}
	}
	for u.failed == nil && len(u.line) > 0 && u.parts[u.line[0]].computed {
		k := u.line[0]
		u.line = slices.Delete(u.line, 0, 1)
		u.launch(k)
	}
	if u.flying == 0 && (u.failed != nil || u.ended == len(u.slices)) && !u.over {
		u.over = true
		close(u.done)
	}
}

// mostUrgent is the part to send a slice of, or -1.
func (u *urgent) mostUrgent() int {
	for _, k := range u.byUrgency {
		if p := &u.parts[k]; p.computed && p.next < p.count {
			return k
		}
	}
	return -1
}

// hear makes the call of order i, as the one who gives it or who takes it. It is an
// AllReduce to which only rank 0 adds anything: what can reduce slices can do that.
func (u *urgent) hear(i int) {
	m := &u.slices[i].order
	if u.group.Rank() != 0 {
		u.choices[i] = 0
	}
	u.call(u.orders, request([]rank.Buffer{rank.Of(u.choices[i : i+1])}, kolo.Sum),
		func(turn *actor.Shard, s rank.Stage, err error) {
			if s == rank.StageEnded {
				*m = news{kind: newsOrder, i: i, err: err}
				u.tell(turn, m)
			}
		})
}

// heard takes an order that has come.
func (u *urgent) heard(m *news) {
	if m.err != nil {
		u.fail(m.err)
		return
	}
	if u.group.Rank() == 0 || u.failed != nil {
		return
	}
	k := u.choices[m.i]
	given := 0
	for _, other := range u.line {
		if int64(other) == k {
			given++
		}
	}
	if k < 0 || k >= int64(len(u.parts)) || u.parts[k].next+given >= u.parts[k].count {
		u.fail(fmt.Errorf("%w: pipeline: rank 0 orders a slice of part %d, and this rank has none left", kolo.ErrMismatch, k))
		return
	}
	u.line = append(u.line, int(k))
	if m.i+1 < len(u.slices) {
		u.hear(m.i + 1)
	}
}

// launch reduces the next slice of part k.
func (u *urgent) launch(k int) {
	p := &u.parts[k]
	i := p.first + p.next
	p.next++
	s := &u.slices[i]
	u.call(u.group, request(s.buffers, u.op), func(turn *actor.Shard, stage rank.Stage, err error) {
		switch stage {
		case rank.StageBegun:
			s.slots[0] = news{kind: newsBegun, i: i, at: u.now()}
			u.tell(turn, &s.slots[0])
		case rank.StageEnded:
			s.slots[1] = news{kind: newsEnded, i: i, at: u.now(), err: err}
			u.tell(turn, &s.slots[1])
		}
	})
}

// call makes a call that is watched.
func (u *urgent) call(g *rank.Group, r rank.Request, watch func(*actor.Shard, rank.Stage, error)) {
	if u.failed != nil {
		return
	}
	u.flying++
	w := rank.DoOn(g, r, rank.Between{Watch: watch})
	if err := w.Refused(); err != nil {
		u.flying--
		u.fail(err)
		return
	}
	u.mu.Lock()
	u.works = append(u.works, w)
	u.mu.Unlock()
}

// sliceEnded counts the slices of a part, and frees who waits for it.
func (u *urgent) sliceEnded(m *news) {
	if m.err != nil {
		u.fail(m.err)
		return
	}
	u.ended++
	p := &u.parts[u.slices[m.i].part]
	if p.ended++; p.ended == p.count && u.failed == nil {
		p.release(nil)
	}
}

// release lets those go on who wait for the part, or fails them.
func (p *urgentPart) release(err error) {
	p.err = err
	close(p.reduced)
	if p.notify == nil {
		return
	}
	if err != nil {
		_ = p.notify.Fail(err) // refused only where it was closed: then nobody waits
		return
	}
	_ = p.notify.Set() // the same
}

// fail ends the step on all ranks. What is on its way ends by itself.
func (u *urgent) fail(err error) {
	if u.failed != nil || u.over {
		return
	}
	u.failed = err
	u.mu.Lock()
	if u.err == nil {
		u.err = err
	}
	u.mu.Unlock()
	u.group.Abort(err)
	u.orders.Abort(err)
	for i := range u.parts {
		if p := &u.parts[i]; p.ended < p.count {
			p.release(err)
		}
	}
}

// use is behind part i: the Consumer, or the caller.
func (u *urgent) use(ctx context.Context, i int) error {
	p := &u.parts[i]
	if p.used {
		return nil
	}
	var err error
	if u.consumer != nil {
		if err = u.consumer.Await(p.notify); err != nil {
			return err
		}
	} else {
		select {
		case <-p.reduced:
		case <-ctx.Done():
			u.stopAll(ctxerr.Of(ctx))
			<-p.reduced
		}
		if p.err != nil {
			return p.err
		}
	}
	p.used = true
	if p.unpack != nil {
		err = p.unpack()
	}
	return err
}

// wait ends the step: every part is used that was not.
func (u *urgent) wait(ctx context.Context) (Report, error) {
	u.mu.Lock()
	err := u.closedOr(!u.open, noStep)
	if err == nil {
		err = u.closedOr(u.unmarked > 0 || u.launching, "parts are not ready, or their Ready has not returned")
	}
	if err != nil {
		u.mu.Unlock()
		return Report{}, err
	}
	first := u.err
	u.mu.Unlock()
	for i := range u.parts {
		if first == nil {
			first = u.use(ctx, i)
		}
	}
	if first != nil {
		u.stopAll(first) // the first failure counts, which this may be or follow
	}
	select {
	case <-u.done:
	case <-ctx.Done():
		u.stopAll(ctxerr.Of(ctx))
		<-u.done
	}
	u.mu.Lock()
	works := u.works
	if u.err != nil {
		first = u.err
	}
	u.mu.Unlock()
	for _, w := range works {
		if err := w.Wait(ctx); err != nil && first == nil {
			first = err
		}
	}
	u.mu.Lock()
	u.open = false
	u.mu.Unlock()
	if first != nil {
		return Report{}, first
	}
	return u.report(), nil
}

// report has the moments of the slices, in the order in which they were sent.
func (u *urgent) report() Report {
	list := make([]Times, len(u.slices))
	for i := range u.slices {
		s := &u.slices[i]
		list[i] = Times{Part: s.part, Ready: u.parts[s.part].at.Sub(u.start), Begun: s.times[0].Sub(u.start), Ended: s.times[1].Sub(u.start)}
	}
	slices.SortStableFunc(list, func(a, b Times) int { return int(a.Begun - b.Begun) })
	return measure(list)
}

// abort fails the group, and with it the step, for a cause.
func (u *urgent) abort(cause error) error {
	u.mu.Lock()
	if u.err == nil {
		u.err = cause
	}
	for i := range u.parts {
		if p := &u.parts[i]; u.open && !p.marked {
			p.marked = true
			u.unmarked--
		}
	}
	u.mu.Unlock()
	u.stopAll(cause)
	return nil
}

// close ends the actor, between steps.
func (u *urgent) close() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return nil
	}
	if u.open {
		return fmt.Errorf("%w: pipeline %s: a step was not waited for", kolo.ErrArgument, u.name)
	}
	u.closed = true
	u.passed = slices.DeleteFunc(u.passed, func(n npu.Notify) bool { return n.Close() == nil }) // what is left goes with the device
	u.self.Stop()
	return nil
}

// pipe is what a Reducer needs of a line or an urgent.
type pipe interface {
	begin() error
	mark(i int) error
	use(ctx context.Context, i int) error
	abort(cause error) error
	wait(ctx context.Context) (Report, error)
	close() error
}
