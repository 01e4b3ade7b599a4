//go:build long

package cluster

import (
	"syscall"
	"testing"
	"time"
)

// Start-up: 64 processes of one rank, and 1,000 ranks in 8 processes.
func TestManyProcessesAndManyRanksJoin(t *testing.T) {
	joinInTime(t, 64, 64)
	joinInTime(t, 8, 1000)
}

func TestKilledProcessManyTimes(t *testing.T) {
	for i := range 100 {
		transport := []string{"shm", "tcp"}[i%2]
		if d := strike(t, syscall.SIGKILL, i%4, "KOLO_TEST_TRANSPORT="+transport); d >= time.Second {
			t.Errorf("round %d by %s: reported after %v", i, transport, d)
		}
	}
}
