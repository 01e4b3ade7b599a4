package pipeline_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/channel/faulty"
	"github.com/kolo-ccl/kolo/pipeline"
	"github.com/kolo-ccl/kolo/rank"

	"github.com/stretchr/testify/require"
)

// Buckets of any kind come in any order, from several goroutines of each rank, at any
// time, and their calls' messages arrive at any time: every sum is right, every rank has the same
// order, and a step ends when its last call has. One seed is one schedule.
func TestRandomSchedules(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			common := rand.New(rand.NewPCG(seed, 7))
			n := 2 + common.IntN(3)
			sizes := make([]int, 1+common.IntN(12))
			for i := range sizes {
				sizes[i] = 1 + common.IntN(60)
			}
			c := pipeline.ReducerConfig{Bucket: 8 * (1 + common.Int64N(60)), First: 8 * (1 + common.Int64N(20)), Slice: 8 * (5 + common.Int64N(30)),
				Priority: common.IntN(2) == 0, Fusion: pipeline.Fusion(common.IntN(3)), Accumulate: 1 + common.IntN(2)}
			algorithm := []string{"ring", "nhr", "tree", "star", "mesh"}[common.IntN(5)]
			script := fmt.Sprintf("delay * -> * 30%% %dus", 1+common.IntN(400))
			synctest.Test(t, func(t *testing.T) {
				world := rank.Config{Algorithm: algorithm, Wrap: func(inner channel.Driver) (channel.Driver, error) { return faulty.New(inner, script, seed) }}
				require.NoError(t, world.Run(t.Context(), n, func(ctx context.Context, w *rank.World) error {
					return schedule(t, ctx, w.Group(), c, sizes, rand.New(rand.NewPCG(seed, 50+uint64(w.Rank()))))
				}), "%s, %+v", algorithm, c)
			})
		})
	}
}

// schedule makes some steps of one rank.
func schedule(t *testing.T, ctx context.Context, g *rank.Group, c pipeline.ReducerConfig, sizes []int, rng *rand.Rand) error {
	m := modelOf(sizes...)
	c.Group, c.Params, c.Op = g, m.params, kolo.Sum
	r, err := pipeline.NewReducer(c)
	require.NoError(t, err)
	for round := range 3 {
		for _, x := range m.values {
			clear(x)
		}
		var report pipeline.Report
		for micro := range c.Accumulate {
			s, err := r.Begin()
			require.NoError(t, err)
			ended := make(chan error, len(sizes))
			for _, i := range rng.Perm(len(sizes)) {
				pause := time.Duration(rng.IntN(2000)) * us
				go func() { // ends by itself, and is waited for
					time.Sleep(pause) // in a bubble
					m.add(i, round+micro, g.Rank(), 1)
					ended <- s.Ready(i)
				}()
			}
			for range sizes {
				require.NoError(t, <-ended)
			}
			if s.Reduces && rng.IntN(2) == 0 {
				require.NoError(t, s.Use(ctx, rng.IntN(len(sizes))))
			}
			if report, err = s.Wait(ctx); err != nil {
				return err
			}
		}
		for i, x := range m.values {
			for k := range x {
				want := 0
				for micro := range c.Accumulate {
					want += 64 * (k + i + round + micro) * g.Size() * (g.Size() + 1) / 2
				}
				require.Equal(t, float32(want), x[k], "parameter %d", i)
			}
		}
		mine := make([]int64, len(report.Chunks))
		for i, one := range report.Chunks {
			mine[i] = int64(one.Part)
			require.LessOrEqual(t, one.Ready, one.Begun)
			require.LessOrEqual(t, one.Begun, one.Ended)
			require.LessOrEqual(t, one.Ended, report.Overlapped)
		}
		for _, op := range []kolo.ReduceOp{kolo.Min, kolo.Max} { // the same on all ranks
			all := slices.Clone(mine)
			require.NoError(t, rank.AllReduce(ctx, g, all, op))
			require.Equal(t, mine, all)
		}
	}
	return r.Close()
}
