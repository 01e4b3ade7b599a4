package exampletest

import (
	"context"
	"fmt"
	"io"
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

// Output runs an example and gives what it prints, which must hold all of want.
func Output(t *testing.T, run func(ctx context.Context, out io.Writer) error, want ...string) string {
	t.Helper()
	var out strings.Builder
	err := run(t.Context(), &out)
	t.Log(out.String())
	require.NoError(t, err)
	for _, w := range want {
		require.Contains(t, out.String(), w)
	}
	return out.String()
}

// As is what TestMain of an example looks at: "" in a test, and in a process that Processes
// has started what it was given.
func As() string { return os.Getenv(variable) }

const variable = "KOLO_EXAMPLE_PROCESS"

// Ended is how a process ended, and what it has printed.
type Ended struct {
	Out string
	Err error
}

// Processes runs the test program as n processes of a world, in which As gives as, and
// waits for them. They end with the test at the latest.
func Processes(t *testing.T, n int, as string) []Ended {
	t.Helper()
	meet, err := cluster.Serve("127.0.0.1:0", nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, meet.Close()) }()
	host, port, err := net.SplitHostPort(strings.TrimPrefix(meet.Address(), "tcp://"))
	require.NoError(t, err)
	exe, err := os.Executable()
	require.NoError(t, err)
	list := make([]Ended, n)
	var all sync.WaitGroup
	for r := range list {
		cmd := exec.CommandContext(t.Context(), exe)
		cmd.Env = []string{variable + "=" + as, fmt.Sprintf("RANK=%d", r), fmt.Sprintf("WORLD_SIZE=%d", n), "MASTER_ADDR=" + host,
			"MASTER_PORT=" + port, "GORACE=atexit_sleep_ms=0"}
		cmd.WaitDelay = time.Second
		// ends with the process, at the latest with the test
		all.Go(func() {
			out, err := cmd.CombinedOutput()
			list[r] = Ended{string(out), err}
		})
	}
	all.Wait()
	for r, e := range list {
		t.Logf("process %d: %v\n%s", r, e.Err, e.Out)
	}
	return list
}
