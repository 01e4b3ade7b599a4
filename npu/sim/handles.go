package sim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/npu"
)

// eventHandle is an npu.Event.
type eventHandle struct {
	d      *device
	mark   npu.Mark
	at     time.Duration // of the latest record
	closed bool
}

func (e *eventHandle) Name() string { return e.mark.Name }

func (e *eventHandle) Device() npu.Device { return e.d }

func (e *eventHandle) Query() (bool, error) {
	e.d.c.mu.Lock()
	defer e.d.c.mu.Unlock()
	if err := e.trouble(); err != nil {
		return false, e.error("query", err)
	}
	return e.mark.Done()
}

func (e *eventHandle) Sync(ctx context.Context) error {
	c := e.d.c
	c.mu.Lock()
	if err := e.trouble(); err != nil {
		c.mu.Unlock()
		return e.error("sync", err)
	}
	c.enter()
	done := make(chan error, 1)
	k := &task{Task: npu.Task{Kind: npu.TaskCall}, op: "sync", pushed: c.clock.at, synced: done}
	k.Data = k
	c.order.Watch(&e.mark, &k.Task)
	c.turn()
	c.mu.Unlock()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return e.error("sync", fmt.Errorf("%w: %w", kolo.ErrCanceled, ctx.Err()))
	}
}

func (e *eventHandle) Since(earlier npu.Event) (time.Duration, error) {
	e.d.c.mu.Lock()
	defer e.d.c.mu.Unlock()
	from, ok := earlier.(*eventHandle)
	if !ok || from.d.c != e.d.c {
		return 0, e.error("since", fmt.Errorf("%w: the earlier event is none of this simulated cluster", npu.ErrForeign))
	}
	for _, x := range []*eventHandle{from, e} {
		if err := x.trouble(); err != nil {
			return 0, e.error("since", err)
		}
		done, err := x.mark.Done()
		switch {
		case err != nil:
			return 0, err
		case !x.mark.Recorded():
			return 0, e.error("since", fmt.Errorf("%w: event %q was never recorded", kolo.ErrArgument, x.Name()))
		case !done:
			return 0, e.error("since", fmt.Errorf("%w: event %q is not reached; sync it first", npu.ErrBusy, x.Name()))
		}
	}
	return e.at - from.at, nil
}

func (e *eventHandle) Close() error {
	e.d.c.mu.Lock()
	defer e.d.c.mu.Unlock()
	if e.trouble() != nil {
		return nil
	}
	if e.mark.InUse() {
		return e.error("close", fmt.Errorf("%w: a stream has to record it or waits for it; sync or abort the stream first", npu.ErrBusy))
	}
	e.closed = true
	e.d.handles--
	return nil
}

func (e *eventHandle) trouble() error {
	if e.closed || e.d.closed {
		return kolo.ErrClosed
	}
	return nil
}

func (e *eventHandle) error(op string, err error) error {
	return &npu.Error{Op: fmt.Sprintf("%s of event %q", op, e.mark.Name), Device: e.d.slot.index, Err: err}
}

// notify is an npu.Notify.
type notify struct {
	d      *device
	flag   npu.Flag
	closed bool
}

func (n *notify) Name() string { return n.flag.Name }

func (n *notify) Device() npu.Device { return n.d }

func (n *notify) Set() error {
	return n.do("set", func() error {
		n.flag.Stamp = n.d.c.clock.at
		n.d.c.order.Set(&n.flag, nil)
		return nil
	})
}

func (n *notify) Fail(cause error) error {
	return n.do("fail", func() error {
		if cause == nil {
			return fmt.Errorf("%w: no cause", kolo.ErrArgument)
		}
		n.d.c.order.Set(&n.flag, cause)
		return nil
	})
}

func (n *notify) Reset() error {
	return n.do("reset", func() error {
		n.d.c.order.Reset(&n.flag)
		return nil
	})
}

func (n *notify) Close() error {
	err := n.do("close", func() error {
		if n.flag.InUse() {
			return fmt.Errorf("%w: a stream signals or awaits it; sync or abort the stream first", npu.ErrBusy)
		}
		n.closed = true
		n.d.handles--
		return nil
	})
	if errors.Is(err, kolo.ErrClosed) {
		return nil
	}
	return err
}

// do does something with the flag, and then what that lets begin.
func (n *notify) do(op string, f func() error) error {
	c := n.d.c
	c.mu.Lock()
	defer c.mu.Unlock()
	err := error(nil)
	if n.closed || n.d.closed {
		err = kolo.ErrClosed
	} else {
		c.enter()
		err = f()
		c.turn()
	}
	if err != nil {
		return &npu.Error{Op: fmt.Sprintf("%s of notify %q", op, n.flag.Name), Device: n.d.slot.index, Err: err}
	}
	return nil
}
