package rank

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"

	"github.com/kolo-ccl/kolo"
)

// Run runs f once for each of n ranks of this process, each on a goroutine of its
// own, and returns when all have returned and everything is closed. The error joins
// those of the ranks, each naming its rank. If f returns an error or panics, its
// rank leaves at once and the others' calls fail with kolo.ErrLeft and the cause;
// after nil it leaves when its calls in flight have ended. If ctx ends, all calls end.
func Run(ctx context.Context, n int, f func(ctx context.Context, w *World) error) error {
	return Config{}.Run(ctx, n, f)
}

// Run is the function Run with a configuration.
func (c Config) Run(ctx context.Context, n int, f func(ctx context.Context, w *World) error) error {
	worlds, err := Open(n, c)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		for _, w := range worlds {
			for _, g := range w.Groups() {
				g.hub.tell(nil, &failure{err: canceled(ctx)})
			}
		}
	})
	defer stop()
	errs := make([]error, n)
	var wg sync.WaitGroup
	for r, w := range worlds {
		w.done = ctx.Done()
		// ends when f has returned and its world is closed
		wg.Go(func() { errs[r] = runRank(ctx, w, f) })
	}
	wg.Wait()
	return joinSame(errs)
}

func canceled(ctx context.Context) error {
	return fmt.Errorf("%w: %w", kolo.ErrCanceled, context.Cause(ctx))
}

// runRank runs f for one rank and leaves its world.
func runRank(ctx context.Context, w *World, f func(context.Context, *World) error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%v: panic: %v\n%s", w.rank, v, debug.Stack())
			err = errors.Join(err, w.leave(ctx, fmt.Errorf("panic: %v", v)))
		}
	}()
	if err := f(ctx, w); err != nil {
		return fmt.Errorf("%v: %w", w.rank, errors.Join(err, w.leave(ctx, err)))
	}
	if err := w.Close(context.WithoutCancel(ctx)); err != nil {
		return fmt.Errorf("%v: close: %w", w.rank, err)
	}
	return nil
}

// joinSame joins the errors of the ranks.
func joinSame(errs []error) error { return errors.Join(errs...) }
