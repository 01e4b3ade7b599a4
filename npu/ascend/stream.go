//go:build linux && (amd64 || arm64) && !noacl

package ascend

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/npu/driver"
)

// stream is a stream of AscendCL.
//
//	accepted -> npu.Order -> issued: in flight -> a marker behind it has called back: ended
//	                              \-> refused, failed, aborted, lost: ended with the error
type stream struct {
	*driver.Stream
	d       *device
	flight  []*task // that the device has, oldest first
	stalled bool    // the last of them is not passed: the device has enough
	issued  uint64  // number of the last task in flight
	reached uint64  // and of the last that a marker has found ended
	seen    uint64  // reached, when the patrol came by
	marked  bool    // a marker is on its way
	token   uintptr
	broken  bool // it failed: AscendCL's stream is replaced before it is used again

	// thread
	handle  uintptr
	given   uint64 // number of the last task that the device was given
	scratch uintptr
}

func streamOf(s *driver.Stream) *stream { return s.Hooks().(*stream) }

// allOfThem is a number that no task comes to.
const allOfThem = math.MaxUint64

// task is what a stream does. A task with a fold has steps: step i is issued, and when
// the device has done that, folded on the host; the last step has no fold.
type task struct {
	driver.Task
	s      *stream
	number uint64
	folds  int // steps with a fold
	step   int
	issue  func(i int) error // by the device's thread; nil: nothing is to be done there
	fold   func(i int) error // by the calls goroutine
	after  func()            // when it has ended, with the lock held
	over   bool
	record *record // of a record or a wait
}

func taskOf(t *driver.Task) *task { return t.Own.(*task) }

// hooks are what the core asks of a driver.
type hooks struct{ v *Driver }

// Enter is all: the driver keeps no clock.
func (h hooks) Enter() time.Duration { return 0 }

// NewTask makes a task.
func (h hooks) NewTask() *driver.Task {
	k := &task{}
	k.Own = k
	return &k.Task
}

// Begin gives the first step of a task to the device. A callback is called by the
// goroutine that calls users.
func (h hooks) Begin(t *driver.Task) {
	k := taskOf(t)
	if t.Stream != nil {
		k.s = streamOf(t.Stream)
	}
	switch {
	case t.Syncs():
		t.End(nil)
	case t.Kind == npu.TaskCall:
		k.s.d.callOut(func() {
			t.Call(func(err error) {
				h.v.core.Enter()
				defer h.v.core.Leave()
				t.End(err)
			})
		})
	case t.Kind == npu.TaskRecord:
		k.begins()
		k.s.send(k)
	case t.Kind == npu.TaskWait:
		k.waits()
		k.s.send(k)
	default:
		k.s.send(k)
	}
}

// Leave has the devices look for what will not come, where a record was dropped.
func (h hooks) Leave() {
	if h.v.suspect {
		h.v.suspect = false
		h.v.sweep()
	}
}

// Abort drops what the device has too.
func (s *stream) Abort(cause error) {
	switch upto := s.issued; {
	case s.broken:
		s.broken = false
		s.d.push(s.replace)
	case len(s.flight) > 0 && s.d.v.lib.has(fnStreamAbort):
		s.d.push(func() { s.abortNow(upto, cause) })
	}
}

// Close gives the stream back.
func (s *stream) Close() { s.d.push(s.destroy) }

// send puts the step of a task into flight. The lock is held.
func (s *stream) send(k *task) {
	s.issued++
	k.number = s.issued
	s.flight = append(s.flight, k)
	s.d.push(func() { s.issueNow(k, k.step) })
	switch {
	case k.step < k.folds:
	case len(s.flight) < maxAhead:
		s.d.v.core.Pass(&k.Task)
	default:
		s.stalled = true
	}
	s.mark()
}

// issueNow gives a step of a task to the device.
func (s *stream) issueNow(k *task, step int) {
	d := s.d
	d.v.core.Lock()
	skip := k.over || d.Lost() != nil || d.finishing
	d.v.core.Unlock()
	if skip {
		return
	}
	s.given = k.number
	var err error
	switch {
	case s.handle == 0:
		err = errNoStream
	case k.issue != nil:
		err = k.issue(step)
	}
	if err != nil {
		s.failed(s.Error(k.Op, err))
	}
}

// errNoStream is told where a stream of the device could not be made anew.
var errNoStream = fmt.Errorf("%w: the device has no such stream any more", npu.ErrFault)

// mark has a marker put behind what is in flight, unless there is one. The lock is held.
func (s *stream) mark() {
	if !s.marked && len(s.flight) > 0 {
		s.marked = true
		s.d.push(s.markNow)
	}
}

// markNow launches a marker behind all that the device was given.
func (s *stream) markNow() {
	d := s.d
	d.v.core.Lock()
	skip := !s.marked || s.token != 0 || len(s.flight) == 0 || d.Lost() != nil || d.finishing || s.handle == 0
	number := s.given
	if skip {
		d.v.core.Unlock()
		return
	}
	r := reports()
	var token uintptr
	token = r.expect(func() { s.come(token, number) })
	s.token = token
	d.v.core.Unlock()
	if err := d.v.lib.call(fnLaunchCallback, r.entry, token, notBlocking, s.handle); err != nil {
		s.failed(s.Error("marker", err))
	}
}

// come is called from the report thread when the device has come to a marker.
func (s *stream) come(token uintptr, number uint64) {
	v := s.d.v
	v.core.Enter()
	defer v.core.Leave()
	if s.token != token {
		return // the stream was aborted since
	}
	s.token, s.marked, s.reached = 0, false, number
	for len(s.flight) > 0 && s.flight[0].number <= number {
		s.land(s.flight[0], nil)
	}
	s.mark()
}

// land takes the oldest step out of flight: it has ended, or will not. The lock is held.
func (s *stream) land(k *task, err error) {
	s.flight[0] = nil
	s.flight = s.flight[1:]
	if s.stalled && len(s.flight) < maxAhead && len(s.flight) > 0 {
		s.stalled = false
		s.d.v.core.Pass(&s.flight[len(s.flight)-1].Task)
	} else if len(s.flight) == 0 {
		s.stalled = false
	}
	if err == nil && k.Err == nil && k.step < k.folds {
		s.d.callOut(func() { k.goOn(driver.Protect(func() error { return k.fold(k.step) })) })
		return
	}
	k.end(err)
}

// goOn gives the next step to the device, after the fold of the last.
func (k *task) goOn(err error) {
	v := k.s.d.v
	v.core.Enter()
	defer v.core.Leave()
	if err == nil && k.Err == nil {
		err = k.Hindrance()
	} else if err != nil {
		err = k.s.Error(k.Op, err)
	}
	if err != nil || k.Err != nil {
		k.end(err)
		return
	}
	k.step++
	k.s.send(k)
}

// end resolves a task. The lock is held.
func (k *task) end(err error) {
	k.over = true
	if k.after != nil {
		k.after()
	}
	k.drop()
	if k.Kind == npu.TaskRecord && (err != nil || k.Err != nil) {
		k.s.d.v.suspect = true
	}
	k.Task.End(err)
}

// resolve ends what is in flight up to a number. What the device makes of it is
// nobody's business any more. The lock is held.
func (s *stream) resolve(upto uint64, err error) {
	if s.token != 0 {
		reports().forget(s.token)
	}
	s.token, s.marked = 0, false
	for len(s.flight) > 0 && s.flight[0].number <= upto {
		s.land(s.flight[0], err)
	}
	s.mark()
}

// abortNow has the device drop what it has of the stream.
func (s *stream) abortNow(upto uint64, cause error) {
	if !s.d.usable() || s.d.finishing || s.handle == 0 {
		return
	}
	lib := s.d.v.lib
	err := lib.call(fnStreamAbort, s.handle)
	if err == nil {
		_, err = lib.streamIdle(s.handle) // a task may have failed before, which the stream keeps
	}
	if s.d.loses(err) {
		return
	}
	if err != nil {
		s.replace() // which ends what runs
	}
	v := s.d.v
	v.core.Enter()
	defer v.core.Leave()
	for _, k := range s.flight {
		if k.number <= upto && k.Err == nil { // aborted before it was passed
			k.Err = cause
		}
	}
	s.resolve(upto, nil)
}

// failed is told what the library says about the stream: its death, or its device's.
// It is called by the device's thread.
func (s *stream) failed(err error) {
	if s.d.loses(err) {
		return
	}
	s.breakDown(err)
}

// breakDown fails the stream: the device drops what it has of it, and all of that has
// ended. It is called by the device's thread.
func (s *stream) breakDown(err error) {
	v := s.d.v
	v.core.Lock()
	skip := s.d.Lost() != nil || s.d.finishing || len(s.flight) == 0
	v.core.Unlock()
	if skip {
		return
	}
	if v.lib.has(fnStreamAbort) && s.handle != 0 {
		_ = v.lib.call(fnStreamAbort, s.handle) // one that fails goes all the same
	}
	s.destroy() // what is still running must not touch the memory that is given back here
	var known *npu.Error
	if !errors.As(err, &known) {
		err = s.Error("task", err)
	}
	v.core.Enter()
	stale := true // all that the device had was aborted before it failed
	for _, k := range s.flight {
		stale = stale && (k.Err != nil || k.number > s.given)
	}
	if stale {
		s.resolve(s.given, err)
		v.core.Leave()
		s.replace() // what was asked for since goes on
		return
	}
	s.broken = true // Abort has it made anew
	s.resolve(s.issued, err)
	s.Fail(err)
	v.core.Leave()
}

// create makes the stream on the device.
func (s *stream) create() (err error) {
	lib := s.d.v.lib
	if s.handle, err = lib.newStream(s.Priority()); err != nil {
		return err
	}
	if lib.has(fnSetStreamFailureMode) {
		if err = lib.call(fnSetStreamFailureMode, s.handle, stopOnFailure); errors.Is(err, npu.ErrLost) {
			return err // another refusal means that later tasks run; they are aborted then
		}
	}
	if err = lib.call(fnSubscribeReport, s.d.reporter, s.handle); err != nil {
		_ = lib.call(fnDestroyStream, s.handle) // err is told
		s.handle = 0
	}
	return err
}

// destroy gives the stream on the device back.
func (s *stream) destroy() {
	if s.handle == 0 || !s.d.usable() {
		return
	}
	lib := s.d.v.lib
	if idle, err := lib.streamIdle(s.handle); (err != nil || !idle) && lib.has(fnStreamAbort) {
		_ = lib.call(fnStreamAbort, s.handle) // so that no callback comes when nobody takes it; it goes all the same
	}
	_ = lib.call(fnUnSubscribeReport, s.d.reporter, s.handle) // it goes with the stream
	destroy := fnDestroyStream
	if lib.has(fnDestroyStreamForce) {
		destroy = fnDestroyStreamForce
	}
	s.d.loses(lib.call(destroy, s.handle))
	s.handle = 0
	if s.scratch != 0 {
		_ = lib.call(fnFree, s.scratch) // it goes with the device
		s.scratch = 0
	}
}

// replace makes the stream anew on the device, after it has failed.
func (s *stream) replace() {
	if s.d.finishing || !s.d.usable() {
		return
	}
	s.destroy()
	if err := s.create(); err != nil {
		v := s.d.v
		v.core.Enter()
		defer v.core.Leave()
		s.broken = true
		err = s.Error("abort", err)
		s.resolve(s.issued, err)
		s.Fail(err)
	}
}
