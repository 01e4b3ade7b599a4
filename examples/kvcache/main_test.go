package main

import (
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestExampleRuns(t *testing.T) {
	drivers := []string{"hccs", "tcp", "roce"}
	if runtime.GOOS == "linux" {
		drivers = append(drivers, "shm")
	}
	for _, driver := range drivers {
		t.Run(driver, func(t *testing.T) {
			var out strings.Builder
			require.NoError(t, run(t.Context(), &out, driver, size{layers: 5, block: 40 << 10, sequences: 3, compare: []int{1000, 300_001}, times: 3}))
			t.Log(out.String())
			require.Contains(t, out.String(), "15 blocks of 40 KiB intact")
			require.Contains(t, out.String(), "AllGather/put")
		})
	}
}
