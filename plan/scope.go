package plan

import (
	"slices"

	"github.com/kolo-ccl/kolo"
)

// scope is what a phase of an algorithm sees: n positions, of which this rank
// is number me, and the vector in n parts. A flat algorithm has one scope of all
// ranks; a hierarchical one runs its phases in scopes of a server or across servers.
//
// Positions and parts are taken modulo n, so formulas can be written as in the
// papers, with r-d and r+d. The two ends of a message must name its parts in the
// same order.
type scope struct {
	b     *builder
	n, me int
	root  int         // position of the root, 0 where the collective has none
	ranks []kolo.Rank // rank of each position; nil: position i is rank i
	parts [][]int     // blocks of each part; nil: part j is the j-th n-th of all blocks
	lane  uint8
	final bool   // a reduction completed here has every rank's contribution
	extra int    // of the positions below it every second one is left out; see survivors
	moves *moves // where steps go instead of to b; see Moves
}

// series is off, off+stride, off+2*stride and so on: n parts. Where a message has many
// parts it is written as a series, so that it costs nothing before it is placed.
type series struct{ off, stride, n int }

// sum says what a reduction leaves: a part of what the scope contributes, or all
// of it.
type sum bool

const (
	partial sum = false
	total   sum = true
)

// whole is the scope of all ranks. The number of blocks must be a multiple of n
// for algorithms that name parts.
func (b *builder) whole() *scope {
	s := &scope{b: b, n: b.p.Ranks, me: int(b.p.Rank), final: true}
	if b.p.Collective.Rooted() {
		s.root = int(b.p.Root)
	}
	return s
}

// fromRoot is the same scope with its positions counted from the root, which has
// position 0. The parts are numbered as before.
func (s *scope) fromRoot() *scope {
	t := *s
	t.ranks, t.me, t.root = make([]kolo.Rank, s.n), s.mod(s.me-s.root), 0
	for i := range t.ranks {
		t.ranks[i] = s.rank(s.root + i)
	}
	return &t
}

// lanes are k scopes on lanes of their own, each with the k-th part of every part.
func (s *scope) lanes(k int) []*scope {
	out := make([]*scope, k)
	for l := range out {
		t := *s
		t.lane, t.parts = uint8(l), make([][]int, s.n)
		var flat []int
		for j := range s.n {
			blocks, first := s.list(j), len(flat)
			flat = append(flat, blocks[l*len(blocks)/k:(l+1)*len(blocks)/k]...)
			t.parts[j] = flat[first:len(flat):len(flat)]
		}
		out[l] = &t
	}
	return out
}

func (s *scope) mod(i int) int {
	if i %= s.n; i < 0 {
		i += s.n
	}
	return i
}

// rank is the group rank of a position.
func (s *scope) rank(i int) kolo.Rank {
	i = s.mod(i)
	i += min(i, s.extra)
	if s.ranks != nil {
		return s.ranks[i]
	}
	return kolo.Rank(i)
}

// peers are the ranks of positions.
func (s *scope) peers(at ...int) []kolo.Rank {
	b := s.b
	first := len(b.peers)
	for _, i := range at {
		b.peers = append(b.peers, s.rank(i))
	}
	return b.peers[first:len(b.peers):len(b.peers)]
}

// list are the blocks of parts, in the order given, until the next call.
func (s *scope) list(parts ...int) []int {
	out := s.b.blocks[:0]
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
	s.b.blocks = out
	return out
}

// all are the blocks of every part, until the next call.
func (s *scope) all() []int {
	out := s.b.blocks[:0]
	for _, part := range s.parts {
		out = append(out, part...)
	}
	if s.parts == nil {
		for i := range s.b.loc {
			out = append(out, i)
		}
	}
	s.b.blocks = out
	return out
}

// series is off, off+stride, off+2*stride and so on, n numbers, until the next call.
func (s *scope) series(off, stride, n int) []int {
	out := s.b.numbers[:0]
	for i := range n {
		out = append(out, off+i*stride)
	}
	s.b.numbers = out
	return out
}

// others are all positions but this rank's, or all parts but its own, beginning
// with the next, until the next call.
func (s *scope) others() []int { return s.series(s.me+1, 1, s.n-1) }

// othersBut are the others without one more.
func (s *scope) othersBut(at int) []int {
	return slices.DeleteFunc(s.others(), func(i int) bool { return s.mod(i) == at })
}

// sendSeries, recvSeries and recvReduceSeries are send, recv and recvReduce of a series.
func (s *scope) sendSeries(to int, x series) {
	if s.moves == nil {
		s.send(to, s.series(x.off, x.stride, x.n)...)
		return
	}
	s.moves.add(s, Send, to, x, false)
}

func (s *scope) recvSeries(from int, x series) {
	if s.moves == nil {
		s.recv(from, s.series(x.off, x.stride, x.n)...)
		return
	}
	s.moves.add(s, Recv, from, x, false)
}

func (s *scope) recvReduceSeries(from int, is sum, x series) {
	if s.moves == nil {
		s.recvReduce(from, is, s.series(x.off, x.stride, x.n)...)
		return
	}
	s.moves.add(s, RecvReduce, from, x, s.final && is == total)
}

// sendAll, recvAll and recvReduceAll are those of the whole vector.
func (s *scope) sendAll(to int) {
	if s.moves == nil {
		s.b.send(s.lane, s.peers(to), s.all())
		return
	}
	s.moves.add(s, Send, to, series{0, 1, s.moves.blocks}, false)
}

func (s *scope) recvAll(from int) {
	if s.moves == nil {
		s.b.recv(s.lane, s.peers(from), s.all())
		return
	}
	s.moves.add(s, Recv, from, series{0, 1, s.moves.blocks}, false)
}

func (s *scope) recvReduceAll(from int, is sum) {
	if s.moves == nil {
		s.b.recvReduce(s.lane, s.peers(from), s.all(), is)
		return
	}
	s.moves.add(s, RecvReduce, from, series{0, 1, s.moves.blocks}, bool(is))
}

// send gives parts to the rank at position to.
func (s *scope) send(to int, parts ...int) {
	s.b.send(s.lane, s.peers(to), s.list(parts...))
}

// recv takes parts from the rank at position from.
func (s *scope) recv(from int, parts ...int) {
	s.b.recv(s.lane, s.peers(from), s.list(parts...))
}

// recvReduce folds parts from the rank at position from into this rank's.
func (s *scope) recvReduce(from int, is sum, parts ...int) {
	s.b.recvReduce(s.lane, s.peers(from), s.list(parts...), is && sum(s.final))
}

// multicast gives a part to several positions in one step.
func (s *scope) multicast(to []int, part int) {
	if len(to) > 0 {
		s.b.send(s.lane, s.peers(to...), s.list(part))
	}
}

// fold takes a part from several positions and folds all of them and this rank's
// in one step.
func (s *scope) fold(from []int, is sum, part int) {
	if len(from) > 0 {
		s.b.recvReduce(s.lane, s.peers(from...), s.list(part), is && sum(s.final))
	}
}

// exchange sends the whole vector to positions and folds theirs into this rank's at
// the same time. left is the number of exchanges that follow within the scope.
func (s *scope) exchange(with []int, left int) {
	if s.moves != nil {
		s.sendAll(with[0])
		s.recvReduceAll(with[0], sum(s.final && left == 0))
		return
	}
	if len(with) > 0 {
		s.b.exchange(s.lane, s.peers(with...), s.all(), sum(s.final && left == 0), left)
	}
}
