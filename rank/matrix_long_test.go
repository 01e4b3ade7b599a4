//go:build long

package rank_test

import (
	"math/rand/v2"
	"testing"
)

// The whole product of the factors is some eight million calls. Of it, every place,
// algorithm and collective that go together is run with
//
//	every count, layout, root and vector form together   (type, operation and style drawn)
//	every element type and operation together            (the rest drawn)
//
// since what a choreography does with sizes and places does not depend on what the
// kernels do with elements.
func TestEveryCollectiveByEveryAlgorithmGivesTheNaiveAnswerLong(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	var list []matrixCase
	for _, c := range triples() {
		list = append(list, c.product(rng, ofCount, inLayout, atRoot, ofVector)...)
		list = append(list, c.product(rng, ofDType, withOp)...)
	}
	runMatrix(t, seed, list)
}

// product is every combination of some factors, with the others drawn.
func (c matrixCase) product(rng *rand.Rand, factors ...int) []matrixCase {
	n := c.sizes()
	total := 1
	for _, f := range factors {
		total *= max(n[f], 1)
	}
	out := make([]matrixCase, total)
	for i := range out {
		d, rest := c.random(rng), i
		for _, f := range factors {
			if n[f] > 0 {
				d[f], rest = rest%n[f], rest/n[f]
			}
		}
		if n[ofCount] > blocks && d[ofCount] == blocks && factors[0] != ofCount {
			d[ofCount] = rng.IntN(blocks) // the large vectors are in the other product
		}
		out[i] = d
	}
	return out
}
