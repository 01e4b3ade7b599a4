package main

import (
	"fmt"
	"io"
	"math"
	"time"

	"github.com/kolo-ccl/kolo"
)

// crew lets a controller time the calls of ranks that are goroutines: it gives each an
// order and waits for all answers. While no order is out, the buffers are the
// controller's.
type crew struct {
	orders  []chan order
	answers chan answer
	ended   chan error // one value, when the ranks have ended
}

type answer struct {
	took time.Duration
	err  error // the rank has ended
}

// order tells a rank to make so many calls and say how long they took.
type order struct {
	calls  int
	manner manner
	work   int  // units of work before each call, back to back only
	idle   bool // the work only, without the calls
}

func newCrew(ranks int) *crew {
	c := &crew{answers: make(chan answer, ranks), ended: make(chan error, 1)}
	for range ranks {
		c.orders = append(c.orders, make(chan order, 1))
	}
	return c
}

// serve is one rank's life: it carries out orders until there are no more.
func (c *crew) serve(rank int, call, barrier func() error) error {
	for o := range c.orders[rank] {
		d, err := perform(o, call, barrier)
		c.answers <- answer{d, err}
		if err != nil {
			return err
		}
	}
	return nil
}

func perform(o order, call, barrier func() error) (sum time.Duration, err error) {
	if o.manner == separated {
		for range o.calls {
			if err := barrier(); err != nil {
				return 0, err
			}
			start := time.Now()
			if err := call(); err != nil {
				return 0, err
			}
			sum += time.Since(start)
		}
		return sum, nil
	}
	x := uint64(1)
	start := time.Now()
	for range o.calls {
		x = work(x, o.work)
		if o.idle {
			continue
		}
		if err := call(); err != nil {
			return 0, err
		}
	}
	sum = time.Since(start)
	if x == 0 { // never: so that the work is done
		sum++
	}
	return sum, nil
}

// work keeps a core busy without touching memory. It returns no 0 for an odd x.
func work(x uint64, units int) uint64 {
	for range units {
		x = x*6364136223846793005 + 1442695040888963406
	}
	return x
}

// unitsOf is the amount of work that takes so long on an idle core.
func unitsOf(d time.Duration) int {
	if d <= 0 {
		return 0
	}
	const probe = 1_000_000
	best := time.Second
	for range 5 {
		start := time.Now()
		if work(1, probe) != 0 {
			best = min(best, max(1, time.Since(start)))
		}
	}
	return int(float64(d) / float64(best) * probe)
}

// repeat carries out an order on all ranks and returns the time of the slowest.
func (c *crew) repeat(o order) (slowest time.Duration, err error) {
	for _, to := range c.orders {
		to <- o
	}
	for range c.orders {
		select {
		case a := <-c.answers:
			if a.err != nil {
				return 0, a.err
			}
			slowest = max(slowest, a.took)
		case err := <-c.ended:
			c.ended <- err
			return 0, fmt.Errorf("the ranks ended before their orders did: %w", err)
		}
	}
	return slowest, nil
}

// close ends the ranks and waits for them.
func (c *crew) close() error {
	for _, to := range c.orders {
		close(to)
	}
	return <-c.ended
}

const maxCalls = 1 << 20

// callsFor is how many calls fill the budget; finding it also warms up. Only the best of
// three tries counts, since one interruption is as long as a budget.
func (c *crew) callsFor(o order, budget time.Duration) (int, error) {
	for o.calls = 1; ; o.calls *= 2 {
		best := time.Duration(math.MaxInt64)
		for try := 0; try < 3 && best >= budget/4; try++ {
			start := time.Now()
			if _, err := c.repeat(o); err != nil {
				return 0, err
			}
			best = min(best, time.Since(start))
		}
		if best >= budget/4 || o.calls >= maxCalls {
			n := float64(o.calls) * float64(budget) / float64(max(best, 1))
			return int(min(max(n, 1), maxCalls)), nil
		}
	}
}

// time returns the microseconds of a call in one manner, less those of the work alone.
func (c *crew) time(j job, m manner, units int) (us float64, calls int, err error) {
	o := order{manner: m, work: units}
	if o.calls, err = c.callsFor(o, j.budget); err != nil {
		return 0, 0, err
	}
	var list []float64
	for range j.repeats {
		d, err := c.repeat(o)
		if err == nil && units > 0 {
			alone := o
			alone.idle = true
			var a time.Duration
			a, err = c.repeat(alone)
			d -= a
		}
		if err != nil {
			return 0, 0, err
		}
		list = append(list, float64(d.Nanoseconds())/1000/float64(o.calls))
	}
	return spreadOf(list).median, o.calls, nil
}

// measure checks one call's result, times the case and writes its line.
func (c *crew) measure(j job, m *memory, units int, r result, w io.Writer) (err error) {
	m.fill()
	if _, err := c.repeat(order{calls: 1}); err != nil {
		return err
	}
	if j.collective != kolo.Barrier {
		if err := m.check(); err != nil {
			return r.bad(err, w)
		}
	}
	return c.measureRight(j, units, r, w)
}

// measureRight is measure of a call whose result is known to be right.
func (c *crew) measureRight(j job, units int, r result, w io.Writer) (err error) {
	r.times[separated] = math.NaN()
	if r.times[backToBack], r.calls, err = c.time(j, backToBack, units); err != nil {
		return err
	}
	if j.separated != 0 && units == 0 && j.collective != kolo.Barrier {
		if r.times[separated], _, err = c.time(j, separated, 0); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintln(w, r)
	return err
}
