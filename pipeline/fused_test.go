package pipeline_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/npu/sim"
	"github.com/kolo-ccl/kolo/pipeline"
	"github.com/kolo-ccl/kolo/rank"

	"github.com/stretchr/testify/require"
)

// matmul is the rows of x times w, of inner by columns, for one rank's share.
func matmul(y, x, w []float32, rows pipeline.Range, inner, columns int64) {
	for i := rows.From; i < rows.To; i++ {
		for j := range columns {
			sum := float32(0)
			for k := range inner {
				sum += x[i*inner+k] * w[k*columns+j]
			}
			y[i*columns+j] = sum
		}
	}
}

func relu(y []float32) {
	for i, v := range y {
		y[i] = max(v, 0)
	}
}

// shares are a rank's columns of x and rows of w.
func shares(r kolo.Rank, rows, inner, columns int64) (x, w []float32) {
	x, w = make([]float32, rows*inner), make([]float32, inner*columns)
	for i := range x {
		x[i] = float32((i*7+int(r)*13)%11) - 5
	}
	for i := range w {
		w[i] = float32((i*5+int(r)*3)%7)/4 - 1
	}
	return x, w
}

// Tile by tile is what MatMul, AllReduce and ReLU one after the other are, to the bit.
func TestFusedIsWhatTheStepsAre(t *testing.T) {
	const rows, inner, columns = 37, 9, 12
	for _, tiles := range []int{1, 2, 5, 36, 37, 100} {
		require.NoError(t, rank.Run(t.Context(), 3, func(ctx context.Context, w *rank.World) error {
			g := w.Group()
			x, weights := shares(g.Rank(), rows, inner, columns)
			want, got := make([]float32, rows*columns), make([]float32, rows*columns)
			var finished int64
			f, err := pipeline.NewFused(pipeline.FusedConfig{Group: g, Product: rank.Of(got), Rows: rows, Tiles: tiles,
				Compute: func(_ npu.Stream, r pipeline.Range) error {
					matmul(got, x, weights, r, inner, columns)
					return nil
				},
				Epilogue: func(_ npu.Stream, r pipeline.Range) error {
					require.Equal(t, finished, r.From, "in order")
					finished = r.To
					relu(got[r.From*columns : r.To*columns])
					return nil
				}})
			require.NoError(t, err)
			for step := range 3 {
				x[step]++
				matmul(want, x, weights, pipeline.Range{From: 0, To: rows}, inner, columns)
				require.NoError(t, rank.AllReduce(ctx, g, want, kolo.Sum))
				relu(want)
				finished = 0
				report, err := f.Run(ctx)
				if err != nil {
					return err
				}
				require.Equal(t, want, got, "%d tiles", tiles)
				require.Equal(t, int64(rows), finished)
				require.Len(t, report.Chunks, min(tiles, rows))
			}
			return f.Close()
		}))
	}
}

// On devices a tile is on the wire while the next is multiplied, and the tile before it
// gets its activation: in virtual time, against one after the other.
func TestFusedOnDevices(t *testing.T) {
	const rows, inner, columns = 512, 8, 512
	const multiply, activate = 1600 * us, 160 * us // as if inner were large
	var took [2]time.Duration
	for i, tiles := range []int{1, 16} {
		onDevices(t, 2, sim.Config{HCCS: sim.Line{Bandwidth: 1e9}}, func(p *place) error { // 1 MiB takes as long as the product
			x, w := shares(p.g.Rank(), rows, inner, columns)
			product := p.buffer(rows * columns)
			part := func(r pipeline.Range, all time.Duration) time.Duration { return all * time.Duration(r.Len()) / rows }
			f, err := pipeline.NewFused(pipeline.FusedConfig{Group: p.g, Product: product, Rows: rows, Tiles: tiles,
				Producer: p.producer, Consumer: p.consumer,
				Compute: func(s npu.Stream, r pipeline.Range) error {
					return s.Launch(npu.Kernel{Name: "matmul", Time: part(r, multiply), Args: []kolo.Memory{product.Memory}, Host: func(args [][]byte) error {
						y := make([]float32, rows*columns)
						matmul(y, x, w, r, inner, columns)
						for i := r.From * columns; i < r.To*columns; i++ {
							binary.NativeEndian.PutUint32(args[0][4*i:], math.Float32bits(y[i]))
						}
						return nil
					}})
				},
				Epilogue: func(s npu.Stream, r pipeline.Range) error {
					return s.Launch(npu.Kernel{Name: "relu", Time: part(r, activate), Args: []kolo.Memory{product.Memory}, Host: func(args [][]byte) error {
						for i := r.From * columns; i < r.To*columns; i++ {
							v := math.Float32frombits(binary.NativeEndian.Uint32(args[0][4*i:]))
							binary.NativeEndian.PutUint32(args[0][4*i:], math.Float32bits(max(v, 0)))
						}
						return nil
					}})
				}})
			require.NoError(p.t, err)
			start := time.Now()
			report, err := f.Run(p.ctx)
			require.NoError(p.t, err)
			got := p.values(product) // behind the epilogues, by the stream alone
			if p.g.Rank() == 0 {
				took[i] = time.Since(start)
				p.t.Logf("%d tiles: matmul %v, all-reduce %v, everything %v, hidden %.2f", tiles, report.Compute, report.Comm, took[i], report.Hidden)
			}
			want := make([]float32, rows*columns)
			matmul(want, x, w, pipeline.Range{From: 0, To: rows}, inner, columns)
			require.NoError(p.t, rank.AllReduce(p.ctx, p.g, want, kolo.Sum))
			relu(want)
			require.Equal(p.t, want, got)
			return f.Close()
		})
	}
	require.Less(t, float64(took[1]), 0.75*float64(took[0]), "fused against serial")
}

// An error of either function ends the operator on every rank.
func TestFusedThatFails(t *testing.T) {
	stop := errors.New("stop")
	for _, where := range []string{"compute", "epilogue"} {
		require.NoError(t, rank.Run(t.Context(), 2, func(ctx context.Context, w *rank.World) error {
			fails := func(name string) func(npu.Stream, pipeline.Range) error {
				return func(_ npu.Stream, r pipeline.Range) error {
					if name == where && w.Rank() == 1 && r.From == 4 {
						return stop
					}
					return nil
				}
			}
			f, err := pipeline.NewFused(pipeline.FusedConfig{Group: w.Group(), Product: rank.Of(make([]float32, 16)), Rows: 8, Tiles: 4,
				Compute: fails("compute"), Epilogue: fails("epilogue")})
			require.NoError(t, err)
			_, err = f.Run(ctx)
			if w.Rank() == 1 || where == "compute" {
				require.ErrorIs(t, err, stop, where)
			}
			require.NoError(t, f.Close())
			return nil
		}), where)
	}
}

func TestFusedThatIsRefused(t *testing.T) {
	require.NoError(t, rank.Run(t.Context(), 1, func(_ context.Context, w *rank.World) error {
		g, b := w.Group(), rank.Of(make([]float32, 12))
		compute := func(npu.Stream, pipeline.Range) error { return nil }
		for i, c := range []pipeline.FusedConfig{
			{Product: b, Rows: 3, Compute: compute},
			{Group: g, Product: b, Rows: 3},
			{Group: g, Product: b, Rows: 5, Compute: compute},
			{Group: g, Product: b, Compute: compute},
			{Group: g, Rows: 1, Compute: compute},
			{Group: g, Product: b, Rows: 3, Tiles: -1, Compute: compute},
		} {
			_, err := pipeline.NewFused(c)
			require.ErrorIs(t, err, kolo.ErrArgument, fmt.Sprint(i))
		}
		return nil
	}))
}

func TestFusedTilesAreTheRows(t *testing.T) {
	require.NoError(t, rank.Run(t.Context(), 1, func(ctx context.Context, w *rank.World) error {
		f, err := pipeline.NewFused(pipeline.FusedConfig{Group: w.Group(), Product: rank.Of(make([]float32, 14)), Rows: 7, Tiles: 3,
			Compute: func(npu.Stream, pipeline.Range) error { return nil }})
		require.NoError(t, err)
		require.Equal(t, []pipeline.Range{{From: 0, To: 3}, {From: 3, To: 5}, {From: 5, To: 7}}, f.Tiles())
		return f.Close()
	}))
}
