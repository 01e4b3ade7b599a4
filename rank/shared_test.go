package rank_test

import (
	"context"
	"errors"
	"math"
	"testing"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/rank"

	"github.com/stretchr/testify/require"
)

// In one process AllocShared is Alloc.
func TestAllocSharedInOneProcess(t *testing.T) {
	require.NoError(t, rank.Run(t.Context(), 2, func(ctx context.Context, w *rank.World) error {
		if _, _, err := rank.AllocShared[float64](w, -1); !errors.Is(err, kolo.ErrArgument) {
			t.Errorf("-1 elements: %v", err)
		}
		s, free, err := rank.AllocShared[float64](w, 1000)
		if err != nil {
			return err
		}
		for i := range s {
			s[i] += float64(i) + float64(w.Rank())
		}
		if err := rank.AllReduce(ctx, w.Group(), s, kolo.Sum); err != nil {
			return err
		}
		for i := range s {
			if s[i] != float64(2*i+1) {
				t.Errorf("element %d is %v", i, s[i])
				break
			}
		}
		return free()
	}))
}

func TestAllocSharedRefusesMoreThanThereIs(t *testing.T) {
	require.NoError(t, rank.Run(t.Context(), 1, func(_ context.Context, w *rank.World) error {
		none, free, err := rank.AllocShared[int8](w, 0)
		require.NoError(t, err)
		require.Empty(t, none)
		require.NoError(t, free())
		_, _, err = rank.AllocShared[float64](w, math.MaxInt)
		require.ErrorIs(t, err, kolo.ErrLimit)
		return nil
	}))
}
