// Command failure shows the two most common mistakes with collectives and what
// becomes of them: a rank that calls with another count, and a rank that leaves. Nothing
// hangs: every rank gets an error that names the culprit.
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
	"github.com/kolo-ccl/kolo/rank"
)

const ranks = 4

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		slog.Error("failure", "error", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) error {
	fmt.Fprintln(out, "Rank 2 calls AllReduce with 1000 elements, the others with 1024:")
	if err := show(ctx, out, kolo.ErrMismatch, otherCount); err != nil {
		return err
	}
	fmt.Fprintln(out, "\nRank 3 returns after one Barrier, the others call a second one:")
	return show(ctx, out, kolo.ErrLeft, earlyLeaver)
}

// show runs f on all ranks and prints the error that each of them gets.
func show(ctx context.Context, out io.Writer, want error, f func(context.Context, *rank.World) error) error {
	got := make([]error, ranks)
	start := time.Now()
	err := rank.Run(ctx, ranks, func(ctx context.Context, w *rank.World) error {
		got[w.Rank()] = f(ctx, w)
		return nil
	})
	for r, e := range got {
		if e != nil && !errors.Is(e, want) {
			return fmt.Errorf("rank %d: want %w, got %w", r, want, e)
		}
		if e == nil {
			fmt.Fprintf(out, "  rank %d: no error\n", r)
			continue
		}
		fmt.Fprintf(out, "  rank %d: %v\n", r, e)
	}
	if d := time.Since(start); d > 5*time.Second {
		return fmt.Errorf("took %v", d)
	}
	return err
}

func otherCount(ctx context.Context, w *rank.World) error {
	n := 1024
	if w.Rank() == 2 {
		n = 1000
	}
	return rank.AllReduce(ctx, w.Group(), make([]float32, n), kolo.Sum)
}

func earlyLeaver(ctx context.Context, w *rank.World) error {
	if err := rank.Barrier(ctx, w.Group()); err != nil || w.Rank() == 3 {
		return err
	}
	return rank.Barrier(ctx, w.Group())
}
