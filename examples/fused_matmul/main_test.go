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
	require.Contains(t, out.String(), "the results are equal")
	require.Equal(t, tiles, strings.Count(out.String(), "chunk "))
}
