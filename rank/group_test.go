package rank_test

import (
	"context"
	"testing"

	"github.com/kolo-ccl/kolo/rank"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestCloseAfterItsContextHasEndedStillEndsEverything(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	worlds, err := rank.Open(3, rank.Config{})
	require.NoError(t, err)
	for _, w := range worlds {
		require.NoError(t, w.Close(ended))
	}
	goleak.VerifyNone(t)
}
