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
// Times of calls that differ cannot be compared, so only those that are one sample take part;
// other calls of the class are done by the fastest so far.
type trial struct {
	choice    plan.Choice // the model's
	config    plan.ContestConfig
	sample    sample          // the calls that take part
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
	maxStrays = 32      // other calls, after which the next one is the sample
	minPause  = 64      // calls between two contests, doubled each time nothing has changed
	maxPause  = 1 << 20 // at most
)

// sample is what calls of one class must have in common for their times to be compared,
// as it is on the rank that is asked.
type sample struct {
	collective  kolo.Collective // NoCollective: of no call
	volume      int64
	root        kolo.Rank
	tensors     int
	in, out     kolo.Space // where the memory is: of the host, of a device
	inPlace     bool
	fromStreams bool
}

func sampleOf(t *ticket) sample {
	s := sample{collective: t.call.Collective, volume: volume(&t.call), root: t.call.Root, tensors: len(t.tensors),
		in: t.in.Space, out: t.out.Space, inPlace: t.call.InPlace, fromStreams: t.stream != nil}
	if s.tensors > 0 {
		s.in, s.out = t.tensors[0].Space, t.tensors[0].Space
	}
	return s
}

// volume is the number of elements of a call.
func volume(c *kolo.Call) int64 {
	n := c.Count
	if c.Collective == kolo.AllReduce { // Counts are the parts of Count
		return n
	}
	for _, k := range c.Counts {
		n += k
	}
	return n
}

// newTrial is the trial for a class, nil where there is nothing to find out: another way of
// choice, a forced algorithm, ranks in other processes, or one algorithm alone.
func (p *plans) newTrial(k class, ch plan.Choice) *trial {
	if p.policy.Method != plan.Timed || !ch.ByCost || p.blind {
		return nil
	}
	config := p.contest
	config.Fringe = cmp.Or(config.Fringe, config.Within, plan.DefaultWithin)
	c := plan.NewContest(ch, config)
	if c.Rivals() < 2 {
		return nil
	}
	t := &trial{choice: ch, config: config, strays: maxStrays, contest: c, warm: map[string]bool{}, algorithm: ch.Algorithm}
	p.mu.Lock()
	p.trials[k] = t
	p.mu.Unlock()
	return t
}

// next is the algorithm for a call.
func (t *trial) next(s sample) string {
	if s != t.sample {
		if t.strays++; t.strays <= maxStrays {
			t.running = ""
			return t.algorithm
		}
		t.sample = s
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
func (p *plans) timed(k class, ch plan.Choice) plan.Choice {
	if p.blind {
		ch.Why += "; not timed, as the group spans processes"
		return ch
	}
	p.mu.Lock()
	t := p.trials[k]
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
