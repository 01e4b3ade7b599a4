package rank

import (
	"context"
	"errors"
	"math"
	"testing"

	"github.com/kolo-ccl/kolo"

	"github.com/stretchr/testify/require"
)

// Six ranks by the parity of their rank, in reverse order, and one of them in no part;
// twice with parts that share ranks, under one name.
func TestSplitByColor(t *testing.T) {
	errs := each(t, Config{}, 6, func(ctx context.Context, w *World) error {
		me := int(w.Rank())
		color := me % 2
		if me == 3 {
			color = NoColor
		}
		g, err := w.Group().Split(ctx, SplitConfig{Color: color, Key: -me, Group: GroupConfig{Name: "half"}})
		require.NoError(t, err)
		if me == 3 {
			require.Nil(t, g)
		} else {
			ranks := [][]kolo.Rank{{4, 2, 0}, {5, 1}}[me%2]
			require.Equal(t, len(ranks), g.Size())
			for i, r := range ranks {
				require.Equal(t, r, g.WorldRank(kolo.Rank(i)))
			}
			x := []int64{1 << me}
			require.NoError(t, AllReduce(ctx, g, x, kolo.Sum))
			require.Equal(t, []int64{[]int64{1 + 4 + 16, 2 + 32}[me%2]}, x)
		}
		third, err := w.Group().Split(ctx, SplitConfig{Color: me / 2, Group: GroupConfig{Name: "half"}})
		require.NoError(t, err)
		require.Equal(t, 2, third.Size())
		require.Equal(t, kolo.Rank(me%2), third.Rank(), "equal keys keep the order")
		return Barrier(ctx, third)
	})
	require.NoError(t, errors.Join(errs...))
}

// A part is split again, by its own numbering.
func TestSplitOfAPart(t *testing.T) {
	errs := each(t, Config{}, 8, func(ctx context.Context, w *World) error {
		me := int(w.Rank())
		half, err := w.Group().Split(ctx, SplitConfig{Color: me / 4, Key: -me})
		require.NoError(t, err)
		pair, err := half.Split(ctx, SplitConfig{Color: int(half.Rank()) / 2, Key: math.MinInt + int(half.Rank())})
		require.NoError(t, err)
		require.Equal(t, 2, pair.Size())
		require.Equal(t, kolo.Rank(me|1), pair.WorldRank(0))
		require.Equal(t, kolo.Rank(me&^1), pair.WorldRank(1))
		return Barrier(ctx, pair)
	})
	require.NoError(t, errors.Join(errs...))
}

func TestSplitByAWrongColor(t *testing.T) {
	errs := each(t, Config{}, 3, func(ctx context.Context, w *World) error {
		color := 0
		if w.Rank() == 1 {
			color = -7
		}
		_, err := w.Group().Split(ctx, SplitConfig{Color: color})
		return err
	})
	want(t, errs[1], 1, []error{kolo.ErrArgument}, "Color -7")
	for _, r := range []kolo.Rank{0, 2} {
		want(t, errs[r], r, []error{kolo.ErrAborted, kolo.ErrArgument}, "rank 1", "Color -7")
	}
}
