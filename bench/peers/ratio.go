package main

import (
	"slices"

	"github.com/kolo-ccl/kolo"
)

// key names what is measured again in every round.
type key struct {
	collective kolo.Collective
	ranks      int
	size       int64
	manner     manner
	program    string
	variant    string
}

// samples holds the times of all rounds: microseconds by round.
type samples map[key]map[int]float64

// add files the times of one process.
func (s samples) add(round int, r result) {
	for m, t := range r.times {
		if !(t > 0) {
			continue // not measured
		}
		k := key{r.collective, r.ranks, r.size, manner(m), r.program, r.variant}
		if s[k] == nil {
			s[k] = map[int]float64{}
		}
		s[k][round] = t
	}
}

// best is the variant of k.program with the smallest median at this case, or false when
// no variant was measured.
func (s samples) best(k key) (key, bool) {
	found, least := key{}, 0.0
	for have, times := range s {
		same := have
		same.variant = k.variant
		if same != k {
			continue
		}
		m := spreadOf(values(times)).median
		if found.program == "" || m < least || m == least && have.variant < found.variant {
			found, least = have, m
		}
	}
	return found, found.program != ""
}

// spread is a median and its range.
type spread struct {
	median, low, high float64
	count             int // 0: nothing was measured
}

// spreadOf sorts list.
func spreadOf(list []float64) spread {
	n := len(list)
	if n == 0 {
		return spread{}
	}
	slices.Sort(list)
	return spread{(list[(n-1)/2] + list[n/2]) / 2, list[0], list[n-1], n}
}

func values(times map[int]float64) []float64 {
	list := make([]float64, 0, len(times))
	for _, t := range times {
		list = append(list, t)
	}
	return list
}

// ratios are ours over theirs in each round that has both.
func ratios(ours, theirs map[int]float64) spread {
	var list []float64
	for round, t := range ours {
		if u, ok := theirs[round]; ok {
			list = append(list, t/u)
		}
	}
	return spreadOf(list)
}
