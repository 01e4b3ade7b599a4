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
	for _, want := range wants {
		require.Contains(t, out.String(), want)
	}
}

var wants = []string{"rank 2 called AllReduce(1000 fp32, sum): count 1000 instead of 1024", "rank 3 has left the group"}
