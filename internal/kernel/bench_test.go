package kernel

import (
	"fmt"
	"testing"

	"github.com/kolo-ccl/kolo"
)

// benchSources are k slices of n bytes, 64 KiB and some lines apart, so that no two
// compete for the same places of the cache.
func benchSources(k, n int) [][]byte {
	const skew = 4416
	stride := (n+1<<16-1)>>16<<16 + skew
	whole := make([]byte, k*stride)
	for i := range whole {
		whole[i] = 1
	}
	var out [][]byte
	for i := range k {
		out = append(out, whole[i*stride:i*stride+n])
	}
	return out
}

// Bytes are those that the program touches: n*(sources+destinations).
func benchmark(b *testing.B, name string, n, slices int, f func()) {
	b.Run(name, func(b *testing.B) {
		b.SetBytes(int64(n * slices))
		b.ReportAllocs()
		for b.Loop() {
			f()
		}
	})
}

// benchOps is mainOps, and the averages over 2 ranks beside those over 3.
func benchOps() []Op {
	ops := mainOps()
	for _, d := range kolo.ReducibleDTypes() {
		ops = append(ops, OpOf(d, kolo.Avg, 2))
	}
	return ops
}

func BenchmarkReduce(b *testing.B) {
	for _, n := range []int{8, 256, 4 << 10, 32 << 10, 256 << 10, 64 << 20} {
		s := benchSources(3, n)
		benchmark(b, fmt.Sprintf("bytes=%d/op=copy", n), n, 2, func() { copy(s[0], s[1]) })
		for _, o := range benchOps() {
			if n > 256<<10 && o.Kind != kolo.OpSum {
				continue
			}
			benchmark(b, fmt.Sprintf("bytes=%d/op=%v/ranks=%d/dtype=%v", n, kolo.ReduceOp{Kind: o.Kind, Scale: o.Scale}, o.Ranks, o.DType), n, 3, func() { o.Reduce(s[0], s[1], s[2]) })
		}
	}
}

func BenchmarkFold(b *testing.B) {
	for _, n := range []int{4 << 10, 32 << 10, 256 << 10} {
		for _, k := range []int{3, 4, 8, 16} {
			s := benchSources(k+1, n)
			for _, d := range []kolo.DType{kolo.Float32, kolo.Float16, kolo.BFloat16, kolo.Int32} {
				o := OpOf(d, kolo.Sum, k)
				benchmark(b, fmt.Sprintf("bytes=%d/k=%d/op=sum/dtype=%v", n, k, d), n, k+1, func() { o.Fold(s[k], s[:k]...) })
			}
		}
	}
}

func BenchmarkSpread(b *testing.B) {
	for _, n := range []int{8, 4 << 10, 16 << 10, 256 << 10} {
		for _, k := range []int{2, 4, 8} {
			s := benchSources(k, n)
			for _, d := range []kolo.DType{kolo.Float32, kolo.Float16, kolo.BFloat16, kolo.Int32} {
				o := OpOf(d, kolo.Max, k)
				benchmark(b, fmt.Sprintf("bytes=%d/k=%d/op=max/dtype=%v", n, k, d), n, 2*k, func() { o.Spread(s, s) })
			}
		}
	}
}
