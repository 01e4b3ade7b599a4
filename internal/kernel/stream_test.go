package kernel

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// Whatever the operation, the length and the alignment: the bits of Spread, and no byte outside.
func TestSpreadAroundIsSpread(t *testing.T) {
	rng := rand.New(rand.NewPCG(51, 52))
	for at, o := range allOps() {
		for i, n := range append([]int{scratchSize/o.DType.Size() + 1, 3*scratchSize/o.DType.Size() - 7}, lengths...) {
			k, m := 1+(at+i)%11, 1+(at+3*i)%3
			srcs, check := sources(rng, o.DType, k, n*o.DType.Size())
			before := clones(srcs)
			want := make([]byte, n*o.DType.Size())
			o.Fold(want, srcs...)
			skews := make([]int, m)
			guards := make([]guarded, m)
			dsts := make([][]byte, m)
			for d := range dsts {
				skews[d] = rng.IntN(64)
				guards[d] = newGuarded(len(want), skews[d])
				dsts[d] = guards[d].bytes
			}
			o.SpreadAround(dsts, srcs)
			for d := range dsts {
				same(t, o, srcs, dsts[d], want)
				guards[d].check(t, skews[d])
			}
			require.Equal(t, before, clones(srcs), "a source was changed")
			check(t)
		}
	}
}

func TestCopyAroundToItself(t *testing.T) {
	o := mainOps()[0]
	src := make([]byte, 1000*o.DType.Size())
	fill(rand.New(rand.NewPCG(53, 54)), o.DType, src)
	dst, want := make([]byte, len(src)), append([]byte(nil), src...)
	o.SpreadAround([][]byte{src, dst}, [][]byte{src})
	require.Equal(t, want, src)
	require.Equal(t, want, dst)
}

func TestSpreadAroundAllocatesNothing(t *testing.T) {
	if racing {
		t.Skip("a pool drops some of its values under the race detector")
	}
	o := mainOps()[0]
	a, b, d := make([]byte, 64<<10), make([]byte, 64<<10), make([]byte, 64<<10)
	srcs, dsts := [][]byte{a, b}, [][]byte{d}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		o.SpreadAround(dsts, srcs)
		o.SpreadAround(dsts, srcs[:1])
	}))
	for range 40 { // ranks of one process may be many
		srcs = append(srcs, b)
	}
	require.Zero(t, testing.AllocsPerRun(100, func() { o.SpreadAround(dsts, srcs) }), "%d sources", len(srcs))
}

func BenchmarkCopyAround(b *testing.B) {
	for _, n := range []int{64 << 10, 64 << 20} {
		src, dst := make([]byte, n), make([]byte, n)
		o := mainOps()[0]
		b.Run(fmt.Sprintf("bytes=%d", n), func(b *testing.B) {
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				o.SpreadAround([][]byte{dst}, [][]byte{src})
			}
		})
	}
}
