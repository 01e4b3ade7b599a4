package roce

import (
	"sync"
	"sync/atomic"
)

// pump is the driver's goroutine for what must not hold up a rank or a reader: large
// amounts of data, and what is begun where nothing may run. While others have nothing else
// to do, ranks that poll and the readers, they do it in its place.
type pump struct {
	d       *Driver
	mu      sync.Mutex
	cond    *sync.Cond
	links   []*link      // run next, oldest first
	waiting atomic.Bool  // there are some
	helpers atomic.Int32 // goroutines that share the work
	knocks  []rejection
	ending  bool
	worker  sync.WaitGroup
}

type rejection struct {
	knock
	reason string
}

func (p *pump) init(d *Driver) {
	p.d = d
	p.cond = sync.NewCond(&p.mu)
	// ended by close
	p.worker.Go(p.work)
}

// add lets the pump, or a helper, run a link, whose running flag the caller has
// set.
func (p *pump) add(l *link) {
	p.mu.Lock()
	p.links = append(p.links, l)
	p.waiting.Store(true)
	p.mu.Unlock()
	if p.helpers.Load() == 0 {
		p.cond.Signal()
	}
}

// join is called by a goroutine that reads and from then on calls share: what it does
// itself needs no other goroutine to be woken, and no processor besides its own.
func (p *pump) join() { p.helpers.Add(1) }

// leave ends that.
func (p *pump) leave() {
	if p.helpers.Add(-1) > 0 || !p.waiting.Load() {
		return
	}
	p.mu.Lock() // the goroutine is about to wait, or does
	p.mu.Unlock()
	p.cond.Signal()
}

// share runs the link that waits longest on the goroutine of a helper.
func (p *pump) share() bool {
	if !p.waiting.Load() {
		return false
	}
	p.mu.Lock()
	var l *link
	if len(p.links) > 0 {
		l = p.links[0]
		p.links = append(p.links[:0], p.links[1:]...)
	}
	p.waiting.Store(len(p.links) > 0)
	p.mu.Unlock()
	if l != nil {
		l.run(nil, pollBursts)
	}
	return l != nil
}

// reject lets the pump answer a knock.
func (p *pump) reject(k knock, reason string) {
	p.mu.Lock()
	p.knocks = append(p.knocks, rejection{k, reason})
	p.mu.Unlock()
	p.cond.Signal()
}

// close ends the goroutine when nothing is left to do.
func (p *pump) close() {
	p.mu.Lock()
	p.ending = true
	p.mu.Unlock()
	p.cond.Signal()
	p.worker.Wait()
}

func (p *pump) work() {
	for {
		p.mu.Lock()
		for (len(p.links) == 0 || p.helpers.Load() > 0) && len(p.knocks) == 0 && !p.ending {
			p.cond.Wait()
		}
		links, knocks := p.links, p.knocks
		p.links, p.knocks = nil, nil
		p.waiting.Store(false)
		end := p.ending && len(links) == 0 && len(knocks) == 0
		p.mu.Unlock()
		if end {
			return
		}
		for _, k := range knocks {
			k.p.hello(&hello{kind: helloReject, job: p.d.job, epoch: p.d.epoch, from: k.h.to, to: k.h.from, seen: k.h.nonce, reason: k.reason}, k.from)
		}
		for _, l := range links {
			l.run(nil, pumpBursts)
		}
	}
}
