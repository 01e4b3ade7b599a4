// Command accumulation fits a line by gradient descent on two ranks: with batches of
// 64 samples, and with four times 16 samples, of which only the fourth pass communicates.
// Both are the same steps, and make as many calls.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/pipeline"
	"github.com/kolo-ccl/kolo/rank"
)

const (
	ranks = 2
	batch = 64 // samples of a rank in a step
	steps = 200
	rate  = 0.2
	every = 4 // passes to a step, where they are accumulated
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		slog.Error("accumulation", "error", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) error {
	for _, k := range []int{1, every} {
		f, err := fit(ctx, k)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%d passes of %2d samples to a step: y = %.6f x + %.6f, %d collective calls\n", k, batch/k, f.slope, f.offset, f.calls)
	}
	return nil
}

// line is what was found, and what it took.
type line struct {
	slope, offset float64
	calls         uint64
}

// fit fits a line, with k passes to a step.
func fit(ctx context.Context, k int) (line, error) {
	found := make([]line, ranks)
	err := rank.Run(ctx, ranks, func(ctx context.Context, w *rank.World) error {
		var err error
		found[w.Rank()], err = fitRank(ctx, w.Group(), k)
		return err
	})
	return found[0], err
}

func fitRank(ctx context.Context, g *rank.Group, k int) (line, error) {
	slope, offset := []float64{0}, []float64{0}
	params := []pipeline.Param{{Name: "slope", Gradient: rank.Of(slope)}, {Name: "offset", Gradient: rank.Of(offset)}}
	r, err := pipeline.NewReducer(pipeline.ReducerConfig{Group: g, Params: params, Op: kolo.Avg, Accumulate: k})
	if err != nil {
		return line{}, err
	}
	rng := rand.New(rand.NewPCG(uint64(g.Rank()), 5)) // this rank's shard of the data
	var f line
	for range steps {
		slope[0], offset[0] = 0, 0
		for range k {
			s, err := r.Begin()
			if err != nil {
				return line{}, err
			}
			for range batch / k {
				x := 2*rng.Float64() - 1
				y := 3*x - 1 + 0.01*rng.NormFloat64()
				// The gradient of the mean squared error of the pass, times LossScale.
				d := 2 * (f.slope*x + f.offset - y) / float64(batch/k) * r.LossScale()
				slope[0] += d * x
				offset[0] += d
			}
			for i := range params {
				if err := s.Ready(i); err != nil {
					return line{}, err
				}
			}
			if _, err := s.Wait(ctx); err != nil {
				return line{}, err
			}
		}
		f.slope -= rate * slope[0]
		f.offset -= rate * offset[0]
	}
	f.calls = g.Calls()
	return f, r.Close()
}
