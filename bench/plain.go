package main

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kolo-ccl/kolo/rank"
)

// The plain-goroutine AllReduce: what a Go programmer writes without a runtime.
// Every rank waits at a barrier, sums its share of all buffers block by block and
// writes it to all of them, and waits again. The variants differ in the barrier.

// plainTeams are the variants to compare with.
func plainTeams(p int, size int64) []team {
	return []team{newPlain(p, size, &spinBarrier{n: int64(p)}), newPlain(p, size, newCondBarrier(p))}
}

type barrier interface{ wait() }

// condBarrier parks on a condition variable.
type condBarrier struct {
	mu      sync.Mutex
	cond    *sync.Cond
	n, in   int
	passage int
}

func newCondBarrier(n int) *condBarrier {
	b := &condBarrier{n: n}
	b.cond = sync.NewCond(&b.mu)
	return b
}

func (b *condBarrier) wait() {
	b.mu.Lock()
	defer b.mu.Unlock()
	mine := b.passage
	if b.in++; b.in == b.n {
		b.in = 0
		b.passage++
		b.cond.Broadcast()
		return
	}
	for mine == b.passage {
		b.cond.Wait()
	}
}

// spinBarrier looks a hundred times and then yields between looks.
type spinBarrier struct {
	n       int64
	in      atomic.Int64
	_       [56]byte
	passage atomic.Int64
}

func (b *spinBarrier) wait() {
	mine := b.passage.Load()
	if b.in.Add(1) == b.n {
		b.in.Store(0)
		b.passage.Add(1)
		return
	}
	for i := 0; b.passage.Load() == mine; i++ {
		if i >= 100 {
			runtime.Gosched()
		}
	}
}

// plain is a team of goroutines.
type plain struct {
	barrier barrier
	bufs    [][]float32
	orders  []chan int
	result  chan time.Duration
	workers sync.WaitGroup
}

func newPlain(p int, size int64, b barrier) *plain {
	t := &plain{barrier: b, result: make(chan time.Duration, p)}
	for range p {
		t.bufs = append(t.bufs, rank.Alloc[float32](int(size/4)))
		t.orders = append(t.orders, make(chan int, 1))
	}
	for me := range p {
		// ended by close
		t.workers.Go(func() { t.work(me) })
	}
	return t
}

func (t *plain) work(me int) {
	block := make([]float32, 2048)
	for n := range t.orders[me] {
		start := time.Now()
		for range n {
			t.allReduce(me, block)
		}
		t.result <- time.Since(start)
	}
}

func (t *plain) allReduce(me int, block []float32) {
	t.barrier.wait()
	n, p := len(t.bufs[0]), len(t.bufs)
	for at, end := n*me/p, n*(me+1)/p; at < end; {
		k := min(len(block), end-at)
		sum := block[:k]
		copy(sum, t.bufs[0][at:at+k])
		for _, b := range t.bufs[1:] {
			addTo(sum, b[at:at+k])
		}
		for _, b := range t.bufs {
			copy(b[at:at+k], sum)
		}
		at += k
	}
	t.barrier.wait()
}

// addTo is dst += src, eight elements at a time without bounds checks.
func addTo(dst, src []float32) {
	for len(dst) >= 8 && len(src) >= 8 {
		d, s := (*[8]float32)(dst), (*[8]float32)(src)
		d[0] += s[0]
		d[1] += s[1]
		d[2] += s[2]
		d[3] += s[3]
		d[4] += s[4]
		d[5] += s[5]
		d[6] += s[6]
		d[7] += s[7]
		dst, src = dst[8:], src[8:]
	}
	for i := range src[:len(dst)] {
		dst[i] += src[i]
	}
}

func (t *plain) repeat(n int) (slowest time.Duration, err error) {
	for _, c := range t.orders {
		c <- n
	}
	for range t.orders {
		slowest = max(slowest, <-t.result)
	}
	return slowest, nil
}

func (t *plain) close() error {
	for _, c := range t.orders {
		close(c)
	}
	t.workers.Wait()
	return nil
}
