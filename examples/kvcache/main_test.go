package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo/cluster"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// asProcess makes the test program be one process of the example.
const asProcess = "KOLO_EXAMPLE_PROCESS"

func TestMain(m *testing.M) {
	if driver := os.Getenv(asProcess); driver != "" {
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
	drivers := []string{"hccs", "tcp", "roce"}
	if runtime.GOOS == "linux" {
		drivers = append(drivers, "shm")
	}
	for _, driver := range drivers {
		t.Run(driver, func(t *testing.T) {
			var out strings.Builder
			require.NoError(t, run(t.Context(), &out, driver, little))
			t.Log(out.String())
			require.Contains(t, out.String(), "15 blocks of 40 KiB intact")
			require.Contains(t, out.String(), "AllGather/put")
		})
	}
}

func TestTwoProcesses(t *testing.T) {
	drivers := []string{"tcp", "roce"}
	if runtime.GOOS == "linux" {
		drivers = append(drivers, "shm")
	}
	exe, err := os.Executable()
	require.NoError(t, err)
	for _, driver := range drivers {
		t.Run(driver, func(t *testing.T) {
			meet, err := cluster.Serve("127.0.0.1:0", nil)
			require.NoError(t, err)
			defer func() { require.NoError(t, meet.Close()) }()
			host, port, err := net.SplitHostPort(strings.TrimPrefix(meet.Address(), "tcp://"))
			require.NoError(t, err)
			var said [2][]byte
			var ended [2]error
			var both sync.WaitGroup
			for r := range said {
				cmd := exec.CommandContext(t.Context(), exe)
				cmd.Env = []string{asProcess + "=" + driver, fmt.Sprintf("RANK=%d", r), "WORLD_SIZE=2", "MASTER_ADDR=" + host, "MASTER_PORT=" + port,
					"GORACE=atexit_sleep_ms=0"}
				cmd.WaitDelay = time.Second
				both.Go(func() { said[r], ended[r] = cmd.CombinedOutput() }) // ends with the child, at the latest with the test
			}
			both.Wait()
			t.Logf("%s%s", said[0], said[1])
			require.NoError(t, ended[0])
			require.NoError(t, ended[1])
			require.Contains(t, string(said[prefill]), "AllGather/put")
			require.Contains(t, string(said[decode]), "15 blocks of 40 KiB intact")
		})
	}
}
