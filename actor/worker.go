package actor

import "sync"

// worker is the goroutine that runs shards which a sender may not finish itself.
type worker struct {
	mu    sync.Mutex
	cond  *sync.Cond
	todo  []*Shard
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
		for len(w.todo) == 0 {
			if w.done {
				over = true
				w.mu.Unlock()
				return
			}
			w.cond.Wait()
		}
		s := w.todo[0]
		w.todo = append(w.todo[:0], w.todo[1:]...)
		w.mu.Unlock()
		carry(s, s.sys.cfg.Budget)
	}
}

// close ends the goroutine and waits for it.
func (w *worker) close() {
	w.mu.Lock()
	w.done = true
	w.mu.Unlock()
	w.cond.Signal()
	<-w.ended
}
