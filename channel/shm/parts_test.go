//go:build linux && (amd64 || arm64)

package shm

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/internal/kernel"

	"github.com/stretchr/testify/require"
)

// partsSpec is a round of a group: what each rank gives and takes, as all processes know it.
type partsSpec struct {
	parts  []channel.Share
	into   []int64 // where the result of each part begins in the outputs of those who take it
	in     []int64 // bytes of each rank's input, and output
	out    []int64
	reduce bool
	trades bool // input and output are one
	given  [][]byte
}

// someParts is one of the shapes that collectives have, with lengths that differ.
func someParts(rng *rand.Rand, n int) *partsSpec {
	s := &partsSpec{in: make([]int64, n), out: make([]int64, n)}
	all, root := channel.EveryRank, kolo.Rank(rng.IntN(n))
	base := 1 << rng.IntN(14)
	if n < 5 && rng.IntN(6) == 0 { // so that blocks take turns
		base = 1 << 18
	}
	length := func() int64 {
		if rng.IntN(5) == 0 {
			return 0
		}
		return 4 * int64(rng.IntN(base))
	}
	add := func(n int64, from, to kolo.Rank, at, into int64) {
		s.parts, s.into = append(s.parts, channel.Share{Len: n, From: from, To: to, At: at}), append(s.into, into)
	}
	at := int64(0)
	switch kind := rng.IntN(6); kind {
	case 0, 1: // AllReduce of several tensors, Reduce
		s.reduce = true
		for range 1 + 3*rng.IntN(2)*(1-kind) {
			k := length()
			add(k, all, []kolo.Rank{all, root}[kind], at, at)
			at += k
		}
	case 2: // ReduceScatter
		s.reduce = true
		for r := range n {
			k := length()
			add(k, all, kolo.Rank(r), at, 0)
			at += k
		}
	case 3: // AllGather, Gather
		to := []kolo.Rank{all, root}[rng.IntN(2)]
		for r := range n {
			k := length()
			add(k, kolo.Rank(r), to, 0, at)
			at += k
		}
	case 4: // Broadcast, Scatter
		if rng.IntN(2) == 0 {
			add(length(), root, all, 0, 0)
			break
		}
		for r := range n {
			k := length()
			add(k, root, kolo.Rank(r), at, 0)
			at += k
		}
	default: // AllToAll
		s.trades = rng.IntN(2) == 0
		sizes := make([]int64, n*n)
		for i := range sizes {
			if sizes[i] = length(); s.trades && i%n < i/n {
				sizes[i] = sizes[i%n*n+i/n]
			}
		}
		for i := range n {
			at := int64(0)
			for k := range n {
				into := int64(0)
				for j := range i {
					into += sizes[j*n+k]
				}
				add(sizes[i*n+k], kolo.Rank(i), kolo.Rank(k), at, into)
				at += sizes[i*n+k]
			}
		}
	}
	for i := range s.parts {
		for r := range kolo.Rank(n) {
			if p := &s.parts[i]; gives(p, r) {
				s.in[r] = max(s.in[r], p.At+p.Len)
			}
			if p := &s.parts[i]; takes(p, r) {
				s.out[r] = max(s.out[r], s.into[i]+p.Len)
			}
		}
	}
	return s
}

func gives(p *channel.Share, r kolo.Rank) bool { return p.From == r || p.From == channel.EveryRank }
func takes(p *channel.Share, r kolo.Rank) bool { return p.To == r || p.To == channel.EveryRank }

// fill makes what the ranks give.
func (s *partsSpec) fill(rng *rand.Rand) {
	for _, n := range s.in {
		b := make([]byte, n)
		for i := 0; i+8 <= len(b); i += 8 {
			binary.LittleEndian.PutUint64(b[i:], rng.Uint64())
		}
		s.given = append(s.given, b)
	}
}

// want is what a rank gets.
func (s *partsSpec) want(r kolo.Rank, op kernel.Op) []byte {
	b := make([]byte, s.out[r])
	for i := range s.parts {
		p := &s.parts[i]
		if !takes(p, r) {
			continue
		}
		var srcs [][]byte
		for g := range kolo.Rank(len(s.in)) {
			if gives(p, g) {
				srcs = append(srcs, s.given[g][p.At:][:p.Len])
			}
		}
		op.Fold(b[s.into[i]:][:p.Len], srcs...)
	}
	return b
}

// play does the round as process i of a table and checks what its ranks get.
func (s *partsSpec) play(b *table, i, number int) error {
	r := &channel.Round{Digest: uint64(number), Trades: s.trades}
	if s.reduce {
		r.Op = kernel.OpOf(kolo.Int32, kolo.Sum, len(s.in))
	}
	ranks := slices.Sorted(slices.Values(b.ranks[i]))
	ins, outs := make([][]byte, len(ranks)), make([][]byte, len(ranks))
	for k, rank := range ranks {
		in, err := b.memory(i, int(rank), int(s.in[rank]))
		if err != nil {
			return err
		}
		copy(in, s.given[rank])
		ins[k], outs[k] = in, make([]byte, s.out[rank])
		if s.trades {
			outs[k] = in
		}
		r.Inputs = append(r.Inputs, kolo.HostMemory(in))
	}
	for n := range s.parts {
		p := &s.parts[n]
		q := r.Add(p.Len, p.From, p.To, p.At)
		for k, rank := range ranks {
			if gives(p, rank) {
				q.Src = append(q.Src, kolo.HostMemory(ins[k][p.At:][:p.Len]))
			}
			if takes(p, rank) {
				q.Dst = append(q.Dst, kolo.HostMemory(outs[k][s.into[n]:][:p.Len]))
			}
		}
	}
	if err := b.post(i, r)(); err != nil {
		return err
	}
	for k, rank := range ranks {
		if want := s.want(rank, r.Op); !bytes.Equal(outs[k], want) {
			return fmt.Errorf("round %d: rank %v has a wrong result of %d parts, of %d bytes in and %d out", number, rank, len(s.parts), s.in[rank], s.out[rank])
		}
		if !s.trades && !bytes.Equal(ins[k], s.given[rank]) {
			return fmt.Errorf("round %d: the input of rank %v is not what it was", number, rank)
		}
		clear(ins[k]) // nobody reads it any more
	}
	return nil
}

// TestBoardParts does rounds of all shapes, one after the other, on processes of which some
// have their inputs in shared memory.
func TestBoardParts(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for k, ranks := range [][][]kolo.Rank{{{0}, {1}}, {{1}, {0}}, {{0}, {1}, {2}}, {{0, 3}, {2, 1}}, {{4, 0, 2}, {1}, {3, 5}}} {
		t.Run(fmt.Sprint(ranks), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, uint64(k)))
			b := newTable(t, ranks...)
			n, most := 0, 1
			for _, list := range ranks {
				n += len(list)
			}
			var specs []*partsSpec
			for range 20 {
				s := someParts(rng, n)
				s.fill(rng)
				specs = append(specs, s, s)
				most = max(most, int(slices.Max(s.in)))
			}
			for i := range ranks {
				if rng.IntN(2) == 0 {
					require.NoError(t, b.share(i, most))
				}
			}
			var wg sync.WaitGroup
			for i := range ranks {
				wg.Go(func() { // ends with its rounds
					for number, s := range specs {
						if err := s.play(b, i, number); err != nil {
							t.Errorf("process %d: %v", i, err)
							b.boards[i].Cancel(nil, err)
							return
						}
					}
				})
			}
			wg.Wait()
		})
	}
}

// TestLayoutHasRoom compares where slices lie: no two of a block overlap, all of a part's
// bytes are in one slice, and nothing is behind the end of the arena.
func TestLayoutHasRoom(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	for range 300 {
		n, processes := 1+rng.IntN(40), 1+rng.IntN(5)
		s := &seats{locals: make([]int, processes), block: boardLeast}
		for r := range n {
			q := rng.IntN(processes)
			if r < processes {
				q = r
			}
			s.of = append(s.of, q)
			s.locals[q]++
		}
		s.locals = slices.DeleteFunc(s.locals, func(k int) bool { return k == 0 })
		l, spec := &layout{}, someParts(rng, n)
		require.NoError(t, l.lay(s, spec.parts))
		require.True(t, l.same(spec.parts))
		require.LessOrEqual(t, l.blocks, uint64(2+2*slices.Max(spec.in)*int64(n)/boardLeast))
		room := make([]int64, len(s.locals))
		for q := range room {
			if room[q] = boardInline; l.blocks > 0 {
				room[q] = s.block * int64(s.locals[q])
			}
		}
		end := make([]int64, len(room)) // slices are placed one behind the other
		for i := range l.slots {
			slot := &l.slots[i]
			covered := int64(0)
			for c := range max(l.blocks, 1) {
				off, k := slot.slice(c)
				require.True(t, k == 0 || off == covered)
				covered += k
			}
			require.Equal(t, slot.length, covered)
			for r, q := range s.of {
				local := 0
				for _, p := range s.of[:r] {
					if p == q {
						local++
					}
				}
				if slot.from != channel.EveryRank && slot.from != kolo.Rank(r) {
					continue
				}
				if at := l.contribution(slot, q, local); slot.from != channel.EveryRank || l.places[slot.place+int64(q)] >= 0 {
					require.GreaterOrEqual(t, at, end[q]-slot.unit*int64(local))
					end[q] = max(end[q], at+slot.unit)
				}
			}
			require.True(t, l.blocks == 0 || slot.result+slot.unit <= s.block || !slot.shared)
		}
		for q := range end {
			require.LessOrEqual(t, end[q], room[q])
		}
	}
	require.ErrorIs(t, (&layout{}).lay(&seats{of: []int{0, 1}, locals: []int{1, 1}, block: boardLeast},
		slices.Repeat([]channel.Share{{Len: 4, From: channel.EveryRank, To: channel.EveryRank}}, boardLeast)), kolo.ErrUnsupported)
	for _, bad := range []channel.Share{{Len: -1}, {At: -1}, {From: 2}, {To: 2}, {From: -2}, {To: -2}} {
		require.ErrorIs(t, (&layout{}).lay(&seats{of: []int{0, 1}, locals: []int{1, 1}, block: boardLeast}, []channel.Share{bad}), kolo.ErrArgument)
	}
}
