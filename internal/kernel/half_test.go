package kernel

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/kolo-ccl/kolo"
)

func TestEveryHalfWidensExactly(t *testing.T) {
	for _, d := range []kolo.DType{kolo.Float16, kolo.BFloat16} {
		src, dst := make([]uint16, 1<<16), make([]float32, 1<<16)
		for i := range src {
			src[i] = uint16(i)
		}
		widen(d, dst, src)
		for i, f := range dst {
			want := decode(d, uint64(i))
			if math.Float64bits(float64(f)) != math.Float64bits(want) && (f == f || want == want) {
				t.Fatalf("%v %#04x: got %v, want %v", d, i, f, want)
			}
		}
		back := make([]uint16, 1<<16)
		narrow(d, back, dst)
		for i, h := range back {
			if int(h) != i && !(isNaN(d, uint64(h)) && isNaN(d, uint64(i))) {
				t.Fatalf("%v %#04x: came back as %#04x", d, i, h)
			}
		}
	}
}

// Between each two neighbours: the values at, just below and just above the middle.
func TestNarrowRoundsToNearestEven(t *testing.T) {
	check := func(d kolo.DType, u uint32) {
		f := math.Float32frombits(u)
		var got [1]uint16
		narrow(d, got[:], []float32{f})
		want := encode(d, float64(f))
		if uint64(got[0]) != want && !(isNaN(d, uint64(got[0])) && isNaN(d, want)) {
			t.Fatalf("%v of %v (%#x): got %#04x, want %#04x", d, f, u, got[0], want)
		}
	}
	for _, d := range []kolo.DType{kolo.Float16, kolo.BFloat16} {
		for i := range 1 << 15 {
			a, b := float32(decode(d, uint64(i))), float32(decode(d, uint64(i+1)))
			if a != a || b != b || i == 1<<15-1 {
				continue
			}
			middle := math.Float32bits(a)/2 + math.Float32bits(b)/2
			for u := middle - 1; u <= middle+1; u++ {
				check(d, u)
				check(d, u|1<<31)
			}
		}
		rng := rand.New(rand.NewPCG(1, 1))
		for range 100_000 {
			check(d, rng.Uint32())
		}
	}
}
