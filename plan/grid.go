package plan

import (
	"cmp"
	"slices"

	"github.com/kolo-ccl/kolo"
)

// stages are the scopes of a rank in a collective that goes through the axes of a grid in
// the given order. at[j] are the coordinates of position j of the scope. Stage t is the
// positions that differ from this one on axis order[t] only; its part v is what belongs to
// the positions whose coordinates on the axes before are this one's and whose coordinate
// on this axis is that of stage position v. So reduce-scatter through all stages leaves each
// position with its own part of the whole, and all-gather through them backwards brings all
// parts back. Positions of a stage are in the order of ranks.
func (s *scope) stages(at [][]int, order []int) []*scope {
	out := make([]*scope, len(order))
	agrees := func(j int, but int) bool {
		for a, x := range at[j] {
			if a != but && x != at[s.me][a] {
				return false
			}
		}
		return true
	}
	for t, axis := range order {
		var members []int
		for j := range s.n {
			if agrees(j, axis) {
				members = append(members, j)
			}
		}
		slices.SortFunc(members, func(i, j int) int { return cmp.Compare(s.rank(i), s.rank(j)) })
		x := &scope{b: s.b, n: len(members), ranks: make([]kolo.Rank, len(members)), parts: make([][]int, len(members)),
			lane: s.lane, final: s.final && t == len(order)-1}
		of := map[int]int{} // by coordinate: stage position
		for v, j := range members {
			x.ranks[v] = s.rank(j)
			of[at[j][axis]] = v
			if j == s.me {
				x.me = v
			}
		}
		for j := range s.n {
			mine := true
			for _, a := range order[:t] {
				mine = mine && at[j][a] == at[s.me][a]
			}
			if mine {
				v := of[at[j][axis]]
				x.parts[v] = append(x.parts[v], s.list(j)...)
			}
		}
		out[t] = x
	}
	return out
}
