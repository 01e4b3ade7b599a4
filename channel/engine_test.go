package channel

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kolo-ccl/kolo"

	"github.com/stretchr/testify/require"
)

// pieces cuts b at random, with empty pieces in between.
func pieces(rng *rand.Rand, b []byte) (list []kolo.Memory) {
	for len(b) > 0 {
		n := rng.IntN(min(len(b), 40) + 1)
		list, b = append(list, kolo.HostMemory(b[:n])), b[n:]
	}
	if rng.IntN(2) == 0 {
		list = append(list, kolo.HostMemory(nil))
	}
	return list
}

// The parts of a fold cover all operands in order: each destination byte meets the
// bytes of the same place.
func TestAddFoldOfListsCutDifferently(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	var j Job
	for range 300 {
		n, k := rng.IntN(500), 1+rng.IntN(20)
		dst := make([]byte, n)
		src := make([][]byte, k)
		lists := make([][]kolo.Memory, k)
		for i := range src {
			src[i] = make([]byte, n)
			for b := range src[i] {
				src[i][b] = byte(rng.Uint32())
			}
			lists[i] = pieces(rng, src[i])
		}
		j.Reset()
		j.AddFold(pieces(rng, dst), lists...)
		at := 0
		for p := range j.Parts {
			part := &j.Parts[p]
			require.Len(t, part.Dst, 1)
			require.Len(t, part.Src, k)
			size := int(part.Len())
			require.Positive(t, size)
			require.Equal(t, size, len(part.Dst[0].Host))
			for b := range part.Dst[0].Host {
				part.Dst[0].Host[b] = 1
			}
			for i, m := range part.Src {
				require.Equal(t, src[i][at:at+size], m.Host)
			}
			at += size
		}
		require.Equal(t, n, at)
		require.Equal(t, int64(n*(k+1)), j.Size())
		for b := range dst {
			require.Equal(t, byte(1), dst[b])
		}
	}
}

func TestJobKeepsItsLists(t *testing.T) {
	var j Job
	dst, src := []kolo.Memory{kolo.HostMemory(make([]byte, 9))}, []kolo.Memory{kolo.HostMemory(make([]byte, 4)), kolo.HostMemory(make([]byte, 5))}
	require.Zero(t, (&Part{}).Len())
	j.AddMove(dst, src)
	require.Len(t, j.Parts, 2)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		j.Reset()
		j.AddMove(dst, src)
	}))
	require.Len(t, j.Parts, 2)
	require.Len(t, j.Parts[0].Src, 1, "an old list is emptied")
}

// Blocks of a side are given out once, to as many as ask.
func TestSideGivesEachBlockOnce(t *testing.T) {
	var s Side
	require.False(t, s.Open())
	s.Set(3, 9)
	var got []int
	for _, most := range []int{1, 2, 2, 3, 1} {
		first, n := s.Take(most)
		require.LessOrEqual(t, n, most)
		for i := range n {
			got = append(got, first+i)
		}
	}
	require.Equal(t, []int{3, 4, 5, 6, 7, 8}, got)
	require.False(t, s.Open())
	s.Set(0, 0)
	_, n := s.Take(1)
	require.Zero(t, n)
}

// Whoever takes gets its own half alone; what is left of the other's it has to steal.
func TestSharesOfOneHalfEach(t *testing.T) {
	var s Shares
	for _, blocks := range []int{2, 3, 8, 33} {
		for _, upper := range []bool{false, true} {
			own := Range{N: blocks / 2}
			if upper {
				own = Range{From: blocks / 2, N: blocks - blocks/2}
			}
			r := s.Lay(blocks, blocks, upper)
			require.Equal(t, []int{own.From, own.N, blocks / 2}, []int{r.From, r.N, r.Middle}, "of %d", blocks)
			require.True(t, s.Alone(blocks, upper))
			other, left := s.Take(r.N, blocks, upper)
			require.Zero(t, other.N)
			require.Equal(t, blocks-own.N+1, left)
			for all := own.N; s.Open(); all += r.N {
				r = s.Steal(1, upper)
				require.Equal(t, 1, r.N)
				require.True(t, s.Alone(blocks, upper))
				if upper {
					require.Equal(t, blocks-1-all, r.From)
				} else {
					require.Equal(t, all, r.From)
				}
			}
			require.Zero(t, s.Steal(1, upper).N)
			s.Lay(blocks, 1, upper)
			r, _ = s.Take(0, 1, !upper)
			require.Positive(t, r.N)
			require.False(t, s.Alone(blocks, upper))
		}
	}
}

// Every second time the parts are to be mirrored, and whoever takes hears the same.
func TestSharesTurnBack(t *testing.T) {
	var s Shares
	for i := range 4 {
		r := s.Lay(8, 2, false)
		require.Equal(t, i%2 == 0, r.Back)
		r, _ = s.Take(0, 2, true)
		require.Equal(t, i%2 == 0, r.Back)
	}
}

// Each block of Shares is taken once, whoever takes and from whichever end, and one
// taker alone hears that none is left, which is so when the starter has left too.
func TestSharesAreTakenOnce(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	for range 500 {
		blocks, procs, least := 1+rng.IntN(200), 1+rng.IntN(4), 1+rng.IntN(60)
		taken := make([]atomic.Int32, blocks)
		var ends atomic.Int32
		take := func(s *Shares, from, n int, upper bool) {
			for left := 0; n > 0; {
				for b := from; b < from+n; b++ {
					taken[b].Add(1)
				}
				r := Range{}
				if r, left = s.Take(n, least, upper); r.N == 0 && left == 0 {
					ends.Add(1)
				} else if r.N == 0 {
					r = s.Steal(least, upper)
				}
				from, n = r.From, r.N
			}
		}
		var s Shares
		upper := rng.IntN(2) == 0
		mine := s.Lay(blocks, least, upper)
		require.Equal(t, blocks+1, s.Left())
		var wg sync.WaitGroup
		for i := range procs {
			// ended when no block is open
			wg.Go(func() {
				side := i%2 == 0
				r, _ := s.Take(0, least, side)
				if r.N == 0 {
					r = s.Steal(least, side)
				}
				take(&s, r.From, r.N, side)
			})
		}
		take(&s, mine.From, mine.N, upper)
		if _, left := s.Take(1, 1, upper); left == 0 {
			ends.Add(1)
		}
		wg.Wait()
		require.False(t, s.Open())
		require.Equal(t, int32(1), ends.Load(), "of %d blocks, %d of the starter", blocks, mine.N)
		for b := range taken {
			require.Equal(t, int32(1), taken[b].Load(), "block %d of %d", b, blocks)
		}
	}
}
