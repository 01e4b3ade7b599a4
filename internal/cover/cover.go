package cover

import (
	"cmp"
	"maps"
	"slices"
)

// maxTries bounds the search for the fewest. Behind it the end of most pairs goes first,
// which takes at most the logarithm of the number of pairs times as many. Real sets (one
// host that is cut off from some, all pairs of two hosts) take some dozens.
const maxTries = 1 << 12

// Fewest is the ends that must go so that of each pair at most one is left: as few as can
// be, and of sets of one size that which keeps the lowest numbers, the lowest first. It is
// ascending, and depends neither on the order of the pairs nor on that of their ends. The two ends of a pair differ. Finding it is
// the vertex cover problem; for small covers it is found by branching on the end of most
// pairs: it goes, or all the others of its pairs do.
func Fewest[T cmp.Ordered](pairs [][2]T) []T {
	g := graph[T]{}
	for _, p := range pairs {
		g.join(p[0], p[1])
		g.join(p[1], p[0])
	}
	s := search[T]{tries: maxTries}
	most := s.greedy(g)
	size, ok := s.fewest(g, len(most))
	if !ok {
		return most
	}
	var out []T
	for _, v := range slices.Sorted(maps.Keys(g)) {
		if len(g[v]) == 0 {
			continue // an end of nothing any more
		}
		others := slices.Sorted(maps.Keys(g[v]))
		left := size - len(others) // if v stays, these go
		rest := g.without(others...)
		n := 0
		if n, ok = s.fewest(rest, left); !ok {
			return most
		}
		if n <= left {
			out, size, g = append(out, others...), left, rest
			continue
		}
		out, size, g = append(out, v), size-1, g.without(v)
	}
	slices.Sort(out)
	return out
}

// graph is the other ends of each end's pairs.
type graph[T cmp.Ordered] map[T]map[T]bool

func (g graph[T]) join(a, b T) {
	if g[a] == nil {
		g[a] = map[T]bool{}
	}
	g[a][b] = true
}

// without is the graph when some have gone.
func (g graph[T]) without(gone ...T) graph[T] {
	rest := graph[T]{}
	for v, others := range g {
		if slices.Contains(gone, v) {
			continue
		}
		for u := range others {
			if !slices.Contains(gone, u) {
				rest.join(v, u)
			}
		}
	}
	return rest
}

// busiest is the end of most pairs, of several the highest, and of how many.
func (g graph[T]) busiest() (worst T, degree int) {
	for v, others := range g {
		if n := len(others); n > degree || n == degree && v > worst {
			worst, degree = v, n
		}
	}
	return worst, degree
}

// matched is a number of pairs without a common end: at least one end of each must go.
func (g graph[T]) matched() (n int) {
	used := map[T]bool{}
	for _, v := range slices.Sorted(maps.Keys(g)) {
		for _, u := range slices.Sorted(maps.Keys(g[v])) {
			if !used[v] && !used[u] {
				used[v], used[u] = true, true
				n++
			}
		}
	}
	return n
}

// search is the search for the fewest.
type search[T cmp.Ordered] struct{ tries int }

// greedy lets the end of most pairs go until no pair is left.
func (s *search[T]) greedy(g graph[T]) (out []T) {
	for len(g) > 0 {
		v, _ := g.busiest()
		out, g = append(out, v), g.without(v)
	}
	slices.Sort(out)
	return out
}

// fewest is how many must go, or more than most if those do not do. It is false when the
// tries are used up.
func (s *search[T]) fewest(g graph[T], most int) (n int, ok bool) {
	if s.tries--; s.tries < 0 {
		return 0, false
	}
	if len(g) == 0 {
		return 0, true
	}
	if g.matched() > most {
		return most + 1, true
	}
	v, degree := g.busiest()
	if degree == 1 {
		return g.matched(), true
	}
	n, ok = s.fewest(g.without(v), most-1)
	if !ok {
		return 0, false
	}
	most = min(most, n) // the other way has to be better: n is the best but one, v itself
	others := slices.Collect(maps.Keys(g[v]))
	m, ok := s.fewest(g.without(others...), most-degree)
	return min(n+1, m+degree), ok
}
