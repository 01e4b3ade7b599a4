package ctxerr

import (
	"context"
	"errors"
	"testing"

	"github.com/kolo-ccl/kolo"

	"github.com/stretchr/testify/require"
)

func TestOf(t *testing.T) {
	why := errors.New("the user went home")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	err := Of(ctx)
	require.ErrorIs(t, err, kolo.ErrCanceled)
	require.ErrorIs(t, err, why)
	require.NotErrorIs(t, err, kolo.ErrDeadline)

	ctx, stop := context.WithTimeout(t.Context(), 0)
	defer stop()
	err = Of(ctx)
	require.ErrorIs(t, err, kolo.ErrCanceled)
	require.ErrorIs(t, err, kolo.ErrDeadline)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	ctx, stop = context.WithTimeoutCause(t.Context(), 0, why)
	defer stop()
	err = Of(ctx)
	require.ErrorIs(t, err, kolo.ErrDeadline)
	require.ErrorIs(t, err, why, "a deadline with a cause of its own keeps it")
}
