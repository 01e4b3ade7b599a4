package rank_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/rank"

	_ "github.com/kolo-ccl/kolo/channel/tcp"
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
