package pipeline_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/npu/sim"
	"github.com/kolo-ccl/kolo/pipeline"
	"github.com/kolo-ccl/kolo/rank"

	"github.com/stretchr/testify/require"
)

// model is a list of gradients on the host.
type model struct {
	params []pipeline.Param
	values [][]float32
}

func modelOf(sizes ...int) *model {
	m := &model{}
	for i, n := range sizes {
		x := make([]float32, n)
		m.values = append(m.values, x)
		m.params = append(m.params, pipeline.Param{Name: fmt.Sprintf("layer %d", i), Gradient: rank.Of(x)})
	}
	return m
}

// add adds what rank r computes for parameter i in a step.
func (m *model) add(i, step int, r kolo.Rank, scale float64) {
	for k := range m.values[i] {
		m.values[i][k] += float32(float64(64*(k+i+step)*(1+int(r))) * scale)
	}
}

func bucketsOf(r *pipeline.Reducer) (list [][]int) {
	for _, b := range r.Buckets() {
		list = append(list, b.Params)
	}
	return list
}

// Every rank has gradients in an order of its own, another in every step, and all
// launch the same buckets, in the order that rank 0 had in the first step.
func TestReducerWithRandomOrders(t *testing.T) {
	sizes := []int{30, 5, 12, 1, 40, 9, 22, 3, 17}
	for seed := range uint64(20) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			orders := make(chan []int, 3)
			require.NoError(t, rank.Run(t.Context(), 3, func(ctx context.Context, w *rank.World) error {
				rng, m := rand.New(rand.NewPCG(seed, uint64(w.Rank()))), modelOf(sizes...)
				r, err := pipeline.NewReducer(pipeline.ReducerConfig{Group: w.Group(), Params: m.params, Bucket: 160, First: 60})
				if err != nil {
					return err
				}
				require.Equal(t, [][]int{{8}, {7, 6, 5}, {4}, {3, 2}, {1, 0}}, bucketsOf(r))
				for step := range 4 {
					for _, x := range m.values {
						clear(x)
					}
					s, err := r.Begin()
					if err != nil {
						return err
					}
					order := rng.Perm(len(sizes))
					if step == 0 && w.Rank() == 0 {
						orders <- order
					}
					for _, i := range order {
						m.add(i, step, w.Rank(), 1)
						require.NoError(t, s.Ready(i))
					}
					report, err := s.Wait(ctx)
					if err != nil {
						return err
					}
					require.Empty(t, report.Unused)
					for i, x := range m.values {
						for k := range x {
							require.Equal(t, float32(64*(k+i+step)*6), x[k], "parameter %d", i)
						}
					}
				}
				if w.Rank() == 0 {
					require.Equal(t, <-orders, slices.Concat(bucketsOf(r)...))
				}
				digests := make([]int64, 3*len(sizes))
				var mine []int64
				for _, p := range slices.Concat(bucketsOf(r)...) {
					mine = append(mine, int64(p))
				}
				require.NoError(t, rank.AllGather(ctx, w.Group(), digests, mine))
				require.Equal(t, slices.Concat(mine, mine, mine), digests)
				return r.Close()
			}))
		})
	}
}

func TestUnusedParametersAreNamed(t *testing.T) {
	require.NoError(t, rank.Run(t.Context(), 2, func(ctx context.Context, w *rank.World) error {
		m := modelOf(4, 4, 4)
		r, err := pipeline.NewReducer(pipeline.ReducerConfig{Group: w.Group(), Params: m.params, Op: kolo.Avg})
		require.NoError(t, err)
		for range 2 {
			s, err := r.Begin()
			require.NoError(t, err)
			for i := range m.values {
				clear(m.values[i])
				if i != int(w.Rank()) { // each rank lacks another
					m.values[i][0] = 2
					require.NoError(t, s.Ready(i))
				}
			}
			report, err := s.Wait(ctx)
			require.NoError(t, err)
			require.Equal(t, []string{fmt.Sprint("layer ", int(w.Rank()))}, report.Unused)
			for i, want := range []float32{1, 1, 2} {
				require.Equal(t, want, m.values[i][0])
			}
		}
		return r.Close()
	}))
}

// Four steps of a quarter of the loss are one step of a batch that is four times larger.
func TestAccumulation(t *testing.T) {
	const k, ranks = 4, 2
	require.NoError(t, rank.Run(t.Context(), ranks, func(ctx context.Context, w *rank.World) error {
		m := modelOf(8, 6)
		r, err := pipeline.NewReducer(pipeline.ReducerConfig{Group: w.Group(), Params: m.params, Op: kolo.Avg, Accumulate: k})
		require.NoError(t, err)
		require.Equal(t, 0.25, r.LossScale())
		for round := range 3 {
			for i := range m.values {
				clear(m.values[i])
			}
			before := w.Group().Calls()
			for micro := range k {
				s, err := r.Begin()
				require.NoError(t, err)
				require.Equal(t, micro == k-1, s.Reduces)
				for i := range m.values {
					m.add(i, micro, w.Rank(), r.LossScale())
					require.NoError(t, s.Ready(i))
				}
				if !s.Reduces {
					require.Equal(t, before, w.Group().Calls(), "nothing is said in between")
				}
				_, err = s.Wait(ctx)
				require.NoError(t, err)
			}
			for i, x := range m.values {
				for j := range x { // the mean over 4 micro-batches of 2 ranks
					require.Equal(t, float32(64*(float64(j+i)+1.5)*1.5), x[j], "round %d", round)
				}
			}
		}
		return r.Close()
	}))
}

// Gradients are divided by what the loss was multiplied by, bucket for bucket, and
// clipped by the norm of all.
func TestScalingBeforeAndClippingAfter(t *testing.T) {
	require.NoError(t, rank.Run(t.Context(), 2, func(ctx context.Context, w *rank.World) error {
		m, buckets := modelOf(2, 2), 0
		floats := m.values
		r, err := pipeline.NewReducer(pipeline.ReducerConfig{Group: w.Group(), Params: m.params, Op: kolo.Avg, Bucket: 8,
			Before: func(_ npu.Stream, b pipeline.Bucket) error {
				buckets++
				for _, p := range b.Params {
					for k := range floats[p] {
						floats[p][k] /= 1024
					}
				}
				return nil
			},
			After: func(npu.Stream) error {
				sum := float32(0)
				for _, x := range floats {
					for _, v := range x {
						sum += v * v
					}
				}
				require.Equal(t, float32(100), sum, "the norm of the mean, which is 10")
				for _, x := range floats {
					for k := range x {
						x[k] /= 10
					}
				}
				return nil
			}})
		require.NoError(t, err)
		s, err := r.Begin()
		require.NoError(t, err)
		for i := range floats { // 6 and 8, and 0, are the means
			floats[i][0] = 1024 * float32((6+2*i)*2*int(w.Rank()))
			require.NoError(t, s.Ready(i))
		}
		_, err = s.Wait(ctx)
		require.NoError(t, err)
		require.Equal(t, 2, buckets)
		require.Equal(t, [][]float32{{0.6, 0}, {0.8, 0}}, floats)
		return r.Close()
	}))
}

func TestReducersOfDifferentModels(t *testing.T) {
	for name, model := range map[string]func(r kolo.Rank) *model{
		"names": func(r kolo.Rank) *model {
			m := modelOf(4, 4)
			m.params[0].Name = fmt.Sprint("of rank ", int(r))
			return m
		},
		"sizes": func(r kolo.Rank) *model { return modelOf(4, 4+int(r)) },
	} {
		err := rank.Run(t.Context(), 2, func(ctx context.Context, w *rank.World) error {
			r, err := pipeline.NewReducer(pipeline.ReducerConfig{Group: w.Group(), Params: model(w.Rank()).params})
			require.NoError(t, err)
			s, err := r.Begin()
			require.NoError(t, err)
			_, err = s.Wait(ctx)
			require.NoError(t, r.Close())
			return err
		})
		require.ErrorIs(t, err, kolo.ErrMismatch, name)
	}
}

// Fifty layers whose gradients come last layer first. What the wire adds to the
// backward pass is the last bucket.
func TestReducerOfFiftyLayers(t *testing.T) {
	const layers, each = 50, 1 << 18 // elements, which are 1 MiB
	for _, c := range []struct {
		bucket   int64 // MiB
		backward time.Duration
		hidden   float64
	}{{7, 40 * us, 0.85}, {6, 25 * us, 0.85}, {24, 30 * us, 0.5}} { // 7 fit; of 6 and 24 there would be a rest
		backward := c.backward
		onDevices(t, 2, sim.Config{}, func(p *place) error {
			var list []pipeline.Param
			for i := range layers {
				list = append(list, pipeline.Param{Name: fmt.Sprint("layer ", i), Gradient: p.buffer(each)})
			}
			scaled := 0
			r, err := pipeline.NewReducer(pipeline.ReducerConfig{Group: p.g, Params: list, Op: kolo.Avg, Bucket: c.bucket << 20,
				Producer: p.producer, Consumer: p.consumer,
				Before: func(s npu.Stream, b pipeline.Bucket) error {
					scaled++
					return s.Launch(npu.Kernel{Name: "clip", Args: memoryOf(b), Bytes: 2 * sizeOf(b)})
				}})
			require.NoError(p.t, err)
			for step := range 2 {
				s, err := r.Begin()
				require.NoError(p.t, err)
				for i := layers - 1; i >= 0; i-- {
					value := func(int64) float32 { return float32((step + i) * (1 + int(p.g.Rank()))) }
					require.NoError(p.t, p.set(list[i].Gradient, 64, pipeline.Range{From: 0, To: 1}, backward, value))
					require.NoError(p.t, s.Ready(i))
				}
				require.NoError(p.t, s.Flush())
				for _, i := range []int{0, 17, layers - 1} { // on the Consumer, after Flush
					require.Equal(p.t, float32(step+i)*1.5, p.values(list[i].Gradient)[64])
				}
				report, err := s.Wait(p.ctx)
				require.NoError(p.t, err)
				last := report.Chunks[len(report.Chunks)-1]
				require.LessOrEqual(p.t, float64(report.Exposed), 1.1*float64(last.Ended-last.Begun))
				require.Greater(p.t, report.Hidden, c.hidden)
				require.Zero(p.t, report.Staged)
				if p.g.Rank() == 0 && step == 1 {
					p.t.Logf("buckets of up to %d MiB, backward %v a layer: %d buckets, compute %v, communication %v, overlapped %v, efficiency %.3f, hidden %.3f, exposed %v, the last bucket %v",
						c.bucket, backward, len(report.Chunks), report.Compute, report.Comm, report.Overlapped, report.Efficiency, report.Hidden, report.Exposed, last.Ended-last.Begun)
				}
			}
			require.Equal(p.t, 2*len(r.Buckets()), scaled)
			require.NoError(p.t, p.consumer.Sync(p.ctx))
			return r.Close()
		})
	}
}

func memoryOf(b pipeline.Bucket) (list []kolo.Memory) {
	for _, x := range b.Tensors {
		list = append(list, x.Memory)
	}
	return list
}

func sizeOf(b pipeline.Bucket) (n int64) {
	for _, m := range memoryOf(b) {
		n += m.Len()
	}
	return n
}

const us = time.Microsecond

func TestReducerThatIsRefused(t *testing.T) {
	require.NoError(t, rank.Run(t.Context(), 1, func(ctx context.Context, w *rank.World) error {
		m, twice := modelOf(4, 4), modelOf(4, 4)
		twice.params[1].Name = twice.params[0].Name
		for name, c := range map[string]pipeline.ReducerConfig{
			"no group":   {Params: m.params},
			"no params":  {Group: w.Group()},
			"empty":      {Group: w.Group(), Params: modelOf(3, 0).params},
			"one name":   {Group: w.Group(), Params: twice.params},
			"accumulate": {Group: w.Group(), Params: m.params, Accumulate: -1},
		} {
			_, err := pipeline.NewReducer(c)
			require.ErrorIs(t, err, kolo.ErrArgument, name)
		}
		r, err := pipeline.NewReducer(pipeline.ReducerConfig{Group: w.Group(), Params: m.params})
		require.NoError(t, err)
		s, err := r.Begin()
		require.NoError(t, err)
		require.NoError(t, s.Ready(1))
		require.ErrorIs(t, s.Ready(1), kolo.ErrArgument)
		require.ErrorIs(t, s.Ready(2), kolo.ErrArgument)
		_, err = r.Begin()
		require.ErrorIs(t, err, kolo.ErrArgument)
		require.ErrorIs(t, r.Close(), kolo.ErrArgument)
		_, err = s.Wait(ctx)
		require.NoError(t, err)
		return r.Close()
	}))
}

// A Wait too many is this rank's mistake alone: it harms neither the group nor the next step.
func TestReducerStepIsWaitedForOnce(t *testing.T) {
	require.NoError(t, rank.Run(t.Context(), 2, func(ctx context.Context, w *rank.World) error {
		x := []float32{1, 2}
		for _, priority := range []bool{false, true} {
			r, err := pipeline.NewReducer(pipeline.ReducerConfig{Group: w.Group(), Params: []pipeline.Param{{Name: "x", Gradient: rank.Of(x)}}, Priority: priority})
			require.NoError(t, err)
			for range 2 {
				s, err := r.Begin()
				require.NoError(t, err)
				require.NoError(t, s.Ready(0))
				_, err = s.Wait(ctx)
				require.NoError(t, err)
				if w.Rank() == 1 {
					_, err = s.Wait(ctx)
					require.ErrorIs(t, err, kolo.ErrArgument)
					require.ErrorContains(t, err, "waited for already")
					require.ErrorIs(t, s.Ready(0), kolo.ErrArgument)
				}
			}
			require.NoError(t, r.Close())
		}
		require.Equal(t, []float32{16, 32}, x)
		return w.Group().Err()
	}))
}
