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
	out := exampletest.Output(t, run, "the results are equal")
	require.Equal(t, tiles, strings.Count(out, "chunk "))
}
