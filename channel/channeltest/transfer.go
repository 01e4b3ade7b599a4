package channeltest

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"reflect"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
)

// transfer is an op and what became of it.
type transfer struct {
	at    *rank
	peer  kolo.Rank
	op    channel.Op
	left  atomic.Int32 // completions to come
	done  chan struct{}
	heard func(*transfer) // called on the shard at completion, if set
	links bool            // look for nested shards at completion
}

// newTransfer makes an op of rank at with peer.
func (w *world) newTransfer(at, peer kolo.Rank, kind channel.Kind, key channel.Key) *transfer {
	x := &transfer{at: w.ranks[at], peer: peer, done: make(chan struct{}, 1)}
	x.op.Kind, x.op.Key, x.op.Sink, x.op.DType = kind, key, x, kolo.Uint8
	return x
}

// with sets the memory and the size of the op.
func (x *transfer) with(mem ...[]byte) *transfer {
	x.op.Mem, x.op.Size = x.op.Mem[:0], 0
	for _, b := range mem {
		x.op.Mem = append(x.op.Mem, kolo.HostMemory(b))
		x.op.Size += int64(len(b))
	}
	return x
}

// post posts the op and waits until the channel has it.
func (x *transfer) post() *transfer {
	x.at.do(x.postHere)
	return x
}

// postHere posts the op; it is called on the rank's shard.
func (x *transfer) postHere() {
	if !x.left.CompareAndSwap(0, 1) {
		x.at.w.t.Errorf("channeltest: an op was posted twice")
	}
	x.at.w.posted.Add(1)
	if c := x.at.link(x.peer); c != nil {
		c.Post(&x.op)
	}
}

// Complete takes note of the completion.
func (x *transfer) Complete(op *channel.Op) {
	r := x.at
	if !r.inTask { // else the channel has refused the op in Post
		r.enter()
		defer r.busy.Store(false)
	}
	if op != &x.op {
		r.w.t.Errorf("%v: a completion with another op", r.id)
	}
	if !x.left.CompareAndSwap(1, 0) {
		r.w.t.Errorf("%v: a %v with %v completed twice", r.id, op.Kind, x.peer)
		return
	}
	if x.links {
		x.lookForNesting()
	}
	if x.heard != nil {
		x.heard(x)
	}
	select {
	case x.done <- struct{}{}:
	default:
	}
	r.w.ended.Add(1)
	select {
	case r.w.kick <- struct{}{}:
	default:
	}
}

// lookForNesting complains if this completion runs inside another channel's turn:
// then the driver completed it without the turn that it had. It must be in one.
func (x *transfer) lookForNesting() {
	handle := runtime.FuncForPC(reflect.ValueOf((*channel.Channel).Handle).Pointer()).Name()
	post := runtime.FuncForPC(reflect.ValueOf((*channel.Channel).Post).Pointer()).Name()
	pcs := make([]uintptr, 256)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(0, pcs)])
	turns, refused := 0, false
	for more := true; more; {
		var f runtime.Frame
		f, more = frames.Next()
		if f.Function == handle {
			turns++
		}
		refused = refused || f.Function == post
	}
	switch {
	case turns > 1:
		x.at.w.t.Errorf("%v: a completion in Post without Post's turn: %d channels run inside each other", x.at.id, turns)
	case turns == 0 && !refused:
		x.at.w.t.Errorf("%v: a completion that its channel does not know of", x.at.id)
	}
}

// wait waits for the completion and returns its error.
func (x *transfer) wait() error {
	t := x.at.w.t
	t.Helper()
	select {
	case <-x.done:
		return x.op.Err
	case <-time.After(x.at.w.kit.Patience):
		t.Fatalf("%v: a %v with %v of %d bytes has not completed (key %+v, seed %d)", x.at.id, x.op.Kind, x.peer, x.op.Size, x.op.Key, x.at.w.kit.Seed)
		return nil
	}
}

// ok waits for the completion, which must be without error.
func (x *transfer) ok() {
	x.at.w.t.Helper()
	if err := x.wait(); err != nil {
		x.at.w.t.Fatalf("%v: %v with %v: %v (key %+v, seed %d)", x.at.id, x.op.Kind, x.peer, err, x.op.Key, x.at.w.kit.Seed)
	}
}

// mayBeAway says that a small send of a driver that buffers has completed before
// anything could happen to it.
func (x *transfer) mayBeAway(err error) bool {
	return err == nil && x.op.Kind == channel.Send && x.at.w.kit.Buffered
}

// pending says whether the op has not completed.
func (x *transfer) pending() bool { return x.left.Load() == 1 }

// release gives back the memory of a completed View.
func (x *transfer) release() { x.at.do(x.releaseHere) }

func (x *transfer) releaseHere() { x.at.links[x.peer].Release(&x.op) }

// bytes is the memory of the op in one piece.
func (x *transfer) bytes() []byte {
	var b []byte
	for _, m := range x.op.Mem {
		b = append(b, m.Host...)
	}
	return b
}

func (w *world) send(from, to kolo.Rank, key channel.Key, mem ...[]byte) *transfer {
	return w.newTransfer(from, to, channel.Send, key).with(mem...).post()
}

func (w *world) recv(at, from kolo.Rank, key channel.Key, mem ...[]byte) *transfer {
	return w.newTransfer(at, from, channel.Recv, key).with(mem...).post()
}

func (w *world) view(at, from kolo.Rank, key channel.Key, size int) *transfer {
	x := w.newTransfer(at, from, channel.View, key)
	x.op.Size = int64(size)
	return x.post()
}

// flushKey is used by flush only.
var flushKey = channel.Key{Group: 1<<64 - 1, Call: 1<<64 - 1, Class: channel.Message, Lane: 255}

// flush sends a byte there and back: what a driver does at once with ops posted
// earlier it has done by then.
func (w *world) flush(a, b kolo.Rank) {
	w.t.Helper()
	for range 2 {
		r := w.recv(b, a, flushKey, make([]byte, 1))
		w.send(a, b, flushKey, []byte{1}).ok()
		r.ok()
		a, b = b, a
	}
}

// fill writes bytes that differ for each stream and each index.
func fill(b []byte, stream uint64) []byte {
	x := stream*0x9e3779b97f4a7c15 + 0x632be59bd9b4e019
	for i := 0; i < len(b); i += 8 {
		y := (x + uint64(i)) * 0xbf58476d1ce4e5b9
		y ^= y >> 31
		if len(b)-i >= 8 {
			binary.LittleEndian.PutUint64(b[i:], y)
			continue
		}
		for k := i; k < len(b); k++ {
			b[k] = byte(y)
			y >>= 8
		}
	}
	return b
}

// data makes n bytes of a stream.
func data(n int, stream uint64) []byte { return fill(make([]byte, n), stream) }

// same compares what came with the bytes of a stream.
func same(t testing.TB, what string, got []byte, stream uint64) {
	t.Helper()
	want := data(len(got), stream)
	if bytes.Equal(got, want) {
		return
	}
	for i := range got {
		if got[i] != want[i] {
			t.Errorf("%s: byte %d of %d is %#x, want %#x", what, i, len(got), got[i], want[i])
			return
		}
	}
}

// cut divides b at random into up to most pieces, some of them empty.
func cut(rng *rand.Rand, b []byte, most int) [][]byte {
	var list [][]byte
	for range rng.IntN(most) {
		n := 0
		if rng.IntN(4) > 0 {
			n = rng.IntN(len(b) + 1)
		}
		list, b = append(list, b[:n]), b[n:]
	}
	return append(list, b)
}

// key is a key of group 1.
func key(call uint64) channel.Key { return channel.Key{Group: 1, Call: call} }
