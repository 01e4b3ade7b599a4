package channeltest

import (
	"testing"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
)

// BenchmarkHop measures messages of 8 bytes that two ranks send to and fro: one
// operation is one message, with its send, its receive and both completions.
func BenchmarkHop(b *testing.B, open func(t testing.TB, c channel.Config) channel.Driver) {
	b.Helper()
	b.Run("n=2/bytes=8", func(b *testing.B) {
		p := newPingPong(b, Kit{Open: open}.withDefaults())
		b.SetBytes(hopBytes)
		b.ReportAllocs()
		b.ResetTimer()
		p.run(b.N)
	})
}

const (
	hopBytes = 8
	hopTurn  = 200 // messages that one Tell may do within System.Budget
)

// checkAllocations asks whether a small transfer allocates.
func checkAllocations(t testing.TB, k Kit) {
	if !k.AllocFree {
		return
	}
	p := newPingPong(t, k)
	if n := testing.AllocsPerRun(100, func() { p.run(hopTurn) }); n >= 1 {
		t.Errorf("%d messages allocate %v times", hopTurn, n)
	}
}

// pingPong is two ranks that answer each other.
type pingPong struct {
	ends [2]*hopEnd
	next int // who sends the first message of a run
	left int // messages to come; it goes with the message
	done chan struct{}
}

// hopEnd is one of the ranks, with a send and a receive that are posted again and
// again.
type hopEnd struct {
	p     *pingPong
	link  *channel.Channel
	rank  *rank
	ops   [2]channel.Op // send, receive
	begin *task
	away  bool // the send has not completed
	owed  bool // a message is to be answered when it has
}

func newPingPong(t testing.TB, k Kit) *pingPong {
	w := newWorld(t, k, 2)
	p := &pingPong{done: make(chan struct{}, 1)}
	for i := range p.ends {
		e := &hopEnd{p: p, rank: w.ranks[i]}
		for kind := range e.ops {
			e.ops[kind] = channel.Op{Kind: channel.Kind(kind), Key: key(1), Size: hopBytes, Sink: e,
				Mem: []kolo.Memory{kolo.HostMemory(make([]byte, hopBytes))}}
		}
		e.begin = &task{f: e.answer}
		e.rank.do(func() {
			e.link = e.rank.link(kolo.Rank(1 - i))
			e.link.Post(&e.ops[channel.Recv])
		})
		p.ends[i] = e
	}
	p.run(10)
	return p
}

// Complete answers a message, and takes the next.
func (e *hopEnd) Complete(op *channel.Op) {
	if op.Err != nil {
		return // the receives are open when the world ends
	}
	if op.Kind == channel.Send {
		if e.away = false; e.owed {
			e.answer()
		}
		return
	}
	e.link.Post(op)
	if e.p.left--; e.p.left > 0 {
		e.answer()
		return
	}
	e.p.done <- struct{}{}
}

// answer sends a message, when the one before is away: the peer's answer to that may
// be faster than the word that it is.
func (e *hopEnd) answer() {
	if e.owed = e.away; e.owed {
		return
	}
	e.away = true
	e.link.Post(&e.ops[channel.Send])
}

// run exchanges n messages.
func (p *pingPong) run(n int) {
	for n > 0 {
		p.left = min(n, hopTurn)
		n -= p.left
		e := p.ends[p.next]
		p.next = (p.next + p.left) % 2 // who receives the last one
		if err := e.rank.ref.Tell(e.begin); err != nil {
			e.rank.w.t.Fatal(err)
		}
		<-p.done
	}
}
