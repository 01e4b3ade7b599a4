// Package ranktest runs tests on several ranks of one process, and knows what
// every collective must answer.
//
//	func TestGradients(t *testing.T) {
//		ranktest.Run(t, 4, func(t *testing.T, g *rank.Group) {
//			grads := ranktest.Data[float32](g.Rank(), 1000)
//			require.NoError(t, rank.AllReduce(t.Context(), g, grads, kolo.Sum))
//			require.Equal(t, ranktest.Fold(kolo.Sum, ranktest.Inputs[float32](4, 1000)...), grads)
//		})
//	}
//
// Every rank is a subtest, "rank 2", with a T of its own: a failure names its rank,
// and FailNow, require and Skip may be used on any rank. A rank that fails takes the
// others' calls with it, so that none of them waits for it.
//
// The answers are computed in the dumbest way, one element after the other, and share
// no code with the runtime.
package ranktest
