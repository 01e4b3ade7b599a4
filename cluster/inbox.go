package cluster

import (
	"sync"

	"github.com/kolo-ccl/kolo/rank"
)

// inbox hands what comes from other processes to the ranks of this one, in order, on a
// goroutine of its own: so reading a link never waits for what a message sets going, and
// heartbeats are heard whatever the ranks do.
type inbox struct {
	mu    sync.Mutex
	queue []mail
	bytes int
	room  sync.Cond // bytes are few again, or the inbox has ended
	over  bool
	wake  chan struct{}
	end   chan struct{}
	ended chan struct{}
}

// mail is messages of a process, or with a cause that it is lost.
type mail struct {
	from  int
	list  [][]byte
	cause error
}

func newInbox() *inbox {
	b := &inbox{wake: make(chan struct{}, 1), end: make(chan struct{}), ended: make(chan struct{})}
	b.room.L = &b.mu
	return b
}

// put takes messages. It waits while more than maxQueue bytes have not been handed over.
func (b *inbox) put(from int, list [][]byte) {
	b.mu.Lock()
	for b.bytes > maxQueue && !b.over {
		b.room.Wait()
	}
	for _, m := range list {
		b.bytes += len(m)
	}
	b.mu.Unlock()
	b.add(mail{from: from, list: list})
}

// close ends the inbox; what is in it is dropped.
func (b *inbox) close() {
	b.mu.Lock()
	b.over = true
	b.mu.Unlock()
	b.room.Broadcast()
	close(b.end)
}

func (b *inbox) lose(from int, cause error) { b.add(mail{from: from, cause: cause}) }

func (b *inbox) add(m mail) {
	b.mu.Lock()
	b.queue = append(b.queue, m)
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// run hands over until close.
func (b *inbox) run(local *rank.Local, broken func(from int, err error)) {
	defer close(b.ended)
	for {
		b.mu.Lock()
		list := b.queue
		b.queue, b.bytes = nil, 0
		b.mu.Unlock()
		b.room.Broadcast()
		for _, m := range list {
			if m.cause != nil {
				local.Lost(m.from, m.cause)
			}
			for _, message := range m.list {
				if err := local.Deliver(m.from, message); err != nil {
					broken(m.from, err)
				}
			}
		}
		if len(list) > 0 {
			continue
		}
		select {
		case <-b.wake:
		case <-b.end:
			return
		}
	}
}
