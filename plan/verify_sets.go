package plan

import "math/bits"

// sets is a table of sets of ranks. A set is named by its index; the union of two
// is made once.
type sets struct {
	words  int // per set
	bits   []uint64
	size   []int32
	unions map[[2]int32]union
}

type union struct {
	set    int32
	common int32 // a member of both, -1 where they have none
}

// newSets has the n sets of one rank, which are named like the ranks.
func newSets(n int) *sets {
	s := &sets{words: (n + 63) / 64, unions: map[[2]int32]union{}}
	for r := range n {
		s.bits = append(s.bits, make([]uint64, s.words)...)
		s.bits[r*s.words+r/64] |= 1 << (r % 64)
		s.size = append(s.size, 1)
	}
	return s
}

func (s *sets) of(a int32) []uint64 {
	return s.bits[int(a)*s.words : (int(a)+1)*s.words]
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
	u = union{int32(len(s.size)), -1}
	s.bits = append(s.bits, s.of(a)...)
	size := 0
	all, more := s.of(u.set), s.of(b)
	for i, w := range more {
		if both := all[i] & w; both != 0 && u.common < 0 {
			u.common = int32(64*i + bits.TrailingZeros64(both))
		}
		all[i] |= w
		size += bits.OnesCount64(all[i])
	}
	s.size = append(s.size, int32(size))
	switch int32(size) { // one that contains the other is the union
	case s.size[a]:
		u.set = a
	case s.size[b]:
		u.set = b
	}
	if u.set < int32(len(s.size)-1) {
		s.bits, s.size = s.bits[:len(s.bits)-s.words], s.size[:len(s.size)-1]
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
