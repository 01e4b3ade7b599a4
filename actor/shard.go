package actor

import (
	"errors"
	"sync"
)

// Shard is a queue of messages for a set of actors that never run at the same
// time. Its queue is drained by one goroutine at a time: that of a Tell which found
// it idle, or the system's worker. A shard that becomes runnable while a handler of
// another shard runs waits until that handler has returned: shards never nest.
type Shard struct {
	sys  *System
	name string

	mu      sync.Mutex
	queue   []item
	running bool

	// owned by the goroutine that runs the shard
	batch []item   // taken from the queue
	at    int      // next item of batch
	ready []*Shard // made runnable by handlers of this shard
}

// errGoexit is the panic value of a handler that has ended its goroutine.
var errGoexit = errors.New("runtime.Goexit was called; a handler must return")

type item struct {
	c *cell
	m any
}

// late says whether the item comes through to an actor that was told to stop.
func (it *item) late() bool {
	_, ok := it.m.(system)
	return ok
}

// NewShard makes a shard. It owns no goroutine and needs no closing.
func (s *System) NewShard(name string) *Shard { return &Shard{sys: s, name: name} }

// post hands an item to the shard. An idle shard becomes the caller's to run: then
// the item is its batch, and the shard is run at once, or left to the shard whose
// handler is posting. An item behind a stop is not taken, nor one too many.
func (s *Shard) post(from *Shard, it item) answer {
	s.mu.Lock()
	if it.c.stopped && !it.late() {
		s.mu.Unlock()
		return stopped
	}
	if it.m == stopMail {
		it.c.stopped = true
	}
	if s.running {
		defer s.mu.Unlock()
		if it.c.waiting >= it.c.props.Limit && !it.late() && it.m != stopMail {
			return full
		}
		it.c.waiting++
		s.queue = append(s.queue, it)
		return taken
	}
	s.running = true
	s.mu.Unlock()
	s.batch, s.at = append(s.batch[:0], it), 0
	if from != nil {
		from.ready = append(from.ready, s)
		return taken
	}
	s.sys.start(s)
	return taken
}

// answer is what becomes of an item that is posted.
type answer uint8

const (
	taken answer = iota
	full
	stopped
)

// busy says whether somebody runs the shard, or is about to.
func (s *Shard) busy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running
}

// carry runs shard first and every shard that becomes runnable on the way, until
// none is left or the budget is spent; what is left then goes to the worker. So it does if a
// handler ends the goroutine.
func carry(first *Shard, budget int) {
	var space [8]*Shard
	todo, head := append(space[:0], first), 0
	var s *Shard // the one that runs
	defer func() {
		if s != nil {
			first.sys.worker.take(append(todo[head:], s))
		}
	}()
	for head < len(todo) {
		if budget <= 0 {
			s = nil
			first.sys.worker.take(todo[head:])
			return
		}
		s = todo[head]
		if head++; head == len(todo) {
			todo, head = todo[:0], 0
		}
		for more := true; more; {
			if budget <= 0 {
				todo = append(todo, s)
				break
			}
			budget = s.handle(budget)
			if n := len(s.ready); n > 0 { // before the shard is another goroutine's
				if head > 0 && len(todo)+n >= cap(todo) { // stay in the space at hand
					todo, head = todo[:copy(todo, todo[head:])], 0
				}
				todo = append(todo, s.ready...)
				clear(s.ready)
				s.ready = s.ready[:0]
			}
			more = s.next()
		}
	}
	s = nil
}

// next makes sure that there is a message to handle, or gives the shard up. After
// false it belongs to whoever posts to it.
func (s *Shard) next() bool {
	if s.at < len(s.batch) {
		return true
	}
	clear(s.batch)
	s.mu.Lock()
	s.batch, s.queue = s.queue, s.batch[:0]
	s.at = 0
	for i := range s.batch {
		s.batch[i].c.waiting--
	}
	more := len(s.batch) > 0
	s.running = more
	s.mu.Unlock()
	return more
}

// handle runs messages of the batch. A panic ends the actor it happened in, and
// the next call goes on behind the message. A runtime.Goexit, as of a test that fails in a
// handler, does so too, and then ends the goroutine.
func (s *Shard) handle(budget int) (left int) {
	left = budget
	var c *cell
	defer func() {
		if c != nil {
			if v := recover(); v != nil {
				c.failed(v)
			} else if !c.dead.Load() {
				c.failed(errGoexit)
			}
		}
	}()
	for s.at < len(s.batch) && left > 0 {
		it := &s.batch[s.at]
		s.at++
		left--
		c = it.c
		c.run(it.m)
	}
	c = nil
	return left
}
