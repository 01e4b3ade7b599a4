//go:build long

package rank_test

import "testing"

// A MiB on each of 1,024 ranks: a GiB of vectors.
func TestThousandRanksAddMegabytes(t *testing.T) {
	for _, algorithm := range []string{"nhr", "ring", "fabric"} {
		t.Run(algorithm, func(t *testing.T) { allReduceOnManyRanks(t, manyRanks, algorithm, 1<<20/4) })
	}
}

func TestThousandRanksMeetByChoreographies(t *testing.T) {
	meet(t, "nhr", "recursive-doubling", "tree", "star")
}
