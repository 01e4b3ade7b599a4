package plan

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/kolo-ccl/kolo"
)

// Probe is what was measured, as a plain value to fill in; a zero field says
// nothing. One rank's probe is only its own view: all ranks exchange theirs and
// give the same Probe to Topology.With.
type Probe struct {
	Levels  [3]kolo.Edge // replace Topology.Levels
	Pairs   []Pair
	Reduce  float64
	Medium  bool    // the driver offers to do whole collectives
	Process Process // figures of the medium and of the process
}

// Pair is the measured way between two ranks, the same in both directions. Of
// several measurements of one pair the slower latency and the smaller bandwidth
// count, so that both ends may report.
type Pair struct {
	A, B kolo.Rank
	Edge kolo.Edge
}

// maxEdges is the largest number of different edges in a topology, 0 included.
const maxEdges = 1 << 16

// With is the topology with the figures of p, rounded to steps of about 10 % (see
// Quantise). A level of which pairs were measured, but which p.Levels does not
// name, takes the middle of its pairs: the upper median of the latencies, the
// lower of the bandwidths. The order of p.Pairs does not matter.
func (t *Topology) With(p Probe) (*Topology, error) {
	s := *t
	for l, e := range p.Levels {
		if err := checkEdge(e); err != nil {
			return nil, fmt.Errorf("level %d: %w", l, err)
		}
		if e != (kolo.Edge{}) {
			s.Levels[l] = QuantiseEdge(e)
		}
	}
	if p.Reduce != 0 {
		s.Reduce = Quantise(p.Reduce)
	}
	s.Medium = t.Medium || p.Medium
	s.Process = mergeProcess(t.Process, p.Process)
	if err := s.Validate(); err != nil {
		return nil, err
	}
	if len(p.Pairs) == 0 {
		return &s, nil
	}
	if err := s.setPairs(p.Pairs); err != nil {
		return nil, err
	}
	s.findUneven()
	for l := range s.Levels {
		if e, ok := s.middle(l); ok && p.Levels[l] == (kolo.Edge{}) {
			s.Levels[l] = e
		}
	}
	return &s, nil
}

// WithEdges is With for pairs alone.
func (t *Topology) WithEdges(pairs []Pair) (*Topology, error) { return t.With(Probe{Pairs: pairs}) }

// mergeProcess is old with the fields of p that say something, rounded.
func mergeProcess(old, p Process) Process {
	d := func(to *time.Duration, from time.Duration) {
		if from != 0 {
			*to = time.Duration(preferred(int64(from)))
		}
	}
	d(&old.Call, p.Call)
	d(&old.Rank, p.Rank)
	d(&old.Start, p.Start)
	if p.Memory != 0 {
		old.Memory = Quantise(p.Memory)
	}
	if p.Cores != 0 {
		old.Cores = p.Cores
	}
	return old
}

// setPairs replaces what was measured between the given pairs.
func (t *Topology) setPairs(list []Pair) error {
	n := t.Ranks()
	worst := map[[2]kolo.Rank]kolo.Edge{}
	for _, p := range list {
		a, b := min(p.A, p.B), max(p.A, p.B)
		if a < 0 || int(b) >= n || a == b {
			return fmt.Errorf("%w: an edge between rank %d and rank %d in a group of %d", kolo.ErrArgument, p.A, p.B, n)
		}
		if err := checkEdge(p.Edge); err != nil {
			return fmt.Errorf("rank %d and rank %d: %w", p.A, p.B, err)
		}
		if p.Edge.Bandwidth == 0 {
			return fmt.Errorf("%w: rank %d and rank %d: an edge without bandwidth", kolo.ErrArgument, p.A, p.B)
		}
		e, seen := worst[[2]kolo.Rank{a, b}]
		if !seen {
			e = p.Edge
		}
		worst[[2]kolo.Rank{a, b}] = kolo.Edge{Link: max(e.Link, p.Edge.Link),
			Latency: max(e.Latency, p.Edge.Latency), Bandwidth: min(e.Bandwidth, p.Edge.Bandwidth)}
	}
	pairs := make([]uint16, n*n)
	copy(pairs, t.pairs)
	palette := append([]kolo.Edge{}, t.palette...)
	if len(palette) == 0 {
		palette = []kolo.Edge{{}}
	}
	known := map[kolo.Edge]uint16{}
	for i, e := range palette {
		known[e] = uint16(i)
	}
	for ab, e := range worst {
		e = QuantiseEdge(e)
		i, ok := known[e]
		if !ok {
			if len(palette) == maxEdges {
				return fmt.Errorf("%w: more than %d different edges", kolo.ErrLimit, maxEdges-1)
			}
			i = uint16(len(palette))
			palette, known[e] = append(palette, e), i
		}
		a, b := int(ab[0]), int(ab[1])
		pairs[a*n+b], pairs[b*n+a] = i, i
	}
	t.pairs, t.palette = pairs, palette
	return nil
}

// measured calls f for each measured pair of level l, a before b.
func (t *Topology) measured(l int, f func(e kolo.Edge)) {
	if t.pairs == nil {
		return
	}
	n := t.Ranks()
	for a := range n {
		for b := a + 1; b < n; b++ {
			if i := t.pairs[a*n+b]; i > 0 && t.Level(kolo.Rank(a), kolo.Rank(b)) == l {
				f(t.palette[i])
			}
		}
	}
}

// middle is the typical measured edge of level l.
func (t *Topology) middle(l int) (kolo.Edge, bool) {
	var link kolo.Link
	var latency []time.Duration
	var bandwidth []float64
	t.measured(l, func(e kolo.Edge) {
		link = max(link, e.Link)
		latency, bandwidth = append(latency, e.Latency), append(bandwidth, e.Bandwidth)
	})
	n := len(latency)
	if n == 0 {
		return kolo.Edge{}, false
	}
	slices.Sort(latency)
	slices.Sort(bandwidth)
	return kolo.Edge{Link: link, Latency: latency[n/2], Bandwidth: bandwidth[(n-1)/2]}, true
}

// unevenFactor is how much better than the worst the best pair of a level may be.
const unevenFactor = 3

// findUneven fills in why the measured pairs of a level are not alike.
func (t *Topology) findUneven() {
	names := [3]string{"of a server", "of different servers", "of different racks"}
	for l := range t.uneven {
		var lat, bw [2]float64
		first := true
		t.measured(l, func(e kolo.Edge) {
			x, y := float64(e.Latency), e.Bandwidth
			if first {
				lat, bw, first = [2]float64{x, x}, [2]float64{y, y}, false
			}
			lat = [2]float64{min(lat[0], x), max(lat[1], x)}
			bw = [2]float64{min(bw[0], y), max(bw[1], y)}
		})
		t.uneven[l] = ""
		switch {
		case bw[1] > unevenFactor*bw[0]:
			t.uneven[l] = fmt.Sprintf("pairs %s from %s to %s", names[l], kolo.RateString(bw[0]), kolo.RateString(bw[1]))
		case lat[1] > unevenFactor*lat[0]:
			t.uneven[l] = fmt.Sprintf("pairs %s from %v to %v", names[l], time.Duration(lat[0]), time.Duration(lat[1]))
		}
	}
}

// QuantiseEdge rounds the figures of an edge as Quantise does.
func QuantiseEdge(e kolo.Edge) kolo.Edge {
	e.Latency = time.Duration(preferred(int64(e.Latency)))
	e.Bandwidth = Quantise(e.Bandwidth)
	return e
}

// Quantise rounds to the nearest of 24 steps per factor of ten, about 10 % apart,
// the preferred numbers E24 of IEC 60063. It works on integers alone, so that
// machines of every kind agree to the bit, and twice is the same as once.
// Numbers below 10 lose only their fraction.
func Quantise(x float64) float64 {
	if math.IsNaN(x) || math.IsInf(x, 0) || x < 0 || x > 1e18 {
		return x
	}
	return float64(preferred(int64(x + 0.5)))
}

var e24 = [25]int64{10, 11, 12, 13, 15, 16, 18, 20, 22, 24, 27, 30, 33, 36, 39, 43, 47, 51, 56, 62, 68, 75, 82, 91, 100}

// preferred is the nearest preferred number; of two equally near the larger.
func preferred(v int64) int64 {
	if v < 10 || v > 1e18 {
		return v
	}
	scale := int64(1)
	for v/scale >= 100 {
		scale *= 10
	}
	i, _ := slices.BinarySearch(e24[:], (v+scale-1)/scale)
	hi := e24[i] * scale
	if i == 0 || hi == v {
		return hi
	}
	if lo := e24[i-1] * scale; v-lo < hi-v {
		return lo
	}
	return hi
}

// CoarseEdge rounds the figures of an edge as Coarse does.
func CoarseEdge(e kolo.Edge) kolo.Edge {
	e.Latency = time.Duration(Coarse(float64(e.Latency)))
	e.Bandwidth = Coarse(e.Bandwidth)
	return e
}

var e6 = [7]int64{10, 15, 22, 33, 47, 68, 100}

// Coarse rounds to the nearest, by ratio, of 6 steps per factor of ten, which are about
// 1.5 apart: the preferred numbers E6 of IEC 60063. It is for what was measured in passing,
// so that a repetition seldom gives another number. Like Quantise it works on integers
// alone and leaves its results as they are; these Quantise leaves as they are, too.
func Coarse(x float64) float64 {
	if math.IsNaN(x) || x < 9.5 || x > 1e18 {
		return Quantise(x)
	}
	v := int64(x + 0.5)
	scale := int64(1)
	for v/scale >= 100 {
		scale *= 10
	}
	m := v * 100 / scale // four digits
	if scale >= 100 {
		m = v / (scale / 100)
	}
	for i := range len(e6) - 1 {
		if lo, hi := e6[i]*100, e6[i+1]*100; m < hi {
			if m*m < lo*hi {
				return float64(e6[i] * scale)
			}
			return float64(e6[i+1] * scale)
		}
	}
	return float64(100 * scale) // not reached: m has four digits
}

// Digest is a number that two topologies share only if they are equal in all that
// a choice can depend on. Ranks compare it before the first call of a group. It
// is the same on every machine and in every version that does not say otherwise.
func (t *Topology) Digest() uint64 {
	h := fnv(fnvOffset)
	h.add(1, uint64(t.Ranks())) // 1: the form of the digest
	for r := range t.Server {
		h.add(uint64(t.Server[r]), uint64(t.Rack[r]))
	}
	for l := range t.Levels {
		h.edge(t.levelEdge(l))
	}
	h.add(math.Float64bits(t.FoldRate()))
	if p := t.process(); t.Medium {
		h.add(2, uint64(p.Call), uint64(p.Rank), uint64(p.Start), math.Float64bits(p.Memory), uint64(p.Cores))
	}
	if t.Cores > 0 {
		h.add(3, uint64(t.Cores))
	}
	if t.Processes {
		h.add(4)
	}
	n := t.Ranks()
	for i, k := range t.pairs {
		if k > 0 && i/n < i%n {
			h.add(uint64(i))
			h.edge(t.palette[k])
		}
	}
	return uint64(h)
}

// fnv is FNV-1a over 64-bit words.
type fnv uint64

const fnvOffset = 14695981039346656037

func (h *fnv) add(words ...uint64) {
	for _, v := range words {
		for range 8 {
			*h = (*h ^ fnv(v&0xff)) * 1099511628211
			v >>= 8
		}
	}
}

func (h *fnv) edge(e kolo.Edge) {
	h.add(uint64(e.Link), uint64(e.Latency), math.Float64bits(e.Bandwidth))
}
