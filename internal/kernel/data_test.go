package kernel

import (
	"math"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/kolo-ccl/kolo"
)

// allOps is every element type with every operation, with divisors and factors
// that are awkward.
func allOps() []Op {
	var ops []Op
	for _, d := range kolo.ReducibleDTypes() {
		for _, r := range []kolo.ReduceOp{kolo.Sum, kolo.Prod, kolo.Max, kolo.Min} {
			ops = append(ops, OpOf(d, r, 3))
		}
		for _, ranks := range []int{1, 2, 3, 7, 8, 1000} {
			ops = append(ops, OpOf(d, kolo.Avg, ranks))
		}
		factors := []float64{0, 3, 113}
		if signed(d) {
			factors = append(factors, -5)
		}
		if d.Float() {
			factors = append(factors, 1.0/3, -0.7, 3e7)
		}
		for _, f := range factors {
			ops = append(ops, OpOf(d, kolo.PreMulSum(f), 3))
		}
	}
	return ops
}

// mainOps is one Op for each element type and kind.
func mainOps() []Op {
	var ops []Op
	for _, d := range kolo.ReducibleDTypes() {
		for _, r := range []kolo.ReduceOp{kolo.Sum, kolo.Prod, kolo.Max, kolo.Min, kolo.Avg, kolo.PreMulSum(3)} {
			ops = append(ops, OpOf(d, r, 3))
		}
	}
	return ops
}

func (o Op) name() string {
	return o.DType.String() + "/" + kolo.ReduceOp{Kind: o.Kind, Scale: o.Scale}.String()
}

// specials are the bits of values where rules and roundings meet.
func specials(t kolo.DType) []uint64 {
	if !t.Float() {
		top := uint64(1) << (8*t.Size() - 1)
		return []uint64{0, 1, 2, top - 1, top, top + 1, 2*top - 1, 2*top - 2}
	}
	var bits []uint64
	for _, x := range []float64{0, 1, 1.5, 2, 3, math.Inf(1), math.NaN(), 65504, 65519.9, 65520, 6e-8, 3e-8, 2.9e-8, 6.1e-5,
		1e38, 3.3e38, 3.4e38, 1e-38, 1e-45, 7e-46, 1e-40, 1e308, 5e-324, 1 + 1.0/1024, 1 + 1.0/2048, 1 + 3.0/2048, 1 + 1.0/256, 1 + 3.0/256} {
		bits = append(bits, encode(t, x), encode(t, -x))
	}
	return bits
}

// fill writes elements that differ from place to place and from call to call.
func fill(rng *rand.Rand, t kolo.DType, b []byte) {
	for at := 0; at < len(b); {
		pool := pools[t]()
		at += copy(b[at:], pool[rng.IntN(len(pool)/t.Size())*t.Size():])
	}
}

// pools are some thousand elements of every type: mostly of ordinary size, some any
// bits at all, some special.
var pools = func() (ps [kolo.NumDTypes]func() []byte) {
	for _, t := range kolo.ReducibleDTypes() {
		ps[t] = sync.OnceValue(func() []byte {
			rng := rand.New(rand.NewPCG(99, uint64(t)))
			size, special := t.Size(), specials(t)
			b := make([]byte, 5003*size)
			for at := 0; at < len(b); at += size {
				bits := rng.Uint64()
				switch n := rng.IntN(16); {
				case n < 2:
					bits = special[rng.IntN(len(special))]
				case n < 12 && t.Float():
					bits = encode(t, rng.NormFloat64()*4)
				case n < 12:
					bits = uint64(rng.IntN(64) - 32)
				}
				store(b[at:], size, bits)
			}
			return b
		})
	}
	return ps
}()

// guarded is a slice of n bytes at an address that is skew past a multiple of 64,
// between bytes that check looks after.
type guarded struct{ whole, bytes []byte }

const guardBytes, guardByte = 64, 0xa5

func newGuarded(n, skew int) guarded {
	whole := make([]byte, n+2*guardBytes+64)
	for i := range whole {
		whole[i] = guardByte
	}
	from := guardBytes + skew
	return guarded{whole, whole[from : from+n : from+n]}
}

func (g guarded) check(t *testing.T, skew int) {
	t.Helper()
	from := guardBytes + skew
	for i, b := range g.whole {
		if (i < from || i >= from+len(g.bytes)) && b != guardByte {
			t.Fatalf("byte %d, outside of [0:%d], was written", i-from, len(g.bytes))
		}
	}
}

// sources are k guarded slices of n bytes with different elements.
func sources(rng *rand.Rand, t kolo.DType, k, n int) (srcs [][]byte, check func(*testing.T)) {
	var gs []guarded
	var skews []int
	for range k {
		skew := rng.IntN(64)
		g := newGuarded(n, skew)
		fill(rng, t, g.bytes)
		gs, skews, srcs = append(gs, g), append(skews, skew), append(srcs, g.bytes)
	}
	return srcs, func(t *testing.T) {
		t.Helper()
		for i, g := range gs {
			g.check(t, skews[i])
		}
	}
}

func clones(slices [][]byte) [][]byte {
	var out [][]byte
	for _, s := range slices {
		out = append(out, append([]byte(nil), s...))
	}
	return out
}
