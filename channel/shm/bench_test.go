//go:build linux && (amd64 || arm64)

package shm

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"

	"github.com/stretchr/testify/require"
)

// rally is two processes that answer each other's messages, each on the goroutine
// that waits.
type rally struct {
	n          *node
	peer       kolo.Rank
	send, recv *want
	serves     bool
	left       int
	away       bool // the send has not completed
	owed       bool // a message is to be answered when it has
	over       atomic.Uint32
}

func (n *node) newRally(peer kolo.Rank, size int) *rally {
	r := &rally{n: n, peer: peer}
	r.send, r.recv = n.op(channel.Send, peer, 1, make([]byte, size)), n.op(channel.Recv, peer, 1, make([]byte, size))
	r.send.op.Sink, r.recv.op.Sink = r, r
	return r
}

// Complete answers a message when the send before it is over as well. Who serves does
// not answer the last one.
func (r *rally) Complete(op *channel.Op) {
	if op.Kind == channel.Send {
		r.away = false
	} else {
		r.left--
		if r.left > 0 {
			r.n.links[r.peer].Post(&r.recv.op)
		}
		r.owed = r.left > 0 || !r.serves
	}
	if r.owed && !r.away {
		r.answer()
	}
	if r.left <= 0 && !r.away && !r.owed {
		r.over.Store(1)
	}
}

func (r *rally) answer() {
	r.owed, r.away = false, true
	r.n.links[r.peer].Post(&r.send.op)
}

// play takes n messages and answers each; who serves sends the first.
func (r *rally) play(n int, serves bool) {
	r.over.Store(0)
	r.left, r.serves, r.away, r.owed = n, serves, false, false
	begin := errand{do: func() {
		c := r.n.links[r.peer]
		c.Post(&r.recv.op)
		if serves {
			r.answer()
		}
	}}
	if err := r.n.hand.Tell(&begin); err != nil {
		panic("shm: " + err.Error())
	}
	for r.over.Load() == 0 {
		r.n.d.Poll(&r.over)
	}
}

// pong is the child's part of the benchmarks: orders come as messages of call 0.
func (n *node) pong() error {
	for {
		var order [24]byte
		if err := n.wait(n.recv(0, 0, order[:])); err != nil {
			return err
		}
		what, size, count := binary.LittleEndian.Uint64(order[:]), int(binary.LittleEndian.Uint64(order[8:])), int(binary.LittleEndian.Uint64(order[16:]))
		switch what {
		case 0:
			return nil
		case 1:
			n.newRally(0, size).play(count, false)
		case 2:
			buf := make([]byte, size)
			w := n.op(channel.Recv, 0, 1, buf)
			for range count {
				if err := n.wait(n.start(w)); err != nil {
					return err
				}
			}
			if err := n.wait(n.send(0, 2, []byte{1})); err != nil {
				return err
			}
		}
	}
}

func (f *family) order(b *testing.B, what, size, count int) {
	var order [24]byte
	binary.LittleEndian.PutUint64(order[:], uint64(what))
	binary.LittleEndian.PutUint64(order[8:], uint64(size))
	binary.LittleEndian.PutUint64(order[16:], uint64(count))
	require.NoError(b, f.wait(f.send(1, 0, order[:])))
}

// BenchmarkProcesses measures messages between two processes: one operation of hop is
// one message, of stream as well.
func BenchmarkProcesses(b *testing.B) {
	f := newFamily(b, false, "pong")
	for _, size := range []int{8, 1 << 10, 4 << 10, 16 << 10, 64 << 10} {
		b.Run(fmt.Sprintf("hop/bytes=%d", size), func(b *testing.B) {
			b.SetBytes(int64(size))
			r := f.newRally(1, size)
			n := b.N/2 + 2
			f.order(b, 1, size, n)
			b.ResetTimer()
			r.play(n, true)
		})
	}
	for _, shared := range []bool{false, true} {
		for _, size := range []int{64 << 10, 1 << 20, 64 << 20} {
			b.Run(fmt.Sprintf("stream/bytes=%d/shared=%v", size, shared), func(b *testing.B) {
				b.SetBytes(int64(size))
				buf := make([]byte, size)
				if shared {
					m, err := f.d.Alloc(int64(size))
					require.NoError(b, err)
					defer func() { require.NoError(b, f.d.Free(m)) }()
					buf = m.Host
				}
				clear(buf)
				f.order(b, 2, size, b.N)
				w := f.op(channel.Send, 1, 1, buf)
				b.ResetTimer()
				for range b.N {
					require.NoError(b, f.wait(f.start(w)))
				}
				require.NoError(b, f.wait(f.recv(1, 2, make([]byte, 1))))
			})
		}
	}
	f.order(b, 0, 0, 0)
}
