package plan

import "github.com/kolo-ccl/kolo"

// The ring: rank r only ever sends to r+1. The vector is cut into one part per
// rank; the partial sum of a part travels once around and is complete at the
// part's owner (reduce-scatter), then the result travels once around (all-gather).
// Each phase has P-1 rounds and moves (P-1)/P of the vector per rank, which is the
// least possible.
// Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
// workstations", 2009.

var ring = &Algorithm{
	Name:   "ring",
	Source: "Patarasuk and Yuan 2009",
	serves: serving(kolo.AllReduce),
	parts:  flatParts,
	shared: unrooted,
	write: func(b *builder, _ *Topology) {
		switch s := b.whole(); b.p.Collective {
		case kolo.AllReduce:
			ringAllReduce(s)
		}
	},
}

// ringReduceScatter leaves part r complete at position r. In round t position r
// sends part r-1-t and folds part r-2-t.
func ringReduceScatter(s *scope) {
	for t := range s.n - 1 {
		s.send(s.me+1, s.me-1-t)
		s.recvReduce(s.me-1, t == s.n-2, s.me-2-t)
	}
}

// ringAllGather starts with part r at position r and ends with all parts at all
// positions. In round t position r sends part r-t and takes part r-1-t.
func ringAllGather(s *scope) {
	for t := range s.n - 1 {
		s.send(s.me+1, s.me-t)
		s.recv(s.me-1, s.me-1-t)
	}
}

func ringAllReduce(s *scope) {
	ringReduceScatter(s)
	ringAllGather(s)
}
