package rank_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/rank"
	"github.com/kolo-ccl/kolo/rank/ranktest"

	_ "github.com/kolo-ccl/kolo/channel/tcp"
	"github.com/stretchr/testify/require"
)

// All that goes by messages goes over sockets too: every algorithm and collective that
// go together at small places, and every element type and operation.
func TestEveryCollectiveOverTCP(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	byMessages := func(c matrixCase) bool {
		return matrixAlgorithms[c[byAlgorithm]].Name != "fabric" && matrixPlaces[c[atPlace]].topo.Ranks() <= 7
	}
	list := slices.DeleteFunc(triples(), func(c matrixCase) bool { return !byMessages(c) })
	for i := range list {
		list[i] = list[i].random(rng)
	}
	for _, c := range triples() {
		at, by, of := matrixPlaces[c[atPlace]], matrixAlgorithms[c[byAlgorithm]].Name, matrixCollectives[c[ofCollective]]
		if at.topo.Ranks() == 3 && by == "ring" && of == kolo.AllReduce {
			for dtype := range kolo.ReducibleDTypes() {
				for op := range matrixOps {
					d := c.random(rng)
					d[ofDType], d[withOp] = dtype, op
					list = append(list, d)
				}
			}
		}
	}
	runMatrix(t, seed, list, rank.Config{Driver: "tcp"})
}

// Messages that are folded in pieces as they come give what the whole gives, cut by tensors
// at places of their own.
func TestLargeTensorsOverTCP(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for _, n := range []int{2, 3, 4} {
		ranks := ranktest.Open(t, n, rank.Config{Driver: "tcp"})
		for _, algorithm := range []string{"ring", "recursive-doubling", "mesh", "star", "tree", "halving-doubling"} {
			lengths := []int{1 + rng.IntN(90000), rng.IntN(7), 1 + rng.IntN(300000)}
			for _, op := range []kolo.ReduceOp{kolo.Sum, kolo.Max, kolo.Avg} {
				ranks.RunGroup(t, rank.GroupConfig{Name: fmt.Sprint(algorithm, op), Algorithm: algorithm}, func(t *testing.T, g *rank.Group) {
					value := func(r, i int) float32 { return float32((r+1)*(i%1000) - i%7) }
					var list [][]float32
					for i, at := 0, 0; i < len(lengths); i++ {
						x := make([]float32, lengths[i])
						for k := range x {
							x[k] = value(int(g.Rank()), at+k)
						}
						list, at = append(list, x), at+lengths[i]
					}
					require.NoError(t, rank.AllReduceTensors(t.Context(), g, list, op))
					at := 0
					for i, x := range list {
						for k := range x {
							want := value(0, at)
							for r := 1; r < n; r++ {
								if v := value(r, at); op.Kind == kolo.OpMax {
									want = max(want, v)
								} else {
									want += v
								}
							}
							if op.Kind == kolo.OpAvg {
								want /= float32(n)
							}
							if x[k] != want {
								t.Fatalf("%s, %v, %d ranks: tensor %d[%d] is %v, want %v (lengths %v)", algorithm, op, n, i, k, x[k], want, lengths)
							}
							at++
						}
					}
				})
			}
		}
	}
}
