package rank

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/kolo-ccl/kolo"
)

// SplitConfig says which part of a split group a rank becomes a member of.
type SplitConfig struct {
	// Color is the part: the ranks of one color make a group. NoColor makes this rank a
	// member of none.
	Color int
	// Key orders the ranks of a part, smaller first; of equal keys, those of the group's
	// order. So zeros keep that order.
	Key int
	// Group is how the part is made, the same on all its ranks. Its Ranks are not looked at.
	Group GroupConfig
}

// NoColor is the Color of a rank that becomes a member of no part.
const NoColor = -1

// Split cuts the group into groups of ranks of one color, as MPI_Comm_split and
// ncclCommSplit do. Every rank of the group calls it, with a color and a key of its own;
// it is a call of the group, in order with the others. The result is nil for NoColor. The
// name of a part is Group.Name and its world ranks.
func (g *Group) Split(ctx context.Context, c SplitConfig) (*Group, error) {
	if c.Color < NoColor {
		err := fmt.Errorf("%w: split: Color %d; want 0 or more, or NoColor", kolo.ErrArgument, c.Color)
		g.Abort(err) // the others wait in the AllGather
		return nil, &kolo.Error{Group: g.Name(), Rank: g.rank, Peer: kolo.NoRank, Err: err}
	}
	all := make([]int64, 2*g.Size())
	if err := AllGather(ctx, g, all, []int64{int64(c.Color), int64(c.Key)}); err != nil {
		return nil, err
	}
	if c.Color == NoColor {
		return nil, nil
	}
	var part []kolo.Rank
	for r := range g.Size() {
		if all[2*r] == int64(c.Color) {
			part = append(part, kolo.Rank(r))
		}
	}
	slices.SortStableFunc(part, func(a, b kolo.Rank) int { return cmp.Compare(all[2*a+1], all[2*b+1]) })
	for i, r := range part {
		part[i] = g.WorldRank(r)
	}
	// Parts of several splits may have one name and different ranks: what tells them apart is
	// in the name.
	c.Group.Ranks = part
	if name := nameOf(part); c.Group.Name == "" {
		c.Group.Name = name
	} else {
		c.Group.Name += ": " + name
	}
	return g.world.NewGroup(c.Group)
}
