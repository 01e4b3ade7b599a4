package roce

import (
	"runtime"
	"sync/atomic"
	"time"
)

// How a rank polls, and the reader of a port.
const (
	pollFor    = 100 * time.Microsecond // after the last packet, before a rank parks
	pollMoving = time.Millisecond       // the same, where large messages are under way
	readFor    = 200 * time.Microsecond // then the reader looks so long before it sleeps
	pollMost   = 10 * time.Millisecond  // also if there is always something: a rank has a context to listen to
	pollPause  = 200 * time.Microsecond // after the last Poll until the reader reads again; twice at most
	pollYield  = 4                      // looks that find nothing, before the processor is yielded
	clockEvery = 8                      // looks between two looks at the clock
)

// Poll reads, and sends what is to be sent, on the goroutine of a rank that waits, until
// done is not zero or nothing has come for some time. More ranks than processors do not
// poll.
func (d *Driver) Poll(done *atomic.Uint32) {
	d.polls.Add(1)
	defer d.pollers.Add(-1)
	if d.pollers.Add(1) > int32(runtime.GOMAXPROCS(0)) {
		return
	}
	d.mu.RLock()
	ports := d.ports
	d.mu.RUnlock()
	d.pump.join()
	defer d.pump.leave()
	start := time.Now()
	last := time.Duration(0)
	hot := 0 // the port where something was last found
	for i := 1; done.Load() == 0; i++ {
		found := d.pump.share()
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
			patience := pollFor
			if d.moving.Load() > 0 {
				patience = pollMoving
			}
			if time.Since(start) > last+patience {
				nudge(ports)
				return
			}
		}
		if !found && i%pollYield == 0 {
			runtime.Gosched()
		}
	}
}

// drain reads what there is, and sends what is to be sent, on the goroutine of the port.
// While large messages are under way it does not give up at once: who sends the next
// packets may have to wait for a processor.
func (p *port) drain() {
	if !p.look() {
		return
	}
	d := p.d
	d.pump.join()
	defer d.pump.leave()
	last := time.Now()
	for i := 1; d.pollers.Load() == 0; i++ {
		found := p.look()
		switch found = d.pump.share() || found; {
		case found:
			last = time.Now()
		case d.moving.Load() == 0 || time.Since(last) > readFor:
			return
		case i%pollYield == 0:
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
