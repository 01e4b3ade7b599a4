package plan

import "github.com/kolo-ccl/kolo"

// scope is what a phase of an algorithm sees: n positions, of which this rank
// is number me, and the vector in n parts. A flat algorithm has one scope of all
// ranks; a hierarchical one runs its phases in scopes of a server or across servers.
//
// Positions and parts are taken modulo n, so formulas can be written as in the
// papers, with r-d and r+d.
type scope struct {
	b     *builder
	n, me int
	ranks []kolo.Rank // rank of each position; nil: position i is rank i
	parts [][]int     // blocks of each part; nil: part j is the j-th n-th of all blocks
	lane  uint8
	final bool // a reduction completed here has every rank's contribution
}

// whole is the scope of all ranks. The number of blocks must be a multiple of n.
func (b *builder) whole() *scope {
	return &scope{b: b, n: b.p.Ranks, me: int(b.p.Rank), final: true}
}

// rooted is the scope of all ranks in which the root has position 0.
func (b *builder) rooted() *scope {
	s := b.whole()
	n, root := s.n, int(b.p.Root)
	s.ranks = make([]kolo.Rank, n)
	for i := range n {
		s.ranks[i] = kolo.Rank((i + root) % n)
	}
	s.me = (s.me - root + n) % n
	return s
}

// onLane is the same scope on another lane.
func (s *scope) onLane(lane uint8) *scope {
	t := *s
	t.lane = lane
	return &t
}

func (s *scope) mod(i int) int {
	if i %= s.n; i < 0 {
		i += s.n
	}
	return i
}

// rank is the group rank of a position.
func (s *scope) rank(i int) kolo.Rank {
	if i = s.mod(i); s.ranks != nil {
		return s.ranks[i]
	}
	return kolo.Rank(i)
}

// blocks are the blocks of parts, in the order given.
func (s *scope) blocks(parts ...int) []int {
	var out []int
	per := len(s.b.loc) / s.n
	for _, j := range parts {
		j = s.mod(j)
		if s.parts != nil {
			out = append(out, s.parts[j]...)
			continue
		}
		for k := range per {
			out = append(out, j*per+k)
		}
	}
	return out
}

// all are the blocks of every part.
func (s *scope) all() []int { return s.blocks(series(0, s.n, 1)...) }

// send gives parts to the rank at position to.
func (s *scope) send(to int, parts ...int) {
	s.b.send(s.lane, []kolo.Rank{s.rank(to)}, s.blocks(parts...))
}

// recv takes parts from the rank at position from.
func (s *scope) recv(from int, parts ...int) {
	s.b.recv(s.lane, s.rank(from), s.blocks(parts...))
}

// recvReduce folds parts from the rank at position from into this rank's. last
// says that no further contribution to them comes within this scope.
func (s *scope) recvReduce(from int, last bool, parts ...int) {
	s.b.recvReduce(s.lane, []kolo.Rank{s.rank(from)}, s.blocks(parts...), last && s.final, false)
}

// exchange sends parts to a position and folds the same parts from it into this
// rank's at the same time.
func (s *scope) exchange(with int, last bool, parts ...int) {
	blocks := s.blocks(parts...)
	peer := []kolo.Rank{s.rank(with)}
	s.b.send(s.lane, peer, blocks)
	s.b.recvReduce(s.lane, peer, blocks, last && s.final, true)
}

// series is off, off+stride, off+2*stride and so on, n numbers.
func series(off, n, stride int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = off + i*stride
	}
	return out
}
