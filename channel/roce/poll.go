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
	sources := d.sources
	d.mu.RUnlock()
	d.pump.join()
	defer d.pump.leave()
	start := time.Now()
	last := time.Duration(0)
	hot := 0 // where something was last found
	for i := 1; done.Load() == 0; i++ {
		found := d.pump.share()
		for n, r := range sources {
			if (n == hot || i%clockEvery == 0) && r.from.look() {
				found, hot = true, n
			}
		}
		switch {
		case found:
			last = time.Since(start)
			if last > pollMost {
				wakeAll(sources)
				return
			}
		case i%clockEvery == 0:
			patience := pollFor
			if d.moving.Load() > 0 {
				patience = pollMoving
			}
			if time.Since(start) > last+patience {
				wakeAll(sources)
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

// source is where completions or packets are found.
type source interface {
	look() bool  // once, if nobody else does; it says whether there was anything
	drain()      // until there is nothing, on the reader's goroutine
	wait() error // until there may be something
}

// reader looks at a source while no rank polls.
type reader struct {
	d      *Driver
	from   source
	closed chan struct{}
	nudge  chan struct{} // a rank has stopped polling and parks
}

func newReader(d *Driver, from source) *reader {
	return &reader{d: d, from: from, closed: make(chan struct{}), nudge: make(chan struct{}, 1)}
}

// wakeAll lets the readers look again: the rank parks.
func wakeAll(list []*reader) {
	for _, r := range list {
		select {
		case r.nudge <- struct{}{}:
		default: // it has not heard of the last one yet
		}
	}
}

// run is the goroutine of a source. While ranks poll it stays away, and looks now and
// then whether they still do.
func (r *reader) run() {
	pause := time.NewTicker(pollPause)
	defer pause.Stop()
	seen := int64(0)
	for {
		nudged := false
		for n := r.d.polls.Load(); !nudged && (n != seen || r.d.pollers.Load() > 0); n = r.d.polls.Load() {
			seen = n
			select {
			case <-r.nudge:
				nudged = true
			case <-pause.C:
			case <-r.closed:
				return
			}
		}
		r.from.drain()
		err := r.from.wait()
		select {
		case <-r.closed:
			return
		default:
		}
		if err != nil {
			select {
			case <-r.closed:
				return
			case <-pause.C:
				r.d.counts.readErrors.Add(1)
			}
		}
	}
}
