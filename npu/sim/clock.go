package sim

import (
	"container/heap"
	"time"

	"github.com/kolo-ccl/kolo/npu/driver"
)

// clock is the time of a cluster and what is to happen in it. In one sentence: a
// timer fires at the moment of the first event, and its goroutine handles events
// until none is due.
type clock struct {
	fast    bool
	base    time.Time     // moment 0, where time is real or a bubble's
	at      time.Duration // the moment of what is being done
	latest  time.Duration // the latest moment that was come to
	events  events
	made    uint64
	timer   *time.Timer
	armed   int           // pumps that are to come: the timer's, and those it has let go
	wake    time.Duration // when the timer fires, if armed
	pumping bool          // a goroutine handles events
}

// event happens at a moment, and of one moment in the order of making.
type event struct {
	at  time.Duration
	seq uint64
	do  func() // with the cluster's lock
	run func() // or without it: bytes and callbacks
}

// now is the moment of what comes from outside.
func (k *clock) now() time.Duration {
	if k.fast {
		return k.latest
	}
	return time.Since(k.base)
}

// schedule has do happen at a moment. The lock is held.
func (c *Cluster) schedule(at time.Duration, do func()) { c.add(event{at: at, do: do}) }

// run has f called at a moment without the lock, and then with it and what came of f, in
// no time: see driver.Settle. The lock is held.
func (c *Cluster) run(at time.Duration, f func() error, then func(error)) {
	c.add(event{at: at, run: func() {
		driver.Settle(f, func(err error) {
			c.core.Lock()
			defer c.core.Unlock()
			c.clock.at = at
			then(err)
			c.core.Turn()
		})
	}})
}

// call has a callback called as run does, but that is the host's and takes its time.
func (c *Cluster) call(at time.Duration, t *driver.Task) {
	c.add(event{at: at, run: func() {
		t.Call(func(err error) {
			c.core.Lock()
			defer c.core.Unlock()
			c.clock.at = max(at, c.clock.now())
			t.End(err)
			c.core.Turn()
		})
	}})
}

func (c *Cluster) add(e event) {
	k := &c.clock
	k.made++
	e.seq = k.made
	heap.Push(&k.events, e)
}

// arm sets the timer to the first event. The lock is held.
func (c *Cluster) arm() {
	k := &c.clock
	if k.pumping || len(k.events) == 0 {
		return
	}
	at := k.events[0].at
	if k.armed > 0 && at >= k.wake {
		return
	}
	k.wake = at
	wait := time.Duration(0)
	if !k.fast {
		wait = max(0, at-k.now())
	}
	switch {
	case k.timer == nil:
		k.timer = time.AfterFunc(wait, c.pump)
		k.armed++
	case !k.timer.Reset(wait):
		k.armed++
	}
}

// pump handles the events that are due. It is called by the timer.
func (c *Cluster) pump() {
	c.core.Lock()
	defer c.core.Unlock()
	k := &c.clock
	k.armed--
	if k.pumping {
		return
	}
	k.pumping = true
	defer func() { // also where what was called has ended the goroutine: the next one goes on
		k.pumping = false
		c.arm()
		c.settle()
	}()
	for len(k.events) > 0 && (k.fast || k.events[0].at <= k.now()) {
		e := heap.Pop(&k.events).(event)
		k.at, k.latest = e.at, max(k.latest, e.at)
		if e.do != nil {
			e.do()
			c.core.Turn()
			continue
		}
		c.unlocked(e.run)
	}
}

// unlocked calls f without the lock, which is held.
func (c *Cluster) unlocked(f func()) {
	c.core.Unlock()
	defer c.core.Lock()
	f()
}

// settle notices that a closed cluster has nothing more to do. The lock is held.
func (c *Cluster) settle() {
	k := &c.clock
	if !c.core.Closed() || k.pumping || len(c.works) > 0 || len(c.core.Opened()) > 0 {
		return
	}
	for _, e := range k.events { // the ends of uses that were cut short are nothing to wait for
		if e.run != nil {
			return
		}
	}
	k.events = nil
	if k.armed > 0 && k.timer.Stop() {
		k.armed--
	}
	if k.armed == 0 {
		select {
		case <-c.quiet:
		default:
			close(c.quiet)
		}
	}
}

// events is a heap, the first to happen on top.
type events []event

func (h events) Len() int { return len(h) }

func (h events) Less(i, j int) bool {
	if h[i].at != h[j].at {
		return h[i].at < h[j].at
	}
	return h[i].seq < h[j].seq
}

func (h events) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

// Push is for package heap.
func (h *events) Push(x any) { *h = append(*h, x.(event)) }

// Pop is for package heap.
func (h *events) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = event{}
	*h = (*h)[:last]
	return e
}
