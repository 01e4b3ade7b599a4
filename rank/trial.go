package rank

import (
	"cmp"
	"sync/atomic"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/plan"
)

// trial finds the algorithm for a class of calls by timing the calls themselves, from
// when all ranks have come to when all have ended, which is the time of the slowest. It
// belongs to the hub, which alone chooses for all ranks; others read only found.
//
//	             every call by who is next         the fastest so far
//	contest --------------------------------> settled ----------------.
//	   ^                                                              |
//	   '------- the times are no longer those of the contest ---------'
//
// Times of different sizes cannot be compared, so only calls of one size take part; other
// calls of the class are done by the fastest so far.
type trial struct {
	choice    plan.Choice // the model's
	config    plan.ContestConfig
	volume    int64           // elements of the calls that take part
	strays    int             // other calls since the last that took part
	contest   *plan.Contest   // nil: settled
	warm      map[string]bool // algorithms that have done a call, so that all is connected and compiled
	algorithm string          // the fastest so far; at first the model's
	watch     plan.Watch
	calls     int // that took part since it was settled
	pause     int // how many of them come before another contest, at least

	running string    // the algorithm of the running call; empty if that takes no part
	began   time.Time // of the running call
	found   atomic.Pointer[plan.Choice]
}

const (
	maxStrays = 32      // other calls, after which the size of the next one counts
	minPause  = 64      // calls between two contests, doubled each time nothing has changed
	maxPause  = 1 << 20 // at most
)

// newTrial is the trial for a class, nil where there is nothing to find out: another way of
// choice, a forced algorithm, ranks in other processes, or one algorithm alone.
func (p *plans) newTrial(k class, ch plan.Choice) *trial {
	if p.policy.Way != plan.Timed || !ch.ByCost || p.blind {
		return nil
	}
	config := p.contest
	config.Fringe = cmp.Or(config.Fringe, config.Within, plan.DefaultWithin)
	c := plan.NewContest(ch, config)
	if c.Rivals() < 2 {
		return nil
	}
	t := &trial{choice: ch, config: config, volume: -1, strays: maxStrays, contest: c, warm: map[string]bool{}, algorithm: ch.Algorithm}
	p.mu.Lock()
	p.trials[k] = t
	p.mu.Unlock()
	return t
}

// next is the algorithm for a call of some elements.
func (t *trial) next(volume int64) string {
	if volume != t.volume {
		if t.strays++; t.strays <= maxStrays {
			t.running = ""
			return t.algorithm
		}
		t.volume = volume
		t.contend()
	}
	t.strays, t.running = 0, t.algorithm
	if t.contest != nil {
		t.running, _ = t.contest.Next() // one that is over has been settled
	}
	return t.running
}

// contend begins a contest.
func (t *trial) contend() { t.contest = plan.NewContest(t.choice, t.config) }

// start notes that the call begins.
func (t *trial) start(now func() time.Time) {
	if t != nil && t.running != "" {
		t.began = now()
	}
}

// end takes the time of a call that has ended well.
func (t *trial) end(now func() time.Time, err error) {
	if t == nil || t.running == "" || err != nil {
		return
	}
	took := now().Sub(t.began)
	switch {
	case t.contest == nil:
		t.calls++
		if t.watch.Add(took) && t.calls >= t.pause {
			t.contend()
		}
	case !t.warm[t.running]:
		t.warm[t.running] = true
	default:
		t.contest.Add(took)
		if _, more := t.contest.Next(); !more {
			t.settle()
		}
	}
}

// settle ends the contest.
func (t *trial) settle() {
	ch := t.choice.Settled(t.contest, t.algorithm)
	if t.pause = min(2*t.pause, maxPause); ch.Algorithm != t.algorithm || t.pause == 0 {
		t.pause = minPause
	}
	t.algorithm, t.contest, t.calls = ch.Algorithm, nil, 0
	t.watch = plan.Watch{Reference: ch.Cost}
	t.found.Store(&ch)
}

// timed is a choice by cost with what is known of times. Any goroutine may ask.
func (p *plans) timed(c *kolo.Call, ch plan.Choice) plan.Choice {
	if p.blind {
		ch.Why += "; not timed, as the group spans processes"
		return ch
	}
	p.mu.Lock()
	t := p.trials[p.class(c, c.InPlace)]
	p.mu.Unlock()
	if t == nil {
		return ch
	}
	if found := t.found.Load(); found != nil {
		return *found
	}
	ch.Why += "; others are being timed"
	return ch
}
