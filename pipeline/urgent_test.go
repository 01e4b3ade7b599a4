package pipeline_test

import (
	"context"
	"errors"
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

// forward is a step of a model whose gradients take longer on the wire than to compute:
// the backward pass, and then a forward pass that uses layer after layer. It returns when
// the first was used, and when all were.
func (p *place) forward(r *pipeline.Reducer, list []pipeline.Param, step int, backward time.Duration) (first, all time.Duration, report pipeline.Report) {
	start := time.Now()
	s, err := r.Begin()
	require.NoError(p.t, err)
	for i := len(list) - 1; i >= 0; i-- {
		value := func(k int64) float32 { return float32((step + i + int(k)) * (1 + int(p.g.Rank()))) }
		require.NoError(p.t, p.set(list[i].Gradient, list[i].Gradient.Count(), pipeline.Range{From: 0, To: 50}, backward, value))
		require.NoError(p.t, s.Ready(i))
	}
	for i := range list {
		require.NoError(p.t, s.Use(p.ctx, i))
		require.NoError(p.t, p.consumer.Callback(func(error) {
			if all = time.Since(start); i == 0 {
				first = all
			}
		}))
	}
	require.Equal(p.t, start, time.Now(), "nothing waits on the host")
	report, err = s.Wait(p.ctx)
	require.NoError(p.t, err)
	for i, x := range list[:min(4, len(list))] {
		for k, v := range p.values(x.Gradient)[:50] {
			require.Equal(p.t, float32(3*(step+i+k)), v, "layer %d", i)
		}
	}
	return first, all, report
}

// If communication takes longer than computation, the first layer's gradients are there
// sooner with priorities, at no cost to the whole.
func TestPriorityIsSoonerToFirstUse(t *testing.T) {
	const layers, each = 28, 1 << 18 // elements, which are 1 MiB
	// A quarter of everything: layers of 4 MiB, default slices, buckets of 8 MiB, 56 GB/s.
	machine := sim.Config{HCCS: sim.Line{Bandwidth: 14e9}, HBM: 300e9}
	var first, all [2][2]time.Duration
	for k, ratio := range []time.Duration{20, 60} { // us to compute a layer, which is on the wire for 84
		for i, priority := range []bool{false, true} {
			onDevices(t, 2, machine, func(p *place) error {
				var list []pipeline.Param
				for i := range layers {
					list = append(list, pipeline.Param{Name: fmt.Sprint("layer ", i), Gradient: p.buffer(each)})
				}
				r, err := pipeline.NewReducer(pipeline.ReducerConfig{Group: p.g, Params: list, Producer: p.producer, Consumer: p.consumer,
					Bucket: 2 << 20, Priority: priority, Slice: pipeline.DefaultSlice / 4})
				require.NoError(p.t, err)
				one, every, report := p.forward(r, list, 0, ratio*us)
				require.Greater(p.t, report.Comm, report.Compute)
				if p.g.Rank() == 0 {
					first[k][i], all[k][i] = one, every
					p.t.Logf("priority %v: compute %v, communication %v in %d calls, first use at %v, last at %v",
						priority, report.Compute, report.Comm, len(report.Chunks), one, every)
				}
				require.NoError(p.t, p.consumer.Sync(p.ctx))
				return r.Close()
			})
		}
		require.Less(t, float64(first[k][1]), 0.9*float64(first[k][0]), "at least 10 %% sooner")
		require.Less(t, float64(all[k][1]), 1.1*float64(all[k][0]))
	}
}

// An urgent bucket waits for the slice on the wire and the one that is decided, and goes
// in front of all others.
func TestPreemptionAtSliceBoundaries(t *testing.T) {
	onDevices(t, 2, sim.Config{}, func(p *place) error {
		list := []pipeline.Param{{Name: "urgent", Gradient: p.buffer(1 << 19)}, {Name: "large", Gradient: p.buffer(1 << 22)}}
		r, err := pipeline.NewReducer(pipeline.ReducerConfig{Group: p.g, Params: list, Producer: p.producer, Consumer: p.consumer,
			Bucket: 16 << 20, First: 16 << 20, Priority: true, Slice: 1 << 20})
		require.NoError(p.t, err)
		require.Equal(p.t, [][]int{{1}, {0}}, bucketsOf(r))
		_, _, report := p.forward(r, list, 0, 100*us)
		var sent []int
		for _, c := range report.Chunks {
			sent = append(sent, c.Part)
		}
		at, ahead := slices.Index(sent, 1), 0
		for _, c := range report.Chunks[:at] {
			if c.Ended > report.Chunks[at].Ready {
				ahead++ // though the urgent one was there
			}
		}
		require.LessOrEqual(p.t, ahead, 2, "%v", sent)
		require.Equal(p.t, []int{1, 1}, sent[at:at+2], "%v", sent)
		require.Positive(p.t, at)
		require.Less(p.t, at+2, len(sent), "the large one goes on behind it: %v", sent)
		require.NoError(p.t, p.consumer.Sync(p.ctx))
		return r.Close()
	})
}

// Every rank has gradients in an order of its own and waits for parameters in an order
// of its own; all send the same slices in one order, and all sums are right. On the
// host and on devices.
func TestPriorityWithRandomOrders(t *testing.T) {
	sizes := []int{30, 5, 12, 1, 40, 9, 22, 3, 17}
	for seed := range uint64(20) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			require.NoError(t, rank.Run(t.Context(), 3, func(ctx context.Context, w *rank.World) error {
				rng, m := rand.New(rand.NewPCG(seed, uint64(w.Rank()))), modelOf(sizes...)
				r, err := pipeline.NewReducer(pipeline.ReducerConfig{Group: w.Group(), Params: m.params, Bucket: 160, First: 60,
					Priority: true, Slice: 24, Fusion: pipeline.Fusion(1 + seed%2)})
				require.NoError(t, err)
				for step := range 4 {
					for _, x := range m.values {
						clear(x)
					}
					s, err := r.Begin()
					require.NoError(t, err)
					for _, i := range rng.Perm(len(sizes)) {
						m.add(i, step, w.Rank(), 1)
						require.NoError(t, s.Ready(i))
					}
					for _, i := range rng.Perm(len(sizes))[:rng.IntN(len(sizes))] {
						require.NoError(t, s.Use(ctx, i))
						require.Equal(t, float32(64*(i+step)*6), m.values[i][0])
					}
					report, err := s.Wait(ctx)
					if err != nil {
						return err
					}
					for i, x := range m.values {
						for k := range x {
							require.Equal(t, float32(64*(k+i+step)*6), x[k], "parameter %d", i)
						}
					}
					mine := make([]int64, len(report.Chunks))
					for i, c := range report.Chunks {
						mine[i] = int64(c.Part)
					}
					all := make([]int64, 3*len(mine))
					require.NoError(t, rank.AllGather(ctx, w.Group(), all, mine))
					for r := range 3 {
						require.Equal(t, mine, all[r*len(mine):(r+1)*len(mine)], "rank %d sent in another order", r)
					}
					require.Equal(t, seed%2 == 1, report.Staged > 0)
				}
				return r.Close()
			}))
			onDevices(t, 3, sim.Config{}, func(p *place) error {
				rng := rand.New(rand.NewPCG(seed, 100+uint64(p.g.Rank())))
				var list []pipeline.Param
				for i := range 7 {
					list = append(list, pipeline.Param{Name: fmt.Sprint(i), Gradient: p.buffer(int64(50 + 300*i))})
				}
				r, err := pipeline.NewReducer(pipeline.ReducerConfig{Group: p.g, Params: list, Producer: p.producer, Consumer: p.consumer,
					Bucket: 4000, First: 1000, Priority: true, Slice: 500})
				require.NoError(p.t, err)
				for step := range 3 {
					s, err := r.Begin()
					require.NoError(p.t, err)
					for _, i := range rng.Perm(len(list)) {
						value := func(int64) float32 { return float32((step + i) * (1 + int(p.g.Rank()))) }
						require.NoError(p.t, p.set(list[i].Gradient, 50, pipeline.Range{From: 0, To: 50}, time.Duration(rng.IntN(40))*us, value))
						require.NoError(p.t, s.Ready(i))
					}
					for _, i := range rng.Perm(len(list))[:3] {
						require.NoError(p.t, s.Use(p.ctx, i))
						require.Equal(p.t, float32(6*(step+i)), p.values(list[i].Gradient)[49])
					}
					_, err = s.Wait(p.ctx)
					require.NoError(p.t, err)
				}
				require.NoError(p.t, p.consumer.Sync(p.ctx))
				return r.Close()
			})
		})
	}
}

// What a step waits for ends with its context, on every rank, and the error says whether
// that was a deadline.
func TestPriorityIsCanceled(t *testing.T) {
	canceled := func(ctx context.Context) (context.Context, context.CancelFunc) {
		ended, stop := context.WithCancel(ctx)
		stop()
		return ended, stop
	}
	late := func(ctx context.Context) (context.Context, context.CancelFunc) { return context.WithTimeout(ctx, 0) }
	for name, c := range map[string]struct {
		end  func(context.Context) (context.Context, context.CancelFunc)
		errs []error
	}{
		"Canceled": {canceled, []error{kolo.ErrCanceled, context.Canceled}},
		"Deadline": {late, []error{kolo.ErrCanceled, kolo.ErrDeadline, context.DeadlineExceeded}},
	} {
		t.Run(name, func(t *testing.T) {
			begun, aborted := make(chan struct{}), make(chan struct{})
			err := rank.Run(t.Context(), 2, func(ctx context.Context, w *rank.World) error {
				m := modelOf(100, 100)
				r, err := pipeline.NewReducer(pipeline.ReducerConfig{Group: w.Group(), Params: m.params, Priority: true, Bucket: 400, Slice: 80})
				require.NoError(t, err)
				s, err := r.Begin()
				require.NoError(t, err)
				if w.Rank() == 1 { // it never computes
					close(begun)
					<-aborted
					require.NoError(t, s.Abort(errors.New("late")))
					_, err = s.Wait(ctx)
					require.ErrorIs(t, err, kolo.ErrAborted)
					return r.Close()
				}
				<-begun
				short, stop := c.end(ctx)
				defer stop()
				require.NoError(t, s.Ready(0))
				used := s.Use(short, 1)
				close(aborted)
				_, waited := s.Wait(ctx)
				_, again := r.Begin()
				for _, want := range c.errs {
					require.ErrorIs(t, used, want)
					require.ErrorIs(t, waited, want)
					require.ErrorIs(t, again, want)
				}
				return r.Close()
			})
			require.NoError(t, err)
		})
	}
}

func TestPriorityThatIsRefused(t *testing.T) {
	require.NoError(t, rank.Run(t.Context(), 1, func(ctx context.Context, w *rank.World) error {
		m := modelOf(4, 5000)
		for name, c := range map[string]pipeline.ReducerConfig{
			"after":  {Priority: true, After: func(npu.Stream) error { return nil }},
			"slice":  {Priority: true, Slice: -1},
			"slices": {Priority: true, Slice: 1},
			"fusion": {Fusion: 9},
		} {
			c.Group, c.Params = w.Group(), m.params
			_, err := pipeline.NewReducer(c)
			if name == "slices" {
				require.ErrorIs(t, err, kolo.ErrLimit)
			} else {
				require.ErrorIs(t, err, kolo.ErrArgument, name)
			}
		}
		r, err := pipeline.NewReducer(pipeline.ReducerConfig{Group: w.Group(), Params: m.params, Priority: true})
		require.NoError(t, err)
		s, err := r.Begin()
		require.NoError(t, err)
		require.ErrorIs(t, s.Use(ctx, 2), kolo.ErrArgument)
		require.NoError(t, s.Ready(1))
		require.ErrorIs(t, s.Ready(1), kolo.ErrArgument)
		require.ErrorIs(t, r.Close(), kolo.ErrArgument)
		require.NoError(t, s.Use(ctx, 1)) // which makes ready what was not
		require.Error(t, s.Ready(0))
		report, err := s.Wait(ctx)
		require.NoError(t, err)
		require.Equal(t, []string{"layer 0"}, report.Unused)
		_, err = s.Wait(ctx)
		require.ErrorIs(t, err, kolo.ErrArgument)
		return r.Close()
	}))
}
