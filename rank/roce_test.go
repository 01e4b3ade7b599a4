package rank_test

import (
	"math/rand/v2"
	"os"
	"testing"

	_ "github.com/kolo-ccl/kolo/channel/roce"
	_ "github.com/kolo-ccl/kolo/channel/verbs"
	"github.com/kolo-ccl/kolo/rank"
)

// Every collective by every algorithm that sends messages, over real packets: the ranks
// of a process joined by the roce driver on the loopback.
func TestEveryCollectiveOverRoCE(t *testing.T) { everyCollectiveOver(t, "roce") }

// The same by an RDMA adapter: that of KOLO_VERBS_DEVICE, as in the machine of make
// rxe-vm.
func TestEveryCollectiveOverVerbs(t *testing.T) {
	if os.Getenv("KOLO_VERBS_DEVICE") == "" {
		t.Skip("KOLO_VERBS_DEVICE names no RDMA device; make rxe-vm runs this test on the kernel's RoCE")
	}
	everyCollectiveOver(t, "verbs")
}

func everyCollectiveOver(t *testing.T, driver string) {
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
			m := openMatrix(t, at, rank.Config{Driver: driver})
			for _, c := range byPlace[p] {
				if err := m.run(t, c); err != nil {
					t.Fatalf("seed %d: %v: %v", seed, c, err)
				}
			}
			t.Logf("%d calls", len(byPlace[p]))
		})
	}
}
