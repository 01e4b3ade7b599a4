package rank

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"

	"github.com/stretchr/testify/require"
)

// Calls that are the same as the one before, calls that are not, and calls that use other
// tickets come in any mixture, and the hub looks for who has come in between: every call
// has its own result.
func TestKeptTicketInAnyMixtureOfCalls(t *testing.T) {
	t.Run("ranks=3", func(t *testing.T) { mixCalls(t, Config{}, 3, 2000) })
	t.Run("places=2", func(t *testing.T) { mixCalls(t, Config{}, placeRanks+1, 150) })
	var list []*lateEngine
	t.Run("engine=late", func(t *testing.T) {
		mixCalls(t, Config{Engine: func(e channel.Engine) channel.Engine {
			list = append(list, &lateEngine{Engine: e})
			return list[len(list)-1]
		}}, 3, 2000)
	})
	for _, e := range list {
		e.late.Wait()
	}
}

// lateEngine begins every third job on another goroutine, so that it may end at any time.
type lateEngine struct {
	channel.Engine
	jobs int // of the one group
	late sync.WaitGroup
}

func (e *lateEngine) Start(t channel.Turn, j *channel.Job) {
	if e.jobs++; e.jobs%3 > 0 {
		e.Engine.Start(t, j)
		return
	}
	e.late.Go(func() { e.Engine.Start(nil, j) }) // ends with the job
}

func mixCalls(t *testing.T, cfg Config, ranks, calls int64) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	require.NoError(t, cfg.Run(t.Context(), int(ranks), func(ctx context.Context, w *World) error {
		alike, own := rand.New(rand.NewPCG(seed, 0)), rand.New(rand.NewPCG(seed, 1+uint64(w.Rank())))
		me, g := int64(w.Rank()), w.Group()
		bufs := [][]int64{make([]int64, 2), make([]int64, 2), make([]int64, 3000), make([]int64, 40000)}
		at := 0
		for i := range calls {
			if alike.IntN(4) == 0 {
				at = alike.IntN(len(bufs))
			}
			b, op := bufs[at], kolo.Sum
			if alike.IntN(8) == 0 {
				op = kolo.Max
			}
			last := int64(len(b) - 1)
			b[0], b[last] = i+me, i*me+int64(at)
			want := [2]int64{i + ranks - 1, (ranks-1)*i + int64(at)}
			if op == kolo.Sum {
				ids := ranks * (ranks - 1) / 2
				want = [2]int64{ranks*i + ids, ids*i + ranks*int64(at)}
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

// A call that is refused when another goroutine has made the one behind it cannot give
// its number back: the group fails with what was wrong, and nobody waits for that number.
func TestKeptTicketOfARefusedCallWithAnotherBehindIt(t *testing.T) {
	err := Run(t.Context(), 2, func(ctx context.Context, w *World) error {
		g := w.Group()
		if w.Rank() == 0 {
			kept := g.keep()
			require.NotNil(t, kept)
			behind := BarrierAsync(g)
			g.takeBack(kept, fmt.Errorf("%w: odd", kolo.ErrArgument))
			require.ErrorIs(t, behind.Wait(ctx), kolo.ErrArgument)
			require.Zero(t, g.inFlight())
			require.ErrorIs(t, Barrier(ctx, g), kolo.ErrArgument)
			return nil
		}
		err := Barrier(ctx, g)
		require.ErrorIs(t, err, kolo.ErrArgument)
		require.ErrorContains(t, err, "call #0 was refused while another goroutine of the rank made the call behind it")
		return nil
	})
	require.NoError(t, err)
}

// Rounds that repeat the one before are counted although the hub does not look at their
// calls: an error says what the rank that does not come did last.
func TestRepeatedCallsAreCounted(t *testing.T) {
	err := Config{Timeout: 50 * time.Millisecond}.Run(t.Context(), 3, func(ctx context.Context, w *World) error {
		g := w.Group()
		for range 7 {
			if err := Barrier(ctx, g); err != nil {
				return err
			}
		}
		if w.Rank() == 2 {
			<-ctx.Done()
			return nil
		}
		err := Barrier(ctx, g)
		require.ErrorIs(t, err, kolo.ErrDeadline)
		require.ErrorContains(t, err, "rank 2 last called Barrier #6")
		return err
	})
	require.ErrorIs(t, err, kolo.ErrDeadline)
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
