package main

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/cluster"
	"github.com/kolo-ccl/kolo/pipeline"
	"github.com/kolo-ccl/kolo/rank"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kolo-ccl/kolo/internal/exampletest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestExampleRuns(t *testing.T) {
	require.Equal(t, len(ways), strings.Count(exampletest.Output(t, run), "after 100 steps"))
}

// Every way trains like one rank with the whole batch, all the way.
func TestEveryWayTrainsAlike(t *testing.T) {
	want, err := train(t.Context(), ways[0])
	require.NoError(t, err)
	require.Less(t, want[len(want)-1], want[0]/5, "it learns")
	for _, w := range ways[1:] {
		got, err := train(t.Context(), w)
		require.NoError(t, err, w.name)
		require.InDeltaSlice(t, want, got, 1e-4, w.name)
	}
	beside, err := train(t.Context(), ways[1])
	require.NoError(t, err)
	after, err := train(t.Context(), ways[2])
	require.NoError(t, err)
	require.Equal(t, after, beside, "to the bit")
}

// Ranks of three processes, joined by what a cluster has, train as those of one do; also
// with buckets that overtake each other.
func TestTrainingInSeveralProcesses(t *testing.T) {
	want, err := train(t.Context(), ways[1])
	require.NoError(t, err)
	for _, priority := range []bool{false, true} {
		meeting, err := cluster.Serve("127.0.0.1:0", nil)
		require.NoError(t, err)
		var wg sync.WaitGroup
		var losses []float64
		for _, ranks := range [][]kolo.Rank{{0, 1}, {2}, {3}} {
			wg.Go(func() { // ends with the training
				p, err := cluster.Open(t.Context(), cluster.Config{Rendezvous: meeting.Address(), Size: 4, Ranks: ranks, Timeout: 20 * time.Second,
					Getenv: func(string) string { return "" }})
				if err != nil {
					t.Errorf("join with ranks %v: %v", ranks, err)
					return
				}
				var inner sync.WaitGroup
				for _, w := range p.Worlds() {
					inner.Go(func() { // ends with the training
						mine, err := trainIn(t.Context(), w, priority)
						if err != nil {
							t.Errorf("rank %d: %v", w.Rank(), err)
						}
						if w.Rank() == 0 {
							losses = mine
						}
					})
				}
				inner.Wait()
			})
		}
		wg.Wait()
		require.InDeltaSlice(t, want, losses, 1e-4)
		require.NoError(t, meeting.Close())
	}
}

// trainIn is one rank's training, and its leaving of the world.
func trainIn(ctx context.Context, w *rank.World, priority bool) ([]float64, error) {
	how := ways[1]
	losses, err := trainRank(ctx, how, w.Group(), func(c *pipeline.ReducerConfig) { c.Priority, c.Slice = priority, 500 })
	if e := w.Close(context.WithoutCancel(ctx)); err == nil {
		err = e
	}
	return losses, err
}
