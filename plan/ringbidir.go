package plan

import "github.com/kolo-ccl/kolo"

// The bidirectional ring: two rings turn against each other, each with half of
// every part and a lane of its own. A rank sends to both neighbours at a time, so
// that links which carry both directions at full rate take half the time of one ring.
// The cost is that of ranks with a single port, which gain nothing: a topology does
// not say how many ports there are, so this algorithm runs where it is asked for.
var ringBidir = flat(Algorithm{
	Name:   "ring-bidir",
	Source: "two rings after Patarasuk and Yuan 2009",
	parts:  func(c kolo.Collective, p int) int { return 2 * onePerRank(c, p) },
}, phases{
	kolo.AllReduce:     {bothWaysAround(ringAllReduce), ringAllReduceCost},
	kolo.ReduceScatter: {bothWaysAround(ringReduceScatter), ringReduceScatterCost},
	kolo.AllGather:     {bothWaysAround(ringAllGather), ringAllGatherCost},
	kolo.Barrier:       {bothWaysAround(ringAllReduce), ringAllReduceCost},
})

// bothWaysAround does the first half of each part forwards and the second backwards.
func bothWaysAround(write func(s *scope, dir int)) func(*scope) {
	return func(s *scope) {
		halves := s.lanes(2)
		write(halves[0], +1)
		write(halves[1], -1)
	}
}
