// Command async launches an AllReduce, computes while it is under way, and waits
// for it: 4 ranks, three layers whose gradients become ready one after the other.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/rank"
)

const (
	ranks  = 4
	layers = 3
	size   = 1 << 20 // elements of a layer's gradient
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		slog.Error("async", "error", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) error {
	return rank.Run(ctx, ranks, func(ctx context.Context, w *rank.World) error {
		grads := make([][]float32, layers)
		works := make([]rank.Work, layers)
		start := time.Now()
		var launched [layers]time.Duration
		for l := range layers {
			grads[l] = backward(w.Rank(), l)
			works[l] = rank.AllReduceAsync(w.Group(), grads[l], kolo.Sum) // returns at once
			launched[l] = time.Since(start)
		}
		// Here a program would go on with the next layer, or the next batch.
		for l, work := range works {
			if err := work.Wait(ctx); err != nil {
				return err
			}
			if err := check(l, grads[l]); err != nil {
				return err
			}
			if w.Rank() == 0 {
				fmt.Fprintf(out, "layer %d: launched at %v, summed over %d ranks at %v\n", l,
					launched[l].Round(time.Microsecond), ranks, time.Since(start).Round(time.Microsecond))
			}
		}
		return nil
	})
}

// backward computes the gradient of a layer: different on every rank and at every index.
func backward(r kolo.Rank, layer int) []float32 {
	g := make([]float32, size)
	for i := range g {
		g[i] = float32(int(r)+1) * float32(i%1000+layer)
	}
	return g
}

func check(layer int, sum []float32) error {
	for i, got := range sum {
		if want := float32(ranks*(ranks+1)/2) * float32(i%1000+layer); got != want {
			return fmt.Errorf("layer %d, element %d: %v, want %v", layer, i, got, want)
		}
	}
	return nil
}
