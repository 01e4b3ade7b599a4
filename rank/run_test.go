package rank

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"

	"github.com/stretchr/testify/require"
)

// A rank that waits for something other than a call hears that another has failed.
func TestContextOfTheOthersEndsWhenARankFails(t *testing.T) {
	broken := errors.New("broken")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err := Run(ctx, 3, func(ctx context.Context, w *World) error {
		if w.Rank() == 1 {
			return broken
		}
		<-ctx.Done()
		cause := context.Cause(ctx)
		require.ErrorIs(t, cause, kolo.ErrLeft)
		require.ErrorIs(t, cause, broken)
		require.ErrorContains(t, cause, "rank 1 has failed")
		return nil
	})
	require.ErrorIs(t, err, broken)
	require.NoError(t, ctx.Err())
}

// Those who are left go on with the same context.
func TestSurvivorsGoOnWithTheContextOfRun(t *testing.T) {
	broken := errors.New("broken")
	err := Run(t.Context(), 3, func(ctx context.Context, w *World) error {
		if w.Rank() == 1 {
			return broken
		}
		err := Barrier(ctx, w.Group())
		require.ErrorIs(t, err, kolo.ErrLeft)
		require.NotErrorIs(t, err, kolo.ErrCanceled)
		<-ctx.Done()
		g, err := w.Shrink(ctx)
		require.NoError(t, err)
		require.Equal(t, 2, g.Size())
		b := fill(w.Rank(), 10)
		require.NoError(t, AllReduce(ctx, g, b, kolo.Sum))
		want := fill(0, 10)
		for i, v := range fill(2, 10) {
			want[i] += v
		}
		require.Equal(t, want, b)
		return nil
	})
	require.ErrorIs(t, err, broken)
}

// A rank that closes its world is gone also for groups that it never made.
func TestRankThatClosedItsWorldIsGoneForGroupsItNeverMade(t *testing.T) {
	worlds, err := Open(3, Config{Timeout: 20 * time.Second})
	require.NoError(t, err)
	require.NoError(t, worlds[2].Close(t.Context()))
	start := time.Now()
	for _, w := range worlds[:2] {
		g, err := w.NewGroup(GroupConfig{Name: "late", Ranks: []kolo.Rank{0, 1, 2}})
		require.NoError(t, err)
		err = Barrier(t.Context(), g)
		require.ErrorIs(t, err, kolo.ErrLeft)
		require.ErrorContains(t, err, "rank 2 has left the group and has never made it")
	}
	require.Less(t, time.Since(start), 10*time.Second)
	for _, w := range worlds[:2] {
		require.NoError(t, w.Close(t.Context()))
	}
}
