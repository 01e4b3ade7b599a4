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
	require.Equal(t, len(ways), strings.Count(out.String(), "after 100 steps"))
}

// Every way trains like one rank with the whole batch, all the way.
func TestEveryWayTrainsAlike(t *testing.T) {
	want, err := train(t.Context(), ways[0])
	require.NoError(t, err)
	require.Less(t, want[len(want)-1], want[0]/5, "it learns")
	for _, w := range ways[1:] {
		got, err := train(t.Context(), w)
		require.NoError(t, err, w.name)
		require.InDeltaSlice(t, want, got, 1e-4, w.name)
	}
	beside, err := train(t.Context(), ways[1])
	require.NoError(t, err)
	after, err := train(t.Context(), ways[2])
	require.NoError(t, err)
	require.Equal(t, after, beside, "to the bit")
}
