package plan

import "github.com/kolo-ccl/kolo"

// Scatter and all-gather: the root scatters the vector down a binomial tree, and a ring
// brings the parts to all: ceil(lg P) + P-1 rounds and twice (P-1)/P of the vector, for
// long vectors on links that like neighbours. (NHR's broadcast gathers in ceil(lg P)
// rounds.) Reduce is the same backwards: reduce-scatter around the ring, then a gather.
// Van de Geijn, "On global combine operations", 1994; Thakur, Rabenseifner and Gropp 2005.
var scatterRing = flat(Algorithm{
	Name:   "scatter-ring",
	Source: "van de Geijn 1994",
}, phases{
	kolo.Broadcast: {func(s *scope) {
		nhrScatter(s, +1)
		ringAllGather(s, +1)
	}, inTurn(nhrAllGatherCost, ringAllGatherCost)},
	kolo.Reduce: {func(s *scope) {
		ringReduceScatter(s, +1)
		nhrGather(s, +1)
	}, inTurn(ringReduceScatterCost, nhrAllGatherCost)},
})
