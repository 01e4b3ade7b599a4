package channeltest

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"

	"github.com/stretchr/testify/require"
)

// checkMismatch lets the two ends disagree. Both hear of it, nothing is written,
// and the link goes on.
func checkMismatch(t testing.TB, k Kit) {
	w := newWorld(t, k, 2)
	call := uint64(0)
	for _, kind := range []channel.Kind{channel.Recv, channel.View} {
		for _, c := range []struct {
			name       string
			send, recv int
			dtype      kolo.DType // of the receiver
		}{
			{"less is sent", 10, 12, kolo.Uint8},
			{"more is sent", 70_004, 12, kolo.Uint8},
			{"nothing is sent", 0, 12, kolo.Uint8},
			{"something is sent", 12, 0, kolo.Uint8},
			{"another type", 12, 12, kolo.Float32},
			{"another type of nothing", 0, 0, kolo.Float32},
		} {
			for first := range 2 {
				call++
				buf := make([]byte, c.recv)
				list := []*transfer{
					w.newTransfer(0, 1, channel.Send, key(call)).with(data(c.send, 1)),
					w.newTransfer(1, 0, kind, key(call)).with(buf),
				}
				if list[1].op.DType = c.dtype; kind == channel.View {
					list[1].op.Mem = list[1].op.Mem[:0]
				}
				list[first].post()
				list[1-first].post()
				for _, x := range list {
					if err := x.wait(); !x.mayBeAway(err) {
						require.ErrorIs(t, err, kolo.ErrMismatch, "%s: %v at %v", c.name, kind, x.at.id)
					}
				}
				if !bytes.Equal(buf, make([]byte, len(buf))) {
					t.Errorf("%s: the receiver's memory was written", c.name)
				}
			}
			w.flush(0, 1)
		}
	}
}

// errAbort is the cause of aborts.
var errAbort = errors.New("stop this group")

// checkAbort aborts one of two groups.
func checkAbort(t testing.TB, k Kit) {
	w := newWorld(t, k, 3)
	type end struct{ gone, kept []*transfer }
	var sent, taken end
	const n = 1000
	post := func(i uint64) {
		k1, k2 := channel.Key{Group: 1, Call: i}, channel.Key{Group: 2, Call: i}
		sent.gone = append(sent.gone, w.send(0, 1, k1, data(n, i)))
		sent.kept = append(sent.kept, w.send(0, 1, k2, data(n, i)))
		taken.gone = append(taken.gone, w.recv(0, 1, k1, make([]byte, n)), w.view(0, 1, channel.Key{Group: 1, Call: i, Lane: 1}, n))
		taken.kept = append(taken.kept, w.recv(0, 1, k2, make([]byte, n)))
	}
	for i := range uint64(10) {
		post(i)
	}
	other := w.recv(0, 2, key(0), make([]byte, n)) // group 1 on another link
	w.ranks[0].abort(1, 1, errAbort)
	for _, x := range append(sent.gone, taken.gone...) {
		if err := x.wait(); !x.mayBeAway(err) {
			require.ErrorIs(t, err, errAbort, "a %v of the aborted group", x.op.Kind)
		}
	}
	w.ranks[0].abort(1, 1, errors.New("again")) // nothing is left
	w.ranks[0].abort(1, 3, errAbort)            // a group that never was
	w.flush(0, 1)
	for i := range uint64(10) { // the other group goes on
		buf := make([]byte, n)
		r := w.recv(1, 0, channel.Key{Group: 2, Call: i}, buf)
		s := w.send(1, 0, channel.Key{Group: 2, Call: i}, data(n, 100+i))
		r.ok()
		s.ok()
		sent.kept[i].ok()
		taken.kept[i].ok()
		same(t, "sent by the other group", buf, i)
		same(t, "taken by the other group", taken.kept[i].bytes(), 100+i)
	}
	if !other.pending() {
		t.Errorf("the abort on one link completed a receive on another: %v", other.op.Err)
	}
	w.send(2, 0, key(0), data(n, 9)).ok()
	other.ok()
	same(t, "another link", other.bytes(), 9)
}

// checkAbortedMemory looks whether memory that an abort has given back is left
// alone afterwards.
func checkAbortedMemory(t testing.TB, k Kit) {
	w := newWorld(t, k, 2)
	const n = 100_000
	buf := data(n, 1)
	r := w.recv(1, 0, key(1), buf)
	w.ranks[1].abort(0, 1, errAbort)
	require.ErrorIs(t, r.wait(), errAbort)
	s := w.send(0, 1, key(1), data(n, 2))
	w.flush(0, 1)
	same(t, "memory of an aborted receive", buf, 1)
	w.ranks[0].abort(1, 1, errAbort)
	if err := s.wait(); err != nil {
		require.ErrorIs(t, err, errAbort)
	}
	w.flush(0, 1)
	same(t, "memory of an aborted receive", buf, 1)
}

// errGone is the cause of closes.
var errGone = errors.New("this rank goes home")

// checkClose closes one end with ops of both pending.
func checkClose(t testing.TB, k Kit) {
	w := newWorld(t, k, 2)
	const n = 500
	var mine, theirs []*transfer
	for i := range uint64(5) {
		mine = append(mine, w.send(0, 1, key(i), data(n, i)), w.recv(0, 1, key(i+10), make([]byte, n)), w.view(0, 1, key(i+20), n))
		theirs = append(theirs, w.send(1, 0, key(i+30), data(n, i)), w.recv(1, 0, key(i+40), make([]byte, n)), w.view(1, 0, key(i+50), n))
	}
	w.flush(0, 1)
	w.ranks[0].hangUp(1, errGone)
	for _, x := range mine {
		if err := x.wait(); !x.mayBeAway(err) {
			require.ErrorIs(t, err, errGone, "a %v of the rank that closes", x.op.Kind)
		}
	}
	for _, x := range theirs {
		if err := x.wait(); !x.mayBeAway(err) {
			require.ErrorIs(t, err, kolo.ErrLost, "a %v of its peer", x.op.Kind)
		}
	}
	w.ranks[0].hangUp(1, errEnd) // again
	for range 2 {                // the second round finds actors that have ended
		for _, x := range []*transfer{
			w.send(0, 1, key(61), data(n, 1)), w.recv(0, 1, key(62), make([]byte, n)), w.view(0, 1, key(63), n),
			w.send(1, 0, key(61), data(n, 1)), w.recv(1, 0, key(62), make([]byte, n)), w.view(1, 0, key(63), n),
		} {
			if err := x.wait(); !errors.Is(err, kolo.ErrLost) && !(x.at.id == 0 && errors.Is(err, errGone)) {
				t.Errorf("a %v of %v after the close: %v", x.op.Kind, x.at.id, err)
			}
		}
		w.ranks[1].hangUp(0, errGone)
	}
}

// checkCloseSelf closes a rank's link to itself: all is its own and gets the cause.
func checkCloseSelf(t testing.TB, k Kit) {
	w := newWorld(t, k, 1)
	list := []*transfer{w.send(0, 0, key(1), data(9, 1)), w.recv(0, 0, key(2), make([]byte, 9)), w.view(0, 0, key(3), 9)}
	w.ranks[0].hangUp(0, errGone)
	for _, x := range list {
		if err := x.wait(); !x.mayBeAway(err) {
			require.ErrorIs(t, err, errGone, "a %v to itself", x.op.Kind)
		}
	}
}

// checkCloseUnused closes links that nothing was posted to, and posts in the same
// turn as the close.
func checkCloseUnused(t testing.TB, k Kit) {
	w := newWorld(t, k, 3)
	w.ranks[0].hangUp(1, errGone)
	require.ErrorIs(t, w.recv(1, 0, key(1), make([]byte, 4)).wait(), kolo.ErrLost)
	var list []*transfer
	w.ranks[0].do(func() {
		w.ranks[0].link(2).Close(errGone)
		for i := range 8 {
			x := w.newTransfer(0, 2, channel.Recv, key(uint64(i))).with(make([]byte, 4))
			list = append(list, x)
			x.postHere()
		}
	})
	for _, x := range list {
		if err := x.wait(); !errors.Is(err, kolo.ErrLost) && !errors.Is(err, errGone) {
			t.Errorf("a receive posted behind the close: %v", err)
		}
	}
}

// checkCloseWhilePosting closes a link while goroutines post to both of its ends.
func checkCloseWhilePosting(t testing.TB, k Kit) {
	rng := k.rng(6)
	for round := range 8 {
		w := newWorld(t, k, 2)
		closeAt := rng.IntN(60)
		var wg sync.WaitGroup
		var mu sync.Mutex
		var all []*transfer
		for g := range 4 {
			at := kolo.Rank(g % 2)
			// ended by wg.Wait
			wg.Go(func() {
				for i := range 60 {
					kind, mem := channel.Send, data(1+i*1000, uint64(i))
					if (g/2+int(at))%2 == 1 {
						kind, mem = channel.Recv, make([]byte, 1+i*1000)
					}
					x := w.newTransfer(at, 1-at, kind, key(uint64(i))).with(mem)
					mu.Lock()
					all = append(all, x)
					mu.Unlock()
					x.at.tell(x.postHere)
					if i == closeAt && g == round%4 {
						x.at.tell(func() { x.at.link(x.peer).Close(errGone) })
					}
				}
			})
		}
		wg.Wait()
		for _, x := range all {
			err := x.wait()
			if err == nil && x.op.Kind == channel.Recv {
				same(t, "received before the close", x.bytes(), x.op.Key.Call)
			}
			if err != nil && !errors.Is(err, kolo.ErrLost) && !errors.Is(err, errGone) {
				t.Errorf("a %v around the close: %v", x.op.Kind, err)
			}
		}
		w.close()
	}
}

// checkCloseWhileMoving closes links while the driver moves bytes: what has met its
// other end may end well or with the loss, but it ends, and then its memory is free.
func checkCloseWhileMoving(t testing.TB, k Kit) {
	const n = 1<<20 + 7
	for round := range 6 {
		w := newWorld(t, k, 2)
		var moves [3][2]*transfer
		for i := range moves {
			moves[i] = [2]*transfer{w.send(0, 1, key(uint64(i)), data(n, uint64(i))), w.recv(1, 0, key(uint64(i)), make([]byte, n))}
		}
		if round%3 != 1 {
			w.ranks[0].hangUp(1, errGone)
		}
		if round%3 != 0 {
			w.ranks[1].hangUp(0, errGone)
		}
		for i, m := range moves {
			sent, taken := m[0].wait(), m[1].wait()
			if taken == nil {
				same(t, fmt.Sprintf("move %d", i), m[1].bytes(), uint64(i))
			}
			for _, err := range []error{sent, taken} {
				if err != nil && !errors.Is(err, kolo.ErrLost) && !errors.Is(err, errGone) {
					t.Errorf("move %d: %v", i, err)
				}
			}
			if sent == nil && taken != nil {
				t.Logf("move %d: sent and not received: %v", i, taken)
			}
		}
		w.close()
	}
}

// checkCloseEndpoint closes an endpoint: its peers lose it, also those that it had
// no link to.
func checkCloseEndpoint(t testing.TB, k Kit) {
	w := newWorld(t, k, 3)
	waits := []*transfer{w.recv(1, 0, key(1), make([]byte, 8)), w.send(2, 0, key(1), data(8, 1))}
	w.recv(0, 1, key(2), make([]byte, 8)) // a link that rank 0 has
	w.ranks[0].do(func() {
		w.ranks[0].link(1).Close(errGone)
		w.ranks[0].endpoint.Close()
	})
	for _, x := range waits {
		if err := x.wait(); !x.mayBeAway(err) {
			require.ErrorIs(t, err, kolo.ErrLost, "a %v of %v", x.op.Kind, x.at.id)
		}
	}
	require.ErrorIs(t, w.recv(2, 0, key(2), make([]byte, 8)).wait(), kolo.ErrLost, "posted later")
	w.flush(1, 2)
}

// checkCloseOneLink closes one of three links; the others go on.
func checkCloseOneLink(t testing.TB, k Kit) {
	w := newWorld(t, k, 3)
	stay := w.recv(0, 2, key(1), make([]byte, 100))
	self := w.recv(0, 0, key(1), make([]byte, 100))
	lost := w.recv(1, 0, key(1), make([]byte, 100))
	w.ranks[0].hangUp(1, errGone)
	require.ErrorIs(t, lost.wait(), kolo.ErrLost)
	w.flush(0, 2)
	w.flush(1, 2)
	w.send(2, 0, key(1), data(100, 1)).ok()
	w.send(0, 0, key(1), data(100, 2)).ok()
	stay.ok()
	self.ok()
	same(t, "another link", stay.bytes(), 1)
	same(t, "the link to itself", self.bytes(), 2)
}
