package roce

import "sync"

// pump is the driver's goroutine for what must not hold up a rank or a reader: large
// amounts of data, and what is begun where nothing may run.
type pump struct {
	d      *Driver
	mu     sync.Mutex
	cond   *sync.Cond
	links  []*link // run next, oldest first
	knocks []rejection
	ending bool
	worker sync.WaitGroup
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

// add lets the pump run a link, whose running flag the caller has set.
func (p *pump) add(l *link) {
	p.mu.Lock()
	p.links = append(p.links, l)
	p.mu.Unlock()
	p.cond.Signal()
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
		for len(p.links) == 0 && len(p.knocks) == 0 && !p.ending {
			p.cond.Wait()
		}
		links, knocks := p.links, p.knocks
		p.links, p.knocks = nil, nil
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
