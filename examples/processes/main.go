// Command processes is a world of several processes on one machine, of which one dies:
//
//	kolo run -n 4 --keep-going -- go run ./examples/processes
//
// The ranks meet by what kolo run has put in their environment, and reduce a vector over
// shared memory. Then the process of the last rank is killed. The others get an error that
// names it, make a group of who is left, and go on.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/cluster"
	"github.com/kolo-ccl/kolo/rank"
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		slog.Error("processes", "error", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) (err error) {
	w, err := cluster.Join(ctx, cluster.Config{Rank: rank.Config{Timeout: 30 * time.Second}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close(ctx)) }()
	if w.Size() < 2 {
		return fmt.Errorf("%w: want 2 processes or more; got %d", kolo.ErrArgument, w.Size())
	}
	if err := sum(ctx, w.Group()); err != nil {
		return err
	}
	fmt.Fprintf(out, "rank %d: the sum of %d processes is right\n", w.Rank(), w.Size())
	// All have the sum when one leaves the barrier: who dies sooner takes it from others.
	err = rank.Barrier(ctx, w.Group())
	if err == nil && int(w.Rank()) == w.Size()-1 {
		fmt.Fprintf(out, "rank %d: dies\n", w.Rank())
		return die()
	}
	for err == nil {
		err = sum(ctx, w.Group())
	}
	if !errors.Is(err, kolo.ErrLost) {
		return err
	}
	fmt.Fprintf(out, "rank %d: %v\n", w.Rank(), err)
	g, err := w.Shrink(ctx)
	if err != nil {
		return err
	}
	if err := sum(ctx, g); err != nil {
		return err
	}
	fmt.Fprintf(out, "rank %d: goes on as rank %d of %d; the sum is right\n", w.Rank(), g.Rank(), g.Size())
	return nil
}

// sum reduces a vector, to which each rank gives its own world rank + 1 + i, and checks it.
func sum(ctx context.Context, g *rank.Group) error {
	x := rank.Alloc[float32](1 << 18)
	for i := range x {
		x[i] = float32(int(g.World().Rank()) + 1 + i%100)
	}
	if err := rank.AllReduce(ctx, g, x, kolo.Sum); err != nil {
		return err
	}
	for i, got := range x {
		want := 0
		for r := range g.Size() {
			want += int(g.WorldRank(kolo.Rank(r))) + 1 + i%100
		}
		if got != float32(want) {
			return fmt.Errorf("element %d is %v; want %d", i, got, want)
		}
	}
	return nil
}

// die ends this process as a crash does: nothing is closed and nobody is told.
func die() error {
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		return err
	}
	if err := self.Kill(); err != nil {
		return err
	}
	select {} // the signal is on its way
}
