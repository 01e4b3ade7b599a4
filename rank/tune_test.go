package rank

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/plan"
)

// All ranks get the same table; a World with it makes its choices, and the results are
// right.
func TestTuneAgreesAndIsUsed(t *testing.T) {
	const n = 3
	var mu sync.Mutex
	var tables [n]*plan.Tuning
	var timings []plan.Timing
	config := TuneConfig{Collectives: []kolo.Collective{kolo.AllReduce, kolo.AllGather, kolo.ReduceScatter, kolo.Broadcast, kolo.Reduce, kolo.AllToAll},
		Sizes: []int64{48, 3000}, Contest: plan.ContestConfig{Rounds: 3}, Batch: 10 * time.Microsecond}
	err := Run(t.Context(), n, func(ctx context.Context, w *World) error {
		got, err := Tune(ctx, w.Group(), config)
		if err != nil {
			return err
		}
		require.Len(t, w.Groups(), 1, "the groups of the tuning are closed")
		mu.Lock()
		defer mu.Unlock()
		tables[w.Rank()] = got.Tuning
		if w.Rank() == 0 {
			timings = got.Timings
		}
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, tables[0], tables[1])
	require.Equal(t, tables[0], tables[2])
	require.Len(t, timings, 12)
	for _, x := range timings {
		require.NotEmpty(t, x.Algorithm)
		require.Positive(t, x.Median)
		require.Less(t, x.Regret, 0.06)
		require.GreaterOrEqual(t, len(x.Contest.Entrants), 1)
	}

	worlds, err := Open(n, Config{Tuning: tables[0]})
	require.NoError(t, err)
	var all sync.WaitGroup
	for _, w := range worlds {
		all.Go(func() { // ends with its call
			for _, x := range timings {
				c := kolo.Call{Collective: kolo.AllReduce, DType: kolo.Float32, Count: x.Size / 4}
				if x.Collective == kolo.AllReduce {
					ch, err := w.Group().Explain(c)
					if err != nil || ch.Algorithm != x.Algorithm {
						t.Errorf("%d bytes: %s, %v; the table says %s", x.Size, ch.Algorithm, err, x.Algorithm)
					}
				}
			}
			x := []float32{float32(w.Rank()), 1}
			if err := AllReduce(t.Context(), w.Group(), x, kolo.Sum); err != nil || x[0] != 3 || x[1] != n {
				t.Errorf("rank %d: %v, %v", w.Rank(), x, err)
			}
			if err := w.Close(context.WithoutCancel(t.Context())); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	require.Contains(t, worlds[0].Settings(), Setting{"Tuning", tuningText(tables[0]), "Config"})
}

func TestTuneRefuses(t *testing.T) {
	err := Run(t.Context(), 1, func(ctx context.Context, w *World) error {
		for _, c := range []TuneConfig{
			{Collectives: []kolo.Collective{kolo.Barrier}},
			{Sizes: []int64{64, 64}},
			{Sizes: []int64{0}},
			{Batch: -1},
		} {
			_, err := Tune(ctx, w.Group(), c)
			require.ErrorIs(t, err, kolo.ErrArgument)
		}
		return nil
	})
	require.NoError(t, err)
	_, err = Open(1, Config{Tuning: &plan.Tuning{Rules: []plan.Rule{{Collective: kolo.AllReduce, Algorithm: "sing"}}}})
	require.ErrorIs(t, err, kolo.ErrArgument)
}
