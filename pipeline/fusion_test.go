package pipeline_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/npu/sim"
	"github.com/kolo-ccl/kolo/pipeline"
	"github.com/kolo-ccl/kolo/rank"

	"github.com/stretchr/testify/require"
)

// Many small gradients are one call, by the medium and by choreographies, and nothing
// is copied, unless it is asked for: then twice, there and back.
func TestSmallTensorsAreOneCall(t *testing.T) {
	sizes, bytes := []int{}, int64(0)
	for i := range 60 {
		sizes = append(sizes, 1+i*7%23)
		bytes += 4 * int64(sizes[i])
	}
	for _, algorithm := range []string{"fabric", "ring", "halving-doubling", "mesh"} {
		for _, fusion := range []pipeline.Fusion{pipeline.FuseBest, pipeline.FuseGather, pipeline.FuseStage} {
			for _, priority := range []bool{false, true} {
				require.NoError(t, rank.Config{Algorithm: algorithm}.Run(t.Context(), 4, func(ctx context.Context, w *rank.World) error {
					m := modelOf(sizes...)
					r, err := pipeline.NewReducer(pipeline.ReducerConfig{Group: w.Group(), Params: m.params, Fusion: fusion, Priority: priority})
					require.NoError(t, err)
					s, err := r.Begin()
					require.NoError(t, err)
					calls := w.Group().Calls()
					for i := range sizes {
						m.add(i, 5, w.Rank(), 1)
						require.NoError(t, s.Ready(i))
					}
					require.NoError(t, s.Use(ctx, 3))
					require.Equal(t, calls+1, w.Group().Calls(), "instead of %d", len(sizes))
					report, err := s.Wait(ctx)
					if err != nil {
						return fmt.Errorf("%s: %w", algorithm, err)
					}
					for i, x := range m.values {
						for k := range x {
							require.Equal(t, float32(64*(k+i+5)*10), x[k], "parameter %d", i)
						}
					}
					want := int64(0)
					if fusion == pipeline.FuseStage {
						want = 2 * bytes
					}
					require.Equal(t, want, report.Staged, algorithm)
					return r.Close()
				}))
			}
		}
	}
}

// On devices the gain shows to the nanosecond: the copies of the staged way are kernels.
func TestGatheringOnDevices(t *testing.T) {
	for _, fusion := range []pipeline.Fusion{pipeline.FuseGather, pipeline.FuseStage} {
		onDevices(t, 2, sim.Config{}, func(p *place) error {
			var list []pipeline.Param
			for i := range 40 {
				list = append(list, pipeline.Param{Name: fmt.Sprint(i), Gradient: p.buffer(int64(100 + i))})
			}
			r, err := pipeline.NewReducer(pipeline.ReducerConfig{Group: p.g, Params: list, Op: kolo.Sum, Fusion: fusion,
				Producer: p.producer, Consumer: p.consumer})
			require.NoError(p.t, err)
			s, err := r.Begin()
			require.NoError(p.t, err)
			for i := range list {
				value := func(k int64) float32 { return float32((1 + i + int(k)) * (1 + int(p.g.Rank()))) }
				require.NoError(p.t, p.set(list[i].Gradient, list[i].Gradient.Count(), pipeline.Range{From: 0, To: 100}, us, value))
				require.NoError(p.t, s.Ready(i))
			}
			require.NoError(p.t, s.Flush())
			for i := range list {
				require.Equal(p.t, float32(3*(1+i+99)), p.values(list[i].Gradient)[99])
			}
			report, err := s.Wait(p.ctx)
			require.NoError(p.t, err)
			require.Equal(p.t, fusion == pipeline.FuseStage, report.Staged > 0)
			if p.g.Rank() == 0 {
				p.t.Logf("fusion %d: %v computed, one call of %v, %d bytes copied", fusion, report.Compute, report.Comm, report.Staged)
			}
			return r.Close()
		})
	}
}

// BenchmarkFusion is a step of 200 gradients of 4 KiB, in one bucket that is gathered or
// staged, and in a bucket for each.
func BenchmarkFusion(b *testing.B) {
	const tensors, each = 200, 1024
	for _, c := range []struct {
		name   string
		bucket int64
		fusion pipeline.Fusion
	}{{"gather", 0, pipeline.FuseGather}, {"stage", 0, pipeline.FuseStage}, {"each-alone", 1, pipeline.FuseBest}} {
		b.Run(fmt.Sprintf("n=4/tensors=%d/bytes=%d/%s", tensors, 4*each, c.name), func(b *testing.B) {
			b.SetBytes(tensors * each * 4)
			b.ReportAllocs()
			err := rank.Run(b.Context(), 4, func(ctx context.Context, w *rank.World) error {
				var sizes []int
				for range tensors {
					sizes = append(sizes, each)
				}
				m := modelOf(sizes...)
				r, err := pipeline.NewReducer(pipeline.ReducerConfig{Group: w.Group(), Params: m.params, Bucket: c.bucket, Fusion: c.fusion})
				if err != nil {
					return err
				}
				for range b.N {
					s, err := r.Begin()
					if err != nil {
						return err
					}
					for i := tensors - 1; i >= 0; i-- {
						if err := s.Ready(i); err != nil {
							return err
						}
					}
					if _, err := s.Wait(ctx); err != nil {
						return err
					}
				}
				return r.Close()
			})
			if err != nil {
				b.Fatal(err)
			}
		})
	}
}
