package driver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/npu"
)

// StreamHooks is a stream as its hardware has it. The methods are called with the lock.
// Copy, Reduce and Launch note in the task how it is done, or refuse it: the places are
// live, held until the task has ended, and of the lengths and devices that the stream's
// methods of the same names ask for.
type StreamHooks interface {
	// Copy is asked for at least one byte.
	Copy(t *Task, dst, src Place) error
	// Reduce is asked for at least one element, by an operation on two.
	Reduce(t *Task, dst, src Place, d kolo.DType, op kolo.ReduceOp) error
	// Launch is asked for a kernel; args are the places of its Args.
	Launch(t *Task, k npu.Kernel, args []Place) error
	// Abort is told that what waits was dropped. What has begun is ended by the driver,
	// now or when it comes to its end.
	Abort(cause error)
	// Close is told that the stream is closed; nothing of it is in flight.
	Close()
}

// Stream is an npu.Stream.
type Stream struct {
	device   *Device
	hooks    StreamHooks
	name     string
	who      string // for who asks what holds a block
	priority int
	queue    npu.Queue
	closed   bool
}

// Name is the name of StreamConfig, or one that was made up.
func (s *Stream) Name() string { return s.name }

// Device is the device that the stream is of.
func (s *Stream) Device() npu.Device { return s.device }

// Hooks is the stream as its hardware has it.
func (s *Stream) Hooks() StreamHooks { return s.hooks }

// Priority is that of StreamConfig.
func (s *Stream) Priority() int { return s.priority }

// Stamp is the latest moment at which a notify was set that the stream has passed. The
// lock is held.
func (s *Stream) Stamp() time.Duration { return s.queue.Stamp }

// Copy is that of npu.Stream.
func (s *Stream) Copy(dst, src kolo.Memory) error {
	return s.push("copy", npu.TaskWork, func(t *Task) error {
		if dst.Len() != src.Len() {
			return fmt.Errorf("%w: %d bytes to %d bytes", kolo.ErrArgument, src.Len(), dst.Len())
		}
		to, from, err := t.pair(dst, src)
		switch {
		case err != nil:
			return err
		case to.Device != s.device && from.Device != s.device:
			return fmt.Errorf("%w: neither memory is of this device; use a stream of one of theirs", npu.ErrForeign)
		case overlap(dst, src):
			return fmt.Errorf("%w: %d bytes at %#x and at %#x", kolo.ErrOverlap, dst.Size, src.Addr, dst.Addr)
		case dst.Len() == 0:
			return nil
		}
		return s.hooks.Copy(t, to, from)
	})
}

// Reduce is that of npu.Stream.
func (s *Stream) Reduce(dst, src kolo.Memory, d kolo.DType, op kolo.ReduceOp) error {
	return s.push("reduce", npu.TaskWork, func(t *Task) error {
		if err := op.Check(d); err != nil {
			return err
		}
		switch {
		case op.Kind == kolo.OpAvg || op.Kind == kolo.OpPreMulSum:
			return fmt.Errorf("%w: reduce by %v, which is not of two elements", kolo.ErrUnsupported, op)
		case dst.Len() != src.Len() || dst.Len()%int64(d.Size()) != 0:
			return fmt.Errorf("%w: %d bytes to %d bytes of %v", kolo.ErrArgument, src.Len(), dst.Len(), d)
		}
		to, from, err := t.pair(dst, src)
		switch {
		case err != nil:
			return err
		case to.Device != s.device || from.Device == nil:
			return fmt.Errorf("%w: reduce needs a destination of this device and a source of it or a peer", npu.ErrForeign)
		case dst.Addr != src.Addr && overlap(dst, src):
			return fmt.Errorf("%w: %d bytes at %#x and at %#x; they may be the same, but not in part", kolo.ErrOverlap, dst.Size, src.Addr, dst.Addr)
		case dst.Len() == 0:
			return nil
		}
		return s.hooks.Reduce(t, to, from, d, op)
	})
}

// overlap says whether memory of one device is in part the same.
func overlap(a, b kolo.Memory) bool {
	return a.Space == b.Space && a.Space != kolo.HostSpace && a.Addr < b.Addr+uint64(b.Size) && b.Addr < a.Addr+uint64(a.Size)
}

// Launch is that of npu.Stream.
func (s *Stream) Launch(k npu.Kernel) error {
	name := k.Name
	if name == "" {
		name = "kernel"
	}
	return s.push(name, npu.TaskWork, func(t *Task) error {
		if k.Time < 0 || k.Bytes < 0 || !(k.FLOPs >= 0) {
			return fmt.Errorf("%w: a kernel that costs %v, %d bytes and %v operations", kolo.ErrArgument, k.Time, k.Bytes, k.FLOPs)
		}
		args := make([]Place, len(k.Args))
		for i, m := range k.Args {
			p, err := t.take(m)
			if err == nil && p.Device != s.device {
				err = npu.ErrForeign
			}
			if err != nil {
				return fmt.Errorf("argument %d: %w", i, err)
			}
			args[i] = p
		}
		return s.hooks.Launch(t, k, args)
	})
}

// Record is that of npu.Stream.
func (s *Stream) Record(e npu.Event) error {
	return s.push("record", npu.TaskRecord, func(t *Task) error {
		own, err := s.event(e)
		if err == nil {
			t.Event, t.Mark = own, &own.mark
		}
		return err
	})
}

// Wait is that of npu.Stream.
func (s *Stream) Wait(e npu.Event) error {
	return s.push("wait", npu.TaskWait, func(t *Task) error {
		own, err := s.event(e)
		if err == nil {
			t.Mark = &own.mark
		}
		return err
	})
}

// Signal is that of npu.Stream.
func (s *Stream) Signal(n npu.Notify) error {
	return s.push("signal", npu.TaskSignal, func(t *Task) error {
		own, err := s.notify(n)
		if err == nil {
			t.Flag = &own.flag
		}
		return err
	})
}

// Await is that of npu.Stream.
func (s *Stream) Await(n npu.Notify) error {
	return s.push("await", npu.TaskAwait, func(t *Task) error {
		own, err := s.notify(n)
		if err == nil && own.device != s.device {
			err = fmt.Errorf("%w: notify %q is of device %d; a stream awaits those of its own device", npu.ErrForeign, n.Name(), own.device.index)
		}
		if err == nil {
			t.Flag = &own.flag
		}
		return err
	})
}

// Callback is that of npu.Stream.
func (s *Stream) Callback(f func(error)) error {
	return s.push("callback", npu.TaskCall, func(t *Task) error {
		if f == nil {
			return fmt.Errorf("%w: no function", kolo.ErrArgument)
		}
		t.call = f
		return nil
	})
}

// Query is that of npu.Stream.
func (s *Stream) Query() (bool, error) {
	c := s.device.core
	c.mu.Lock()
	defer c.mu.Unlock()
	return s.queue.Idle(), s.trouble()
}

// Sync is a task of its own, which a stream that has failed takes too: it ends behind
// the callbacks that are still to be called.
func (s *Stream) Sync(ctx context.Context) error {
	c := s.device.core
	done := make(chan error, 1)
	c.Enter()
	err := error(nil)
	if s.closed || s.device.closed {
		err = kolo.ErrClosed
	} else {
		t := c.task("sync", npu.TaskCall)
		t.Stream, t.synced = s, done
		err = c.order.Push(&s.queue, &t.Task)
	}
	c.Leave()
	if err != nil {
		return s.Error("sync", err)
	}
	return receive(ctx, done, s.Error)
}

// Abort is that of npu.Stream.
func (s *Stream) Abort(cause error) {
	c := s.device.core
	c.Enter()
	defer c.Leave()
	if !s.closed && s.device.Trouble() == nil {
		s.abort(cause)
	}
}

// abort drops what has not begun. The lock is held.
func (s *Stream) abort(cause error) {
	if cause == nil {
		cause = kolo.ErrAborted
	}
	cause = s.Error("abort", cause)
	s.device.core.order.Abort(&s.queue, cause)
	s.hooks.Abort(cause)
}

// Fail fails the stream: what waits is dropped, and what is asked for later refused.
// The first error stays. The lock is held.
func (s *Stream) Fail(err error) { s.device.core.order.Fail(&s.queue, err) }

// Close is that of npu.Stream.
func (s *Stream) Close() error {
	c := s.device.core
	c.Enter()
	defer c.Leave()
	switch {
	case s.closed:
		return nil
	case !s.queue.Idle():
		return s.Error("close", fmt.Errorf("%w: %d tasks have not ended; sync or abort the stream first", npu.ErrBusy, s.queue.Len()))
	}
	s.closed = true
	s.device.leave(s)
	s.hooks.Close()
	return nil
}

// push accepts a task, after fill has said what it is, or refuses it.
func (s *Stream) push(op string, kind npu.TaskKind, fill func(*Task) error) error {
	c := s.device.core
	c.Enter()
	defer c.Leave()
	if err := s.trouble(); err != nil {
		var known *npu.Error
		if errors.As(err, &known) {
			return err
		}
		return s.Error(op, err)
	}
	t := c.task(op, kind)
	t.Stream = s
	err := fill(t)
	for i := 0; err == nil && i < len(t.Parts); i++ {
		err = t.Parts[i].Trouble()
	}
	if err == nil {
		err = c.order.Push(&s.queue, &t.Task)
	}
	if err != nil {
		t.release()
		return s.Error(op, err)
	}
	return nil
}

// trouble says why the stream takes nothing. The lock is held.
func (s *Stream) trouble() error {
	if s.closed {
		return fmt.Errorf("%w: stream %q", kolo.ErrClosed, s.name)
	}
	if err := s.queue.Err(); err != nil {
		return err
	}
	return s.device.Trouble()
}

// Error is an error of the stream.
func (s *Stream) Error(op string, err error) error {
	return &npu.Error{Op: op, Device: s.device.index, Stream: s.name, Err: err}
}

// event is an event that this stream may record or wait for.
func (s *Stream) event(e npu.Event) (*Event, error) {
	own, ok := e.(*Event)
	switch {
	case !ok || own == nil:
		return nil, s.device.core.foreign("event", e)
	case own.device != s.device:
		return nil, fmt.Errorf("%w: event %q is of device %d; use a notify between devices", npu.ErrForeign, own.Name(), own.device.index)
	case own.closed:
		return nil, fmt.Errorf("%w: event %q", kolo.ErrClosed, own.Name())
	}
	return own, nil
}

// notify is a notify that this stream may signal.
func (s *Stream) notify(n npu.Notify) (*Notify, error) {
	own, ok := n.(*Notify)
	switch {
	case !ok || own == nil || own.device.core != s.device.core:
		return nil, s.device.core.foreign("notify", n)
	case own.closed || own.device.closed:
		return nil, fmt.Errorf("%w: notify %q", kolo.ErrClosed, own.Name())
	}
	return own, nil
}
