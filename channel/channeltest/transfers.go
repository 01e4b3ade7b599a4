package channeltest

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
)

// checkSizes moves messages of all sizes, either end being first.
func checkSizes(t testing.TB, k Kit) {
	w := newWorld(t, k, 2)
	for i, n := range sizes {
		for _, order := range []string{"send first", "receive first"} {
			from := kolo.Rank(i % 2)
			src, dst := data(n, uint64(i)), make([]byte, n)
			var s, r *transfer
			if order == "send first" {
				s = w.send(from, 1-from, key(uint64(i)), src)
				w.flush(0, 1)
				if n > 0 && !s.pending() && len(dst) > 0 {
					fill(src, 99) // the driver has taken a copy
				}
				r = w.recv(1-from, from, key(uint64(i)), dst)
			} else {
				r = w.recv(1-from, from, key(uint64(i)), dst)
				w.flush(0, 1)
				if !r.pending() {
					t.Errorf("%s: the receive has completed before the send", sizeName(n))
				}
				s = w.send(from, 1-from, key(uint64(i)), src)
			}
			s.ok()
			r.ok()
			same(t, order+", "+sizeName(n), dst, uint64(i))
		}
	}
}

// checkOrder posts many messages of one key: the first meets the first.
func checkOrder(t testing.TB, k Kit) {
	w := newWorld(t, k, 2)
	rng := k.rng(1)
	const count = 200
	var sends, recvs []*transfer
	for len(sends) < count || len(recvs) < count {
		if len(recvs) == count || len(sends) < count && rng.IntN(2) == 0 {
			n := len(sends)
			sends = append(sends, w.send(0, 1, key(7), data(1+n*37, uint64(n))))
		} else {
			recvs = append(recvs, w.recv(1, 0, key(7), make([]byte, 1+len(recvs)*37)))
		}
	}
	for i := range count {
		sends[i].ok()
		recvs[i].ok()
		same(t, fmt.Sprintf("message %d", i), recvs[i].bytes(), uint64(i))
	}
}

// checkKeys sends with keys that differ in one field, and receives in another order.
func checkKeys(t testing.TB, k Kit) {
	w := newWorld(t, k, 3)
	keys := []channel.Key{
		{Group: 1, Call: 1}, {Group: 2, Call: 1}, {Group: 1, Call: 2}, {Group: 1, Call: 1, Lane: 1},
		{Group: 1, Call: 1, Class: channel.Message}, {Group: 1<<32 + 1, Call: 1}, {Group: 1, Call: 1<<32 + 1},
		{Group: 1, Call: 1, Lane: 255}, {Group: 1<<64 - 2, Call: 1<<64 - 1}, {},
	}
	const n = 100
	// rank 2 sends to rank 1 with the same keys, and rank 1 to rank 0
	ways := [][2]kolo.Rank{{0, 1}, {2, 1}, {1, 0}}
	for _, receivesFirst := range []string{"sends first", "receives first"} {
		var all []*transfer
		recvs := map[uint64]*transfer{}
		rng := k.rng(2)
		post := func(kind channel.Kind) {
			for _, p := range rng.Perm(len(keys) * len(ways)) {
				way, key := ways[p%len(ways)], keys[p/len(ways)]
				if kind == channel.Send {
					all = append(all, w.send(way[0], way[1], key, data(n, uint64(p))))
				} else {
					recvs[uint64(p)] = w.recv(way[1], way[0], key, make([]byte, n))
				}
			}
		}
		kinds := []channel.Kind{channel.Send, channel.Recv}
		if receivesFirst == "receives first" {
			kinds = []channel.Kind{channel.Recv, channel.Send}
		}
		post(kinds[0])
		post(kinds[1])
		for _, s := range all {
			s.ok()
		}
		for p, r := range recvs {
			r.ok()
			same(t, fmt.Sprintf("%s, key %+v", receivesFirst, r.op.Key), r.bytes(), p)
		}
	}
}

// checkGather moves lists of memory that are cut differently on both ends.
func checkGather(t testing.TB, k Kit) {
	w := newWorld(t, k, 2)
	rng := k.rng(3)
	for i := range 120 {
		n := rng.IntN(3000)
		if i%20 == 0 {
			n = 200_000 + rng.IntN(100_000)
		}
		buf := make([]byte, n)
		s := w.newTransfer(0, 1, channel.Send, key(1)).with(cut(rng, data(n, uint64(i)), 9)...)
		r := w.newTransfer(1, 0, channel.Recv, key(1)).with(cut(rng, buf, 9)...)
		if rng.IntN(2) == 0 {
			s.post()
			r.post()
		} else {
			r.post()
			s.post()
		}
		s.ok()
		r.ok()
		same(t, fmt.Sprintf("message %d", i), buf, uint64(i))
	}
}

// checkSelf lets a rank send to itself.
func checkSelf(t testing.TB, k Kit) {
	w := newWorld(t, k, 1)
	for i, n := range []int{0, 1, 1000, 300_001} {
		dst := make([]byte, n)
		s := w.send(0, 0, key(uint64(i)), data(n, uint64(i)))
		r := w.recv(0, 0, key(uint64(i)), dst)
		s.ok()
		r.ok()
		same(t, "send first, "+sizeName(n), dst, uint64(i))

		v := w.view(0, 0, key(uint64(i)), n)
		s = w.send(0, 0, key(uint64(i)), data(n, uint64(i)))
		v.ok()
		same(t, "view, "+sizeName(n), v.bytes(), uint64(i))
		v.release()
		s.ok()
	}
}

// checkTurns looks whether a completion made in Post carries Post's turn: shards
// must not run inside each other.
func checkTurns(t testing.TB, k Kit) {
	w := newWorld(t, k, 2)
	run := func(kind channel.Kind, sendFirst int, size int) {
		s := w.newTransfer(0, 1, channel.Send, key(1)).with(data(size, 5))
		r := w.newTransfer(1, 0, kind, key(1)).with(make([]byte, size))
		if kind == channel.View {
			r.op.Mem = r.op.Mem[:0]
		}
		s.links, r.links = true, true
		list := []*transfer{s, r}
		list[sendFirst].post()
		list[1-sendFirst].post()
		if r.ok(); kind == channel.View {
			r.release()
		}
		s.ok()
	}
	for _, kind := range []channel.Kind{channel.Recv, channel.View} {
		for first := range 2 {
			run(kind, first, 8)
			run(kind, first, 1<<20)
		}
	}
	for _, end := range []kolo.Rank{0, 1} { // what is left pending is failed by an abort and by a close
		list := []*transfer{
			w.newTransfer(end, 1-end, channel.Recv, key(2)).with(make([]byte, 4)),
			w.newTransfer(1-end, end, channel.Recv, channel.Key{Group: 2}).with(make([]byte, 4)),
		}
		for _, x := range list {
			x.links = true
			x.post()
		}
		w.ranks[end].abort(1-end, 1, errEnd)
	}
	w.ranks[0].hangUp(1, errEnd)
	w.ranks[1].hangUp(0, errEnd)
}

// checkLarge moves several megabytes in both directions at a time.
func checkLarge(t testing.TB, k Kit) {
	const ranks, n = 3, 3<<20 + 1
	w := newWorld(t, k, ranks)
	type move struct {
		s, r   *transfer
		buf    []byte
		stream uint64
	}
	var moves []move
	rng := rand.New(rand.NewPCG(k.Seed, 4))
	for from := range kolo.Rank(ranks) {
		for to := range kolo.Rank(ranks) {
			m := move{buf: make([]byte, n), stream: uint64(from*ranks + to)}
			m.s = w.send(from, to, key(9), cut(rng, data(n, m.stream), 4)...)
			m.r = w.recv(to, from, key(9), cut(rng, m.buf, 4)...)
			moves = append(moves, m)
		}
	}
	for _, m := range moves {
		m.s.ok()
		m.r.ok()
		same(t, fmt.Sprintf("%v to %v", m.s.at.id, m.r.at.id), m.buf, m.stream)
	}
}

// checkCarried asks a driver that counts what it carries: a message has been counted when
// it is there.
func checkCarried(t testing.TB, k Kit) {
	w := newWorld(t, k, 2)
	s := w.send(0, 1, key(1), data(10, 1))
	w.recv(1, 0, key(1), make([]byte, 10)).ok()
	s.ok()
	if w.carried(1, 0) == 0 {
		t.Skip("the driver does not count what it carries")
	}
	for i, n := range []int{1000, 64 << 10, 4<<20 + 5} {
		before := w.carried(1, 0)
		s := w.send(0, 1, key(uint64(2+i)), data(n, uint64(i)))
		w.recv(1, 0, key(uint64(2+i)), make([]byte, n)).ok()
		s.ok()
		if got := w.carried(1, 0) - before; got < int64(n) {
			t.Errorf("%s: the receiver's end has counted %d bytes more", sizeName(n), got)
		}
		if n > 1<<20 && w.carried(0, 1) == 0 { // what acknowledges a small message may come later
			t.Errorf("%s: the sender's end has counted nothing", sizeName(n))
		}
	}
}
