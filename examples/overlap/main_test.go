package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestExampleRuns(t *testing.T) {
	var out strings.Builder
	require.NoError(t, run(t.Context(), &out))
	t.Log(out.String())
	for _, want := range []string{"1 chunks", "4 chunks", "16 chunks", "efficiency", "chunk 15"} {
		require.Contains(t, out.String(), want)
	}
}
