package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kolo-ccl/kolo/internal/exampletest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestExampleRuns(t *testing.T) {
	require.Equal(t, 2, strings.Count(exampletest.Output(t, run), "y = "))
}

// k passes are one batch that is k times larger, and communicate as often.
func TestAccumulatedIsTheLargerBatch(t *testing.T) {
	whole, err := fit(t.Context(), 1)
	require.NoError(t, err)
	require.InDelta(t, 3, whole.slope, 0.01)
	require.InDelta(t, -1, whole.offset, 0.01)
	for _, k := range []int{2, every, batch} {
		f, err := fit(t.Context(), k)
		require.NoError(t, err)
		require.InDelta(t, whole.slope, f.slope, 1e-12)
		require.InDelta(t, whole.offset, f.offset, 1e-12)
		require.Equal(t, whole.calls, f.calls, "the passes in between say nothing")
	}
}
