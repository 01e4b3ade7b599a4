package rank

import (
	"context"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"

	"github.com/stretchr/testify/require"
)

// Ranks that do nothing between large calls come to take turns, and ranks that compute
// cease to. Every call has its own result either way.
func TestLargeCallsInTurns(t *testing.T) {
	const ranks, n = 4, 16 << 10
	began := time.Now()
	require.NoError(t, Run(t.Context(), ranks, func(ctx context.Context, w *World) error {
		g, me := w.Group(), int32(w.Rank())
		src, dst := make([]int32, n), make([]int32, n)
		votes := make([]int32, 2) // ranks that take turns; that have waited long enough for it
		for round := int32(0); ; round++ {
			for c, call := range []func() error{
				func() error { return AllReduceTo(ctx, g, dst, src, kolo.Sum) },
				func() error { return AllGather(ctx, g, dst, src[:n/ranks]) },
				func() error { return AllToAll(ctx, g, dst, src) },
				func() error { return ReduceScatter(ctx, g, dst[:n/ranks], src, kolo.Sum) },
			} {
				for i := range int32(n) {
					src[i], dst[i] = round+me*n+i, -1
				}
				for range 2*gapEach + 3 {
					if err := call(); err != nil {
						return err
					}
				}
				clear(votes)
				if g.kept.turns.taken {
					votes[0] = 1
				}
				if t.Failed() || time.Since(began) > 10*time.Second {
					votes[1] = 1
				}
				for i := range int32(n) {
					from, at := i/(n/ranks), i%(n/ranks)
					want := ranks*(round+i) + n*ranks*(ranks-1)/2
					switch c {
					case 1:
						want = round + from*n + at
					case 2:
						want = round + from*n + me*(n/ranks) + at
					case 3:
						want += ranks * me * (n / ranks)
						if from > 0 {
							want = -1
						}
					}
					if dst[i] != want {
						t.Errorf("call %d of round %d: rank %d has %d at %d, want %d", c, round, me, dst[i], i, want)
						break
					}
				}
			}
			if err := AllReduce(ctx, g, votes, kolo.Sum); err != nil {
				return err
			}
			if votes[0] == ranks {
				break
			}
			if votes[1] > 0 {
				t.Log("too much goes on on this machine for ranks to make one call right after the other")
				return nil
			}
		}
		for range 3 * gapEach { // each after more than the gap
			for start := time.Now(); time.Since(start) < 10*idleGap; {
			}
			if err := AllReduceTo(ctx, g, dst, src, kolo.Sum); err != nil {
				return err
			}
		}
		if g.kept.turns.taken {
			t.Errorf("rank %d computes between its calls and takes turns", me)
		}
		return nil
	}))
}

// Ranks that do nothing between small calls come to take turns, so that one that waits parks
// soon, and ranks that compute cease to.
func TestSmallCallsInTurns(t *testing.T) {
	began := time.Now()
	require.NoError(t, Run(t.Context(), 3, func(ctx context.Context, w *World) error {
		g, votes := w.Group(), make([]int32, 2) // ranks that take turns; that have waited long enough for it
		for {
			for range 2*gapOfSmall + 3 {
				if err := Barrier(ctx, g); err != nil {
					return err
				}
			}
			clear(votes)
			if g.kept.turns.taken {
				votes[0] = 1
			}
			if time.Since(began) > 10*time.Second {
				votes[1] = 1
			}
			if err := AllReduce(ctx, g, votes, kolo.Sum); err != nil {
				return err
			}
			if votes[0] == 3 {
				break
			}
			if votes[1] > 0 {
				t.Log("too much goes on on this machine for ranks to make one call right after the other")
				return nil
			}
		}
		for range 3 * gapOfSmall {
			for start := time.Now(); time.Since(start) < 10*idleGap; {
			}
			if err := Barrier(ctx, g); err != nil {
				return err
			}
		}
		if g.kept.turns.taken {
			t.Errorf("rank %d computes between its calls and takes turns", w.Rank())
		}
		return nil
	}))
}
