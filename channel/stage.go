package channel

import (
	"fmt"
	"math/bits"
	"slices"
	"sync"

	"github.com/kolo-ccl/kolo"
)

// Stage lets the channel carry memory of devices over a Conn that takes host memory only:
// what is sent is moved to a bounce buffer before it is posted, and what was received out
// of one before the owner hears of it. The engine e reaches the host and the devices. It
// is called before the first Post.
//
//	send     owner -> Post -> e: device to host -> conn.Post -> Complete
//	receive  owner -> Post -> conn.Post -> Complete -> e: host to device -> the owner's Sink
//
// Sends with equal keys stay in the order in which they were posted. A View sees the
// host's memory: the engine folds it where it is.
func (c *Channel) Stage(e Engine) { c.engine = e }

// bounce is the buffer of an op, and its way between that and a device.
type bounce struct {
	c     *Channel
	op    *Op
	mem   []kolo.Memory // the owner's
	host  [1]kolo.Memory
	buf   []byte
	job   Job
	ready bool  // the bytes are in the buffer
	err   error // why the send is not posted
}

func (*bounce) isMessage() {}

// bounces are buffers to be used again, by their size as a power of two.
var bounces [64]sync.Pool

// leastBounce is the size of the smallest buffer, in bytes: a page.
const leastBounce = 4 << 10

func sizeClass(n int64) int { return bits.Len64(uint64(max(n, leastBounce) - 1)) }

func (c *Channel) newBounce(op *Op) *bounce {
	class := sizeClass(op.Size)
	b, _ := bounces[class].Get().(*bounce)
	if b == nil {
		b = &bounce{buf: make([]byte, 1<<class)}
		b.job.Done = b.done
	}
	b.c, b.op, b.mem, b.ready, b.err = c, op, op.Mem, false, nil
	b.host[0] = kolo.HostMemory(b.buf[:op.Size])
	op.aside, op.Mem = b, b.host[:]
	return b
}

// free gives the buffer back, and the owner's memory to the op.
func (b *bounce) free() {
	b.op.Mem, b.op.aside = b.mem, nil
	b.c, b.op, b.mem = nil, nil, nil
	bounces[sizeClass(int64(len(b.buf)))].Put(b)
}

// move begins to move the op's bytes to the buffer or out of it.
func (b *bounce) move() {
	b.job.Reset()
	if b.op.Kind == Send {
		b.job.AddMove(b.host[:], b.mem)
	} else {
		b.job.AddMove(b.mem, b.host[:])
	}
	if len(b.job.Parts) == 0 {
		b.done(b.c.shard, nil)
		return
	}
	b.c.engine.Start(b.c.shard, &b.job)
}

// done is called by the engine.
func (b *bounce) done(t Turn, err error) {
	if err != nil && b.err == nil {
		b.err = fmt.Errorf("stage memory of a device: %w", err)
	}
	if err := b.c.self.From(t).Tell(b); err != nil { // after a panic: nobody is on the shard
		b.c.refuse(b.op, err)
	}
}

// setAside says whether a send is not to be posted yet. A receive to a device becomes one
// to a buffer.
func (c *Channel) setAside(op *Op) bool {
	if c.engine == nil || op.Kind == View || c.lost != nil {
		return false
	}
	device := slices.ContainsFunc(op.Mem, func(m kolo.Memory) bool { return m.Space != kolo.HostSpace })
	if op.Kind == Recv {
		if device {
			c.newBounce(op)
		}
		return false
	}
	if !device && !c.behind(op, len(c.aside)) {
		return false
	}
	c.aside = append(c.aside, op)
	if device {
		c.newBounce(op).move()
	}
	return true
}

// behind says whether one of the first n sends that are set aside has the op's key.
func (c *Channel) behind(op *Op, n int) bool {
	return slices.ContainsFunc(c.aside[:n], func(x *Op) bool { return x.Key == op.Key })
}

// moved hears that an op's bytes are where they have to be, or why not.
func (c *Channel) moved(b *bounce) {
	if b.op.Kind == Recv {
		b.op.Err = b.err
		c.deliver(b.op)
		return
	}
	b.ready = true
	for i := 0; i < len(c.aside); {
		op := c.aside[i]
		if op.aside != nil && !op.aside.ready || c.behind(op, i) {
			i++
			continue
		}
		c.aside = slices.Delete(c.aside, i, i+1)
		if op.aside != nil && op.aside.err != nil {
			op.Complete(c.shard, op.aside.err)
		} else {
			c.post(op)
		}
	}
}

// abortAside ends the sends of a group that are set aside, those which are being moved
// when they have been.
func (c *Channel) abortAside(group uint64, cause error) {
	c.aside = slices.DeleteFunc(c.aside, func(op *Op) bool {
		switch {
		case op.Key.Group != group:
			return false
		case op.aside != nil && !op.aside.ready:
			op.aside.err = cause
			return false
		}
		op.Complete(c.shard, cause)
		return true
	})
}

// arrived says whether an op that has completed is at its end, as it is unless its bytes
// have yet to go to a device.
func (op *Op) arrived() bool {
	if op.aside == nil || op.Kind == Send || op.Err != nil {
		return true
	}
	op.aside.move()
	return false
}

// deliver tells the owner of an op that it has ended.
func (c *Channel) deliver(op *Op) {
	if op.aside != nil {
		op.aside.free()
	}
	c.open--
	op.state.Store(opIdle)
	op.Sink.Complete(op)
	c.endIfIdle()
}
