package plan

import "github.com/kolo-ccl/kolo"

// The ring: position i only ever sends to i+1. The vector is cut into one part per
// rank; the partial sum of a part travels once around and is complete at the
// part's owner (reduce-scatter), then the result travels once around (all-gather).
// Each phase has P-1 rounds and moves (P-1)/P of the vector per rank, which is the
// least possible. With a root the ring is a chain: the parts follow each other from
// the root to the rank before it, or the other way.
// Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
// workstations", 2009.
var ring = flat(Algorithm{
	Name:   "ring",
	Source: "Patarasuk and Yuan 2009",
}, phases{
	kolo.AllReduce:     {forwards(ringAllReduce), ringAllReduceCost},
	kolo.ReduceScatter: {forwards(ringReduceScatter), ringReduceScatterCost},
	kolo.AllGather:     {forwards(ringAllGather), ringAllGatherCost},
	kolo.Broadcast:     {chainBroadcast, chainBroadcastCost},
	kolo.Reduce:        {chainReduce, chainReduceCost},
	kolo.Scatter:       {chainScatter, ringAllGatherCost},
	kolo.Gather:        {chainGather, ringAllGatherCost},
	kolo.Barrier:       {forwards(ringAllReduce), ringAllReduceCost},
})

// ringReduceScatter leaves part i complete at position i. In round t position i
// sends part i-1-t to i+1 and folds part i-2-t; with dir -1 the ring turns backwards.
func ringReduceScatter(s *scope, dir int) {
	for t := range s.n - 1 {
		s.sendSeries(s.me+dir, series{s.me - dir*(1+t), 1, 1})
		s.recvReduceSeries(s.me-dir, sum(t == s.n-2), series{s.me - dir*(2+t), 1, 1})
	}
}

// ringAllGather starts with part i at position i and ends with all parts at all
// positions. In round t position i sends part i-t to i+1 and takes part i-1-t.
func ringAllGather(s *scope, dir int) {
	for t := range s.n - 1 {
		s.sendSeries(s.me+dir, series{s.me - dir*t, 1, 1})
		s.recvSeries(s.me-dir, series{s.me - dir*(1+t), 1, 1})
	}
}

func ringAllReduce(s *scope, dir int) {
	ringReduceScatter(s, dir)
	ringAllGather(s, dir)
}

// forwards is the ring from i to i+1.
func forwards(write func(s *scope, dir int)) func(*scope) {
	return func(s *scope) { write(s, +1) }
}

// chainBroadcast passes the parts on from the root, one behind the other.
func chainBroadcast(s *scope) {
	for j := range s.n {
		if s.me != s.root {
			s.recv(s.me-1, j)
		}
		if s.mod(s.me+1) != s.root {
			s.send(s.me+1, j)
		}
	}
}

// chainReduce folds the parts on their way from the rank after the root around to
// the root.
func chainReduce(s *scope) {
	for j := range s.n {
		if s.mod(s.me-1) != s.root {
			s.recvReduce(s.me-1, sum(s.me == s.root), j)
		}
		if s.me != s.root {
			s.send(s.me+1, j)
		}
	}
}

// chainScatter sends the parts that go farthest first: the position at distance d
// from the root passes on the first n-1-d that come and keeps the last.
func chainScatter(s *scope) {
	d := s.mod(s.me - s.root)
	for e := s.n - 1; e > 0 && e >= d; e-- {
		if d > 0 {
			s.recv(s.me-1, s.root+e)
		}
		if e > d {
			s.send(s.me+1, s.root+e)
		}
	}
}

// chainGather is the way back around: the position at distance d after the root
// sends its own part, then the d-1 parts that come from behind.
func chainGather(s *scope) {
	d := s.mod(s.me - s.root)
	if d > 0 {
		s.send(s.me+1, s.me)
	} else {
		d = s.n
	}
	for e := d - 1; e > 0; e-- {
		s.recv(s.me-1, s.root+e)
		if d < s.n {
			s.send(s.me+1, s.root+e)
		}
	}
}

var ringAllReduceCost = inTurn(ringReduceScatterCost, ringAllGatherCost)

func ringReduceScatterCost(p int, n float64) Level {
	return Level{Rounds: float64(p - 1), Bytes: remote(p, n), Reduced: remote(p, n)}
}

func ringAllGatherCost(p int, n float64) Level {
	return Level{Rounds: float64(p - 1), Bytes: remote(p, n)}
}

// chainBroadcastCost: the last part leaves after p-1 others and has p-1 hops to go.
func chainBroadcastCost(p int, n float64) Level {
	return Level{Rounds: float64(2 * (p - 1)), Bytes: 2 * remote(p, n)}
}

func chainReduceCost(p int, n float64) Level {
	return Level{Rounds: float64(2 * (p - 1)), Bytes: 2 * remote(p, n), Reduced: 2 * remote(p, n)}
}
