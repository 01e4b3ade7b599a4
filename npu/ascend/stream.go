//go:build linux && (amd64 || arm64) && !noacl

package ascend

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"unsafe"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/npu"
)

// stream is a queue of a device, and a stream of AscendCL.
//
//	accepted -> npu.Order -> issued: in flight -> a marker behind it has called back: ended
//	                              \-> refused, failed, aborted, lost: ended with the error
type stream struct {
	d        *device
	name     string
	who      string // for who asks what holds a block
	priority int
	queue    npu.Queue
	flight   []*task // that the device has, oldest first
	stalled  bool    // the last of them is not passed: the device has enough
	issued   uint64  // number of the last task in flight
	reached  uint64  // and of the last that a marker has found ended
	seen     uint64  // reached, when the patrol came by
	marked   bool    // a marker is on its way
	token    uintptr
	broken   bool // it failed: AscendCL's stream is replaced before it is used again
	closed   bool

	// thread
	handle  uintptr
	given   uint64 // number of the last task that the device was given
	scratch uintptr
}

// task is what a stream does. A task with a fold has steps: step i is issued, and when
// the device has done that, folded on the host; the last step has no fold.
type task struct {
	npu.Task
	s      *stream
	op     string
	number uint64
	parts  []*device // whose memory it uses
	blocks []*npu.Block
	hosts  []kolo.Memory // kept alive and in place
	pins   runtime.Pinner
	folds  int // steps with a fold
	step   int
	issue  func(i int) error // by the device's thread; nil: nothing is to be done there
	fold   func(i int) error // by the calls goroutine
	after  func()            // when it has ended, with v.mu held
	call   func(error)       // of a callback
	synced chan<- error      // of a Sync, with room for the answer
	held   bool              // counted at its parts
	over   bool
	event  *event  // of a record
	record *record // of a record or a wait
}

func (s *stream) Name() string { return s.name }

func (s *stream) Device() npu.Device { return s.d }

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
			err = fmt.Errorf("%w: notify %q is of device %d; a stream awaits those of its own device", npu.ErrForeign, n.Name(), own.d.index)
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
	s.d.v.mu.Lock()
	defer s.d.v.mu.Unlock()
	return s.queue.Idle(), s.trouble()
}

// Sync is a task of its own, which a stream that has failed takes too: it ends behind
// the callbacks that are still to be called.
func (s *stream) Sync(ctx context.Context) error {
	v := s.d.v
	done := make(chan error, 1)
	v.enter()
	if s.closed || s.d.closed {
		v.leave()
		return s.error("sync", kolo.ErrClosed)
	}
	k := &task{Task: npu.Task{Kind: npu.TaskCall}, s: s, op: "sync", synced: done}
	k.Data = k
	err := v.order.Push(&s.queue, &k.Task)
	v.leave()
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
	v := s.d.v
	v.enter()
	defer v.leave()
	if !s.closed && s.d.trouble() == nil {
		s.abort(cause)
	}
}

// abort drops what has not begun, here and on the device. v.mu is held.
func (s *stream) abort(cause error) {
	cause = s.error("abort", cause)
	s.d.v.order.Abort(&s.queue, cause)
	switch upto := s.issued; {
	case s.broken:
		s.broken = false
		s.d.push(s.replace)
	case len(s.flight) > 0 && s.d.v.lib.has(fnStreamAbort):
		s.d.push(func() { s.abortNow(upto, cause) })
	}
}

func (s *stream) Close() error {
	v := s.d.v
	v.enter()
	defer v.leave()
	switch {
	case s.closed:
		return nil
	case !s.queue.Idle():
		return s.error("close", fmt.Errorf("%w: %d tasks have not ended; sync or abort the stream first", npu.ErrBusy, s.queue.Len()))
	}
	s.closed = true
	s.d.leave(s)
	s.d.push(s.destroy)
	return nil
}

// push accepts a task, after fill has said what it is, or refuses it.
func (s *stream) push(op string, k *task, fill func(*task) error) error {
	v := s.d.v
	v.enter()
	defer v.leave()
	if err := s.trouble(); err != nil {
		var known *npu.Error
		if errors.As(err, &known) {
			return err
		}
		return s.error(op, err)
	}
	k.s, k.op, k.Data = s, op, k
	err := fill(k)
	for i := 0; err == nil && i < len(k.parts); i++ {
		err = k.parts[i].trouble()
	}
	if err == nil {
		err = v.order.Push(&s.queue, &k.Task)
	}
	if err != nil {
		k.release()
		return s.error(op, err)
	}
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
	return &npu.Error{Op: op, Device: s.d.index, Stream: s.name, Err: err}
}

func (s *stream) event(e npu.Event) (*event, error) {
	own, ok := e.(*event)
	switch {
	case !ok:
		return nil, fmt.Errorf("%w: the event is none of an NPU", npu.ErrForeign)
	case own.d != s.d:
		return nil, fmt.Errorf("%w: event %q is of device %d; use a notify between devices", npu.ErrForeign, own.Name(), own.d.index)
	case own.closed:
		return nil, fmt.Errorf("%w: event %q", kolo.ErrClosed, own.Name())
	}
	return own, nil
}

func (s *stream) notify(n npu.Notify) (*notify, error) {
	own, ok := n.(*notify)
	switch {
	case !ok || own.d.v != s.d.v:
		return nil, fmt.Errorf("%w: the notify is of another driver", npu.ErrForeign)
	case own.closed || own.d.closed:
		return nil, fmt.Errorf("%w: notify %q", kolo.ErrClosed, own.Name())
	}
	return own, nil
}

// take finds memory that the task uses, and holds it until the task has ended.
func (k *task) take(m kolo.Memory) (*device, error) {
	d, b, err := k.s.d.v.locate(m)
	if err != nil {
		return nil, err
	}
	if d == nil && len(m.Host) > 0 {
		k.pins.Pin(unsafe.SliceData(m.Host))
		k.hosts = append(k.hosts, m)
	}
	if d != nil && !slices.Contains(k.parts, d) {
		k.parts = append(k.parts, d)
	}
	if b != nil {
		b.Hold(k.s.who)
		k.blocks = append(k.blocks, b)
	}
	return d, nil
}

func (k *task) release() {
	for _, b := range k.blocks {
		b.Release()
	}
	k.pins.Unpin()
	k.blocks, k.hosts = nil, nil
}

// dispatch begins a task that the order gives, or resolves one that was dropped.
func (v *Driver) dispatch(k *task) {
	why := k.Err // an abort may set it while a callback runs
	switch {
	case k.synced != nil:
		v.end(k, nil)
		k.synced <- why
	case k.Kind == npu.TaskCall:
		k.s.d.callOut(func() {
			err := protect(func() error { k.call(why); return nil })
			v.enter()
			defer v.leave()
			if err != nil {
				err = k.s.error(k.op, err)
			}
			v.end(k, err)
		})
	case why != nil:
		v.end(k, nil)
	default:
		k.begin()
	}
}

// begin gives the first step to the device. v.mu is held.
func (k *task) begin() {
	v := k.s.d.v
	for _, d := range append(k.parts, k.s.d) {
		if err := d.trouble(); err != nil {
			v.end(k, k.s.error(k.op, err))
			return
		}
	}
	if v.order.Broken(&k.Task) != nil {
		v.end(k, nil) // which fails the stream
		return
	}
	if err := k.s.queue.Err(); err != nil { // since the order gave it
		v.end(k, err)
		return
	}
	for _, d := range k.parts {
		d.users++
	}
	k.held = true
	switch k.Kind {
	case npu.TaskRecord:
		k.begins()
	case npu.TaskWait:
		k.waits()
	}
	k.s.send(k)
}

// send puts the step of a task into flight. v.mu is held.
func (s *stream) send(k *task) {
	s.issued++
	k.number = s.issued
	s.flight = append(s.flight, k)
	s.d.push(func() { s.issueNow(k, k.step) })
	switch {
	case k.step < k.folds:
	case len(s.flight) < maxAhead:
		s.d.v.order.Pass(&k.Task)
	default:
		s.stalled = true
	}
	s.mark()
}

// issueNow gives a step of a task to the device.
func (s *stream) issueNow(k *task, step int) {
	d := s.d
	d.v.mu.Lock()
	skip := k.over || d.lost != nil || d.finishing
	d.v.mu.Unlock()
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
		s.failed(s.error(k.op, err))
	}
}

// errNoStream is told where a stream of the device could not be made anew.
var errNoStream = fmt.Errorf("%w: the device has no such stream any more", npu.ErrFault)

// mark has a marker put behind what is in flight, unless there is one. v.mu is held.
func (s *stream) mark() {
	if !s.marked && len(s.flight) > 0 {
		s.marked = true
		s.d.push(s.markNow)
	}
}

// markNow launches a marker behind all that the device was given.
func (s *stream) markNow() {
	d := s.d
	d.v.mu.Lock()
	skip := !s.marked || s.token != 0 || len(s.flight) == 0 || d.lost != nil || d.finishing || s.handle == 0
	number := s.given
	if skip {
		d.v.mu.Unlock()
		return
	}
	r := reports()
	var token uintptr
	token = r.expect(func() { s.come(token, number) })
	s.token = token
	d.v.mu.Unlock()
	if err := d.v.lib.call(fnLaunchCallback, r.entry, token, notBlocking, s.handle); err != nil {
		s.failed(s.error("marker", err))
	}
}

// come is called from the report thread when the device has come to a marker.
func (s *stream) come(token uintptr, number uint64) {
	v := s.d.v
	v.enter()
	defer v.leave()
	if s.token != token {
		return // the stream was aborted since
	}
	s.token, s.marked, s.reached = 0, false, number
	for len(s.flight) > 0 && s.flight[0].number <= number {
		s.land(s.flight[0], nil)
	}
	s.mark()
}

// land takes the oldest step out of flight: it has ended, or will not. v.mu is held.
func (s *stream) land(k *task, err error) {
	s.flight[0] = nil
	s.flight = s.flight[1:]
	if s.stalled && len(s.flight) < maxAhead && len(s.flight) > 0 {
		s.stalled = false
		s.d.v.order.Pass(&s.flight[len(s.flight)-1].Task)
	} else if len(s.flight) == 0 {
		s.stalled = false
	}
	if err == nil && k.Err == nil && k.step < k.folds {
		s.d.callOut(func() { k.goOn(protect(func() error { return k.fold(k.step) })) })
		return
	}
	s.d.v.end(k, err)
}

// goOn gives the next step to the device, after the fold of the last.
func (k *task) goOn(err error) {
	v := k.s.d.v
	v.enter()
	defer v.leave()
	if err == nil && k.Err == nil {
		err = k.s.queue.Err() // the stream has failed meanwhile
	}
	for i := 0; err == nil && i < len(k.parts); i++ {
		err = k.parts[i].trouble()
	}
	switch {
	case err != nil:
		v.end(k, k.s.error(k.op, err))
	case k.Err != nil:
		v.end(k, nil)
	default:
		k.step++
		k.s.send(k)
	}
}

// end resolves a task. v.mu is held.
func (v *Driver) end(k *task, err error) {
	s := k.s
	if s == nil { // the watcher of an event
		return
	}
	k.over = true
	k.release()
	if k.after != nil {
		k.after()
	}
	if k.held {
		for _, d := range k.parts {
			d.users--
		}
	}
	k.drop()
	if k.Kind == npu.TaskRecord && (err != nil || k.Err != nil) {
		v.suspect = true
	}
	v.order.Done(&k.Task, err)
	s.d.settle()
	for _, d := range k.parts {
		d.settle()
	}
}

// resolve ends what is in flight up to a number. What the device makes of it is
// nobody's business any more. v.mu is held.
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
	if errors.Is(err, npu.ErrLost) {
		s.d.lose(err)
		return
	}
	if err != nil {
		s.replace() // which ends what runs
	}
	v := s.d.v
	v.enter()
	defer v.leave()
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
	if errors.Is(err, npu.ErrLost) {
		s.d.lose(err)
		return
	}
	s.breakDown(err)
}

// breakDown fails the stream: the device drops what it has of it, and all of that has
// ended. It is called by the device's thread.
func (s *stream) breakDown(err error) {
	v := s.d.v
	v.mu.Lock()
	skip := s.d.lost != nil || s.d.finishing || len(s.flight) == 0
	v.mu.Unlock()
	if skip {
		return
	}
	if v.lib.has(fnStreamAbort) && s.handle != 0 {
		_ = v.lib.call(fnStreamAbort, s.handle) // one that fails goes all the same
	}
	s.destroy() // what is still running must not touch the memory that is given back here
	var known *npu.Error
	if !errors.As(err, &known) {
		err = s.error("task", err)
	}
	v.enter()
	stale := true // all that the device had was aborted before it failed
	for _, k := range s.flight {
		stale = stale && (k.Err != nil || k.number > s.given)
	}
	if stale {
		s.resolve(s.given, err)
		v.leave()
		s.replace() // what was asked for since goes on
		return
	}
	s.broken = true // Abort has it made anew
	s.resolve(s.issued, err)
	v.order.Fail(&s.queue, err)
	v.leave()
}

// create makes the stream on the device.
func (s *stream) create() (err error) {
	lib := s.d.v.lib
	if s.handle, err = lib.newStream(s.priority); err != nil {
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
	if err := lib.call(destroy, s.handle); errors.Is(err, npu.ErrLost) {
		s.d.lose(err)
	}
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
		v.enter()
		defer v.leave()
		s.broken = true
		err = s.error("abort", err)
		s.resolve(s.issued, err)
		v.order.Fail(&s.queue, err)
	}
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
