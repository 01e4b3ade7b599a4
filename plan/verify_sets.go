package plan

import "math/bits"

// sets is a table of sets of ranks. A set is named by its index; the union of two
// is made once.
type sets struct {
	words  int        // per set
	pages  [][]uint64 // of pageSets sets each, so that growth copies nothing
	size   []int32
	unions map[[2]int32]union
}

type union struct {
	set    int32
	common int32 // a member of both, -1 where they have none
}

const pageSets = 256

// newSets has the n sets of one rank, which are named like the ranks.
func newSets(n int) *sets {
	s := &sets{words: (n + 63) / 64, unions: map[[2]int32]union{}}
	for r := range n {
		s.of(s.add(1))[r/64] = 1 << (r % 64)
	}
	return s
}

func (s *sets) of(a int32) []uint64 {
	at := int(a%pageSets) * s.words
	return s.pages[a/pageSets][at : at+s.words]
}

// add makes room for a set of the given size and returns its name.
func (s *sets) add(size int) int32 {
	a := int32(len(s.size))
	if int(a/pageSets) == len(s.pages) {
		s.pages = append(s.pages, make([]uint64, pageSets*s.words))
	}
	s.size = append(s.size, int32(size))
	return a
}

// join is the union of two sets and, where they are not disjoint, a common member.
func (s *sets) join(a, b int32) (set, common int32) {
	if a > b {
		a, b = b, a
	}
	if a == b {
		return a, s.member(a)
	}
	u, ok := s.unions[[2]int32{a, b}]
	if ok {
		return u.set, u.common
	}
	u.common = -1
	size := 0
	x, y := s.of(a), s.of(b)
	for i := range x {
		if both := x[i] & y[i]; both != 0 && u.common < 0 {
			u.common = int32(64*i + bits.TrailingZeros64(both))
		}
		size += bits.OnesCount64(x[i] | y[i])
	}
	switch int32(size) { // one that contains the other is the union
	case s.size[a]:
		u.set = a
	case s.size[b]:
		u.set = b
	default:
		u.set = s.add(size)
		for i := range x {
			s.of(u.set)[i] = x[i] | y[i]
		}
	}
	s.unions[[2]int32{a, b}] = u
	return u.set, u.common
}

// member is the lowest rank of a set.
func (s *sets) member(a int32) int32 {
	for i, w := range s.of(a) {
		if w != 0 {
			return int32(64*i + bits.TrailingZeros64(w))
		}
	}
	return -1
}

// missing is the lowest rank that is not in a set, of n.
func (s *sets) missing(a int32) int32 {
	for i, w := range s.of(a) {
		if w != ^uint64(0) {
			return int32(64*i + bits.TrailingZeros64(^w))
		}
	}
	return -1
}
