package probe

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/rank"
)

// What is sent: messages of size, so many of them a few times over, and round trips of 8
// bytes in batches of which the median counts.
const (
	quickSize, quickTimes, quickHops          = 1 << 20, 4, 20
	thoroughSize, thoroughTimes, thoroughHops = 4 << 20, 16, 200

	batches    = 5
	repeats    = 3
	clockTries = 16
)

// meeting is two ranks that measure the way between them. Both make the same calls, the
// first of the group speaking first.
type meeting struct {
	g           *rank.Group
	first       bool
	size, times int
	hops        int
}

// peer is the other one, in the group's numbering.
func (m *meeting) peer() kolo.Rank {
	if m.first {
		return 1
	}
	return 0
}

func (m *meeting) send(ctx context.Context, v ...uint64) error {
	return rank.Send(ctx, m.g, v, m.peer(), 0)
}

func (m *meeting) recv(ctx context.Context, v []uint64) error {
	return rank.Recv(ctx, m.g, v, m.peer(), 0)
}

// swap sends and receives.
func (m *meeting) swap(ctx context.Context, mine, theirs []uint64) error {
	if m.first {
		if err := m.send(ctx, mine...); err != nil {
			return err
		}
		return m.recv(ctx, theirs)
	}
	if err := m.recv(ctx, theirs); err != nil {
		return err
	}
	return m.send(ctx, mine...)
}

// handshake makes sure that who answers is who is expected.
func (m *meeting) handshake(ctx context.Context, mine, want [2]uint64) error {
	var got [2]uint64
	if err := m.swap(ctx, mine[:], got[:]); err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("%w: rank %d of another process answers in place of rank %d", kolo.ErrMismatch, got[0], want[0])
	}
	return nil
}

// latency is half a round trip.
func (m *meeting) latency(ctx context.Context) (time.Duration, error) {
	var list []time.Duration
	in := make([]uint64, 1)
	for range batches + 1 { // the first warms up
		start := time.Now()
		for range m.hops {
			if err := m.swap(ctx, []uint64{1}, in); err != nil {
				return 0, err
			}
		}
		list = append(list, time.Since(start)/time.Duration(2*m.hops))
	}
	slices.Sort(list[1:])
	return list[1:][batches/2], nil
}

// bandwidth is that of this rank's messages to the other one: the best of some tries, as
// what disturbs makes it only smaller.
func (m *meeting) bandwidth(ctx context.Context) (best float64, err error) {
	buf := make([]byte, m.size)
	in := make([]uint64, 1)
	for turn := range 2 {
		for range repeats + 1 { // the first warms up
			start := time.Now()
			sends := (turn == 0) == m.first
			for range m.times {
				if sends {
					err = rank.Send(ctx, m.g, buf, m.peer(), 0)
				} else {
					err = rank.Recv(ctx, m.g, buf, m.peer(), 0)
				}
				if err != nil {
					return 0, err
				}
			}
			if !sends {
				if err := m.send(ctx, 1); err != nil {
					return 0, err
				}
				continue
			}
			if err := m.recv(ctx, in); err != nil {
				return 0, err
			}
			best = max(best, float64(m.size*m.times)/max(time.Since(start), 1).Seconds())
		}
	}
	return best, nil
}

// clock is how far the second's clock is ahead of the first's, known to the first: of
// several tries the shortest counts, and the truth lies within half of its round trip.
func (m *meeting) clock(ctx context.Context) (ahead, give time.Duration, err error) {
	in := make([]uint64, 1)
	for i := range clockTries {
		start := time.Now()
		if !m.first {
			if err := m.recv(ctx, in); err != nil {
				return 0, 0, err
			}
			if err := m.send(ctx, uint64(time.Now().UnixNano())); err != nil {
				return 0, 0, err
			}
			continue
		}
		if err := m.swap(ctx, []uint64{1}, in); err != nil {
			return 0, 0, err
		}
		trip := time.Since(start)
		if i == 0 || trip/2 < give {
			give = trip / 2
			ahead = time.Duration(int64(in[0]) - start.Add(give).UnixNano())
		}
	}
	return ahead, give, nil
}
