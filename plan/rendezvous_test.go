package plan

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kolo-ccl/kolo"
)

// sequential is Programs as a worker of a rank would do them that does one step after
// the other, each message in a place of its own that any block may take.
func sequential(t *testing.T, k Key, topo *Topology) []*Program {
	t.Helper()
	programs, err := Programs(k, topo)
	require.NoError(t, err)
	for r, p := range programs {
		p = unshared(p)
		p.Even = true
		for i := range p.Steps {
			if i > 0 {
				p.Steps[i].After = []int32{int32(i - 1)}
			}
			p.Steps[i].Final = false
		}
		programs[r] = p
	}
	return programs
}

// Programs made anew do the same, for any count, in place or not, without credits.
func TestRendezvous(t *testing.T) {
	for _, tc := range []struct {
		algorithm string
		c         kolo.Collective
		credits   int
	}{
		{"ring", kolo.AllReduce, 1}, {"ring", kolo.ReduceScatter, 1}, {"ring", kolo.AllGather, 1}, {"nhr", kolo.AllReduce, 1},
		{"tree", kolo.AllReduce, 0}, {"recursive-doubling", kolo.AllReduce, 1}, {"pairwise", kolo.AllToAll, 1},
		{"bruck", kolo.AllToAll, 1}, {"nhr", kolo.Reduce, 1}, {"nhr", kolo.Gather, 0}, {"nhr", kolo.Scatter, 0},
		{"ring", kolo.Broadcast, 0}, {"mesh", kolo.ReduceScatter, 1},
	} {
		t.Run(fmt.Sprintf("%s %v", tc.algorithm, tc.c), func(t *testing.T) {
			for _, n := range []int{1, 2, 5, 8} {
				for _, from := range []bool{false, true} {
					k := Key{Algorithm: tc.algorithm, Collective: tc.c, InPlace: from || tc.c == kolo.Broadcast}
					if tc.c.Rooted() {
						k.Root = kolo.Rank(n / 2)
					}
					topo := OneServer(n)
					programs := sequential(t, k, topo)
					report, err := Complete(k, programs)
					require.NoError(t, err)
					if n == 5 {
						require.Equal(t, tc.credits, report.Credits)
					}
					for _, to := range []bool{false, true} {
						if tc.c == kolo.Broadcast {
							to = true
						}
						anew, report, err := Rendezvous(k, programs, to)
						require.NoError(t, err)
						require.Zero(t, report.Credits)
						kTo := k
						kTo.InPlace = to
						for _, load := range payloads(n) {
							load.scaled, load.gaps, load.cuts = false, false, 0
							x := newPerformance(kTo, topo, load, rand.New(rand.NewPCG(uint64(n), 7))).perform(anew)
							require.NoError(t, x.run(), "%d ranks, in place %v from %v, %+v", n, to, from, load)
						}
					}
				}
			}
		})
	}
}
