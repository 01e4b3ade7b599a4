package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kolo-ccl/kolo/internal/exampletest"
)

func TestMain(m *testing.M) {
	if driver := exampletest.As(); driver != "" {
		if err := join(context.Background(), os.Stdout, driver, little); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

var little = size{layers: 5, block: 40 << 10, sequences: 3, compare: []int{1000, 300_001}, times: 3}

func TestExampleRuns(t *testing.T) {
	for _, driver := range append(between(), "hccs") {
		t.Run(driver, func(t *testing.T) {
			exampletest.Output(t, func(ctx context.Context, out io.Writer) error { return run(ctx, out, driver, little) },
				"15 blocks of 40 KiB intact", "AllGather/put")
		})
	}
}

// between are the drivers between processes.
func between() []string {
	drivers := []string{"tcp", "roce"}
	if runtime.GOOS == "linux" {
		drivers = append(drivers, "shm")
	}
	return drivers
}

func TestTwoProcesses(t *testing.T) {
	for _, driver := range between() {
		t.Run(driver, func(t *testing.T) {
			list := exampletest.Processes(t, 2, driver)
			for _, p := range list {
				require.NoError(t, p.Err)
			}
			require.Contains(t, list[prefill].Out, "AllGather/put")
			require.Contains(t, list[decode].Out, "15 blocks of 40 KiB intact")
		})
	}
}
