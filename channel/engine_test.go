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
	s.Set(3, 6)
	var got []int32
	for range 5 {
		if b, ok := s.Take(); ok {
			got = append(got, b)
		}
	}
	require.Equal(t, []int32{3, 4, 5}, got)
	require.False(t, s.Open())
	s.Set(0, 0)
	_, ok := s.Take()
	require.False(t, ok)
}

// Whoever takes at an equal pace does its own half alone; whoever is alone does both.
func TestSharesOfOneHalfEach(t *testing.T) {
	var s Shares
	for _, blocks := range []int{2, 3, 8, 33} {
		s.Lay(blocks, 1, false)
		for s.Open() {
			if from, n, _ := s.Take(0, 1, true); n > 0 {
				require.GreaterOrEqual(t, from, blocks/2, "the upper half of %d", blocks)
			}
			if from, n, _ := s.Take(0, 1, false); n > 0 {
				require.LessOrEqual(t, from+n, blocks/2+1, "the lower half of %d", blocks)
			}
		}
		from, n := s.Lay(blocks, blocks, false)
		require.Equal(t, []int{0, max(1, blocks/2)}, []int{from, n})
		all := n
		for s.Open() {
			from, n, _ = s.Take(n, 1, false)
			require.Equal(t, all, from)
			all += n
		}
		require.Equal(t, blocks, all)
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
				if from, n, left = s.Take(n, least, upper); n == 0 && left == 0 {
					ends.Add(1)
				}
			}
		}
		var s Shares
		upper := rng.IntN(2) == 0
		first, mine := s.Lay(blocks, least, upper)
		require.Equal(t, blocks+1, s.Left())
		var wg sync.WaitGroup
		for i := range procs {
			// ended when no block is open
			wg.Go(func() {
				side := i%2 == 0
				from, n, _ := s.Take(0, least, side)
				take(&s, from, n, side)
			})
		}
		take(&s, first, mine, upper)
		if _, _, left := s.Take(1, 1, upper); left == 0 {
			ends.Add(1)
		}
		wg.Wait()
		require.False(t, s.Open())
		require.Equal(t, int32(1), ends.Load(), "of %d blocks, %d of the starter", blocks, mine)
		for b := range taken {
			require.Equal(t, int32(1), taken[b].Load(), "block %d of %d", b, blocks)
		}
	}
}
