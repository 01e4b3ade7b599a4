package main

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// gate holds ranks back until all have come. The last to come calls last, if not nil,
// before the gate opens.
type gate interface {
	pass(me int, last func())
}

// condGate parks on a condition variable.
type condGate struct {
	mu        sync.Mutex
	cond      *sync.Cond
	ranks, in int
	passage   int
}

func newCondGate(ranks int) gate {
	g := &condGate{ranks: ranks}
	g.cond = sync.NewCond(&g.mu)
	return g
}

func (g *condGate) pass(_ int, last func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	mine := g.passage
	if g.in++; g.in == g.ranks {
		if last != nil {
			last()
		}
		g.in = 0
		g.passage++
		g.cond.Broadcast()
		return
	}
	for mine == g.passage {
		g.cond.Wait()
	}
}

// looks is how often a rank looks before it yields between looks.
const looks = 100

// spinGate looks at a word until it changes, and yields its core now and then.
type spinGate struct {
	ranks   int64
	in      atomic.Int64
	_       [120]byte // not on the line that the waiting ranks read
	passage atomic.Int64
	_       [120]byte
}

func newSpinGate(ranks int) gate { return &spinGate{ranks: int64(ranks)} }

func (g *spinGate) pass(_ int, last func()) {
	mine := g.passage.Load()
	if g.in.Add(1) == g.ranks {
		if last != nil {
			last()
		}
		g.in.Store(0)
		g.passage.Add(1)
		return
	}
	for i := 0; g.passage.Load() == mine; i++ {
		if i >= looks {
			runtime.Gosched()
		}
	}
}

// chanGate tells rank 0 over one channel and is told over one channel a rank.
type chanGate struct {
	in  chan struct{}
	out []chan struct{}
}

func newChanGate(ranks int) gate {
	g := &chanGate{in: make(chan struct{}, ranks)}
	for range ranks {
		g.out = append(g.out, make(chan struct{}, 1))
	}
	return g
}

func (g *chanGate) pass(me int, last func()) {
	if me != 0 {
		g.in <- struct{}{}
		<-g.out[me]
		return
	}
	for range g.out[1:] {
		<-g.in
	}
	if last != nil {
		last()
	}
	for _, c := range g.out[1:] {
		c <- struct{}{}
	}
}
