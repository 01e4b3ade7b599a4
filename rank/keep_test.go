package rank

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/kolo-ccl/kolo"

	"github.com/stretchr/testify/require"
)

// Calls that are the same as the one before, calls that are not, and calls that use other
// tickets come in any mixture, and the hub looks for who has come in between: every call
// has its own result.
func TestKeptTicketInAnyMixtureOfCalls(t *testing.T) {
	const ranks, calls = 3, 2000
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	require.NoError(t, Run(t.Context(), ranks, func(ctx context.Context, w *World) error {
		alike, own := rand.New(rand.NewPCG(seed, 0)), rand.New(rand.NewPCG(seed, 1+uint64(w.Rank())))
		me, g := int64(w.Rank()), w.Group()
		bufs := [][]int64{make([]int64, 2), make([]int64, 2), make([]int64, 3000), make([]int64, 40000)}
		at := 0
		for i := range int64(calls) {
			if alike.IntN(4) == 0 {
				at = alike.IntN(len(bufs))
			}
			b, op := bufs[at], kolo.Sum
			if alike.IntN(8) == 0 {
				op = kolo.Max
			}
			last := int64(len(b) - 1)
			b[0], b[last] = i+me, i*me+int64(at)
			want := [2]int64{i + 2, 2*i + int64(at)}
			if op == kolo.Sum {
				want = [2]int64{ranks*i + 3, 3*i + ranks*int64(at)}
			}
			if alike.IntN(8) == 0 {
				if err := Barrier(ctx, g); err != nil {
					return err
				}
			}
			if own.IntN(16) == 0 {
				g.hub.tell(nil, tick{})
			}
			if own.IntN(4) == 0 {
				runtime.Gosched()
			}
			var err error
			if own.IntN(3) == 0 {
				err = AllReduceAsync(g, b, op).Wait(ctx)
			} else {
				err = AllReduce(ctx, g, b, op)
			}
			if err != nil {
				return err
			}
			if got := [2]int64{b[0], b[last]}; got != want {
				t.Errorf("seed %d: rank %d, call %d: %v, want %v", seed, me, i, got, want)
				return errors.New("wrong")
			}
		}
		return nil
	}))
}

// A call that is refused is not counted, and the one behind it is made.
func TestKeptTicketOfARefusedCall(t *testing.T) {
	require.NoError(t, Run(t.Context(), 2, func(ctx context.Context, w *World) error {
		b, g := []int32{1}, w.Group()
		for i := range 3 {
			require.NoError(t, AllReduce(ctx, g, b, kolo.Sum))
			require.ErrorIs(t, AllReduce(ctx, g, b, kolo.ReduceOp{Kind: 99}), kolo.ErrArgument)
			require.Equal(t, uint64(i+1), g.Calls())
		}
		require.Equal(t, int32(8), b[0])
		return nil
	}))
}

// Several goroutines of a rank may call at a time, as long as it does not matter whose call
// meets whose; one of them has the kept ticket, and Close waits for all.
func TestKeptTicketOfSeveralGoroutines(t *testing.T) {
	const ranks, callers, calls = 2, 4, 800
	require.NoError(t, Run(t.Context(), ranks, func(ctx context.Context, w *World) error {
		g := w.Group()
		ended := make(chan error, callers)
		for range callers {
			go func() { // ends after its calls
				b := []int32{0}
				for i := range calls {
					b[0] = 1
					if err := AllReduce(ctx, g, b, kolo.Sum); err != nil || b[0] != ranks {
						t.Errorf("call %d: %v %v", i, b[0], err)
						break
					}
				}
				ended <- nil
			}()
		}
		for range callers {
			<-ended
		}
		require.Equal(t, uint64(callers*calls), g.Calls())
		return nil
	}))
}

// Close waits for a blocking call that is in flight, and later calls are refused.
func TestCloseWaitsForTheKeptTicket(t *testing.T) {
	require.NoError(t, Run(t.Context(), 2, func(ctx context.Context, w *World) error {
		g, err := w.NewGroup(GroupConfig{Name: "pair", Ranks: []kolo.Rank{0, 1}})
		if err != nil {
			return err
		}
		b := []float32{1}
		for range 2 {
			if err := AllReduce(ctx, g, b, kolo.Sum); err != nil {
				return err
			}
		}
		if w.Rank() == 0 {
			made := make(chan error, 1)
			go func() { made <- AllReduce(ctx, g, b, kolo.Sum) }() // ends when rank 1 has called
			for g.Calls() < 3 {
				runtime.Gosched()
			}
			closed := make(chan error, 1)
			go func() { closed <- g.Close(ctx) }() // ends behind it
			if err := Barrier(ctx, w.Group()); err != nil {
				return err
			}
			require.NoError(t, <-made)
			require.NoError(t, <-closed)
			require.ErrorIs(t, AllReduce(ctx, g, b, kolo.Sum), kolo.ErrClosed)
			require.Equal(t, float32(8), b[0])
			return nil
		}
		if err := Barrier(ctx, w.Group()); err != nil {
			return err
		}
		return AllReduce(ctx, g, b, kolo.Sum)
	}))
}
