//go:build long

package cluster

import (
	"fmt"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo/internal/netlab"

	"github.com/stretchr/testify/require"
)

// Where small packets get through and large ones do not, heartbeats say nothing: the
// bytes that nobody acknowledges do.
func TestSwitchThatDropsJumboFrames(t *testing.T) {
	l := netlab.New(t, 3, netlab.Config{MTU: 9000})
	l.Narrow(1, 1500)
	at, all := time.Now(), ""
	for _, o := range onHosts(t, l, "loop", three(), fmt.Sprint("KOLO_TEST_COUNT=", 1<<20)) {
		said, d := o.lost(t, at)
		t.Logf("after %v: %s", d, said)
		require.Contains(t, said, "connection lost")
		require.Contains(t, said, "rank 1")
		require.Less(t, d, DefaultSilence+3*time.Second, "with the time to start and join")
		all += said
	}
	require.Contains(t, all, "MTU", "who has found it says so; the others may hear of its closed link first")
}
