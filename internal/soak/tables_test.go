package soak

import (
	"fmt"
	"math/rand/v2"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/plan"
)

// planned are the collectives of plans from outside and of rules.
var planned = []kolo.Collective{kolo.AllReduce, kolo.AllGather, kolo.ReduceScatter, kolo.Broadcast, kolo.Reduce, kolo.AllToAll}

// randomPlans are plans as from files: Programs of our algorithms, under other names, for
// groups of any size of the world and windows of sizes.
func randomPlans(rng *rand.Rand, n int) *plan.Library {
	lib := &plan.Library{}
	for i := range 2 + rng.IntN(6) {
		names := plan.Algorithms()
		k := plan.Key{Algorithm: names[rng.IntN(len(names))].Name, Collective: planned[rng.IntN(len(planned))], InPlace: rng.IntN(2) == 0}
		ranks := 1 + rng.IntN(n)
		if k.Collective.Rooted() {
			k.Root = kolo.Rank(rng.IntN(ranks))
		}
		if k.Collective == kolo.Broadcast {
			k.InPlace = true
		}
		programs, err := plan.Programs(k, plan.OneServer(ranks))
		if err != nil {
			continue // the algorithm does not serve
		}
		e, err := plan.NewEntry(fmt.Sprintf("outside-%d-%s", i, k.Algorithm), k, programs)
		if err != nil {
			panic(err) // what we compile is proven
		}
		if rng.IntN(2) == 0 {
			e.MinBytes = rng.Int64N(5000)
			e.MaxBytes = e.MinBytes + rng.Int64N(200_000)
		}
		if rng.IntN(2) == 0 {
			e = e.Anywhere()
		}
		if err := lib.Add(e); err != nil {
			panic(err) // the names differ
		}
	}
	return lib
}

// randomTuning is a table of rules as a tuner file holds.
func randomTuning(rng *rand.Rand, n int) *plan.Tuning {
	t := &plan.Tuning{}
	for range 1 + rng.IntN(12) {
		names := plan.Algorithms()
		r := plan.Rule{Collective: planned[rng.IntN(len(planned))], Algorithm: names[rng.IntN(len(names))].Name, MinRanks: rng.IntN(n + 1)}
		if rng.IntN(2) == 0 {
			r.MinBytes = rng.Int64N(20_000)
			r.MaxBytes = r.MinBytes + 1 + rng.Int64N(200_000)
		}
		r.Disabled = rng.IntN(6) == 0
		t.Rules = append(t.Rules, r)
	}
	return t
}
