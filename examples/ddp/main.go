// Command ddp trains a small network on the shards of 1, 4 and 8 ranks, with the
// gradients reduced beside the backward pass or after it, or only after every fourth
// of four times smaller batches: all ways lead to the same loss.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/pipeline"
	"github.com/kolo-ccl/kolo/rank"
)

const (
	batch = 128 // samples of all ranks together
	steps = 100
	every = 10 // steps from one look at the loss to the next
	rate  = 0.1
)

// way is how the network is trained.
type way struct {
	name       string
	ranks      int
	after      bool // reduce after the backward pass
	accumulate int
}

var ways = [...]way{
	{"one rank, the whole batch", 1, false, 1},
	{"4 ranks, overlapped", 4, false, 1},
	{"4 ranks, reduced after the backward pass", 4, true, 1},
	{"4 ranks, every fourth pass reduced", 4, false, 4},
	{"8 ranks, overlapped", 8, false, 1},
	{"8 ranks, reduced after the backward pass", 8, true, 1},
}

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		slog.Error("ddp", "error", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) error {
	for _, w := range ways {
		losses, err := train(ctx, w)
		if err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
		fmt.Fprintf(out, "%-42s loss %.6f at first, %.6f after %d steps\n", w.name, losses[0], losses[len(losses)-1], steps)
	}
	return nil
}

// train gives the loss over all data, at first and after every few steps.
func train(ctx context.Context, how way) ([]float64, error) {
	var mu sync.Mutex
	var losses []float64
	err := rank.Run(ctx, how.ranks, func(ctx context.Context, w *rank.World) error {
		mine, err := trainRank(ctx, how, w.Group(), nil)
		if w.Rank() == 0 {
			mu.Lock()
			defer mu.Unlock()
			losses = mine
		}
		return err
	})
	return losses, err
}

// trainRank is one rank's training; more changes what its Reducer does.
func trainRank(ctx context.Context, how way, g *rank.Group, more func(*pipeline.ReducerConfig)) ([]float64, error) {
	data := samples(4*batch, 1)
	n := newNetwork(2, 2, 24, 24, 1) // the same on all ranks
	c := pipeline.ReducerConfig{Group: g, Params: n.params(), Op: kolo.Avg, Accumulate: how.accumulate, Bucket: 2048, First: 256}
	if more != nil {
		more(&c)
	}
	r, err := pipeline.NewReducer(c)
	if err != nil {
		return nil, err
	}
	var losses []float64
	if g.Rank() == 0 {
		losses = append(losses, n.loss(data))
	}
	share := batch / how.ranks / how.accumulate
	for step := range steps {
		for micro := range how.accumulate {
			at := step*batch%len(data) + (micro*how.ranks+int(g.Rank()))*share
			if err := pass(ctx, how, n, r, data[at:at+share]); err != nil {
				return nil, err
			}
		}
		n.update(rate)
		if g.Rank() == 0 && (step+1)%every == 0 {
			losses = append(losses, n.loss(data))
		}
	}
	return losses, r.Close()
}

// pass adds the gradients of some samples, and reduces them if it is time to.
func pass(ctx context.Context, how way, n network, r *pipeline.Reducer, mine []sample) error {
	s, err := r.Begin()
	if err != nil {
		return err
	}
	var late []int
	ready := func(layer int) error {
		for _, p := range []int{2*layer + 1, 2 * layer} {
			if how.after {
				late = append(late, p)
			} else if err := s.Ready(p); err != nil {
				return err
			}
		}
		return nil
	}
	if err := n.backward(mine, r.LossScale(), ready); err != nil {
		return err
	}
	for _, p := range late {
		if err := s.Ready(p); err != nil {
			return err
		}
	}
	report, err := s.Wait(ctx)
	if err == nil && len(report.Unused) > 0 {
		err = fmt.Errorf("no gradients for %q", report.Unused)
	}
	return err
}
