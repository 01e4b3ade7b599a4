package ranktest_test

import (
	"fmt"
	"testing"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/rank"
	"github.com/kolo-ccl/kolo/rank/ranktest"

	"github.com/stretchr/testify/require"
)

// What three ranks must hold after an AllGather of different lengths.
func ExampleAnswer() {
	counts := rank.Vector{Counts: []int64{1, 0, 2}}
	calls := make([]rank.Request, 3)
	for r := range calls {
		in := make([]uint8, counts.Counts[r])
		for i := range in {
			in[i] = uint8(10*r + i)
		}
		calls[r] = rank.Request{Collective: kolo.AllGatherV, In: rank.Of(in), Out: rank.Of(make([]uint8, 3)), Recv: counts}
	}
	fmt.Println(ranktest.Answer(calls))
	// Output: [[0 20 21] [0 20 21] [0 20 21]]
}

// The sum of what three ranks hold, one element after the other.
func ExampleFold() {
	fmt.Println(ranktest.Fold(kolo.Sum, []int8{1, 100}, []int8{2, 20}, []int8{3, 10}))
	// Output: [6 -126]
}

// A test of four ranks. In a real one t comes from go test.
func ExampleRun() {
	test := func(t *testing.T) {
		ranktest.Run(t, 4, func(t *testing.T, g *rank.Group) {
			call := func(r kolo.Rank) rank.Request {
				return rank.Request{Collective: kolo.AllReduce, Op: kolo.Max,
					In: rank.Of(ranktest.Data[float32](r, 100)), Out: rank.Of(make([]float32, 100))}
			}
			mine := call(g.Rank())
			require.NoError(t, rank.Do(t.Context(), g, mine))
			require.Equal(t, ranktest.Want(4, g.Rank(), call), mine.Out.Memory.Host)
		})
	}
	_ = test // go test runs it
}
