package plan

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kolo-ccl/kolo"
)

// On one server, whose links are alike, a cost is between 0.36 and 6.5 times the simulated
// time. The far ends are small AllGathers by swing of odd numbers of ranks, whose messages
// overlap, and large ones, whose last rank stands aside. Left out are those with a fan of
// messages in a round: Choose lets each take its time, and Simulate overlaps all of them.
// Over servers costs take the worst link for all, and are far above.
func TestCostsAreNearTheSimulation(t *testing.T) {
	fan := []string{"mesh", "mesh-oneshot", "star"}
	low, high, compared := 1.0, 1.0, 0
	for _, n := range []int{2, 3, 4, 7, 8, 16, 33} {
		topo := OneServer(n)
		for _, c := range kolo.Collectives() {
			if c != c.Base() || c == kolo.Barrier {
				continue
			}
			for size := int64(64); size <= 64<<20; size *= 128 {
				ch, err := ChooseSize(c, size, topo, Policy{})
				require.NoError(t, err)
				for _, r := range ch.Rows {
					if !r.Serves || r.Cost == NoCost || slices.Contains(fan, r.Name) {
						continue
					}
					took := simulated(t, r.Name, topo, bytesCall(c, size, n)).Total
					x := float64(r.Cost) / float64(max(took, 1))
					if low, high, compared = min(low, x), max(high, x), compared+1; x < 0.36 || x > 6.5 {
						t.Errorf("%s %v of %d bytes by %d ranks: costs %v, simulated %v", r.Name, c, size, n, r.Cost, took)
					}
				}
			}
		}
	}
	t.Logf("%d compared: %.2f to %.2f times the simulated time", compared, low, high)
}
