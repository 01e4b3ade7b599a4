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
	return &inbox{wake: make(chan struct{}, 1), end: make(chan struct{}), ended: make(chan struct{})}
}

func (b *inbox) put(from int, list [][]byte) { b.add(mail{from: from, list: list}) }

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
		b.queue = nil
		b.mu.Unlock()
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
