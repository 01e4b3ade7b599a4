package cluster

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"

	"github.com/stretchr/testify/require"
)

// strike stops one rank of four in a loop of large AllReduces by a signal, and returns how
// long the others took to report it. They must name it, and go on as three.
func strike(t *testing.T, s syscall.Signal, victim int, env ...string) time.Duration {
	list := spawn(t, "loop", 4, env...)
	for _, o := range list {
		o.wait(t, "LOOPING", 40*time.Second)
	}
	at := time.Now()
	require.NoError(t, list[victim].cmd.Process.Signal(s))
	longest := time.Duration(0)
	rest, left := slices.Delete(slices.Clone(list), victim, victim+1), slices.Delete(allRanks(4), victim, victim+1)
	for _, o := range rest {
		said := o.wait(t, "LOST", 20*time.Second)
		var ns int64
		_, err := fmt.Sscan(said, &ns)
		require.NoError(t, err)
		longest = max(longest, time.Unix(0, ns).Sub(at))
		require.Contains(t, said, fmt.Sprintf("rank %d", victim), "%s", said)
		require.True(t, strings.Contains(said, "connection lost"), "%s", said)
	}
	for _, o := range rest {
		require.Equal(t, kolo.RankList(left), o.wait(t, "SHRUNK", 20*time.Second))
		o.wait(t, "DONE", 20*time.Second)
	}
	return longest
}

func TestKilledProcessIsReportedInASecondAndTheOthersGoOn(t *testing.T) {
	for _, transport := range []string{"shm", "tcp"} {
		t.Run(transport, func(t *testing.T) {
			for range 3 {
				d := strike(t, syscall.SIGKILL, 2, "KOLO_TEST_TRANSPORT="+transport)
				t.Logf("reported after %v", d)
				require.Less(t, d, time.Second)
			}
		})
	}
}

// Rank 0 has served the rendezvous; once the world is complete nobody needs that.
func TestKilledRankZeroIsALossAsAnyOther(t *testing.T) {
	d := strike(t, syscall.SIGKILL, 0, "KOLO_RENDEZVOUS=tcp://127.0.0.1:"+freePort(t))
	require.Less(t, d, time.Second)
}

func TestStoppedProcessIsFoundByItsSilence(t *testing.T) {
	d := strike(t, syscall.SIGSTOP, 2)
	t.Logf("reported after %v", d)
	require.Greater(t, d, time.Second)
	require.Less(t, d, DefaultSilence+time.Second)
}
