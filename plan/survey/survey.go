package survey

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/plan"
)

// Survey says where the ranks of a world are and what lies between them.
type Survey struct {
	Places []Place // by rank
	Ways   []Way   // by From and then To, see Sort
}

// Place is where a rank is. What is not known is empty.
type Place struct {
	Process   int      // ranks with the same number share a process
	Host      string   // a name that differs between hosts
	Rack      string   // of the host
	Addresses []string // of the host, that of the rank first
	Device    int      // its number on the host
}

// Way is what was measured or declared from one rank to another, one way. A way between
// the first ranks of two processes stands also for all other ranks of the two, and one
// between two ranks of a process for all its ranks, unless they have their own.
type Way struct {
	From, To kolo.Rank
	Edge     kolo.Edge
	// Lost says why nothing passes, "" if it does. The figures then mean nothing.
	Lost string
}

// Limits of what is read.
const (
	maxRanks = 1 << 16
	maxWays  = 1 << 22
	maxText  = 1024 // bytes of a name or an address
	maxAddrs = 64   // of a place
)

// Validate says what is wrong, or nil: at least one rank, a process on one host, ways
// between two ranks that exist, each once and in order, and no negative or infinite figure.
func (s *Survey) Validate() error {
	n := len(s.Places)
	if n == 0 || n > maxRanks {
		return fmt.Errorf("%w: a topology of %d ranks; want 1 to %d", kolo.ErrArgument, n, maxRanks)
	}
	if len(s.Ways) > maxWays {
		return fmt.Errorf("%w: a topology of %d links; at most %d are read", kolo.ErrLimit, len(s.Ways), maxWays)
	}
	first := map[int]int{}
	for r, p := range s.Places {
		if q, ok := first[p.Process]; ok && s.Places[q].Host != p.Host {
			return fmt.Errorf("%w: process %d is on host %.40q by rank %d and on %.40q by rank %d", kolo.ErrArgument, p.Process, s.Places[q].Host, q, p.Host, r)
		} else if !ok {
			first[p.Process] = r
		}
		if err := p.validate(); err != nil {
			return fmt.Errorf("rank %d: %w", r, err)
		}
	}
	for i, w := range s.Ways {
		if err := w.validate(n); err != nil {
			return fmt.Errorf("link of rank %d and rank %d: %w", w.From, w.To, err)
		}
		if i > 0 && compareWays(s.Ways[i-1], w) >= 0 {
			return fmt.Errorf("%w: link of rank %d and rank %d: it is there twice, or not in order", kolo.ErrArgument, w.From, w.To)
		}
	}
	return nil
}

func (p *Place) validate() error {
	if p.Process < 0 || p.Device < 0 {
		return fmt.Errorf("%w: process %d, device %d: want no negative numbers", kolo.ErrArgument, p.Process, p.Device)
	}
	if len(p.Addresses) > maxAddrs {
		return fmt.Errorf("%w: %d addresses", kolo.ErrLimit, len(p.Addresses))
	}
	for _, t := range append([]string{p.Host, p.Rack}, p.Addresses...) {
		if len(t) > maxText {
			return fmt.Errorf("%w: the name %.40q... has %d bytes", kolo.ErrLimit, t, len(t))
		}
	}
	return nil
}

func (w *Way) validate(n int) error {
	e := w.Edge
	switch {
	case w.From < 0 || w.To < 0 || int(w.From) >= n || int(w.To) >= n || w.From == w.To:
		return fmt.Errorf("%w: the ranks are 0 to %d, and none has a link with itself", kolo.ErrArgument, n-1)
	case e.Link > kolo.LinkTCP:
		return fmt.Errorf("%w: %v", kolo.ErrArgument, e.Link)
	case e.Latency < 0 || !(e.Bandwidth >= 0) || math.IsInf(e.Bandwidth, 0):
		return fmt.Errorf("%w: %v and %v bytes/s: no figure may be negative or infinite", kolo.ErrArgument, e.Latency, e.Bandwidth)
	case w.Lost == "" && e.Bandwidth == 0:
		return fmt.Errorf("%w: a link without bandwidth that is not lost", kolo.ErrArgument)
	case len(w.Lost) > maxText:
		return fmt.Errorf("%w: a reason of %d bytes", kolo.ErrLimit, len(w.Lost))
	}
	return nil
}

// Sort brings the ways in order.
func (s *Survey) Sort() { slices.SortFunc(s.Ways, compareWays) }

func compareWays(a, b Way) int {
	return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To))
}

// way is the way of exactly two ranks.
func (s *Survey) way(from, to kolo.Rank) (Way, bool) {
	i, ok := slices.BinarySearchFunc(s.Ways, Way{From: from, To: to}, compareWays)
	if !ok {
		return Way{}, false
	}
	return s.Ways[i], true
}

// index finds the ways that stand for others.
type index struct {
	*Survey
	lead   map[int]kolo.Rank // the first rank of each process
	inside map[int]Way       // a way within each process
}

func (s *Survey) index() *index {
	x := &index{s, map[int]kolo.Rank{}, map[int]Way{}}
	for r, p := range s.Places {
		if _, ok := x.lead[p.Process]; !ok {
			x.lead[p.Process] = kolo.Rank(r)
		}
	}
	for _, w := range s.Ways {
		if p := s.Places[w.From].Process; p == s.Places[w.To].Process {
			if _, ok := x.inside[p]; !ok {
				x.inside[p] = w
			}
		}
	}
	return x
}

// between is the way from one rank to another, its own or one that stands for it.
func (x *index) between(from, to kolo.Rank) (Way, bool) {
	if w, ok := x.way(from, to); ok {
		return w, true
	}
	p, q := x.Places[from].Process, x.Places[to].Process
	w, ok := x.inside[p]
	if p != q {
		w, ok = x.way(x.lead[p], x.lead[q])
	}
	w.From, w.To = from, to
	return w, ok
}

// Topology is the survey as what choices are made by, rounded as plan.Quantise does, so
// that it is the same on all ranks whose surveys are. Its servers are processes where
// some hold several ranks, and its racks are hosts then; where each rank has a process of
// its own, servers are hosts and racks are racks. Lost ways count as if they were not known. A host in two racks has no topology.
func (s *Survey) Topology() (*plan.Topology, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	if n := len(s.Places); n*n > maxWays {
		return nil, fmt.Errorf("%w: a plan.Topology of all pairs of %d ranks", kolo.ErrLimit, n)
	}
	x := s.index()
	server, rack := make([]int, len(s.Places)), make([]int, len(s.Places))
	servers, racks := numbers{}, numbers{}
	for r, p := range s.Places {
		if len(x.lead) < len(s.Places) {
			server[r], rack[r] = servers.of(fmt.Sprint(p.Process)), racks.of(p.Host)
		} else {
			server[r], rack[r] = servers.of(p.Host), racks.of(p.Rack)
		}
	}
	t, err := plan.Places(server, rack)
	if err != nil {
		return nil, err
	}
	var pairs []plan.Pair
	for a := range kolo.Rank(len(s.Places)) {
		for b := range kolo.Rank(len(s.Places)) {
			if w, ok := x.between(a, b); a != b && ok && w.Lost == "" {
				pairs = append(pairs, plan.Pair{A: a, B: b, Edge: w.Edge})
			}
		}
	}
	return t.WithEdges(pairs)
}

// numbers gives texts numbers in the order in which they come.
type numbers map[string]int

func (n numbers) of(s string) int {
	if _, ok := n[s]; !ok {
		n[s] = len(n)
	}
	return n[s]
}

// hosts are the ranks of each host, in the order in which hosts first occur.
func (s *Survey) hosts() (names []string, ranks map[string][]kolo.Rank) {
	ranks = map[string][]kolo.Rank{}
	for r, p := range s.Places {
		if ranks[p.Host] == nil {
			names = append(names, p.Host)
		}
		ranks[p.Host] = append(ranks[p.Host], kolo.Rank(r))
	}
	return names, ranks
}

// Class is the ways of one kind of link at one distance, which is "process", "host",
// "rack" or "racks" for ranks that share the first three or nothing.
type Class struct {
	Link      kolo.Link
	Distance  string
	Count     int // of ways that pass
	Lost      int
	Latency   [3]time.Duration // least, median, most
	Bandwidth [3]float64       // bytes per second
}

var distances = []string{"process", "host", "rack", "racks"}

// distance is the place of the ranks' nearness in distances.
func (s *Survey) distance(a, b kolo.Rank) int {
	p, q := &s.Places[a], &s.Places[b]
	switch {
	case p.Process == q.Process:
		return 0
	case p.Host == q.Host:
		return 1
	case p.Rack == q.Rack:
		return 2
	}
	return 3
}

// Classes are the ways by distance and kind.
func (s *Survey) Classes() []Class {
	type key struct {
		distance int
		link     kolo.Link
	}
	ways := map[key][]Way{}
	for _, w := range s.Ways {
		k := key{s.distance(w.From, w.To), w.Edge.Link}
		ways[k] = append(ways[k], w)
	}
	keys := make([]key, 0, len(ways))
	for k := range ways {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b key) int { return cmp.Or(a.distance-b.distance, int(a.link)-int(b.link)) })
	var list []Class
	for _, k := range keys {
		c := Class{Link: k.link, Distance: distances[k.distance]}
		var latency []time.Duration
		var bandwidth []float64
		for _, w := range ways[k] {
			if w.Lost != "" {
				c.Lost++
				continue
			}
			latency, bandwidth = append(latency, w.Edge.Latency), append(bandwidth, w.Edge.Bandwidth)
		}
		if c.Count = len(latency); c.Count > 0 {
			slices.Sort(latency)
			slices.Sort(bandwidth)
			c.Latency = [3]time.Duration{latency[0], latency[len(latency)/2], latency[len(latency)-1]}
			c.Bandwidth = [3]float64{bandwidth[0], bandwidth[(len(bandwidth)-1)/2], bandwidth[len(bandwidth)-1]}
		}
		list = append(list, c)
	}
	return list
}
