// Command fused_matmul is a row-parallel layer: each rank multiplies its columns of the
// input by its rows of the weights, the products are added, and ReLU comes behind. Once it
// is done step by step, and once tile by tile, fused: the results are equal to the bit.
// Here the same processors multiply and add, so that nothing is gained but the epilogue's
// memory being warm; with devices a tile is on the wire while the next is multiplied.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/pipeline"
	"github.com/kolo-ccl/kolo/rank"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas32"
)

const (
	ranks   = 4
	rows    = 256 // of the input and the product
	inner   = 512 // columns of the input of all ranks together
	columns = 256 // of the product
	tiles   = 8
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		slog.Error("fused_matmul", "error", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) error {
	return rank.Run(ctx, ranks, func(ctx context.Context, w *rank.World) error {
		l := newLayer(w.Rank())
		want, serial, err := l.stepByStep(ctx, w.Group())
		if err != nil {
			return err
		}
		got, report, err := l.fused(ctx, w.Group())
		if err != nil {
			return err
		}
		if !slices.Equal(want, got) {
			return fmt.Errorf("%v: fused and step by step differ", w.Rank())
		}
		if w.Rank() == 0 {
			fmt.Fprintf(out, "%d ranks, %d x %d x %d: step by step %v, fused in %d tiles; the results are equal\n",
				ranks, rows, inner, columns, serial.Round(time.Microsecond), tiles)
			return report.Print(out)
		}
		return nil
	})
}

// layer is one rank's share: its columns of the input and its rows of the weights.
type layer struct{ input, weights blas32.General }

func newLayer(r kolo.Rank) *layer {
	rng := rand.New(rand.NewPCG(uint64(r), 1))
	random := func(rows, columns int) blas32.General {
		m := blas32.General{Rows: rows, Cols: columns, Stride: columns, Data: make([]float32, rows*columns)}
		for i := range m.Data {
			m.Data[i] = float32(rng.NormFloat64())
		}
		return m
	}
	return &layer{random(rows, inner/ranks), random(inner/ranks, columns)}
}

// multiply makes some rows of the product.
func (l *layer) multiply(product []float32, r pipeline.Range) {
	n := int(r.Len())
	x, y := l.input, blas32.General{Rows: n, Cols: columns, Stride: columns, Data: product[r.From*columns : r.To*columns]}
	x.Rows, x.Data = n, x.Data[int(r.From)*x.Stride:]
	blas32.Gemm(blas.NoTrans, blas.NoTrans, 1, x, l.weights, 0, y)
}

func relu(x []float32) {
	for i, v := range x {
		x[i] = max(v, 0)
	}
}

// stepByStep multiplies, adds and activates one after the other.
func (l *layer) stepByStep(ctx context.Context, g *rank.Group) ([]float32, time.Duration, error) {
	product := make([]float32, rows*columns)
	if err := rank.Barrier(ctx, g); err != nil {
		return nil, 0, err
	}
	start := time.Now()
	l.multiply(product, pipeline.Range{From: 0, To: rows})
	if err := rank.AllReduce(ctx, g, product, kolo.Sum); err != nil {
		return nil, 0, err
	}
	relu(product)
	return product, time.Since(start), nil
}

// fused does the same tile by tile.
func (l *layer) fused(ctx context.Context, g *rank.Group) ([]float32, pipeline.Report, error) {
	product := make([]float32, rows*columns)
	f, err := pipeline.NewFused(pipeline.FusedConfig{Group: g, Product: rank.Of(product), Rows: rows, Op: kolo.Sum, Tiles: tiles,
		Compute: func(_ npu.Stream, r pipeline.Range) error {
			l.multiply(product, r)
			return nil
		},
		Epilogue: func(_ npu.Stream, r pipeline.Range) error {
			relu(product[r.From*columns : r.To*columns])
			return nil
		}})
	if err != nil {
		return nil, pipeline.Report{}, err
	}
	if err := rank.Barrier(ctx, g); err != nil {
		return nil, pipeline.Report{}, err
	}
	report, err := f.Run(ctx)
	if err != nil {
		return nil, pipeline.Report{}, err
	}
	return product, report, f.Close()
}
