package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/pipeline"
	"github.com/kolo-ccl/kolo/rank"

	"github.com/stretchr/testify/require"
)

// Ranks with uneven inputs make steps of a Reducer, in two epochs; the sum of each step
// is that of the ranks that have input.
func TestRanksWithoutInputShadowTheOthers(t *testing.T) {
	batches := [][]int{{1, 5, 3, 0}, {4, 4, 2, 6}, {2, 2, 2, 2}, {0, 0, 0, 0}}
	for _, priority := range []bool{false, true} {
		require.NoError(t, rank.Run(t.Context(), 4, func(ctx context.Context, w *rank.World) error {
			m := modelOf(30, 7, 100)
			r, err := pipeline.NewReducer(pipeline.ReducerConfig{Group: w.Group(), Params: m.params, Bucket: 160, First: 60, Priority: priority, Slice: 64})
			require.NoError(t, err)
			step := func(compute bool, n int) error {
				s, err := r.Begin()
				if err != nil {
					return err
				}
				for i, x := range m.values {
					if clear(x); compute {
						m.add(i, n, w.Rank(), 1)
						require.NoError(t, s.Ready(i))
					}
				}
				_, err = s.Wait(ctx)
				return err
			}
			shadowed := 0
			j, err := pipeline.NewJoin(pipeline.JoinConfig{Group: w.Group(), Shadow: func(context.Context) error {
				shadowed++
				return step(false, 0)
			}})
			require.NoError(t, err)
			for _, epoch := range batches {
				shadowed = 0
				most := 0
				for _, k := range epoch {
					most = max(most, k)
				}
				for n := range epoch[w.Rank()] {
					active, err := j.Step(ctx)
					if err != nil {
						return err
					}
					share, have := 0, 0
					for q, k := range epoch {
						if k > n {
							share, have = share+1+q, have+1
						}
					}
					require.Equal(t, have, active)
					if err := step(true, n); err != nil {
						return err
					}
					for i, x := range m.values {
						for k := range x {
							require.Equal(t, float32(64*(k+i+n)*share), x[k], "parameter %d", i)
						}
					}
				}
				if err := j.Done(ctx); err != nil {
					return err
				}
				require.Equal(t, most-epoch[w.Rank()], shadowed)
			}
			return r.Close()
		}))
	}
}

// By the other policies all ranks end together: as those who stop, or with an error that
// has the steps of each.
func TestUnevenInputsStopOrFail(t *testing.T) {
	batches := []int{3, 5, 2, 5}
	for _, policy := range []pipeline.Uneven{pipeline.Stop, pipeline.Fail} {
		require.NoError(t, rank.Run(t.Context(), 4, func(ctx context.Context, w *rank.World) error {
			j, err := pipeline.NewJoin(pipeline.JoinConfig{Group: w.Group(), Uneven: policy})
			require.NoError(t, err)
			for range 2 {
				made, failed := 0, error(nil)
				for range batches[w.Rank()] {
					active, err := j.Step(ctx)
					if failed = err; err != nil || active == 0 {
						break
					}
					require.Equal(t, 4, active)
					made++
					if err := rank.Barrier(ctx, w.Group()); err != nil {
						return err
					}
				}
				require.Equal(t, 2, made)
				done := j.Done(ctx)
				if policy == pipeline.Stop {
					require.NoError(t, errors.Join(failed, done))
					continue
				}
				if made < batches[w.Rank()] {
					require.Equal(t, failed, done, "Done returns what a Step has returned")
				}
				failed = done
				require.ErrorIs(t, failed, kolo.ErrMismatch)
				require.ErrorContains(t, failed, "rank 2 has no more")
				require.ErrorContains(t, failed, "2, 2, 2, 2")
				require.NoError(t, w.Group().Err())
				return nil
			}
			return nil
		}))
	}
}

func TestJoinsThatCannotBe(t *testing.T) {
	enough := errors.New("enough")
	require.NoError(t, rank.Run(t.Context(), 2, func(ctx context.Context, w *rank.World) error {
		_, err := pipeline.NewJoin(pipeline.JoinConfig{Group: w.Group()})
		require.ErrorIs(t, err, kolo.ErrArgument)
		require.ErrorContains(t, err, "no Shadow")
		_, err = pipeline.NewJoin(pipeline.JoinConfig{})
		require.ErrorContains(t, err, "no Group")
		_, err = pipeline.NewJoin(pipeline.JoinConfig{Group: w.Group(), Uneven: 9})
		require.ErrorContains(t, err, "Uneven is 9")
		j, err := pipeline.NewJoin(pipeline.JoinConfig{Group: w.Group(), Uneven: pipeline.Stop + pipeline.Uneven(w.Rank())})
		require.NoError(t, err)
		_, err = j.Step(ctx)
		require.ErrorIs(t, err, kolo.ErrMismatch, "other policies")
		_, again := j.Step(ctx)
		require.Equal(t, err, again)
		require.Equal(t, err, j.Done(ctx))
		j, err = pipeline.NewJoin(pipeline.JoinConfig{Group: w.Group(), Shadow: func(context.Context) error { return enough }})
		require.NoError(t, err)
		if w.Rank() == 0 {
			require.ErrorIs(t, j.Done(ctx), enough)
			return nil
		}
		_, err = j.Step(ctx)
		require.NoError(t, err)
		require.ErrorIs(t, rank.Barrier(ctx, w.Group()), enough)
		return nil
	}))
}

func ExampleJoin() {
	err := rank.Run(context.Background(), 3, func(ctx context.Context, w *rank.World) error {
		sum := func(x float64) (float64, error) {
			b := []float64{x}
			err := rank.AllReduce(ctx, w.Group(), b, kolo.Sum)
			return b[0], err
		}
		j, err := pipeline.NewJoin(pipeline.JoinConfig{Group: w.Group(), Shadow: func(context.Context) error {
			_, err := sum(0)
			return err
		}})
		if err != nil {
			return err
		}
		for batch := range int(w.Rank()) + 1 { // rank 2 has three batches
			active, err := j.Step(ctx)
			if err != nil || active == 0 {
				return err
			}
			x, err := sum(float64(10 * (batch + 1)))
			if err != nil {
				return err
			}
			if w.Rank() == 2 {
				fmt.Println(active, "ranks, mean", x/float64(active))
			}
		}
		return j.Done(ctx)
	})
	fmt.Println(err)
	// Output:
	// 3 ranks, mean 10
	// 2 ranks, mean 20
	// 1 ranks, mean 30
	// <nil>
}
