package driver

import (
	"context"
	"fmt"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/npu"
)

// Event is an npu.Event.
type Event struct {
	Own   any           // the driver's
	Stamp time.Duration // the driver's: when the latest record was reached, if it keeps that

	device *Device
	mark   npu.Mark
	closed bool
}

// Name is the name that the event was made with.
func (e *Event) Name() string { return e.mark.Name }

// Device is the device that the event is of.
func (e *Event) Device() npu.Device { return e.device }

// Query is that of npu.Event.
func (e *Event) Query() (bool, error) {
	c := e.device.core
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := e.trouble("query"); err != nil {
		return false, err
	}
	return e.mark.Done()
}

// Sync is that of npu.Event.
func (e *Event) Sync(ctx context.Context) error {
	c := e.device.core
	c.Enter()
	if err := e.trouble("sync"); err != nil {
		c.Leave()
		return err
	}
	done := make(chan error, 1)
	t := c.task("sync", npu.TaskCall)
	t.synced = done
	c.order.Watch(&e.mark, &t.Task)
	c.Leave()
	return receive(ctx, done, e.error)
}

// Since is that of npu.Event.
func (e *Event) Since(earlier npu.Event) (time.Duration, error) {
	c := e.device.core
	from, ok := earlier.(*Event)
	if !ok || from == nil || from.device.core != c {
		return 0, e.error("since", c.foreign("earlier event", earlier))
	}
	measure, err := e.since(from)
	if err != nil {
		return 0, err
	}
	d, err := measure()
	if err != nil {
		return 0, e.error("since", err)
	}
	return d, nil
}

func (e *Event) since(from *Event) (func() (time.Duration, error), error) {
	c := e.device.core
	c.Enter()
	defer c.Leave()
	for _, x := range []*Event{from, e} {
		if err := x.reached(); err != nil {
			return nil, err
		}
	}
	return e.device.hooks.Since(from, e), nil
}

// reached says why the event has no time. The lock is held.
func (e *Event) reached() error {
	if err := e.trouble("since"); err != nil {
		return err
	}
	done, err := e.mark.Done()
	switch {
	case err != nil:
		return err
	case !e.mark.Recorded():
		return e.error("since", fmt.Errorf("%w: event %q was never recorded", kolo.ErrArgument, e.Name()))
	case !done:
		return e.error("since", fmt.Errorf("%w: event %q is not reached; sync it first", npu.ErrBusy, e.Name()))
	}
	return nil
}

// Close is that of npu.Event.
func (e *Event) Close() error {
	c := e.device.core
	c.Enter()
	defer c.Leave()
	if e.trouble("close") != nil {
		return nil
	}
	if e.mark.InUse() {
		return e.error("close", fmt.Errorf("%w: a stream has to record it or waits for it; sync or abort the stream first", npu.ErrBusy))
	}
	e.closed = true
	e.device.handles--
	e.device.hooks.CloseEvent(e)
	return nil
}

// trouble says why the event is not to be used. The lock is held.
func (e *Event) trouble(op string) error {
	if e.closed || e.device.closed {
		return e.error(op, kolo.ErrClosed)
	}
	return nil
}

func (e *Event) error(op string, err error) error {
	return e.device.Error(fmt.Sprintf("%s of event %q", op, e.mark.Name), err)
}
