package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/rank"
)

// The sizes of a Reducer's buckets. The first is small, so that something is on the
// wire early.
const (
	DefaultBucket = 25 << 20
	DefaultFirst  = 1 << 20
)

// Param is a parameter of a model.
type Param struct {
	Name     string
	Gradient rank.Buffer // reduced in place
}

// Bucket is what a Reducer reduces in one call.
type Bucket struct {
	Index  int
	Params []int // of ReducerConfig.Params, in the order of the memory
	// Tensors are what the call reduces: the gradients, or one buffer that holds them
	// all, one behind the other (see Fusion).
	Tensors []rank.Buffer
}

// Fusion is how the gradients of a bucket become one call.
type Fusion uint8

// The ways of fusion.
const (
	// FuseBest is FuseGather for memory of the host and of a simulated device, else FuseStage.
	FuseBest Fusion = iota
	// FuseGather gives the call the gradients where they are: nothing is copied.
	FuseGather
	// FuseStage copies the gradients to memory of the Reducer's, and back.
	FuseStage
)

// ReducerConfig says what a Reducer reduces. All ranks give the same, but for the
// memory and the streams; a difference is kolo.ErrMismatch.
type ReducerConfig struct {
	Group  *rank.Group
	Params []Param // in the order in which the model uses them
	Op     kolo.ReduceOp
	// Bucket is the most bytes of a bucket, First those of the first. 0 means the
	// defaults.
	Bucket, First int64
	Fusion        Fusion
	// Priority has the bucket whose parameters the model uses first go before others that
	// are ready, from the next slice on, though they were ready before. Rank 0's
	// gradients decide. Every rank then makes one more group of the same ranks; all
	// gradients of a step are made ready before the first Use.
	Priority bool
	// Slice is the size of the slices of a bucket, in bytes, if Priority. 0 means
	// DefaultSlice.
	Slice int64
	// Accumulate is how many steps add to the gradients before they are reduced. 0
	// means 1.
	Accumulate int
	// Producer computes the gradients and Consumer uses them, both of one device, whose
	// memory the gradients are. Both nil: the host does.
	Producer, Consumer npu.Stream
	// Before, if set, is called for each bucket before it is reduced on this rank, for
	// instance to scale or clip. With a Producer it asks that stream for its work. An
	// error aborts the group.
	Before func(producer npu.Stream, b Bucket) error
	// After, if set, is called once in each step that reduces, behind all buckets, for
	// instance to clip by the norm of all gradients, which is then the same on all ranks.
	// With a Consumer it asks that stream for its work, in Flush; else it has the
	// reduced gradients, in Wait.
	// An error aborts the group.
	After func(consumer npu.Stream) error
	// Now is the clock of the reports. nil means time.Now.
	Now func() time.Time
}

// Reducer reduces the gradients of a model in buckets, each as soon as all its
// gradients are there. It begins with the parameters backwards; in the first step
// that reduces it learns the order in which gradients come, and from then on
// all ranks have the buckets of rank 0's order. Begin, Flush, Wait and Close are for
// one goroutine at a time; Ready is for any.
type Reducer struct {
	cfg     ReducerConfig
	device  npu.Device // nil without streams
	pipe    pipe
	orders  *rank.Group // with Priority: see urgent
	copied  atomic.Int64
	buckets []Bucket
	home    []int // bucket of each parameter
	staged  []kolo.Memory
	learned bool
	steps   int // begun

	mu      sync.Mutex
	seen    []bool
	came    []int // parameters in the order in which they became ready
	missing []int // parameters of each bucket
}

// NewReducer makes a Reducer. Close it before its World.
func NewReducer(c ReducerConfig) (*Reducer, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	r := &Reducer{cfg: c}
	if c.Producer != nil {
		r.device = c.Producer.Device()
	}
	if c.Priority {
		var err error
		if r.orders, err = ordersOf(c.Group); err != nil {
			return nil, err
		}
	}
	if err := r.build(backwards(len(c.Params))); err != nil {
		return nil, errors.Join(err, r.closeOrders())
	}
	return r, nil
}

// ordersOf makes the group in which rank 0 says what comes next.
func ordersOf(g *rank.Group) (*rank.Group, error) {
	c := rank.GroupConfig{Name: g.Name() + ": order", Priority: 1}
	for r := range g.Size() {
		c.Ranks = append(c.Ranks, g.WorldRank(kolo.Rank(r)))
	}
	return g.World().NewGroup(c)
}

func (r *Reducer) closeOrders() error {
	if r.orders == nil {
		return nil
	}
	return r.orders.Close(context.Background()) // nothing is in flight
}

func (c *ReducerConfig) check() error {
	switch {
	case c.Group == nil:
		return errNoGroup
	case len(c.Params) == 0:
		return fmt.Errorf("%w: pipeline: no Params", kolo.ErrArgument)
	case c.Fusion > FuseStage:
		return fmt.Errorf("%w: pipeline: Fusion is %d", kolo.ErrArgument, c.Fusion)
	case c.Priority && c.After != nil:
		return fmt.Errorf("%w: pipeline: After waits for all buckets, and Priority is there not to", kolo.ErrArgument)
	case c.Slice < 0:
		return fmt.Errorf("%w: pipeline: Slice is %d", kolo.ErrArgument, c.Slice)
	case c.Bucket < 0 || c.First < 0 || c.Accumulate < 0:
		return fmt.Errorf("%w: pipeline: Bucket %d, First %d, Accumulate %d: none may be negative", kolo.ErrArgument, c.Bucket, c.First, c.Accumulate)
	}
	c.Params = slices.Clone(c.Params)
	names := map[string]bool{}
	for i, p := range c.Params {
		switch {
		case p.Gradient.Count() == 0:
			return fmt.Errorf("%w: pipeline: parameter %d, %q, is empty", kolo.ErrArgument, i, p.Name)
		case names[p.Name]:
			return fmt.Errorf("%w: pipeline: parameter %d, %q: the name is taken", kolo.ErrArgument, i, p.Name)
		}
		if err := oneDevice(c.Producer, c.Consumer, p.Gradient); err != nil {
			return fmt.Errorf("parameter %d, %q: %w", i, p.Name, err)
		}
		names[p.Name] = true
	}
	if c.Bucket == 0 {
		c.Bucket = DefaultBucket
	}
	if c.First == 0 {
		c.First = min(DefaultFirst, c.Bucket)
	}
	if c.Slice == 0 {
		c.Slice = DefaultSlice
	}
	c.Accumulate = max(c.Accumulate, 1)
	return nil
}

// build makes the buckets for an order.
func (r *Reducer) build(order []int) error {
	c := &r.cfg
	lists := bucketsOf(c.Params, order, c.First, c.Bucket)
	if len(lists) > maxChunks {
		return fmt.Errorf("%w: pipeline: %d buckets, and there may be %d; make them larger", kolo.ErrLimit, len(lists), maxChunks)
	}
	r.buckets, r.staged = nil, nil
	r.home, r.seen, r.missing = make([]int, len(c.Params)), make([]bool, len(c.Params)), make([]int, len(lists))
	parts := make([]part, len(lists))
	for i, list := range lists {
		p, err := r.part(i, list)
		if err != nil {
			return errors.Join(err, r.free())
		}
		parts[i] = p
		for _, k := range list {
			r.home[k] = i
		}
	}
	if err := r.newPipe(lists, parts); err != nil {
		return errors.Join(err, r.free())
	}
	return nil
}

// newPipe makes what reduces the buckets.
func (r *Reducer) newPipe(lists [][]int, parts []part) (err error) {
	c, name := &r.cfg, "reducer of "+r.cfg.Group.Name()
	if !c.Priority {
		r.pipe, err = newLine(&line{name: name, group: c.Group, op: c.Op, producer: c.Producer, consumer: c.Consumer, now: c.Now}, parts)
		return err
	}
	var urgency []int
	for _, list := range lists {
		urgency = append(urgency, slices.Min(list))
	}
	r.pipe, err = newUrgent(&urgent{name: name, group: c.Group, orders: r.orders, op: c.Op,
		producer: c.Producer, consumer: c.Consumer, now: c.Now}, parts, urgency, c.Slice)
	return err
}

// gathers says whether calls take the gradients where they are.
func (r *Reducer) gathers() bool {
	switch r.cfg.Fusion {
	case FuseGather:
		return true
	case FuseStage:
		return false
	}
	return r.device == nil || r.device.Info().Simulated
}

// part makes a bucket. One of several parameters that are staged has memory of its own.
func (r *Reducer) part(i int, list []int) (part, error) {
	first := r.cfg.Params[list[0]].Gradient
	b := Bucket{Index: i, Params: list}
	for _, k := range list {
		b.Tensors = append(b.Tensors, r.cfg.Params[k].Gradient)
	}
	var places []kolo.Memory
	if len(list) > 1 && !r.gathers() {
		size := int64(0)
		for _, k := range list {
			size += r.cfg.Params[k].Gradient.Memory.Len()
		}
		m, err := allocate(r.device, first.Memory.Space, size)
		if err != nil {
			return part{}, err
		}
		r.staged = append(r.staged, m)
		b.Tensors = []rank.Buffer{{Memory: m, DType: first.DType}}
		at := int64(0)
		for _, k := range list {
			n := r.cfg.Params[k].Gradient.Memory.Len()
			places = append(places, m.Slice(at, n))
			at += n
		}
	}
	r.buckets = append(r.buckets, b)
	p := part{buffers: b.Tensors}
	p.pack = func() error {
		for j, place := range places {
			if err := r.move(r.cfg.Producer, place, r.cfg.Params[list[j]].Gradient.Memory); err != nil {
				return err
			}
		}
		if r.cfg.Before != nil {
			return r.cfg.Before(r.cfg.Producer, b)
		}
		return nil
	}
	p.unpack = func() error {
		for j, place := range places {
			if err := r.move(r.cfg.Consumer, r.cfg.Params[list[j]].Gradient.Memory, place); err != nil {
				return err
			}
		}
		return nil
	}
	return p, nil
}

// move copies on a stream, or at once without one.
func (r *Reducer) move(s npu.Stream, dst, src kolo.Memory) error {
	r.copied.Add(src.Len())
	if s != nil {
		return s.Copy(dst, src)
	}
	copy(dst.Host, src.Host)
	return nil
}

// free gives back the memory of the buckets.
func (r *Reducer) free() (err error) {
	r.staged, err = release(r.device, r.staged...)
	return err
}

// Buckets are what the Reducer reduces, in order.
func (r *Reducer) Buckets() []Bucket { return slices.Clone(r.buckets) }

// LossScale is what the loss of each step has to be multiplied by, so that the
// gradients of Accumulate steps are those of one batch that is as many times larger.
func (r *Reducer) LossScale() float64 { return 1 / float64(r.cfg.Accumulate) }

// Begin opens a step. Of Accumulate steps only the last reduces. A Producer that
// has failed fails the group.
func (r *Reducer) Begin() (*ReducerStep, error) {
	s := &ReducerStep{r: r, Reduces: (r.steps+1)%r.cfg.Accumulate == 0}
	if s.Reduces {
		if err := r.pipe.begin(); err != nil {
			return nil, err
		}
	}
	r.steps++
	r.copied.Store(0)
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.seen)
	r.came = r.came[:0]
	for i, b := range r.buckets {
		r.missing[i] = len(b.Params)
	}
	return s, nil
}

// Close frees what the Reducer has made. A step that was begun must have been waited
// for, and the Consumer must have passed it, or Close has to
// be called again.
func (r *Reducer) Close() error {
	if err := r.pipe.close(); err != nil {
		return err
	}
	return errors.Join(r.free(), r.closeOrders())
}

// ReducerStep is one backward pass.
type ReducerStep struct {
	r       *Reducer
	Reduces bool // else it only adds to the gradients
	flushed bool
	waited  bool
	unused  []string
}

// Ready says that the gradient of parameter i is computed, or with a Producer that it
// will be when all has ended that was asked of it so far. It returns at once.
func (s *ReducerStep) Ready(i int) error {
	r := s.r
	if i < 0 || i >= len(r.cfg.Params) {
		return fmt.Errorf("%w: pipeline: no parameter %d of %d", kolo.ErrArgument, i, len(r.cfg.Params))
	}
	r.mu.Lock()
	if r.seen[i] {
		r.mu.Unlock()
		return fmt.Errorf("%w: pipeline: parameter %q is ready twice in a step", kolo.ErrArgument, r.cfg.Params[i].Name)
	}
	r.seen[i] = true
	r.came = append(r.came, i)
	home := r.home[i]
	r.missing[home]--
	full := s.Reduces && r.missing[home] == 0
	r.mu.Unlock()
	if full {
		return r.pipe.mark(home)
	}
	return nil
}

// Flush makes ready every parameter that the step has no gradient for, with what its
// gradient holds, so that no rank waits for it. With a Consumer, what is asked of it
// after Flush comes after all buckets, but with Priority, where Use says what it comes
// after. Wait does the same.
func (s *ReducerStep) Flush() (first error) {
	if s.flushed {
		return nil
	}
	s.flushed = true
	r := s.r
	for i, p := range r.cfg.Params {
		r.mu.Lock()
		seen := r.seen[i]
		r.mu.Unlock()
		if seen {
			continue
		}
		s.unused = append(s.unused, p.Name)
		if err := s.Ready(i); err != nil && first == nil {
			first = err // the others have to be made ready all the same
		}
		r.mu.Lock()
		r.came = r.came[:len(r.came)-1] // it has no place of its own in the order
		r.mu.Unlock()
	}
	if first == nil && s.Reduces && r.cfg.Consumer != nil && r.cfg.After != nil {
		first = r.cfg.After(r.cfg.Consumer)
	}
	return first
}

// Use is for what needs the gradient of parameter i reduced, and perhaps no other:
// with a Consumer, what is asked of it later comes after that; else Use returns when
// it is. It does what Flush does first. Without Priority it is behind the buckets
// before it too, and with a Consumer behind all.
func (s *ReducerStep) Use(ctx context.Context, i int) error {
	if i < 0 || i >= len(s.r.cfg.Params) {
		return fmt.Errorf("%w: pipeline: no parameter %d of %d", kolo.ErrArgument, i, len(s.r.cfg.Params))
	}
	if err := s.Flush(); err != nil || !s.Reduces {
		return err
	}
	return s.r.pipe.use(ctx, s.r.home[i])
}

// Abort ends the step, and the group on all ranks, with a cause. The step is still to
// be waited for.
func (s *ReducerStep) Abort(cause error) error {
	if !s.Reduces {
		s.r.cfg.Group.Abort(cause)
		return nil
	}
	return s.r.pipe.abort(cause)
}

// Wait returns when every gradient is reduced, with the numbers of the step. The
// first such Wait also agrees on the order, for which it waits for the other ranks
// and, once, for the Consumer. If ctx ends first the group is aborted.
func (s *ReducerStep) Wait(ctx context.Context) (Report, error) {
	if s.waited {
		return Report{}, fmt.Errorf("%w: pipeline: the step was waited for already", kolo.ErrArgument)
	}
	s.waited = true
	flushed := s.Flush()
	if !s.Reduces {
		return Report{Unused: s.unused}, flushed
	}
	report, err := s.r.pipe.wait(ctx) // also after an error, which it knows
	report.Unused, report.Staged = s.unused, s.r.copied.Load()
	if err == nil {
		err = flushed
	}
	if after := s.r.cfg.After; err == nil && after != nil && s.r.cfg.Consumer == nil {
		err = after(nil)
	}
	if err == nil && !s.r.learned {
		err = s.r.learn(ctx)
	}
	if err != nil {
		s.r.cfg.Group.Abort(err) // the others must not wait for this rank's next call
	}
	return report, err
}

// learn gives all ranks the order that rank 0 has seen.
func (r *Reducer) learn(ctx context.Context) error {
	params := r.cfg.Params
	m := make([]int64, 1+len(params)) // an AllReduce, which every algorithm does that reduces the gradients
	if r.cfg.Group.Rank() == 0 {
		m = message(params, completed(r.came, len(params)))
	}
	if err := rank.AllReduce(ctx, r.cfg.Group, m, kolo.Sum); err != nil {
		return err
	}
	order, err := agreed(params, m)
	if err != nil {
		return err
	}
	r.learned = true
	if slices.EqualFunc(r.buckets, bucketsOf(params, order, r.cfg.First, r.cfg.Bucket),
		func(b Bucket, list []int) bool { return slices.Equal(b.Params, list) }) {
		return nil
	}
	if r.cfg.Consumer != nil {
		if err := r.cfg.Consumer.Sync(ctx); err != nil {
			return err
		}
	}
	if err := r.pipe.close(); err != nil {
		return err
	}
	if err := r.free(); err != nil {
		return err
	}
	return r.build(order)
}
