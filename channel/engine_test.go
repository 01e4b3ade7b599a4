package channel

import (
	"math/rand/v2"
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
