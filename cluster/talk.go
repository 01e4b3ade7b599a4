package cluster

import (
	"context"
	"fmt"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/rank"
)

// The first of two ranks that meet leads: it gives orders, and the other one follows.
//
//	hops n      n times 8 bytes there and back
//	push n      n bytes to the one that follows, which answers with 8
//	pull n      n bytes from it
//	end
//
// So one clock and one judgement of how much time is left count.
const (
	orderEnd uint64 = iota
	orderHops
	orderPush
	orderPull
)

const (
	maxHops    = 8        // of an order
	enoughHops = 64       // in all
	leastBytes = 4 << 10  // of a message whose time is taken
	telling    = 64 << 10 // bytes from which that says something of the bandwidth, if latency is the smaller part

	longTrip = 2 * time.Millisecond  // that of a way of which it is time to know something
	longTry  = 10 * time.Millisecond // of messages of a size one way; two that agree must do then
)

// fastest are the two shortest of some times. What disturbs makes a message only slower, and
// on a machine with more to do than processors some come through undisturbed all the same:
// so the shortest time counts, where another one agrees.
type fastest [2]time.Duration

func (f *fastest) add(d time.Duration) {
	d = max(d, 1)
	switch {
	case f[0] == 0 || d < f[0]:
		f[0], f[1] = d, f[0]
	case f[1] == 0 || d < f[1]:
		f[1] = d
	}
}

// sure says whether the two agree.
func (f *fastest) sure() bool { return f[1] > 0 && f[1] <= f[0]+f[0]/2 }

func (m *encounter) peer() kolo.Rank {
	if m.first {
		return 1
	}
	return 0
}

func (m *encounter) send(ctx context.Context, v ...uint64) error {
	return rank.Send(ctx, m.g, v, m.peer(), 0)
}

func (m *encounter) recv(ctx context.Context, v []uint64) error {
	return rank.Recv(ctx, m.g, v, m.peer(), 0)
}

// swap is a word there and back, which the first begins.
func (m *encounter) swap(ctx context.Context, word []uint64) error {
	if m.first {
		if err := m.send(ctx, word...); err != nil {
			return err
		}
		return m.recv(ctx, word)
	}
	if err := m.recv(ctx, word); err != nil {
		return err
	}
	return m.send(ctx, word...)
}

// follow does what the first orders.
func (m *encounter) follow(ctx context.Context, how effort) error {
	order, word := make([]uint64, 2), make([]uint64, 1)
	var buf []byte
	for {
		if err := m.recv(ctx, order); err != nil {
			return err
		}
		n := order[1]
		var err error
		switch kind := order[0]; {
		case kind == orderEnd:
			return nil
		case kind == orderHops && n <= maxHops:
			for i := uint64(0); i < n && err == nil; i++ {
				err = m.swap(ctx, word)
			}
		case (kind == orderPush || kind == orderPull) && n <= uint64(how.bytes):
			if uint64(len(buf)) < n {
				buf = make([]byte, n)
			}
			if kind == orderPull {
				err = rank.Send(ctx, m.g, buf[:n], m.peer(), 0)
			} else if err = rank.Recv(ctx, m.g, buf[:n], m.peer(), 0); err == nil {
				err = m.send(ctx, 1)
			}
		default:
			err = fmt.Errorf("%w: order %d of %d", kolo.ErrArgument, kind, n)
		}
		if err != nil {
			return err
		}
	}
}

// lookAhead is two round trips of the first where the way is long: while all greet at once,
// since there may be no time for it when its turn comes.
func (m *encounter) lookAhead(ctx context.Context) error {
	word := make([]uint64, 1)
	var trip fastest
	for trip[1] == 0 && (trip[0] == 0 || trip[0] > longTrip) {
		if err := m.send(ctx, orderHops, 1); err != nil {
			return err
		}
		start := time.Now()
		if err := m.swap(ctx, word); err != nil {
			return err
		}
		trip.add(time.Since(start))
	}
	if trip.sure() {
		m.note(trip[0]/2, 0)
	}
	return m.send(ctx, orderEnd, 0)
}

// lead measures, as one of so many meetings that are left until end. The largest messages for which the time is enough count.
func (m *encounter) lead(ctx context.Context, end time.Time, left int, how effort) error {
	if err := m.await(ctx); err != nil { // from here on the other is there
		return err
	}
	begin := time.Now()
	until := begin.Add(end.Sub(begin) / time.Duration(left))
	latency, err := m.latency(ctx, begin.Add(until.Sub(begin)/3))
	if err != nil {
		return err
	}
	for size := leastBytes; size <= how.bytes && latency > 0; size *= 4 {
		var ways [2]fastest // there and back
		for way, kind := range []uint64{orderPush, orderPull} {
			if ways[way], err = m.fastest(ctx, kind, size, latency, until, how); err != nil {
				return err
			}
		}
		slow := max(ways[0][0], ways[1][0])
		rate := float64(size) / slow.Seconds()
		switch sure := ways[0].sure() && ways[1].sure(); {
		case sure && slow > 2*latency && (size >= telling || slow >= longTrip):
			m.note(latency, rate)
		case m.bandwidth() > offBy*rate:
			m.note(latency, 0) // what came before was small enough for a buffer on the way, perhaps
		}
		if time.Now().Add(6 * (4*slow + 2*latency)).After(until) { // three times each way
			break
		}
	}
	return m.send(ctx, orderEnd, 0)
}

// await waits for the other to come to the meeting.
func (m *encounter) await(ctx context.Context) error {
	if err := m.send(ctx, orderHops, 1); err != nil {
		return err
	}
	return m.swap(ctx, make([]uint64, 1))
}

// fastest is how long messages of a size take one way. The first does not count: it finds
// memory that is not there yet, or room in a bucket that lets a limit's first bytes pass.
func (m *encounter) fastest(ctx context.Context, kind uint64, size int, latency time.Duration, until time.Time, how effort) (f fastest, err error) {
	begin := time.Now()
	for try := range how.tries + 1 {
		d, err := m.carry(ctx, kind, size)
		if err != nil {
			return f, err
		}
		d = max(d-2*latency, d/8)
		if try > 0 {
			f.add(d)
		}
		if time.Now().Add(d).After(until) || f.sure() && time.Since(begin) > longTry {
			if try == 0 {
				f.add(d)
			}
			break
		}
	}
	return f, nil
}

// bandwidth is what is known of it so far.
func (m *encounter) bandwidth() float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return float64(m.found.Bandwidth)
}

// note makes what is known so far what the process tells.
func (m *encounter) note(latency time.Duration, bandwidth float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.found.Latency, m.found.Bandwidth, m.found.Failed = max(int64(latency), 1), int64(min(bandwidth, 1e15)), ""
}

// latency is half of a round trip, 0 if it is not certain.
func (m *encounter) latency(ctx context.Context, until time.Time) (time.Duration, error) {
	word := make([]uint64, 1)
	var trip fastest
	for n, hops := 0, 1; n < enoughHops && (n == 0 || time.Now().Add(trip[0]).Before(until)); n, hops = n+hops, min(2*hops, maxHops) {
		if err := m.send(ctx, orderHops, uint64(hops)); err != nil {
			return 0, err
		}
		for range hops {
			start := time.Now()
			if err := m.swap(ctx, word); err != nil {
				return 0, err
			}
			trip.add(time.Since(start))
		}
	}
	if !trip.sure() {
		return 0, nil
	}
	m.note(trip[0]/2, 0)
	return max(trip[0]/2, 1), nil
}

// carry is how long bytes and a word the other way take.
func (m *encounter) carry(ctx context.Context, kind uint64, size int) (time.Duration, error) {
	if len(m.buf) < size {
		m.buf = make([]byte, size)
	}
	start := time.Now()
	if err := m.send(ctx, kind, uint64(size)); err != nil {
		return 0, err
	}
	if kind == orderPull {
		err := rank.Recv(ctx, m.g, m.buf[:size], m.peer(), 0)
		return time.Since(start), err
	}
	start = time.Now()
	if err := rank.Send(ctx, m.g, m.buf[:size], m.peer(), 0); err != nil {
		return 0, err
	}
	err := m.recv(ctx, make([]uint64, 1))
	return time.Since(start), err
}
