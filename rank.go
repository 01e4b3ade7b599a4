package kolo

import "strconv"

// Rank is a position in a group, from 0. Roots, peers and errors use the
// numbering of the group they belong to; a Group converts to world ranks.
type Rank int

// NoRank stands where no rank is meant, as in an Error without a peer.
const NoRank Rank = -1

// String is "rank 3", or "no rank" for a negative value.
func (r Rank) String() string {
	if r < 0 {
		return "no rank"
	}
	return "rank " + strconv.Itoa(int(r))
}
