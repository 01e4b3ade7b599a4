package rank_test

import (
	"math/rand/v2"
	"testing"

	_ "github.com/kolo-ccl/kolo/channel/roce"
	"github.com/kolo-ccl/kolo/rank"
)

// Every collective by every algorithm that sends messages, over real packets: the ranks
// of a process joined by the roce driver on the loopback.
func TestEveryCollectiveOverRoCE(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 1))
	byPlace := map[int][]matrixCase{}
	for _, c := range triples() {
		at := matrixPlaces[c[atPlace]]
		if n := at.topo.Ranks(); !at.long && n > 1 && n < 7 && matrixAlgorithms[c[byAlgorithm]].Name != "fabric" {
			byPlace[c[atPlace]] = append(byPlace[c[atPlace]], c.random(rng))
		}
	}
	for p, at := range matrixPlaces {
		if len(byPlace[p]) == 0 {
			continue
		}
		t.Run(at.name, func(t *testing.T) {
			m := openMatrix(t, at, rank.Config{Driver: "roce"})
			for _, c := range byPlace[p] {
				if err := m.run(t, c); err != nil {
					t.Fatalf("seed %d: %v: %v", seed, c, err)
				}
			}
			t.Logf("%d calls", len(byPlace[p]))
		})
	}
}
