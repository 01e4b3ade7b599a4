package main

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kolo-ccl/kolo/internal/exampletest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestExampleRuns(t *testing.T) {
	out := exampletest.Output(t, func(_ context.Context, out io.Writer) error { return run(out, []int{8, 32}) })
	require.Equal(t, 4, strings.Count(out, " tok\n"))
}

// A thousand NPUs lose less than 5 % with two levels, and much more with a flat ring.
func TestThousandNPUs(t *testing.T) {
	first, other, err := firstAndOther(bucketTime, 1000, twoLevel)
	require.NoError(t, err)
	s := compose(4096, first, other)
	require.Less(t, s.lost(), 0.05)
	require.Less(t, s.comm, s.compute)
	first, other, err = firstAndOther(formula, 1000, flat)
	require.NoError(t, err)
	require.Greater(t, compose(4096, first, other).lost(), 1.0)
}

// The formulas are what is simulated, within 3 %.
func TestFormulasAreWhatIsSimulated(t *testing.T) {
	for _, algorithm := range []string{twoLevel, flat} {
		for _, npus := range []int{8, 16, 64, 256} {
			for _, size := range buckets()[:2] {
				simulated, err := bucketTime(npus, algorithm, size)
				require.NoError(t, err)
				closed, err := formula(npus, algorithm, size)
				require.NoError(t, err)
				require.InEpsilon(t, float64(simulated), float64(closed), 0.03, "%s, %d NPUs, %d bytes: %v and %v", algorithm, npus, size, simulated, closed)
			}
		}
	}
}

func TestBucketsAndTheirSteps(t *testing.T) {
	sum := int64(0)
	for _, b := range buckets() {
		sum += b
		require.LessOrEqual(t, b, int64(bucketSize))
	}
	require.InDelta(t, float64(gradients), float64(sum), 200)
	n := len(buckets()) - 1
	_, backward := passes(4096)
	for _, took := range []time.Duration{time.Millisecond, 3 * time.Millisecond} {
		got := compose(4096, 0, took).exposed
		require.InEpsilon(t, float64(exposedFormula(n, took, backward/time.Duration(n))), float64(got), 0.01)
	}
}
