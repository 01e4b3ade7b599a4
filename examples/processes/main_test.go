package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kolo-ccl/kolo/cluster"
)

// asProcess makes the test program be one process of the example.
const asProcess = "KOLO_EXAMPLE_PROCESS"

func TestMain(m *testing.M) {
	if os.Getenv(asProcess) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestExampleRuns(t *testing.T) {
	const n = 4
	meet, err := cluster.Serve("127.0.0.1:0", nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, meet.Close()) }()
	host, port, err := net.SplitHostPort(strings.TrimPrefix(meet.Address(), "tcp://"))
	require.NoError(t, err)
	exe, err := os.Executable()
	require.NoError(t, err)
	var said [n][]byte
	var ended [n]error
	var all sync.WaitGroup
	for r := range n {
		cmd := exec.CommandContext(t.Context(), exe)
		cmd.Env = []string{asProcess + "=1", fmt.Sprintf("RANK=%d", r), fmt.Sprintf("WORLD_SIZE=%d", n),
			"MASTER_ADDR=" + host, "MASTER_PORT=" + port, "GORACE=atexit_sleep_ms=0"}
		cmd.WaitDelay = time.Second
		all.Go(func() { said[r], ended[r] = cmd.CombinedOutput() }) // ends with the child, at the latest with the test
	}
	all.Wait()
	for r := range n {
		out := string(said[r])
		t.Log(out)
		require.Contains(t, out, fmt.Sprintf("rank %d: the sum of 4 processes is right", r))
		if r == n-1 {
			require.Error(t, ended[r], "it was killed")
			require.NotContains(t, out, "goes on")
			continue
		}
		require.NoError(t, ended[r])
		require.Contains(t, out, "connection lost")
		require.Contains(t, out, "rank 3")
		require.Contains(t, out, fmt.Sprintf("goes on as rank %d of 3; the sum is right", r))
	}
}
