package survey

import (
	"fmt"
	"slices"
	"time"

	"github.com/kolo-ccl/kolo"
)

// Tolerance says how much worse than expected a figure may be. Zero stands for the
// defaults.
type Tolerance struct {
	Bandwidth float64 // part of the bandwidth that may be missing; default 0.25
	Latency   float64 // how many times the latency may be; default 2
	// Floor is a latency that is never too long; default 20 us, which is what a busy host
	// takes to wake a process.
	Floor time.Duration
}

func (t Tolerance) withDefaults() Tolerance {
	if t.Bandwidth == 0 {
		t.Bandwidth = 0.25
	}
	if t.Latency == 0 {
		t.Latency = 2
	}
	if t.Floor == 0 {
		t.Floor = 20 * time.Microsecond
	}
	return t
}

// Diff says in what s is not what was expected: ranks in other places, pairs that have
// changed peers, links of a worse kind, lost ones and slow ones. What is better than
// expected is no finding, and neither is a pair that one of the two does not know.
func (s *Survey) Diff(expected *Survey, tolerance Tolerance) []Finding {
	d := &differ{want: expected.index(), have: s.index(), t: tolerance.withDefaults(), told: map[[2]kolo.Rank]bool{}}
	if n, m := len(expected.Places), len(s.Places); n != m {
		d.list.add("size", nil, nil, "%d ranks in place of %d; what follows is of the first %d", m, n, min(n, m))
	}
	d.n = kolo.Rank(min(len(expected.Places), len(s.Places)))
	d.places()
	d.miswired()
	d.fallen()
	d.slow()
	return d.list
}

// differ compares two surveys.
type differ struct {
	want, have *index
	n          kolo.Rank // ranks that both have
	t          Tolerance
	told       map[[2]kolo.Rank]bool // pairs of which something worse was said, the smaller rank first
	list       findings
}

func pairOf(a, b kolo.Rank) [2]kolo.Rank { return [2]kolo.Rank{min(a, b), max(a, b)} }

// places compares where ranks are: two that have changed places, and those on other hosts.
func (d *differ) places() {
	done := map[kolo.Rank]bool{}
	for a := range d.n {
		w, h := &d.want.Places[a], &d.have.Places[a]
		if done[a] || w.Host == "" || h.Host == "" || spot(w) == spot(h) {
			continue
		}
		for b := a + 1; b < d.n; b++ {
			if wb, hb := &d.want.Places[b], &d.have.Places[b]; spot(w) == spot(hb) && spot(wb) == spot(h) {
				done[b] = true
				d.list.add("miswired", []kolo.Rank{a, b}, checkCable, "ranks %d and %d have changed places: rank %d is at %s and rank %d at %s", a, b, a, spot(h), b, spot(hb))
				break
			}
		}
		if n := len(d.list); n == 0 || !slices.Contains(d.list[n-1].Ranks, a) {
			d.list.add("moved", []kolo.Rank{a}, nil, "rank %d is at %s in place of %s", a, spot(h), spot(w))
		}
	}
}

// spot names a place.
func spot(p *Place) string {
	s := fmt.Sprintf("device %d of %s", p.Device, p.Host)
	if len(p.Addresses) > 0 {
		s += " (" + p.Addresses[0] + ")"
	}
	return s
}

// direct are the links that a cable makes.
var direct = []kolo.Link{kolo.LinkHCCS, kolo.LinkRoCE}

// miswired finds ranks that a direct link joins with another rank than it should.
func (d *differ) miswired() {
	for _, link := range direct {
		for a := range d.n {
			var missing, extra []kolo.Rank
			for b := range d.n {
				want, ok := d.want.between(a, b)
				have, ok2 := d.have.between(a, b)
				if a == b || !ok || !ok2 || stands(d.have, a, b) {
					continue
				}
				w, h := want.Lost == "" && want.Edge.Link == link, have.Lost == "" && have.Edge.Link == link
				if w && !h {
					missing = append(missing, b)
				}
				// A pair that has a better link than it should has somebody's cable.
				if h && !w && (want.Lost != "" || link < want.Edge.Link) {
					extra = append(extra, b)
				}
			}
			for i := range min(len(missing), len(extra)) {
				b, c := missing[i], extra[i]
				told := d.told[pairOf(a, c)] // from the other end of the cable
				d.told[pairOf(a, b)], d.told[pairOf(a, c)] = true, true
				if told {
					continue
				}
				d.list.add("miswired", []kolo.Rank{a, b, c}, checkCable, "%v joins rank %d with rank %d, where rank %d is expected", link, a, c, b)
			}
		}
	}
}

// fallen finds pairs that have lost their link, or have one of a worse kind.
func (d *differ) fallen() {
	for a := range d.n {
		for b := range d.n {
			want, ok := d.want.between(a, b)
			have, ok2 := d.have.between(a, b)
			if a == b || !ok || !ok2 || want.Lost != "" || d.told[pairOf(a, b)] || stands(d.have, a, b) {
				continue
			}
			ranks := []kolo.Rank{a, b}
			switch w, h := want.Edge.Link, have.Edge.Link; {
			case have.Lost != "":
				d.list.add("lost", ranks, checkLost, "nothing passes from rank %d to rank %d, where %v is expected: %s", a, b, w, have.Lost)
			case h > w:
				d.list.add("fallen", ranks, fallenChecks(w, h), "rank %d and rank %d are joined by %v in place of %v", a, b, h, w)
			default:
				continue
			}
			d.told[pairOf(a, b)] = true
		}
	}
}

// stands says whether the pair's way is only that of others.
func stands(x *index, a, b kolo.Rank) bool {
	_, ok := x.way(a, b)
	return !ok
}

// slow finds links that are slower than expected. Where all links of one rank are, it is
// the rank that is named.
func (d *differ) slow() {
	var slow []Finding
	all, bad := map[kolo.Rank]int{}, map[kolo.Rank]int{}
	for _, have := range d.have.Ways {
		a, b := have.From, have.To
		if a >= d.n || b >= d.n {
			continue
		}
		want, ok := d.want.between(a, b)
		if !ok || want.Lost != "" || have.Lost != "" || d.told[pairOf(a, b)] {
			continue
		}
		all[a]++
		all[b]++
		w, h := want.Edge, have.Edge
		var l findings
		if h.Bandwidth < w.Bandwidth*(1-d.t.Bandwidth) {
			l.add("slow", []kolo.Rank{a, b}, slowChecks(h.Link), "%v from rank %d to rank %d gives %s, %.0f %% of the %s expected", h.Link, a, b, kolo.RateString(h.Bandwidth), 100*h.Bandwidth/w.Bandwidth, kolo.RateString(w.Bandwidth))
		} else if limit := time.Duration(float64(w.Latency) * d.t.Latency); h.Latency > max(limit, d.t.Floor) {
			l.add("slow", []kolo.Rank{a, b}, slowChecks(h.Link), "%v from rank %d to rank %d takes %v for an empty message, where %v are expected", h.Link, a, b, h.Latency, w.Latency)
		}
		if l != nil {
			slow = append(slow, l...)
			bad[a]++
			bad[b]++
		}
	}
	named := map[kolo.Rank]bool{}
	for r := range d.n {
		if n := bad[r]; n >= minBad && n == all[r] && !allBad(bad, all, d.n) {
			named[r] = true
			d.list.add("slow", []kolo.Rank{r}, slices.Concat(checkSlowInside, checkSlowNet), "all %d links of rank %d are slower than expected, and those of other ranks are not", n, r)
		}
	}
	for _, f := range slow {
		if !named[f.Ranks[0]] && !named[f.Ranks[1]] {
			d.list = append(d.list, f)
		}
	}
}

// minBad is how many slow links make a slow rank: two others, both ways.
const minBad = 4

// allBad says whether no rank has a good link.
func allBad(bad, all map[kolo.Rank]int, n kolo.Rank) bool {
	for r := range n {
		if bad[r] < all[r] {
			return false
		}
	}
	return true
}
