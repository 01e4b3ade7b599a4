package sim

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/internal/kernel"
	"github.com/kolo-ccl/kolo/npu"
)

// stream is a queue of a device.
type stream struct {
	d        *device
	name     string
	who      string // for who asks what holds a block
	priority int
	queue    npu.Queue
	running  *task // that was begun and has not ended
	idle     []chan struct{}
	closed   bool
}

// task is what a stream does.
type task struct {
	npu.Task
	s      *stream
	op     string
	pushed time.Duration
	phases [][]*use
	parts  []*device // that take part
	blocks []*npu.Block
	effect func() error // on the bytes, at the end
	call   func(error)  // of a callback
	synced chan<- error // of a Sync, with room for the answer
	event  *eventHandle // of a record
	work   *chain       // once begun
}

func (s *stream) Name() string { return s.name }

func (s *stream) Device() npu.Device { return s.d }

func (s *stream) Copy(dst, src kolo.Memory) error {
	return s.push("copy", &task{}, func(k *task) error {
		if dst.Len() != src.Len() {
			return fmt.Errorf("%w: %d bytes to %d bytes", kolo.ErrArgument, src.Len(), dst.Len())
		}
		to, toDevice, err := k.take(dst)
		if err != nil {
			return err
		}
		from, fromDevice, err := k.take(src)
		if err != nil {
			return err
		}
		if toDevice != s.d && fromDevice != s.d {
			return fmt.Errorf("%w: neither memory is of this device; use a stream of one of theirs", npu.ErrForeign)
		}
		if len(to) == 0 {
			return nil
		}
		k.phases = [][]*use{{s.d.c.move(fromDevice, toDevice, dst.Len())}}
		k.effect = func() error {
			copy(to, from)
			return nil
		}
		return nil
	})
}

func (s *stream) Reduce(dst, src kolo.Memory, d kolo.DType, op kolo.ReduceOp) error {
	return s.push("reduce", &task{}, func(k *task) error {
		if err := op.Check(d); err != nil {
			return err
		}
		switch {
		case op.Kind == kolo.OpAvg || op.Kind == kolo.OpPreMulSum:
			return fmt.Errorf("%w: reduce by %v, which is not of two elements", kolo.ErrUnsupported, op)
		case dst.Len() != src.Len() || dst.Len()%int64(d.Size()) != 0:
			return fmt.Errorf("%w: %d bytes to %d bytes of %v", kolo.ErrArgument, src.Len(), dst.Len(), d)
		}
		to, toDevice, err := k.take(dst)
		if err != nil {
			return err
		}
		from, fromDevice, err := k.take(src)
		if err != nil {
			return err
		}
		if toDevice != s.d || fromDevice == nil {
			return fmt.Errorf("%w: reduce needs a destination of this device and a source of it or a peer", npu.ErrForeign)
		}
		if len(to) == 0 {
			return nil
		}
		if fromDevice != toDevice {
			k.phases = append(k.phases, []*use{s.d.c.move(fromDevice, toDevice, dst.Len())})
		}
		k.phases = append(k.phases, []*use{s.d.c.fold(s.d, 3*dst.Len())})
		k.effect = func() error {
			kernel.OpOf(d, op, 1).Accumulate(to, from)
			return nil
		}
		return nil
	})
}

func (s *stream) Launch(f npu.Kernel) error {
	name := f.Name
	if name == "" {
		name = "kernel"
	}
	return s.push(name, &task{}, func(k *task) error {
		args := make([][]byte, len(f.Args))
		for i, m := range f.Args {
			bytes, d, err := k.take(m)
			if err == nil && d != s.d {
				err = npu.ErrForeign
			}
			if err != nil {
				return fmt.Errorf("argument %d: %w", i, err)
			}
			args[i] = bytes
		}
		cost := f.Time
		if cost == 0 {
			cost = max(s.d.c.flops(f.FLOPs), transfer(f.Bytes, s.d.c.cfg.HBM))
		}
		k.phases = [][]*use{{s.d.c.compute(s.d, name, cost, f.Bytes)}}
		if f.Host != nil {
			k.effect = func() error { return f.Host(args) }
		}
		return nil
	})
}

func (s *stream) Record(e npu.Event) error {
	return s.push("record", &task{Task: npu.Task{Kind: npu.TaskRecord}}, func(k *task) error {
		own, err := s.event(e)
		if err == nil {
			k.event, k.Mark = own, &own.mark
		}
		return err
	})
}

func (s *stream) Wait(e npu.Event) error {
	return s.push("wait", &task{Task: npu.Task{Kind: npu.TaskWait}}, func(k *task) error {
		own, err := s.event(e)
		if err == nil {
			k.Mark = &own.mark
		}
		return err
	})
}

func (s *stream) Signal(n npu.Notify) error {
	return s.push("signal", &task{Task: npu.Task{Kind: npu.TaskSignal}}, func(k *task) error {
		own, err := s.notify(n)
		if err == nil {
			k.Flag = &own.flag
		}
		return err
	})
}

func (s *stream) Await(n npu.Notify) error {
	return s.push("await", &task{Task: npu.Task{Kind: npu.TaskAwait}}, func(k *task) error {
		own, err := s.notify(n)
		if err == nil && own.d != s.d {
			err = fmt.Errorf("%w: notify %q is of device %d; a stream awaits those of its own device", npu.ErrForeign, n.Name(), own.d.slot.index)
		}
		if err == nil {
			k.Flag = &own.flag
		}
		return err
	})
}

func (s *stream) Callback(f func(error)) error {
	return s.push("callback", &task{Task: npu.Task{Kind: npu.TaskCall}, call: f}, func(*task) error {
		if f == nil {
			return fmt.Errorf("%w: no function", kolo.ErrArgument)
		}
		return nil
	})
}

func (s *stream) Query() (bool, error) {
	s.d.c.mu.Lock()
	defer s.d.c.mu.Unlock()
	return s.queue.Idle(), s.trouble()
}

// Sync is a task of its own, which a stream that has failed takes too: it ends behind
// the callbacks that are still to be called.
func (s *stream) Sync(ctx context.Context) error {
	c := s.d.c
	done := make(chan error, 1)
	c.mu.Lock()
	c.enter()
	if s.closed || s.d.closed {
		err := s.error("sync", kolo.ErrClosed)
		c.mu.Unlock()
		return err
	}
	k := &task{Task: npu.Task{Kind: npu.TaskCall}, s: s, op: "sync", pushed: c.clock.at, synced: done}
	k.Data = k
	err := c.order.Push(&s.queue, &k.Task)
	c.turn()
	c.mu.Unlock()
	if err != nil {
		return s.error("sync", err)
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return s.error("sync", fmt.Errorf("%w: %w", kolo.ErrCanceled, ctx.Err()))
	}
}

func (s *stream) Abort(cause error) {
	c := s.d.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.closed || s.d.trouble() != nil {
		return
	}
	c.enter()
	s.abort(cause)
	c.turn()
}

// abort drops what has not begun, also what waits for an engine.
func (s *stream) abort(cause error) {
	cause = s.error("abort", cause)
	s.d.c.order.Abort(&s.queue, cause)
	if k := s.running; k != nil && !k.work.begun {
		s.d.c.cancel(k.work, cause)
	}
}

func (s *stream) Close() error {
	s.d.c.mu.Lock()
	defer s.d.c.mu.Unlock()
	switch {
	case s.closed:
		return nil
	case !s.queue.Idle():
		return s.error("close", fmt.Errorf("%w: %d tasks have not ended; sync or abort the stream first", npu.ErrBusy, s.queue.Len()))
	}
	s.closed = true
	s.d.leave(s)
	return nil
}

// push accepts a task, after fill has said what it is, or refuses it.
func (s *stream) push(op string, k *task, fill func(*task) error) error {
	c := s.d.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := s.trouble(); err != nil {
		var known *npu.Error
		if errors.As(err, &known) {
			return err
		}
		return s.error(op, err)
	}
	c.enter()
	k.s, k.op, k.pushed, k.Data = s, op, c.clock.at, k
	err := fill(k)
	if err == nil {
		for _, d := range k.parts {
			if err = d.trouble(); err != nil {
				break
			}
		}
	}
	if err == nil {
		err = c.order.Push(&s.queue, &k.Task)
	}
	if err != nil {
		k.release()
		return s.error(op, err)
	}
	c.turn()
	return nil
}

// trouble says why the stream takes nothing.
func (s *stream) trouble() error {
	if s.closed {
		return fmt.Errorf("%w: stream %q", kolo.ErrClosed, s.name)
	}
	if err := s.queue.Err(); err != nil {
		return err
	}
	return s.d.trouble()
}

func (s *stream) error(op string, err error) error {
	return &npu.Error{Op: op, Device: s.d.slot.index, Stream: s.name, Err: err}
}

func (s *stream) event(e npu.Event) (*eventHandle, error) {
	own, ok := e.(*eventHandle)
	switch {
	case !ok:
		return nil, fmt.Errorf("%w: the event is none of a simulated device", npu.ErrForeign)
	case own.d != s.d:
		return nil, fmt.Errorf("%w: event %q is of device %d; use a notify between devices", npu.ErrForeign, own.Name(), own.d.slot.index)
	case own.closed:
		return nil, fmt.Errorf("%w: event %q", kolo.ErrClosed, own.Name())
	}
	return own, nil
}

func (s *stream) notify(n npu.Notify) (*notify, error) {
	own, ok := n.(*notify)
	switch {
	case !ok || own.d.c != s.d.c:
		return nil, fmt.Errorf("%w: the notify is none of this simulated cluster", npu.ErrForeign)
	case own.closed || own.d.closed:
		return nil, fmt.Errorf("%w: notify %q", kolo.ErrClosed, own.Name())
	}
	return own, nil
}

// take finds memory that the task uses, and holds it until the task has ended.
func (k *task) take(m kolo.Memory) ([]byte, *device, error) {
	bytes, d, b, err := k.s.d.c.locate(m)
	if err != nil {
		return nil, nil, err
	}
	if d != nil {
		k.parts = append(k.parts, d)
	}
	if b != nil {
		b.Hold(k.s.who)
		k.blocks = append(k.blocks, b)
	}
	return bytes, d, nil
}

func (k *task) release() {
	for _, b := range k.blocks {
		b.Release()
	}
	k.blocks = nil
}

// dispatch begins a task that the order gives, or resolves one that was dropped.
func (c *Cluster) dispatch(k *task) {
	at := max(k.pushed, c.clock.at)
	if k.s != nil { // and not before what a host has set, where real time is ahead
		at = max(at, k.s.queue.Stamp)
	}
	why := k.Err // an abort may set it while the callback runs
	switch {
	case k.synced != nil:
		c.schedule(at, func() {
			c.end(k, nil)
			k.synced <- why
		})
	case k.Kind == npu.TaskCall:
		var failed error
		c.call(at, func() { failed = k.calls(why) }, func() { c.end(k, failed) })
	case k.Kind == npu.TaskRecord:
		if k.Mark.Latest(&k.Task) {
			k.event.at = at
		}
		c.end(k, nil)
	case why != nil:
		c.end(k, nil)
	default:
		c.launch(k, at)
	}
}

// launch runs a task through the lanes and then its effect.
func (c *Cluster) launch(k *task, at time.Duration) {
	for _, d := range k.parts {
		if err := d.trouble(); err != nil {
			c.end(k, k.s.error(k.op, err))
			return
		}
	}
	fault := k.s.d.slot.struck()
	k.s.running = k
	k.work = &chain{phases: k.phases, devices: append(k.parts, k.s.d), owner: k.s.d, priority: k.s.priority}
	k.work.done = func(err error) {
		if err == nil {
			err = fault
		}
		switch {
		case err != nil:
			c.end(k, k.s.error(k.op, err))
		case k.effect == nil:
			c.end(k, nil)
		default:
			var failed error
			c.run(c.clock.at, func() { failed = protect(k.effect) }, func() {
				if failed != nil {
					failed = k.s.error(k.op, failed)
				}
				c.end(k, failed)
			})
		}
	}
	c.start(k.work, at)
}

// end resolves a task. c.mu is held.
func (c *Cluster) end(k *task, err error) {
	s := k.s
	if s == nil { // the watcher of an event
		return
	}
	k.release()
	if s.running == k {
		s.running = nil
	}
	c.order.Done(&k.Task, err)
	if s.queue.Idle() {
		for _, done := range s.idle {
			close(done)
		}
		s.idle = nil
	}
}

// calls calls the callback, with why it was dropped, if it was.
func (k *task) calls(why error) error {
	err := protect(func() error {
		k.call(why)
		return nil
	})
	if err != nil {
		return k.s.error(k.op, err)
	}
	return nil
}

// protect turns a panic of what users wrote into an error.
func protect(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%w: %w: %v\n%s", npu.ErrFault, kolo.ErrPanic, v, debug.Stack())
		}
	}()
	return f()
}

// flops is how long the compute engine takes for n operations, rounded up.
func (c *Cluster) flops(n float64) time.Duration {
	ns := n / c.cfg.FLOPS * 1e9
	if !(ns > 0) {
		return 0
	}
	if whole := math.Round(ns); math.Abs(ns-whole) < 1e-6 { // of rates that are no powers of two
		ns = whole
	}
	return time.Duration(math.Ceil(min(ns, 1<<60)))
}
