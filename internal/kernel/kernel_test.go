package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/kolo-ccl/kolo"
	"github.com/stretchr/testify/require"
)

// same fails the test where got, of sources srcs, is not what the reference gives.
func same(t *testing.T, o Op, srcs [][]byte, got, want []byte) {
	t.Helper()
	i := differs(o.DType, got, want)
	if i < 0 {
		return
	}
	size := o.DType.Size()
	text := ""
	for _, s := range srcs {
		text += fmt.Sprintf(" %x", load(s[i*size:], size))
	}
	t.Fatalf("%+v, %d bytes, element %d of%s: got %x, want %x", o, len(want), i, text, load(got[i*size:], size), load(want[i*size:], size))
}

// lengths are numbers of elements around the sizes of vectors and blocks.
var lengths = []int{0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 100, 127, 128, 130, 257, 300}

func TestFoldMatchesReference(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	counts := []int{2, 1, 3, 4, 2, 5, 8, 11}
	for at, o := range allOps() {
		t.Run(fmt.Sprintf("%s/%d", o.name(), o.Ranks), func(t *testing.T) {
			for i, n := range lengths {
				k := counts[(at+i)%len(counts)]
				srcs, check := sources(rng, o.DType, k, n*o.DType.Size())
				skew := rng.IntN(64)
				dst := newGuarded(len(srcs[0]), skew)
				before := clones(srcs)
				o.Fold(dst.bytes, srcs...)
				same(t, o, srcs, dst.bytes, reference(o, before))
				require.Equal(t, before, clones(srcs), "a source was changed")
				check(t)
				dst.check(t, skew)
			}
		})
	}
}

func TestFoldInPlaceOfAnySource(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, o := range mainOps() {
		for _, k := range []int{1, 2, 3, 5} {
			for at := range k {
				srcs, check := sources(rng, o.DType, k, 333*o.DType.Size())
				before := clones(srcs)
				o.Fold(srcs[at], srcs...)
				same(t, o, before, srcs[at], reference(o, before))
				check(t)
				for i := range srcs {
					if i != at {
						require.Equal(t, before[i], srcs[i])
					}
				}
			}
		}
	}
}

func TestReduceAndAccumulateAreFoldsOfTwo(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for _, o := range mainOps() {
		srcs, check := sources(rng, o.DType, 2, 200*o.DType.Size())
		want := reference(o, srcs)
		dst := make([]byte, len(want))
		o.Reduce(dst, srcs[0], srcs[1])
		same(t, o, srcs, dst, want)
		before := clones(srcs)
		o.Accumulate(srcs[0], srcs[1])
		same(t, o, before, srcs[0], want)
		check(t)
	}
}

func TestSpreadStoresToEveryDestination(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for _, o := range mainOps() {
		t.Run(o.name(), func(t *testing.T) {
			for _, shape := range []struct{ dsts, srcs int }{{0, 2}, {1, 3}, {2, 2}, {3, 1}, {5, 2}, {2, 5}, {4, 4}, {8, 8}} {
				for _, n := range []int{1, 31, 64, 200, 301} {
					srcs, check := sources(rng, o.DType, shape.srcs, n*o.DType.Size())
					want := reference(o, srcs)
					dsts, checkDsts := sources(rng, o.DType, shape.dsts, n*o.DType.Size())
					o.Spread(dsts, srcs)
					for _, d := range dsts {
						same(t, o, srcs, d, want)
					}
					check(t)
					checkDsts(t)
				}
			}
		})
	}
}

func TestSpreadInPlace(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	for _, o := range mainOps() {
		for _, k := range []int{1, 2, 3, 4, 8, 9} {
			srcs, check := sources(rng, o.DType, k, 333*o.DType.Size())
			before := clones(srcs)
			dsts := append([][]byte(nil), srcs...)
			rng.Shuffle(k, func(i, j int) { dsts[i], dsts[j] = dsts[j], dsts[i] })
			dsts = append(dsts[:(k+1)/2], make([]byte, len(srcs[0])), dsts[0])
			o.Spread(dsts, srcs)
			want := reference(o, before)
			for _, d := range dsts {
				same(t, o, before, d, want)
			}
			check(t)
		}
	}
}

// A block that is cut anywhere gives the bits of the whole.
func TestResultIsIndependentOfCuts(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	for _, o := range mainOps() {
		size := o.DType.Size()
		srcs, _ := sources(rng, o.DType, 4, 1000*size)
		whole := make([]byte, len(srcs[0]))
		o.Fold(whole, srcs...)
		parts := make([]byte, len(whole))
		for at := 0; at < len(whole); {
			end := min(len(whole), at+size*(1+rng.IntN(150)))
			var cut [][]byte
			for _, s := range srcs {
				cut = append(cut, s[at:end])
			}
			o.Fold(parts[at:end], cut...)
			at = end
		}
		same(t, o, srcs, parts, whole)
	}
}

func TestPartialAndFinalCallsGiveTheWhole(t *testing.T) {
	rng := rand.New(rand.NewPCG(13, 14))
	for _, d := range []kolo.DType{kolo.Int8, kolo.Uint32, kolo.Int64, kolo.Float32, kolo.Float64} {
		srcs, _ := sources(rng, d, 3, 100*d.Size())
		avg := OpOf(d, kolo.Avg, 3)
		got := clones(srcs)
		avg.Partial().Accumulate(got[0], got[1])
		avg.Partial().Accumulate(got[0], got[2])
		avg.Fold(got[0], got[0])
		same(t, avg, srcs, got[0], reference(avg, srcs))

		pre := OpOf(d, kolo.PreMulSum(5), 3)
		got = clones(srcs)
		for _, s := range got {
			pre.Fold(s, s)
		}
		pre.Partial().Fold(got[0], got...)
		same(t, pre, srcs, got[0], reference(pre, srcs))
		if o := OpOf(d, kolo.Max, 3); o.Partial() != o {
			t.Fatal("the partial operation of max is max")
		}
	}
}

func TestNaNAndSignedZeroInMinAndMax(t *testing.T) {
	zero, minus, nan, inf := 0.0, math.Copysign(0, -1), math.NaN(), math.Inf(1)
	for _, c := range []struct{ a, b, min, max float64 }{
		{zero, minus, minus, zero}, {minus, zero, minus, zero}, {minus, minus, minus, minus}, {zero, zero, zero, zero},
		{nan, 1, nan, nan}, {1, nan, nan, nan}, {nan, inf, nan, nan}, {-inf, nan, nan, nan}, {nan, nan, nan, nan},
		{-inf, inf, -inf, inf}, {inf, 1, 1, inf}, {-1, -inf, -inf, -1},
	} {
		for _, d := range []kolo.DType{kolo.Float16, kolo.BFloat16, kolo.Float32, kolo.Float64} {
			for _, n := range []int{1, 40} {
				a, b, dst := make([]byte, n*d.Size()), make([]byte, n*d.Size()), make([]byte, n*d.Size())
				for i := 0; i < len(a); i += d.Size() {
					store(a[i:], d.Size(), encode(d, c.a))
					store(b[i:], d.Size(), encode(d, c.b))
				}
				for _, want := range []struct {
					op kolo.ReduceOp
					x  float64
				}{{kolo.Min, c.min}, {kolo.Max, c.max}} {
					OpOf(d, want.op, 2).Reduce(dst, a, b)
					for i := 0; i < len(a); i += d.Size() {
						g, w := load(dst[i:], d.Size()), encode(d, want.x)
						if g != w && !(isNaN(d, g) && isNaN(d, w)) {
							t.Fatalf("%v %v of %v and %v: got %v", d, want.op, c.a, c.b, decode(d, g))
						}
					}
				}
			}
		}
	}
}

// One rounding for all the sources: the small ones add up.
func TestHalvesRoundOnceACall(t *testing.T) {
	for _, d := range []kolo.DType{kolo.Float16, kolo.BFloat16} {
		_, fraction := halfWidths(d)
		srcs := make([][]byte, 5)
		for i := range srcs {
			x := 1.0
			if i > 0 {
				x = math.Ldexp(1, -fraction-2) // a quarter of the last place of 1
			}
			srcs[i] = make([]byte, 2)
			store(srcs[i], 2, encode(d, x))
		}
		dst := make([]byte, 2)
		OpOf(d, kolo.Sum, 5).Fold(dst, srcs...)
		require.Equal(t, 1+math.Ldexp(1, -fraction), decode(d, load(dst, 2)))
	}
}

func TestWrongSlicesPanic(t *testing.T) {
	o := OpOf(kolo.Float32, kolo.Sum, 2)
	b := func(n int) []byte { return make([]byte, n) }
	require.Panics(t, func() { o.Fold(b(8)) })
	require.Panics(t, func() { o.Fold(b(8), b(8), b(4)) })
	require.Panics(t, func() { o.Fold(b(4), b(8), b(8)) })
	require.Panics(t, func() { o.Fold(b(6), b(6), b(6)) })
	require.Panics(t, func() { Op{DType: 99}.Fold(b(8), b(8), b(8)) })
	require.Panics(t, func() { Op{Kind: 99}.Fold(b(8), b(8), b(8)) })
	require.Panics(t, func() { OpOf(kolo.Int8, kolo.PreMulSum(0.5), 2) })
	require.Panics(t, func() { OpOf(kolo.Int8, kolo.Avg, 0) })
	require.Panics(t, func() { OpOf(kolo.Int8, kolo.ReduceOp{Kind: 9}, 1) })
}

func TestEqualOpsCompareEqual(t *testing.T) {
	require.Equal(t, OpOf(kolo.Int8, kolo.Sum, 2), OpOf(kolo.Int8, kolo.Sum, 3))
	require.NotEqual(t, OpOf(kolo.Int8, kolo.Avg, 2), OpOf(kolo.Int8, kolo.Avg, 3))
	require.NotEqual(t, OpOf(kolo.Int8, kolo.PreMulSum(2), 2), OpOf(kolo.Int8, kolo.PreMulSum(3), 2))
}

func TestNoAllocation(t *testing.T) {
	for _, o := range mainOps() {
		srcs := make([][]byte, 4)
		for i := range srcs {
			srcs[i] = make([]byte, 1000*8)
		}
		allocs := testing.AllocsPerRun(3, func() {
			o.Reduce(srcs[0], srcs[1], srcs[2])
			o.Accumulate(srcs[0], srcs[1])
			o.Fold(srcs[3], srcs[0], srcs[1], srcs[2])
			o.Fold(srcs[3][:8], srcs[0][:8])
			o.Spread(srcs, srcs)
		})
		if allocs != 0 {
			t.Fatalf("%s: %v allocations", o.name(), allocs)
		}
	}
}
