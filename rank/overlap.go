package rank

import (
	"cmp"
	"slices"
)

// overlapping finds two ranks whose buffers overlap where one of them is written.
func overlapping(list []spans) (a, b int, found bool) {
	type use struct {
		span
		rank   int
		writes bool
	}
	var uses []use
	for r, s := range list {
		if s.out.overlaps(s.in) { // in place: one buffer, written
			s.out.lo, s.out.hi = min(s.in.lo, s.out.lo), max(s.in.hi, s.out.hi)
			s.in = span{}
		}
		if !s.in.empty() {
			uses = append(uses, use{s.in, r, false})
		}
		if !s.out.empty() {
			uses = append(uses, use{s.out, r, true})
		}
	}
	slices.SortFunc(uses, func(x, y use) int { return cmp.Or(cmp.Compare(x.space, y.space), cmp.Compare(x.lo, y.lo)) })
	for i, u := range uses {
		for k := i - 1; k >= 0; k-- {
			v := uses[k]
			if v.space != u.space {
				break
			}
			if v.hi > u.lo && v.rank != u.rank && (v.writes || u.writes) {
				return v.rank, u.rank, true
			}
			if v.hi <= u.lo && v.writes {
				break // what began before v and reaches u would contain v, and was found with it
			}
		}
	}
	return 0, 0, false
}
