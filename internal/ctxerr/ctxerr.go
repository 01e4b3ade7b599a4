package ctxerr

import (
	"context"
	"errors"
	"fmt"

	"github.com/kolo-ccl/kolo"
)

// Of says why a context has ended: kolo.ErrCanceled and the context's own cause, and
// kolo.ErrDeadline besides where it was the context's deadline.
func Of(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w: %w", kolo.ErrCanceled, kolo.ErrDeadline, context.Cause(ctx))
	}
	return fmt.Errorf("%w: %w", kolo.ErrCanceled, context.Cause(ctx))
}
