package channeltest

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
)

// The size of a soak.
const (
	soakRanks    = 4
	soakGroups   = 2
	soakLanes    = 2
	soakMessages = 24 // of each stream
	soakDepth    = 3  // ops of each end of a stream in flight
	soakGoers    = 8  // goroutines
)

// soak is many streams at a time: each ordered pair of ranks has one for each key.
type soak struct {
	w       *world
	seed    uint64
	streams []*stream
	left    atomic.Int64 // ends of streams that are not at their end
	done    chan struct{}
}

// stream is the messages of one key from one rank to another. Its ends number the
// messages in the order of posting; message m has a size and bytes of its own.
type stream struct {
	s        *soak
	id       uint64
	from, to kolo.Rank
	key      channel.Key
	spoilt   atomic.Bool // an abort or a close may have disturbed the numbering
	ends     [2]*streamEnd
}

// streamEnd is one end of a stream; it belongs to its rank's shard.
type streamEnd struct {
	st   *stream
	kind channel.Kind
	rng  *rand.Rand
	next int // message to post
	open int
	over bool
	held *transfer // a View that is not released
}

// slot is an op of a stream's end: which message it has.
type slot struct {
	*transfer
	end     *streamEnd
	message int
	buf     []byte
}

func newSoak(t testing.TB, k Kit) *soak {
	s := &soak{w: newWorld(t, k, soakRanks), seed: k.Seed, done: make(chan struct{})}
	for from := range kolo.Rank(soakRanks) {
		for to := range kolo.Rank(soakRanks) {
			for g := range soakGroups {
				for l := range soakLanes {
					st := &stream{s: s, id: uint64(len(s.streams)), from: from, to: to,
						key: channel.Key{Group: uint64(g), Call: 5, Lane: uint8(l)}}
					for i, kind := range []channel.Kind{channel.Send, channel.Recv} {
						st.ends[i] = &streamEnd{st: st, kind: kind, rng: k.rng(100 + 2*st.id + uint64(i))}
					}
					s.streams = append(s.streams, st)
				}
			}
		}
	}
	s.left.Store(int64(2 * len(s.streams)))
	return s
}

// start lets goroutines begin all ends in a random order. Each op that completes
// is posted again for a later message, as long as there is one.
func (s *soak) start(rng *rand.Rand) {
	order := rng.Perm(2 * len(s.streams) * soakDepth)
	var wg sync.WaitGroup
	for g := range soakGoers {
		// ended by wg.Wait
		wg.Go(func() {
			for i := g; i < len(order); i += soakGoers {
				e := s.streams[order[i]/2%len(s.streams)].ends[order[i]%2]
				e.rank().tell(func() { e.post(e.newSlot()) })
			}
		})
	}
	wg.Wait()
}

func (e *streamEnd) rank() *rank {
	if e.kind == channel.Send {
		return e.st.s.w.ranks[e.st.from]
	}
	return e.st.s.w.ranks[e.st.to]
}

func (e *streamEnd) newSlot() *slot {
	at, peer := e.st.from, e.st.to
	if e.kind != channel.Send {
		at, peer = peer, at
	}
	sl := &slot{transfer: e.st.s.w.newTransfer(at, peer, e.kind, e.st.key), end: e}
	sl.heard = func(*transfer) { e.heard(sl) }
	return sl
}

// size is the length of message m, the same for both ends.
func (st *stream) size(m int) int {
	rng := rand.New(rand.NewPCG(st.s.seed+st.id, uint64(m)))
	switch rng.IntN(40) {
	case 0:
		return 0
	case 1:
		return 200_000 + rng.IntN(200_000)
	}
	return rng.IntN(3000)
}

func (st *stream) bytesOf(m int) uint64 { return st.id<<32 + uint64(m) }

// post posts the slot's op for the next message, or ends the end of the stream.
func (e *streamEnd) post(sl *slot) {
	if e.over || e.next == soakMessages {
		e.rest()
		return
	}
	sl.message = e.next
	e.next++
	e.open++
	n := e.st.size(sl.message)
	if cap(sl.buf) < n {
		sl.buf = make([]byte, n)
	}
	sl.buf = sl.buf[:n]
	sl.op.Kind = e.kind
	if e.kind == channel.Send {
		fill(sl.buf, e.st.bytesOf(sl.message))
	} else if e.rng.IntN(2) == 0 {
		sl.op.Kind = channel.View
	}
	if sl.with(cut(e.rng, sl.buf, 4)...); sl.op.Kind == channel.View {
		sl.op.Mem = sl.op.Mem[:0]
	}
	sl.postHere()
}

// heard is called at the completion of an op.
func (e *streamEnd) heard(sl *slot) {
	e.open--
	st := e.st
	if err := sl.op.Err; err != nil {
		e.over = true
		if !st.spoilt.Load() {
			st.s.w.t.Errorf("message %d of %v from %v to %v: %v (seed %d)", sl.message, sl.op.Kind, st.from, st.to, err, st.s.seed)
		}
		e.rest()
		return
	}
	if e.kind == channel.Recv {
		got := sl.bytes()
		if want := data(st.size(sl.message), st.bytesOf(sl.message)); string(got) != string(want) && !st.spoilt.Load() {
			st.s.w.t.Errorf("message %d (%v) from %v to %v with key %+v: other bytes (seed %d)", sl.message, sl.op.Kind, st.from, st.to, st.key, st.s.seed)
		}
		if sl.op.Kind == channel.View {
			e.hold(sl)
			return
		}
	}
	e.post(sl)
}

// hold releases the view at once, or with the next one.
func (e *streamEnd) hold(sl *slot) {
	if e.held != nil {
		e.held.releaseHere()
		e.held = nil
	}
	if e.next < soakMessages && !e.over && e.rng.IntN(2) == 0 {
		e.held = sl.transfer
		e.post(e.newSlot())
		return
	}
	sl.releaseHere()
	e.post(sl)
}

// rest notes that a slot has no further message.
func (e *streamEnd) rest() {
	if e.open > 0 || !e.over && e.next < soakMessages || e.next > soakMessages {
		return
	}
	if e.held != nil {
		e.held.releaseHere()
		e.held = nil
	}
	e.next, e.over = soakMessages+1, true
	if e.st.s.left.Add(-1) == 0 {
		close(e.st.s.done)
	}
}

// checkSoak runs all streams to their end.
func checkSoak(t testing.TB, k Kit) {
	s := newSoak(t, k)
	s.start(k.rng(7))
	select {
	case <-s.done:
	case <-time.After(k.Patience):
		t.Errorf("%d ends of streams are not at their end (seed %d)", s.left.Load(), k.Seed)
	}
}

// checkSoakWithFailures aborts groups and closes links meanwhile. What was posted
// completes once, and what was received undisturbed is right.
func checkSoakWithFailures(t testing.TB, k Kit) {
	for round := range uint64(2) {
		s := newSoak(t, k.seeded(k.Seed+round))
		rng := k.rng(8 + round)
		var wg sync.WaitGroup
		for range 6 {
			at, peer, group := kolo.Rank(rng.IntN(soakRanks)), kolo.Rank(rng.IntN(soakRanks)), uint64(rng.IntN(soakGroups))
			closes := rng.IntN(2) == 0
			// ended by wg.Wait
			wg.Go(func() { s.disturb(at, peer, group, closes) })
		}
		s.start(rng)
		wg.Wait()
		for _, r := range s.w.ranks { // a stream with one end aborted waits for ever
			for _, p := range s.w.ranks {
				for _, st := range s.streams {
					st.spoilt.Store(true)
				}
				r.hangUp(p.id, errEnd)
			}
		}
		for _, st := range s.streams {
			for _, e := range st.ends {
				e.rank().do(func() {
					if e.held != nil {
						e.held.releaseHere()
						e.held = nil
					}
				})
			}
		}
		s.w.settle()
		s.w.close()
	}
}

// disturb aborts a group on a link, or closes it.
func (s *soak) disturb(at, peer kolo.Rank, group uint64, closes bool) {
	for _, st := range s.streams {
		if (st.from == at && st.to == peer || st.from == peer && st.to == at) && (closes || st.key.Group == group) {
			st.spoilt.Store(true)
		}
	}
	if closes {
		s.w.ranks[at].hangUp(peer, errGone)
	} else {
		s.w.ranks[at].abort(peer, group, errAbort)
	}
}
