package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestExampleRuns(t *testing.T) {
	var out strings.Builder
	dir := t.TempDir()
	require.NoError(t, run(t.Context(), &out, dir))
	t.Log(out.String())
	for _, want := range []string{"1 chunks", "4 chunks", "16 chunks", "efficiency", "chunk 15"} {
		require.Contains(t, out.String(), want)
	}
	for _, name := range []string{"overlap.json", "overlap.svg"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Contains(t, string(b), "npu1/compute")
	}
}
