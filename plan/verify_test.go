package plan

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kolo-ccl/kolo"
)

// keys are the ways in which collective c can be called in a group of n ranks:
// every root that may matter, in place and not, and multiplied or not.
func keys(a *Algorithm, c kolo.Collective, n int) []Key {
	roots := []kolo.Rank{0}
	if c.Rooted() && n > 1 {
		roots = append(roots, kolo.Rank(n-1))
		if n > 3 {
			roots = append(roots, kolo.Rank(n/2))
		}
	}
	var out []Key
	for _, root := range roots {
		k := Key{Algorithm: a.Name, Collective: c, Root: root, InPlace: c == kolo.Broadcast}
		out = append(out, k)
		if c.Reduces() {
			k.Scale = true
			out = append(out, k)
			k.Scale = false
		}
		if c != kolo.Broadcast && c != kolo.Barrier {
			k.InPlace = true
			out = append(out, k)
		}
	}
	return out
}

// proveAll verifies everything that the table offers on t.
func proveAll(t *testing.T, topo *Topology) {
	t.Helper()
	for _, a := range Algorithms() {
		for _, c := range kolo.Collectives() {
			if a.Serves(c, topo) != nil {
				continue
			}
			for _, k := range keys(a, c, topo.Ranks()) {
				programs, err := Programs(k, topo)
				require.NoError(t, err, "%+v", k)
				report, err := Verify(k, programs)
				require.NoError(t, err, "%+v, %v", k, topo)
				require.Zero(t, report.Credits, "%+v, %v", k, topo)
				if !report.SameBits && c.Reduces() {
					t.Errorf("%+v, %v: ranks would round differently", k, topo)
				}
			}
		}
	}
}

func TestEveryProgramIsProven(t *testing.T) {
	for n := 1; n <= 33; n++ {
		t.Run(fmt.Sprintf("ranks=%d", n), func(t *testing.T) {
			proveAll(t, OneProcess(n))
		})
	}
}
