//go:build long

package cluster

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Start-up: 64 processes of one rank, and 1,000 ranks in 8 processes.
func TestManyProcessesAndManyRanksJoin(t *testing.T) {
	for _, c := range []struct{ processes, ranks int }{{64, 64}, {8, 1000}} {
		t.Run(fmt.Sprintf("%d ranks in %d processes", c.ranks, c.processes), func(t *testing.T) {
			start := time.Now()
			list := spawnRanks(t, "join", c.processes, c.ranks)
			for _, o := range list {
				o.wait(t, "JOINED", time.Minute)
			}
			joined := time.Since(start)
			for _, o := range list {
				o.wait(t, "DONE", time.Minute)
			}
			t.Logf("joined after %v, closed after %v", joined.Round(time.Millisecond), time.Since(start).Round(time.Millisecond))
			require.Less(t, joined, 5*time.Second)
		})
	}
}

func TestKilledProcessManyTimes(t *testing.T) {
	for i := range 100 {
		transport := []string{"shm", "tcp"}[i%2]
		if d := strike(t, syscall.SIGKILL, i%4, "KOLO_TEST_TRANSPORT="+transport); d >= time.Second {
			t.Errorf("round %d by %s: reported after %v", i, transport, d)
		}
	}
}
