package plan

import (
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"

	"github.com/stretchr/testify/require"
)

// Where processes share processors, sockets cost by the message: few messages win over
// few rounds. What was measured (kolo test all_reduce --algo, 2 cores, loopback, us):
//
//	ranks  size    star  tree  recursive-doubling  ring  mesh-oneshot
//	4      8 B       64    86                 102   183           104
//	8      8 B      167   235                 266   859           427
//	8      64 KiB   773  1098                2351  1737          3230
func TestSocketsOfACrowdedHost(t *testing.T) {
	crowded := func(n, cores int) *Topology {
		top := OneServer(n)
		top.Levels[0] = kolo.Edge{Link: kolo.LinkTCP, Latency: 25 * time.Microsecond, Bandwidth: 2e9}
		top.Cores = cores
		return top
	}
	order := func(top *Topology, size int64, names ...string) {
		last := time.Duration(0)
		for _, name := range names {
			ch, err := ChooseSize(kolo.AllReduce, size, top, Policy{Algorithm: name})
			require.NoError(t, err)
			require.Greater(t, ch.Cost, last, name)
			last = ch.Cost
		}
	}
	order(crowded(4, 2), 8, "star", "tree", "ring")
	order(crowded(8, 2), 8, "star", "recursive-doubling", "mesh-oneshot", "ring")
	order(crowded(8, 2), 8, "star", "tree", "mesh-oneshot")
	order(crowded(8, 2), 64<<10, "star", "tree", "recursive-doubling", "mesh-oneshot")
	for _, n := range []int{4, 8} {
		ch, err := ChooseSize(kolo.AllReduce, 8, crowded(n, 2), Policy{})
		require.NoError(t, err)
		require.Equal(t, "star", ch.Algorithm)
		free, err := ChooseSize(kolo.AllReduce, 8, crowded(n, 64), Policy{})
		require.NoError(t, err)
		require.Equal(t, "mesh-oneshot", free.Algorithm, "with a processor for each")
	}
	large, err := ChooseSize(kolo.AllReduce, 64<<20, crowded(8, 2), Policy{})
	require.NoError(t, err)
	require.NotEqual(t, "star", large.Algorithm, "the root would fold all")
	require.NotEqual(t, crowded(8, 2).Digest(), crowded(8, 3).Digest())
}
