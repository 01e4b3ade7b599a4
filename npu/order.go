package npu

import (
	"fmt"
	"slices"
	"time"

	"github.com/kolo-ccl/kolo"
)

// Order says which tasks may begin. A driver pushes what it was asked for, begins
// what Ready gives, and says Done when that has ended. Order has no clock: what it
// is told comes in some order, and that is the order of things. It is not safe for
// use by several goroutines at once.
//
//	Push -> waiting in its queue -> head of the queue -> Ready -> begun -> Done
//	                                     |
//	                 Wait and Await hold the queue here, Wait, Await and Signal
//	                 are over here; Ready never gives them
//
// A task that was dropped, since its queue failed or was aborted, comes out of Ready
// all the same, once, in its place, with Err set: it is not to be run, only Done.
//
// A device that keeps the order of a stream by itself need not be fed task by task:
// Pass says that it has a task, so that what is behind it may be given to it too. A
// callback, a signal and an Await still come when all before them has ended.
type Order struct {
	// Chain says that a device also keeps an order between its streams: a Wait for a
	// Record that was passed comes out of Ready, to be given to the device.
	Chain bool

	ready []*Task
	wake  []*Queue // queues whose head may pass now
}

// maxTasks is the most tasks that may wait in one queue.
const maxTasks = 1 << 20

// TaskKind is what a task does to the order.
type TaskKind uint8

// The kinds of task.
const (
	TaskWork   TaskKind = iota // the driver's own: a copy, a kernel
	TaskCall                   // a callback: as Work, but the driver calls it also when it was dropped
	TaskRecord                 // Mark is done when it is; the driver may note the time
	TaskWait                   // holds until the latest record of Mark is done
	TaskSignal                 // sets Flag
	TaskAwait                  // holds until Flag is set, and clears it
)

// Task is one entry of a queue. It is made by the driver and used once.
type Task struct {
	Kind TaskKind
	Mark *Mark // of Record and Wait
	Flag *Flag // of Signal and Await
	Data any   // the driver's own
	// Err says why the task was dropped. Where the task had begun, it says that the
	// stream was aborted meanwhile.
	Err error

	queue *Queue
	point *point // of Record and Wait
}

// Queue is the state of a stream. Its zero value is an empty queue.
type Queue struct {
	Stamp time.Duration // the latest Stamp of the flags that it has passed

	tasks []*Task
	begun *Task   // given by Ready, and neither Passed nor Done
	ahead []*Task // Passed and not Done, oldest first
	err   error   // why the stream failed
}

// Mark is the state of an event. Its zero value was never recorded.
type Mark struct {
	Name   string // for errors
	latest *point
	users  int // tasks that wait in a queue
}

// point is one record of a mark.
type point struct {
	over     bool
	passed   bool // the record was
	record   *Task
	err      error
	waiters  []*Queue
	watchers []*Task
}

// Flag is the state of a notify. Its zero value is not set.
type Flag struct {
	Name    string        // for errors
	Stamp   time.Duration // the driver's: when it was set, if it keeps that
	set     bool
	err     error
	waiters []*Queue // whose head awaits it, first come first
	users   int
}

// Idle says whether nothing waits or runs.
func (q *Queue) Idle() bool { return q.begun == nil && len(q.tasks) == 0 && len(q.ahead) == 0 }

// Len is the number of tasks that have not ended.
func (q *Queue) Len() int {
	if q.begun != nil {
		return len(q.tasks) + len(q.ahead) + 1
	}
	return len(q.tasks) + len(q.ahead)
}

// Err is why the queue failed, nil if it has not or was aborted since.
func (q *Queue) Err() error { return q.err }

// Done says whether the latest record is over, and why it was not reached. A mark
// that was never recorded is done.
func (m *Mark) Done() (bool, error) {
	if m.latest == nil {
		return true, nil
	}
	return m.latest.over, m.latest.err
}

// Recorded says whether the mark was ever recorded.
func (m *Mark) Recorded() bool { return m.latest != nil }

// Latest says whether t is the latest record of the mark.
func (m *Mark) Latest(t *Task) bool { return m.latest == t.point }

// InUse says whether a task that waits or runs, or a watcher, has to do with the
// mark.
func (m *Mark) InUse() bool { return m.users > 0 || m.latest != nil && !m.latest.over }

// InUse says whether a task that waits has to do with the flag.
func (f *Flag) InUse() bool { return f.users > 0 }

// Push appends a task. To a queue that has failed, it is a task that is dropped. The
// error is kolo.ErrLimit for a queue that is full; the task was not taken then.
func (o *Order) Push(q *Queue, t *Task) error {
	if len(q.tasks) >= maxTasks {
		return fmt.Errorf("%w: %d tasks wait in the stream; sync it now and then", kolo.ErrLimit, len(q.tasks))
	}
	t.queue, t.Err = q, q.err
	switch t.Kind {
	case TaskRecord:
		t.point = &point{record: t}
		t.Mark.latest = t.point
		t.Mark.users++
	case TaskWait:
		t.point = t.Mark.latest
		t.Mark.users++
	case TaskSignal, TaskAwait:
		t.Flag.users++
	case TaskWork, TaskCall:
	default:
		panic(fmt.Sprintf("npu: unknown kind of task %d", t.Kind))
	}
	q.tasks = append(q.tasks, t)
	o.advance(q)
	o.drain()
	return nil
}

// Ready is the next task to begin, or, with Err set, to be resolved. It is nil when
// there is none.
func (o *Order) Ready() *Task {
	if len(o.ready) == 0 {
		return nil
	}
	t := o.ready[0]
	o.ready[0] = nil
	o.ready = o.ready[1:]
	return t
}

// Pass says that the device has a task given by Ready and keeps what comes later
// behind it. It is Done when it has ended; the passed tasks of a queue are Done in
// order. Work, records and waits may be passed.
func (o *Order) Pass(t *Task) {
	q := t.queue
	if q == nil || q.begun != t || t.Kind == TaskCall {
		panic("npu: a task is passed that has not begun, or that nobody passes")
	}
	q.begun = nil
	q.ahead = append(q.ahead, t)
	if t.Kind == TaskRecord {
		t.point.passed = true
		o.wake = append(o.wake, t.point.waiters...)
		t.point.waiters = nil
	}
	o.advance(q)
	o.drain()
}

// Done says that a task given by Ready has ended. An error fails its queue, if the
// task was neither dropped nor aborted meanwhile.
func (o *Order) Done(t *Task, err error) {
	q := t.queue
	if q == nil { // a watcher
		return
	}
	switch {
	case q.begun == t:
		q.begun = nil
	case len(q.ahead) > 0 && q.ahead[0] == t:
		q.ahead[0] = nil
		q.ahead = q.ahead[1:]
	default:
		panic("npu: a task is done that had not begun, or not in order")
	}
	why := t.Err
	if why == nil {
		why = err
	}
	switch t.Kind {
	case TaskRecord:
		t.Mark.users--
		o.reach(t.point, why)
	case TaskWait:
		t.Mark.users--
		if why == nil && t.point.err != nil {
			o.fail(q, waitError(t))
		}
	}
	if err != nil && t.Err == nil {
		o.fail(q, err)
	}
	o.advance(q)
	o.drain()
}

// Awaited is the Record that a Wait waits for, nil for an event never recorded.
func (t *Task) Awaited() *Task {
	if t.Kind != TaskWait || t.point == nil {
		return nil
	}
	return t.point.record
}

// Broken says why what a passed Wait waits for was not reached; nil if it was, or may
// still be. The device has to be told: there it will not be reached either.
func (o *Order) Broken(t *Task) error {
	if t.Kind != TaskWait || t.point == nil || t.point.err == nil {
		return nil
	}
	return waitError(t)
}

func waitError(t *Task) error {
	return fmt.Errorf("wait for event %q: %w", t.Mark.Name, t.point.err)
}

// Fail fails a queue from outside: what waits is dropped, and what is pushed later.
// The first error stays.
func (o *Order) Fail(q *Queue, err error) {
	o.fail(q, err)
	o.advance(q)
	o.drain()
}

// Abort drops what waits, with cause, and takes the failure from the queue. Tasks
// that have begun go on; their errors, if they have any, are not the queue's.
func (o *Order) Abort(q *Queue, cause error) {
	o.drop(q, cause)
	if q.begun != nil && q.begun.Err == nil {
		q.begun.Err = cause
	}
	for _, t := range q.ahead {
		if t.Err == nil {
			t.Err = cause
		}
	}
	q.err = nil
	o.advance(q)
	o.drain()
}

// Set sets a flag, or with a cause fails it: then every queue that awaits it fails.
func (o *Order) Set(f *Flag, cause error) {
	o.raise(f, cause)
	o.drain()
}

// Reset clears a flag and its failure.
func (o *Order) Reset(f *Flag) { f.set, f.err = false, nil }

// Watch has t, of kind Call and in no queue, come out of Ready when the latest
// record of the mark is over, with Err if it was not reached.
func (o *Order) Watch(m *Mark, t *Task) {
	t.queue = nil
	if p := m.latest; p != nil && !p.over {
		p.watchers = append(p.watchers, t)
		return
	}
	_, t.Err = m.Done()
	o.ready = append(o.ready, t)
}

// fail drops what waits and refuses what comes; the first error stays.
func (o *Order) fail(q *Queue, err error) {
	if q.err == nil {
		o.drop(q, err)
		q.err = err
	}
}

// drop marks what waits in the queue as dropped.
func (o *Order) drop(q *Queue, cause error) {
	for _, t := range q.tasks {
		if t.Err == nil {
			t.Err = cause
		}
	}
}

// drain lets the queues go on that were woken.
func (o *Order) drain() {
	for len(o.wake) > 0 {
		q := o.wake[0]
		o.wake = o.wake[1:]
		o.advance(q)
	}
}

// advance takes tasks from the head of the queue until one has begun or holds it.
func (o *Order) advance(q *Queue) {
	for q.begun == nil && len(q.tasks) > 0 {
		t := q.tasks[0]
		if !o.passes(q, t) {
			return
		}
		q.tasks[0] = nil
		q.tasks = q.tasks[1:]
		switch t.Kind {
		case TaskWork, TaskCall, TaskRecord:
			q.begun = t
			o.ready = append(o.ready, t)
		case TaskWait:
			if t.Err == nil && q.err == nil && t.point != nil && !t.point.over { // the device waits
				q.begun = t
				o.ready = append(o.ready, t)
				continue
			}
			t.Mark.users--
		case TaskSignal:
			t.Flag.users--
			o.raise(t.Flag, t.Err)
		case TaskAwait:
			t.Flag.users--
		}
	}
}

// passes says whether the head of the queue holds it no longer.
func (o *Order) passes(q *Queue, t *Task) bool {
	switch t.Kind {
	case TaskWait:
		return t.Err != nil || t.point == nil || o.passesMark(q, t)
	case TaskAwait:
		return (t.Err != nil || len(q.ahead) == 0) && o.passesFlag(q, t)
	case TaskCall, TaskSignal:
		return len(q.ahead) == 0
	}
	return true
}

func (o *Order) passesMark(q *Queue, t *Task) bool {
	p := t.point
	switch {
	case !p.over && p.passed && o.Chain:
		return true
	case !p.over:
		p.waiters = append(p.waiters, q)
		return false
	case p.err != nil:
		o.fail(q, waitError(t))
	}
	return true
}

func (o *Order) passesFlag(q *Queue, t *Task) bool {
	f := t.Flag
	at := slices.Index(f.waiters, q)
	switch {
	case t.Err != nil:
	case f.err != nil:
		o.fail(q, fmt.Errorf("await notify %q: %w", f.Name, f.err))
	case f.set && (at == 0 || len(f.waiters) == 0):
		f.set = false
		q.Stamp = max(q.Stamp, f.Stamp)
	default:
		if at < 0 {
			f.waiters = append(f.waiters, q)
		}
		return false
	}
	if at >= 0 {
		f.waiters = slices.Delete(f.waiters, at, at+1)
		if f.set && len(f.waiters) > 0 {
			o.wake = append(o.wake, f.waiters[0])
		}
	}
	return true
}

// reach ends a point and wakes who waits for it.
func (o *Order) reach(p *point, err error) {
	p.over, p.err = true, err
	o.wake = append(o.wake, p.waiters...)
	for _, t := range p.watchers {
		t.Err = err
		o.ready = append(o.ready, t)
	}
	p.waiters, p.watchers = nil, nil
}

// raise sets or fails a flag and wakes who awaits it.
func (o *Order) raise(f *Flag, cause error) {
	if cause == nil {
		f.set = true
		if len(f.waiters) > 0 {
			o.wake = append(o.wake, f.waiters[0])
		}
		return
	}
	if f.err == nil {
		f.err = cause
	}
	o.wake = append(o.wake, f.waiters...)
}
