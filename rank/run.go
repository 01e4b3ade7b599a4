package rank

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/internal/ctxerr"
)

// Run runs f once for each of n ranks of this process, each on a goroutine of its
// own, and returns when all have returned and everything is closed. The error joins
// those of the ranks, each naming its rank. If f returns an error or panics, its
// rank leaves at once and the others' calls that need it fail with kolo.ErrLeft and the
// cause; after nil it leaves when its calls in flight have ended. If ctx ends, all calls
// end.
//
// The ctx that f gets ends too when another rank fails, with that as its cause, so that
// a rank that waits for something else hears of it. Calls that are given this very ctx
// go by the state of their group alone, so that those who are left can go on: in groups
// without the rank that has failed, or as World.Shrink makes them.
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
				g.hub.tell(nil, &failure{err: ctxerr.Of(ctx)})
			}
		}
	})
	defer stop()
	errs := make([]error, n)
	one, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var wg sync.WaitGroup
	for r, w := range worlds {
		w.done, w.over = one.Done(), ctx.Done()
		// ends when f has returned and its world is closed
		wg.Go(func() { runRank(one, fail, w, f, &errs[r]) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// runRank runs f for one rank and leaves its world, however f ends.
func runRank(ctx context.Context, fail context.CancelCauseFunc, w *World, f func(context.Context, *World) error, err *error) {
	returned := false
	defer func() {
		if returned {
			return
		}
		cause := errors.New("runtime.Goexit") // as in FailNow of a test
		if v := recover(); v != nil {
			cause = panicError(v)
			*err = fmt.Errorf("%v: %w\n%s", w.rank, cause, debug.Stack())
		} else {
			*err = fmt.Errorf("%v: its function has ended its goroutine: %w", w.rank, cause)
		}
		*err = errors.Join(*err, w.leave(ctx, cause))
		fail(fmt.Errorf("%w: %v has failed: %w", kolo.ErrLeft, w.rank, cause))
	}()
	cause := f(ctx, w)
	returned = true
	if cause != nil {
		*err = fmt.Errorf("%v: %w", w.rank, errors.Join(cause, w.leave(ctx, cause)))
		fail(fmt.Errorf("%w: %v has failed: %w", kolo.ErrLeft, w.rank, cause))
	} else if e := w.Close(context.WithoutCancel(ctx)); e != nil {
		*err = fmt.Errorf("%v: close: %w", w.rank, e)
	}
}

// panicError is the value of a panic as an error.
func panicError(v any) error {
	if err, ok := v.(error); ok {
		return fmt.Errorf("panic: %w", err)
	}
	return fmt.Errorf("panic: %v", v)
}
