package plan

import (
	"fmt"
	"iter"

	"github.com/kolo-ccl/kolo"
)

// Move is a message of one rank before it has a place in memory and dependencies: N
// blocks of the whole vector, Off, Off+Stride, Off+2*Stride and so on, modulo their
// number.
type Move struct {
	Op             Opcode // Send, Recv or RecvReduce
	Peer           kolo.Rank
	Off, Stride, N int
	Final          bool // of a RecvReduce: the sums are complete
}

// Moves is what one rank sends and receives in one collective, in the order of its
// Program, one after the other as they are asked for: whatever the number of ranks, it
// takes a few hundred bytes. It is for algorithms whose messages follow a formula: ring,
// nhr and nb for AllReduce, AllGather and ReduceScatter, recursive-doubling and
// halving-doubling for AllReduce. blocks is the number of blocks of the whole vector.
func Moves(algorithm string, c kolo.Collective, ranks int, rank kolo.Rank) (list iter.Seq[Move], blocks int, err error) {
	a, err := Lookup(algorithm)
	if err != nil {
		return nil, 0, err
	}
	if ranks < 1 || rank < 0 || int(rank) >= ranks {
		return nil, 0, fmt.Errorf("%w: rank %d of %d", kolo.ErrArgument, int(rank), ranks)
	}
	switch {
	case (a == ring || a == nhr || a == nb) && (c == kolo.AllReduce || c == kolo.AllGather || c == kolo.ReduceScatter):
	case (a == recursiveDoubling || a == halvingDoubling) && c == kolo.AllReduce:
	default:
		return nil, 0, fmt.Errorf("%w: the messages of %s for %v follow no formula here; known: ring, nhr, nb; recursive-doubling and halving-doubling for AllReduce",
			kolo.ErrUnsupported, algorithm, c)
	}
	blocks = a.parts(c, ranks)
	if chunked(c) {
		blocks *= ranks
	}
	return func(yield func(Move) bool) {
		if ranks == 1 {
			return
		}
		m := &moves{yield: yield, blocks: blocks}
		a.phases[c].write(&scope{n: ranks, me: int(rank), final: true, moves: m})
	}, blocks, nil
}

// moves is where a scope's steps go that are asked for one by one.
type moves struct {
	yield   func(Move) bool
	blocks  int
	stopped bool // nobody asks for more
}

func (m *moves) add(s *scope, op Opcode, at int, x series, final bool) {
	if m.stopped {
		return
	}
	m.stopped = !m.yield(Move{Op: op, Peer: s.rank(at), Off: x.off, Stride: x.stride, N: x.n, Final: final})
}
