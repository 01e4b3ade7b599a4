package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kolo-ccl/kolo/internal/exampletest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestExampleRuns(t *testing.T) {
	dir := t.TempDir()
	exampletest.Output(t, func(ctx context.Context, out io.Writer) error { return run(ctx, out, dir) },
		"1 chunks", "4 chunks", "16 chunks", "efficiency", "chunk 15")
	for _, name := range []string{"overlap.json", "overlap.svg"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Contains(t, string(b), "npu1/compute")
	}
}
