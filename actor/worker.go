package actor

import (
	"slices"
	"sync"
)

// worker is the goroutine that runs shards which a sender may not finish itself.
type worker struct {
	mu    sync.Mutex
	cond  *sync.Cond
	todo  []*Shard // from next on; those before it have been taken
	next  int
	done  bool
	ended chan struct{}
}

func (w *worker) init() {
	w.cond = sync.NewCond(&w.mu)
	w.ended = make(chan struct{})
}

// take queues shards that are marked running.
func (w *worker) take(list []*Shard) {
	w.mu.Lock()
	w.todo = append(w.todo, list...)
	w.mu.Unlock()
	w.cond.Signal()
}

func (w *worker) loop() {
	over := false
	defer func() {
		if over {
			close(w.ended)
			return
		}
		// a handler has ended this one; ended by Close
		go w.loop()
	}()
	for {
		w.mu.Lock()
		for w.next == len(w.todo) {
			if w.done {
				over = true
				w.mu.Unlock()
				return
			}
			w.cond.Wait()
		}
		s := w.first()
		w.mu.Unlock()
		carry(s, s.sys.cfg.Budget)
	}
}

// first takes the shard that has waited longest; there is one. w.mu is held.
func (w *worker) first() *Shard {
	s := w.todo[w.next]
	if w.next++; 2*w.next >= len(w.todo) { // so that no more are moved than were taken
		w.todo, w.next = slices.Delete(w.todo, 0, w.next), 0
	}
	return s
}

// close ends the goroutine and waits for it.
func (w *worker) close() {
	w.mu.Lock()
	w.done = true
	w.mu.Unlock()
	w.cond.Signal()
	<-w.ended
}
