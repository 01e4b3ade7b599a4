package sim

import (
	"math"
	"math/bits"
	"slices"
	"time"
)

// lane is an engine, or one direction of a link.
type lane struct {
	name    string
	rate    float64 // bytes per second; 0 for an engine whose uses say how long they are
	latency time.Duration
	slots   int     // uses that it serves at a time
	slow    float64 // how many times slower than it should be

	busy    int
	claims  int // of uses that wait, in the scan of that number
	scanned int
}

// use is one occupation of lanes.
type use struct {
	name  string
	lanes []*lane
	bytes int64         // that pass through
	fixed time.Duration // in front of them

	of       *chain
	ready    time.Duration // not before
	begun    bool
	released bool
}

// chain is what a task or a job does: phases one after the other, each a number of
// uses at the same time.
type chain struct {
	phases   [][]*use
	devices  []*device // that take part: if one is lost, so is the chain
	owner    *device   // whose stream it is, if it is a task
	priority int
	done     func(err error) // called once, with the cluster's lock

	now   []*use // the phase that runs
	left  int    // uses of it that are not over
	begun bool
	over  bool
}

// start runs a chain from a moment on. The lock is held.
func (c *Cluster) start(w *chain, ready time.Duration) {
	c.works = append(c.works, w)
	c.next(w, ready)
}

// next begins the next phase that has something to do.
func (c *Cluster) next(w *chain, ready time.Duration) {
	for len(w.phases) > 0 {
		w.now = w.phases[0]
		w.phases = w.phases[1:]
		if w.left = len(w.now); w.left == 0 {
			continue
		}
		for _, u := range w.now {
			u.of, u.ready = w, ready
			at, _ := slices.BinarySearchFunc(c.waiting, w.priority, func(o *use, priority int) int {
				if o.of.priority >= priority {
					return -1
				}
				return 1
			})
			c.waiting = slices.Insert(c.waiting, at, u)
		}
		return
	}
	c.finish(w, nil)
}

// cancel ends a chain before its time: what waits is dropped, what runs is cut.
func (c *Cluster) cancel(w *chain, err error) {
	if w.over {
		return
	}
	for _, u := range w.now {
		u.release()
	}
	c.finish(w, err)
}

func (c *Cluster) finish(w *chain, err error) {
	w.over = true
	if i := slices.Index(c.works, w); i >= 0 {
		c.works = slices.Delete(c.works, i, i+1)
	}
	c.waiting = slices.DeleteFunc(c.waiting, func(u *use) bool { return u.of == w })
	w.done(err)
}

// scan begins the uses whose lanes are free. A use that has to wait claims its lanes,
// so that no later one overtakes it.
func (c *Cluster) scan() {
	c.scanned++
	kept := c.waiting[:0]
	for _, u := range c.waiting {
		if c.claim(u) {
			c.begin(u)
		} else {
			kept = append(kept, u)
		}
	}
	clear(c.waiting[len(kept):])
	c.waiting = kept
}

// claim notes that u needs its lanes, and says whether it can have them.
func (c *Cluster) claim(u *use) bool {
	free := true
	for _, l := range u.lanes {
		if l.scanned != c.scanned {
			l.scanned, l.claims = c.scanned, 0
		}
		if l.busy+l.claims >= l.slots {
			free = false
		}
	}
	for _, l := range u.lanes {
		if !free {
			l.claims++
		}
	}
	return free
}

func (c *Cluster) begin(u *use) {
	u.begun, u.of.begun = true, true
	at := max(u.ready, c.clock.at)
	end := at + u.duration()
	latency := time.Duration(0)
	for _, l := range u.lanes {
		l.busy++
		latency = max(latency, l.latency)
		c.note(Span{Lane: l.name, Name: u.name, Bytes: u.bytes, Begin: at, End: end})
	}
	c.schedule(end, func() {
		u.release()
		if latency == 0 {
			c.arrived(u)
		}
	})
	if latency > 0 {
		c.schedule(end+latency, func() { c.arrived(u) })
	}
}

// arrived ends a use, and with the last one its phase.
func (c *Cluster) arrived(u *use) {
	if w := u.of; !w.over {
		if w.left--; w.left == 0 {
			c.next(w, c.clock.at)
		}
	}
}

func (u *use) release() {
	if u.begun && !u.released {
		u.released = true
		for _, l := range u.lanes {
			l.busy--
		}
	}
}

// duration is how long the lanes are occupied: as long as the slowest of them is.
func (u *use) duration() time.Duration {
	longest := time.Duration(0)
	for _, l := range u.lanes {
		d := time.Duration(math.Ceil(float64(u.fixed) * l.slow))
		if l.rate > 0 {
			d += transfer(u.bytes, l.rate/l.slow)
		}
		longest = max(longest, d)
	}
	return longest
}

// transfer is how long n bytes take at a rate per second, rounded up to whole
// nanoseconds.
func transfer(n int64, rate float64) time.Duration {
	per := uint64(math.Round(rate))
	if n <= 0 {
		return 0
	}
	if per == 0 {
		return math.MaxInt64 / 4
	}
	hi, lo := bits.Mul64(uint64(n), uint64(time.Second))
	lo, carry := bits.Add64(lo, per-1, 0)
	hi += carry
	if hi >= per {
		return math.MaxInt64 / 4
	}
	d, _ := bits.Div64(hi, lo, per)
	return time.Duration(min(d, math.MaxInt64/4))
}
