//go:build linux && (amd64 || arm64) && !noacl

package ascend

import (
	"fmt"
	"time"

	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/npu/driver"
)

// Each record of an event is an event of AscendCL: what waits for a record is not moved
// to a later one. An event's Own is the record of its latest Record, if the device was
// given that.

// record is an event of AscendCL while somebody needs it. Guarded by the core's
// lock; handle and given are written by the device's thread.
type record struct {
	handle uintptr
	users  int
	given  bool // the device has it
	bad    bool // it was dropped: nobody knows what the event is
}

// begins gives a Record an event of AscendCL. The lock is held.
func (k *task) begins() {
	s, r := k.s, &record{users: 1}
	k.record = r
	if k.Mark.Latest(&k.Task.Task) {
		s.d.unuse(recordOf(k.Event))
		k.Event.Own = r
		r.users++
	}
	k.issue = func(int) error {
		h, err := s.d.newEvent()
		if err != nil {
			return err
		}
		s.d.v.core.Lock()
		r.handle = h
		s.d.v.core.Unlock()
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
	r := taskOf(t.Data.(*driver.Task)).record
	if r == nil {
		return
	}
	k.record = r
	r.users++
	k.issue = func(int) error {
		if !r.given { // its stream has failed first: nothing may be behind this wait
			s.d.v.core.Lock()
			defer s.d.v.core.Unlock()
			if err := s.d.v.core.Broken(&k.Task); err != nil {
				return err
			}
			return fmt.Errorf("%w: the event was not recorded", npu.ErrFault)
		}
		return s.d.v.lib.call(fnStreamWaitEvent, s.handle, r.handle)
	}
}

// drop gives up the record that a task has. The lock is held.
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

// unuse gives up a record; the last that does gives its event back. The lock is held.
func (d *device) unuse(r *record) {
	if r == nil {
		return
	}
	r.users--
	switch {
	case r.users > 0 || r.handle == 0 || d.Closed():
	case r.bad:
		d.push(func() { d.dropEvent(r.handle) })
	default:
		d.events = append(d.events, r.handle)
	}
}

// newEvent is an event of AscendCL, for the device's thread.
func (d *device) newEvent() (uintptr, error) {
	d.v.core.Lock()
	if n := len(d.events); n > 0 {
		h := d.events[n-1]
		d.events = d.events[:n-1]
		d.v.core.Unlock()
		return h, nil
	}
	d.v.core.Unlock()
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

// recordOf is the latest record of an event, nil if the device was given none.
func recordOf(e *driver.Event) *record {
	r, _ := e.Own.(*record)
	return r
}

// Since asks the library. Only events of one device have a time between them.
func (d *device) Since(earlier, later *driver.Event) func() (time.Duration, error) {
	if earlier.Device() != later.Device() {
		return func() (time.Duration, error) {
			return 0, fmt.Errorf("%w: the earlier event is not of this device", npu.ErrForeign)
		}
	}
	a, b := recordOf(earlier), recordOf(later)
	a.users++ // against a Record that comes now
	b.users++
	return func() (t time.Duration, err error) {
		err = d.do(func() (err error) {
			t, err = d.v.lib.elapsed(a.handle, b.handle)
			return err
		}, nil)
		d.v.core.Lock()
		defer d.v.core.Unlock()
		d.unuse(a)
		d.unuse(b)
		return t, err
	}
}

// CloseEvent gives the latest record up.
func (d *device) CloseEvent(e *driver.Event) {
	d.unuse(recordOf(e))
	e.Own = nil
}
