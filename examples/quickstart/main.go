// Command quickstart trains one step of a linear model on 8 ranks of one process:
// each computes the gradient of its own share of the data, an AllReduce averages the
// gradients, and the result is checked against the gradient over all the data.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/rank"
)

const (
	ranks    = 8
	features = 4096
	samples  = 32 // of each rank
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		slog.Error("quickstart", "error", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) error {
	fmt.Fprintf(out, "%d ranks, %d samples each, a model of %d weights\n", ranks, samples, features)
	weights := make([]float32, features) // the same on every rank; only read
	return rank.Run(ctx, ranks, func(ctx context.Context, w *rank.World) error {
		grads := gradient(weights, shard(w.Rank()))
		if err := rank.AllReduce(ctx, w.Group(), grads, kolo.Avg); err != nil {
			return err
		}
		worst, err := check(weights, grads)
		if err != nil {
			return err
		}
		if w.Rank() != 0 {
			return nil
		}
		choice, err := w.Group().Explain(kolo.Call{Collective: kolo.AllReduce, DType: kolo.Float32, Op: kolo.Avg, Count: features})
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "averaged gradient: right on all ranks, largest relative difference %.1e\n", worst)
		fmt.Fprintf(out, "algorithm: %s, estimated at %v\n\n%s\n", choice.Algorithm, choice.Cost, choice.Explain())
		return nil
	})
}

// sample is one observation: inputs and the value that the model should give.
type sample struct {
	x []float32
	y float32
}

// shard makes the data of one rank: noisy observations of y = x[0] - 2 x[1] + 3 x[2].
func shard(r kolo.Rank) []sample {
	rng := rand.New(rand.NewPCG(uint64(r), 42))
	data := make([]sample, samples)
	for i := range data {
		x := make([]float32, features)
		for k := range x {
			x[k] = float32(rng.NormFloat64())
		}
		data[i] = sample{x, x[0] - 2*x[1] + 3*x[2] + 0.01*float32(rng.NormFloat64())}
	}
	return data
}

// gradient is that of the mean squared error.
func gradient(weights []float32, data []sample) []float32 {
	g := make([]float32, len(weights))
	for _, s := range data {
		var sum float32
		for k, x := range s.x {
			sum += weights[k] * x
		}
		scale := 2 * (sum - s.y) / float32(len(data))
		for k, x := range s.x {
			g[k] += scale * x
		}
	}
	return g
}

// check compares grads with the gradient over the data of all ranks.
func check(weights, grads []float32) (worst float64, err error) {
	var all []sample
	for r := range ranks {
		all = append(all, shard(kolo.Rank(r))...)
	}
	for k, want := range gradient(weights, all) {
		diff := math.Abs(float64(grads[k]-want)) / math.Max(1, math.Abs(float64(want)))
		if diff > 1e-4 {
			return diff, fmt.Errorf("weight %d: gradient %v, want %v", k, grads[k], want)
		}
		worst = max(worst, diff)
	}
	return worst, nil
}
