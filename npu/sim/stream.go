package sim

import (
	"math"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/internal/kernel"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/npu/driver"
)

// stream is what a device does for a stream.
type stream struct {
	*driver.Stream
	d       *device
	running *task // that was begun and has not ended
}

// task is what a stream does.
type task struct {
	driver.Task
	phases [][]*use
	effect func() error // on the bytes, at the end
	work   *chain       // once begun
}

// NewTask makes a task.
func (h hooks) NewTask() *driver.Task {
	k := &task{}
	k.Own = k
	return &k.Task
}

// Copy is a use of the way between the two, and then a copy.
func (s *stream) Copy(t *driver.Task, dst, src driver.Place) error {
	k, to, from := t.Own.(*task), dst.Bytes(), src.Bytes()
	k.phases = [][]*use{{s.d.c.move(own(src.Device), own(dst.Device), dst.Len())}}
	k.effect = func() error {
		copy(to, from)
		return nil
	}
	return nil
}

// Reduce is a copy to this device, where the source is elsewhere, and a fold.
func (s *stream) Reduce(t *driver.Task, dst, src driver.Place, d kolo.DType, op kolo.ReduceOp) error {
	k, to, from := t.Own.(*task), dst.Bytes(), src.Bytes()
	if src.Device != dst.Device {
		k.phases = append(k.phases, []*use{s.d.c.move(own(src.Device), s.d, dst.Len())})
	}
	k.phases = append(k.phases, []*use{s.d.c.fold(s.d, 3*dst.Len())})
	k.effect = func() error {
		kernel.OpOf(d, op, 1).Accumulate(to, from)
		return nil
	}
	return nil
}

// Launch is a use of the compute engine, and then a call of the kernel's Host.
func (s *stream) Launch(t *driver.Task, f npu.Kernel, places []driver.Place) error {
	k := t.Own.(*task)
	args := make([][]byte, len(places))
	for i, p := range places {
		args[i] = p.Bytes()
	}
	cost := f.Time
	if cost == 0 {
		cost = max(s.d.c.flops(f.FLOPs), transfer(f.Bytes, s.d.c.cfg.HBM))
	}
	k.phases = [][]*use{{s.d.c.compute(s.d, t.Op, cost, f.Bytes)}}
	if f.Host != nil {
		k.effect = func() error { return f.Host(args) }
	}
	return nil
}

// Abort drops also what waits for an engine.
func (s *stream) Abort(cause error) {
	if k := s.running; k != nil && !k.work.begun {
		s.d.c.cancel(k.work, cause)
	}
}

// Close has nothing to give back.
func (s *stream) Close() {}

// Begin begins a task at the moment at which the model says.
func (h hooks) Begin(t *driver.Task) {
	c, k := h.c, t.Own.(*task)
	at := max(t.At, c.clock.at)
	if t.Stream != nil { // and not before what a host has set, where real time is ahead
		at = max(at, t.Stream.Stamp())
	}
	switch {
	case t.Syncs():
		c.schedule(at, func() { t.End(nil) })
	case t.Kind == npu.TaskCall:
		c.call(at, t)
	case t.Kind == npu.TaskRecord:
		if t.Mark.Latest(&t.Task) {
			t.Event.Stamp = at
		}
		t.End(nil)
	default:
		c.launch(k, at)
	}
}

// launch runs a task through the lanes and then its effect.
func (c *Cluster) launch(k *task, at time.Duration) {
	s := k.Stream.Hooks().(*stream)
	fault := s.d.slot.struck()
	s.running = k
	devices := []*device{s.d}
	for _, p := range k.Parts {
		devices = append(devices, own(p))
	}
	k.work = &chain{phases: k.phases, devices: devices, owner: s.d, priority: s.Priority()}
	end := func(err error) {
		s.running = nil
		if err != nil {
			err = s.Error(k.Op, err)
		}
		k.End(err)
	}
	k.work.done = func(err error) {
		if err == nil {
			err = fault
		}
		if err != nil || k.effect == nil {
			end(err)
			return
		}
		c.run(c.clock.at, k.effect, end)
	}
	c.start(k.work, at)
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
