//go:build linux && (amd64 || arm64) && !noacl

package ascend

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/npu"
)

// event is an npu.Event. Each of its records is an event of AscendCL: what waits for
// a record is not moved to a later one.
type event struct {
	d      *device
	mark   npu.Mark
	latest *record // of the latest Record, if the device was given that
	closed bool
}

// record is an event of AscendCL while somebody needs it. Guarded by the driver's
// lock; handle and given are written by the device's thread.
type record struct {
	handle uintptr
	users  int
	given  bool // the device has it
	bad    bool // it was dropped: nobody knows what the event is
}

// begins gives a Record an event of AscendCL. v.mu is held.
func (k *task) begins() {
	s, r := k.s, &record{users: 1}
	k.record = r
	if k.Mark.Latest(&k.Task) {
		s.d.unuse(k.event.latest)
		k.event.latest = r
		r.users++
	}
	k.issue = func(int) error {
		h, err := s.d.newEvent()
		if err != nil {
			return err
		}
		s.d.v.mu.Lock()
		r.handle = h
		s.d.v.mu.Unlock()
		err = s.d.v.lib.call(fnRecordEvent, h, s.handle)
		r.given = err == nil
		return err
	}
}

// waits makes a Wait that of the device, for a Record that the device has. v.mu is
// held.
func (k *task) waits() {
	s := k.s
	t := k.Awaited()
	if t == nil {
		return
	}
	r := t.Data.(*task).record
	if r == nil {
		return
	}
	k.record = r
	r.users++
	k.issue = func(int) error {
		if !r.given { // its stream has failed first: nothing may be behind this wait
			s.d.v.mu.Lock()
			defer s.d.v.mu.Unlock()
			if err := s.d.v.order.Broken(&k.Task); err != nil {
				return err
			}
			return fmt.Errorf("%w: the event was not recorded", npu.ErrFault)
		}
		return s.d.v.lib.call(fnStreamWaitEvent, s.handle, r.handle)
	}
}

// drop gives up the record that a task has. v.mu is held.
func (k *task) drop() {
	if k.record == nil {
		return
	}
	if k.Kind == npu.TaskRecord && k.Err != nil {
		k.record.bad = true
	}
	k.s.d.unuse(k.record)
	k.record = nil
}

// unuse gives up a record; the last that does gives its event back. v.mu is held.
func (d *device) unuse(r *record) {
	if r == nil {
		return
	}
	r.users--
	switch {
	case r.users > 0 || r.handle == 0 || d.closed:
	case r.bad:
		d.push(func() { d.dropEvent(r.handle) })
	default:
		d.events = append(d.events, r.handle)
	}
}

// newEvent is an event of AscendCL, for the device's thread.
func (d *device) newEvent() (uintptr, error) {
	d.v.mu.Lock()
	if n := len(d.events); n > 0 {
		h := d.events[n-1]
		d.events = d.events[:n-1]
		d.v.mu.Unlock()
		return h, nil
	}
	d.v.mu.Unlock()
	h, err := d.v.lib.newEvent()
	if err == nil {
		d.alive[h] = true
	}
	return h, err
}

func (d *device) dropEvent(h uintptr) {
	if !d.finishing && d.usable() && d.alive[h] {
		delete(d.alive, h)
		_ = d.v.lib.call(fnDestroyEvent, h) // it goes with the device
	}
}

func (e *event) Name() string { return e.mark.Name }

func (e *event) Device() npu.Device { return e.d }

func (e *event) Query() (bool, error) {
	e.d.v.mu.Lock()
	defer e.d.v.mu.Unlock()
	if err := e.trouble(); err != nil {
		return false, e.error("query", err)
	}
	return e.mark.Done()
}

func (e *event) Sync(ctx context.Context) error {
	v := e.d.v
	v.enter()
	if err := e.trouble(); err != nil {
		v.leave()
		return e.error("sync", err)
	}
	done := make(chan error, 1)
	k := &task{Task: npu.Task{Kind: npu.TaskCall}, op: "sync", synced: done}
	k.Data = k
	v.order.Watch(&e.mark, &k.Task)
	v.leave()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return e.error("sync", fmt.Errorf("%w: %w", kolo.ErrCanceled, ctx.Err()))
	}
}

func (e *event) Since(earlier npu.Event) (time.Duration, error) {
	from, ok := earlier.(*event)
	if !ok || from.d != e.d {
		return 0, e.error("since", fmt.Errorf("%w: the earlier event is not of this device", npu.ErrForeign))
	}
	v := e.d.v
	v.enter()
	err := error(nil)
	for _, x := range []*event{from, e} {
		if err == nil {
			err = x.reached()
		}
	}
	if err != nil {
		v.leave()
		return 0, err
	}
	a, b := from.latest, e.latest
	a.users++ // against a Record that comes now
	b.users++
	v.leave()
	defer func() {
		v.enter()
		defer v.leave()
		e.d.unuse(a)
		e.d.unuse(b)
	}()
	var d time.Duration
	err = e.d.do(func() (err error) {
		d, err = v.lib.elapsed(a.handle, b.handle)
		return err
	}, nil)
	if err != nil {
		return 0, e.error("since", err)
	}
	return d, nil
}

// reached says why the event has no time. v.mu is held.
func (e *event) reached() error {
	if err := e.trouble(); err != nil {
		return e.error("since", err)
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

func (e *event) Close() error {
	v := e.d.v
	v.enter()
	defer v.leave()
	if e.trouble() != nil {
		return nil
	}
	if e.mark.InUse() {
		return e.error("close", fmt.Errorf("%w: a stream has to record it or waits for it; sync or abort the stream first", npu.ErrBusy))
	}
	e.closed = true
	e.d.handles--
	e.d.unuse(e.latest)
	e.latest = nil
	return nil
}

func (e *event) trouble() error {
	if e.closed || e.d.closed {
		return kolo.ErrClosed
	}
	return nil
}

func (e *event) error(op string, err error) error {
	return &npu.Error{Op: fmt.Sprintf("%s of event %q", op, e.mark.Name), Device: e.d.index, Err: err}
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
		n.d.v.order.Set(&n.flag, nil)
		return nil
	})
}

func (n *notify) Fail(cause error) error {
	return n.do("fail", func() error {
		if cause == nil {
			return fmt.Errorf("%w: no cause", kolo.ErrArgument)
		}
		n.d.v.order.Set(&n.flag, cause)
		return nil
	})
}

func (n *notify) Reset() error {
	return n.do("reset", func() error {
		n.d.v.order.Reset(&n.flag)
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
	v := n.d.v
	v.enter()
	defer v.leave()
	err := error(nil)
	if n.closed || n.d.closed {
		err = kolo.ErrClosed
	} else {
		err = f()
	}
	if err != nil {
		return &npu.Error{Op: fmt.Sprintf("%s of notify %q", op, n.flag.Name), Device: n.d.index, Err: err}
	}
	return nil
}
