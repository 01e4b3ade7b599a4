package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
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
	Params []int       // of ReducerConfig.Params, in the order of the memory
	Memory rank.Buffer // all gradients, one behind the other
}

// ReducerConfig says what a Reducer reduces. All ranks give the same, but for the
// memory and the streams; a difference is kolo.ErrMismatch.
type ReducerConfig struct {
	Group  *rank.Group
	Params []Param // in the order in which the model uses them
	Op     kolo.ReduceOp
	// Bucket is the most bytes of a bucket, First those of the first. 0 means the
	// defaults.
	Bucket, First int64
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
	line    *line
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
	if err := r.build(backwards(len(c.Params))); err != nil {
		return nil, err
	}
	return r, nil
}

func (c *ReducerConfig) check() error {
	switch {
	case c.Group == nil:
		return fmt.Errorf("%w: pipeline: no Group", kolo.ErrArgument)
	case len(c.Params) == 0:
		return fmt.Errorf("%w: pipeline: no Params", kolo.ErrArgument)
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
		names[p.Name] = true
	}
	if c.Bucket == 0 {
		c.Bucket = DefaultBucket
	}
	if c.First == 0 {
		c.First = min(DefaultFirst, c.Bucket)
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
	l, err := newLine(&line{name: "reducer of " + c.Group.Name(), group: c.Group, op: c.Op,
		producer: c.Producer, consumer: c.Consumer, now: c.Now}, parts)
	if err != nil {
		return errors.Join(err, r.free())
	}
	r.line = l
	return nil
}

// part makes a bucket. One of a single parameter is that gradient itself; any other
// has memory of its own.
func (r *Reducer) part(i int, list []int) (part, error) {
	first := r.cfg.Params[list[0]].Gradient
	b := Bucket{Index: i, Params: list, Memory: first}
	var places []kolo.Memory
	if len(list) > 1 {
		size := int64(0)
		for _, k := range list {
			size += r.cfg.Params[k].Gradient.Memory.Len()
		}
		m, err := allocate(r.device, first.Memory.Space, size)
		if err != nil {
			return part{}, err
		}
		r.staged = append(r.staged, m)
		b.Memory.Memory = m
		at := int64(0)
		for _, k := range list {
			n := r.cfg.Params[k].Gradient.Memory.Len()
			places = append(places, m.Slice(at, n))
			at += n
		}
	}
	r.buckets = append(r.buckets, b)
	p := part{buffer: b.Memory}
	p.pack = func() error {
		for j, place := range places {
			if err := move(r.cfg.Producer, place, r.cfg.Params[list[j]].Gradient.Memory); err != nil {
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
			if err := move(r.cfg.Consumer, r.cfg.Params[list[j]].Gradient.Memory, place); err != nil {
				return err
			}
		}
		return nil
	}
	return p, nil
}

// move copies on a stream, or at once without one.
func move(s npu.Stream, dst, src kolo.Memory) error {
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
		if err := r.line.begin(); err != nil {
			return nil, err
		}
	}
	r.steps++
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
	if err := r.line.close(); err != nil {
		return err
	}
	return r.free()
}

// ReducerStep is one backward pass.
type ReducerStep struct {
	r       *Reducer
	Reduces bool // else it only adds to the gradients
	flushed bool
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
		return r.line.mark(home)
	}
	return nil
}

// Flush makes ready every parameter that the step has no gradient for, with what its
// gradient holds, so that no rank waits for it. With a Consumer, what is asked of it
// after Flush comes after all buckets. Wait does the same.
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

// Abort ends the step, and the group on all ranks, with a cause. The step is still to
// be waited for.
func (s *ReducerStep) Abort(cause error) error {
	if !s.Reduces {
		s.r.cfg.Group.Abort(cause)
		return nil
	}
	return s.r.line.abort(cause)
}

// Wait returns when every gradient is reduced, with the numbers of the step. The
// first such Wait also agrees on the order, for which it waits for the other ranks
// and, once, for the Consumer. If ctx ends first the group is aborted.
func (s *ReducerStep) Wait(ctx context.Context) (Report, error) {
	flushed := s.Flush()
	if !s.Reduces {
		return Report{Unused: s.unused}, flushed
	}
	report, err := s.r.line.wait(ctx) // also after an error, which it knows
	report.Unused = s.unused
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
	m := message(params, completed(r.came, len(params)))
	if err := rank.Broadcast(ctx, r.cfg.Group, m, 0); err != nil {
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
	if err := r.line.close(); err != nil {
		return err
	}
	if err := r.free(); err != nil {
		return err
	}
	return r.build(order)
}
