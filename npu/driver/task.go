package driver

import (
	"runtime"
	"slices"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/npu"
)

// Task is what a stream does.
type Task struct {
	npu.Task
	Own    any           // the driver's own part, which the Task is in
	Stream *Stream       // nil where somebody waits for an event
	Op     string        // "copy", or the name of a kernel
	At     time.Duration // the moment of the call
	Parts  []*Device     // whose memory it uses
	Event  *Event        // of a Record

	blocks  []*npu.Block
	pins    runtime.Pinner // of memory of the host
	why     error          // Err when it began: an abort may set it later
	counted bool           // at its parts
	call    func(error)    // of a Callback
	synced  chan<- error   // of a Sync, with room for the answer
}

// task makes a task that Order calls by a kind. The lock is held.
func (c *Core) task(op string, kind npu.TaskKind) *Task {
	t := c.hooks.NewTask()
	t.Op, t.At, t.Kind, t.Data = op, c.at, kind, t
	return t
}

// Syncs says whether the task only answers somebody who waits: it is over when it
// begins.
func (t *Task) Syncs() bool { return t.synced != nil }

// Call calls the user's function of a Callback, without the lock, and gives then the error
// for End, also where the function panics or ends its goroutine: see Settle.
func (t *Task) Call(then func(error)) {
	Settle(func() error {
		t.call(t.why)
		return nil
	}, func(err error) {
		if err != nil {
			err = t.Stream.Error(t.Op, err)
		}
		then(err)
	})
}

// End ends a task that has begun. An error fails its stream, unless the task was
// dropped or aborted. The lock is held.
func (t *Task) End(err error) {
	if s := t.Stream; s != nil {
		t.release()
		if t.counted {
			for _, d := range t.Parts {
				d.users--
			}
		}
		s.device.core.order.Done(&t.Task, err)
		s.device.settle()
		for _, d := range t.Parts {
			d.settle()
		}
	}
	if t.synced != nil {
		t.synced <- t.why
	}
}

// Hindrance says why a task that comes next, or has begun, cannot go on: its stream has
// failed, or a device that it needs. The lock is held.
func (t *Task) Hindrance() error {
	if err := t.Stream.queue.Err(); err != nil {
		return err
	}
	if err := t.Stream.device.Trouble(); err != nil {
		return t.Stream.Error(t.Op, err)
	}
	for _, d := range t.Parts {
		if err := d.Trouble(); err != nil {
			return t.Stream.Error(t.Op, err)
		}
	}
	return nil
}

// take finds memory that the task uses, and holds it until the task has ended. The
// lock is held.
func (t *Task) take(m kolo.Memory) (Place, error) {
	p, err := t.Stream.device.core.Locate(m)
	if err != nil {
		return Place{}, err
	}
	if t.Stream.device.core.cfg.Pin && len(m.Host) > 0 {
		t.pins.Pin(&m.Host[0])
	}
	if p.Device != nil && !slices.Contains(t.Parts, p.Device) {
		t.Parts = append(t.Parts, p.Device)
	}
	if p.Block != nil {
		p.Block.Hold(t.Stream.who)
		t.blocks = append(t.blocks, p.Block)
	}
	return p, nil
}

// pair takes the memory of a destination and a source. The lock is held.
func (t *Task) pair(dst, src kolo.Memory) (to, from Place, err error) {
	if to, err = t.take(dst); err == nil {
		from, err = t.take(src)
	}
	return to, from, err
}

// release gives up the memory. The lock is held.
func (t *Task) release() {
	for _, b := range t.blocks {
		b.Release()
	}
	t.pins.Unpin()
	t.blocks = nil
}
