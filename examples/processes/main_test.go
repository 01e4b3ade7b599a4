package main

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kolo-ccl/kolo/internal/exampletest"
)

func TestMain(m *testing.M) {
	if exampletest.As() != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestExampleRuns(t *testing.T) {
	const n = 4
	for r, p := range exampletest.Processes(t, n, "one of four") {
		require.Contains(t, p.Out, fmt.Sprintf("rank %d: the sum of 4 processes is right", r))
		if r == n-1 {
			require.Error(t, p.Err, "it was killed")
			require.NotContains(t, p.Out, "goes on")
			continue
		}
		require.NoError(t, p.Err)
		require.Contains(t, p.Out, "connection lost")
		require.Contains(t, p.Out, "rank 3")
		require.Contains(t, p.Out, fmt.Sprintf("goes on as rank %d of 3; the sum is right", r))
	}
}
