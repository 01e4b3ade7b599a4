//go:build long

package plan

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kolo-ccl/kolo"
)

// TestSimulateAtScale compiles and simulates whole clusters, within a time and a memory.
func TestSimulateAtScale(t *testing.T) {
	for _, row := range []struct {
		algorithm string
		ranks     int
		limit     time.Duration
		heap      uint64
	}{
		{"hier:ring+nhr", 1024, 10 * time.Second, 500 << 20},
		{"nhr", 8192, time.Minute, 500 << 20},
	} {
		start := time.Now()
		net := &Network{Model: CutThrough, Cluster: &Cluster{Racks: 4, Servers: row.ranks / 32, Boards: 1, NPUs: 8, Board: Mesh,
			HCCS: Wire{us, 30e9}, NIC: Wire{3 * us, 25e9}, Uplink: Wire{us, 100e9}, Uplinks: 8}}
		topo, err := net.Topology()
		require.NoError(t, err)
		c := bytesCall(kolo.AllReduce, 25<<20, topo.Ranks())
		programs, err := Programs(KeyOf(c, row.algorithm), topo)
		require.NoError(t, err)
		line, err := SimulateOn(programs, net, c, 0)
		require.NoError(t, err)
		took := time.Since(start)
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		t.Logf("%s by %d ranks: %v of virtual time in %v, %d MiB from the system", row.algorithm, row.ranks, line.Total, took, m.Sys>>20)
		require.Less(t, took, row.limit)
		require.Less(t, m.Sys, row.heap)
	}
}
