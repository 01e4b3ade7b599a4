package roce

import (
	"runtime"
	"sync/atomic"
	"time"
)

// How a rank polls.
const (
	pollFor    = 100 * time.Microsecond // after the last packet, before it parks
	pollMost   = 10 * time.Millisecond  // also if there is always something: it has a context to listen to
	pollPause  = 200 * time.Microsecond // after the last Poll until the reader reads again; twice at most
	pollYield  = 4                      // looks that find nothing, before the processor is yielded
	clockEvery = 8                      // looks between two looks at the clock
)

// Poll reads on the goroutine of a rank that waits, until done is not zero or nothing
// has come for some time. More ranks than processors do not poll.
func (d *Driver) Poll(done *atomic.Uint32) {
	d.polls.Add(1)
	if d.pollers.Add(1) > int32(runtime.GOMAXPROCS(0)) {
		d.pollers.Add(-1)
		return
	}
	defer d.pollers.Add(-1)
	d.mu.RLock()
	ports := d.ports
	d.mu.RUnlock()
	start := time.Now()
	last := time.Duration(0)
	hot := 0 // the port where something was last found
	for i := 1; done.Load() == 0; i++ {
		found := false
		for n, p := range ports {
			if (n == hot || i%clockEvery == 0) && p.look() {
				found, hot = true, n
			}
		}
		switch {
		case found:
			last = time.Since(start)
			if last > pollMost {
				nudge(ports)
				return
			}
		case i%clockEvery == 0:
			if time.Since(start) > last+pollFor {
				nudge(ports)
				return
			}
		}
		if !found && i%pollYield == 0 {
			runtime.Gosched()
		}
	}
}

// nudge lets the readers read again: the rank parks.
func nudge(ports []*port) {
	for _, p := range ports {
		select {
		case p.nudge <- struct{}{}:
		default: // it has not heard of the last one yet
		}
	}
}
