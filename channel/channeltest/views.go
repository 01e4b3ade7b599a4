package channeltest

import (
	"fmt"
	"testing"

	"github.com/kolo-ccl/kolo/channel"
)

// look compares a completed View with the bytes of a stream, and again after the
// sender, if its send has completed, has written other bytes to its memory.
func look(t testing.TB, what string, v, s *transfer, src []byte, stream uint64) {
	t.Helper()
	if int64(len(v.bytes())) != v.op.Size {
		t.Errorf("%s: a view of %d bytes, want %d", what, len(v.bytes()), v.op.Size)
	}
	same(t, what, v.bytes(), stream)
	if !s.pending() {
		fill(src, stream+1000)
		same(t, what+", after the sender has its memory back", v.bytes(), stream)
	}
}

// checkView takes sends by reference.
func checkView(t testing.TB, k Kit) {
	w := newWorld(t, k, 2)
	rng := k.rng(5)
	for i, n := range sizes {
		for _, order := range []string{"send first", "view first"} {
			src := data(n, uint64(i))
			s := w.newTransfer(0, 1, channel.Send, key(3)).with(cut(rng, src, 5)...)
			var v *transfer
			if order == "send first" {
				s.post()
				v = w.view(1, 0, key(3), n)
			} else {
				v = w.view(1, 0, key(3), n)
				s.post()
			}
			v.ok()
			w.flush(0, 1)
			if k.ZeroCopy && n > 0 && (!s.pending() || !refersTo(v, src)) {
				t.Errorf("%s, %s: the view is a copy", order, sizeName(n))
			}
			look(t, order+", "+sizeName(n), v, s, src, uint64(i))
			v.release()
			s.ok()
		}
	}
}

// refersTo says whether the bytes of a View are those of src.
func refersTo(v *transfer, src []byte) bool {
	for _, m := range v.op.Mem {
		if n := len(m.Host); n > 0 {
			if &m.Host[0] != &src[0] {
				return false
			}
			src = src[n:]
		}
	}
	return len(src) == 0
}

// checkViewsOutOfOrder holds several views and releases them last first, with
// other transfers of the key and the link in between.
func checkViewsOutOfOrder(t testing.TB, k Kit) {
	w := newWorld(t, k, 2)
	const count, n = 20, 5000
	var views, sends [count]*transfer
	var srcs [count][]byte
	for i := range count {
		srcs[i] = data(n, uint64(i))
		sends[i] = w.send(0, 1, key(4), srcs[i])
		views[i] = w.view(1, 0, key(4), n)
	}
	dst := make([]byte, n)
	r := w.recv(1, 0, key(4), dst)
	w.send(0, 1, key(4), data(n, 77)).ok()
	r.ok()
	same(t, "a receive behind held views", dst, 77)
	for i := count - 1; i >= 0; i-- {
		views[i].ok()
		look(t, fmt.Sprintf("view %d", i), views[i], sends[i], srcs[i], uint64(i))
		views[i].release()
		sends[i].ok()
	}
}

// checkViewAfterClose holds a view over the close of either end: its memory stays
// readable, and the sender keeps its own until the release.
func checkViewAfterClose(t testing.TB, k Kit) {
	for _, who := range []string{"sender", "viewer"} {
		w := newWorld(t, k, 2)
		const n = 70_000
		src := data(n, 8)
		s := w.send(0, 1, key(1), src)
		v := w.view(1, 0, key(1), n)
		v.ok()
		if who == "sender" {
			w.ranks[0].hangUp(1, errEnd)
		} else {
			w.ranks[1].hangUp(0, errEnd)
		}
		look(t, "the "+who+" has closed", v, s, src, 8)
		v.release()
		_ = s.wait() // met before the close; a driver may have completed it with or without the close
		w.close()
	}
}

// checkViewInPieces offers to take Views piece by piece: the driver may do so or give the
// whole.
func checkViewInPieces(t testing.TB, k Kit) {
	w := newWorld(t, k, 2)
	rng := k.rng(7)
	for i, n := range sizes {
		src, got := data(n, uint64(i)), make([]byte, n)
		times := make([]int, n)
		v := w.newTransfer(1, 0, channel.View, key(4))
		v.op.Size = int64(n)
		v.op.Take = func(off int64, b []byte) {
			if off%64 != 0 || v.left.Load() != 1 {
				t.Errorf("%s: a piece at %d, or behind the completion", sizeName(n), off)
			}
			copy(got[off:], b)
			for j := range b {
				times[int(off)+j]++
			}
		}
		s := w.newTransfer(0, 1, channel.Send, key(4)).with(cut(rng, src, 5)...)
		if i%2 == 0 {
			s.post()
			v.post()
		} else {
			v.post()
			s.post()
		}
		v.ok()
		if v.op.Taken {
			for j, c := range times {
				if c != 1 {
					t.Errorf("%s: byte %d came %d times", sizeName(n), j, c)
					break
				}
			}
			if len(v.op.Mem) > 0 {
				t.Errorf("%s: taken in pieces, and there is a view too", sizeName(n))
			}
		} else {
			got = v.bytes()
		}
		same(t, sizeName(n), got, uint64(i))
		v.release()
		s.ok()
	}
}
