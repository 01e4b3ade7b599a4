package kernel

import (
	"encoding/binary"
	"math"
	"math/big"

	"github.com/kolo-ccl/kolo"
)

// The reference reduces one element at a time and shares no code with the package.
// Floats are computed in float64 and rounded to float32 after each step: of a sum,
// a product or a quotient of two float32 that is the float32 result. Integers are
// computed with math/big and cut to their width at the very end.

// reference is the bytes of a Fold of srcs.
func reference(o Op, srcs [][]byte) []byte {
	size := o.DType.Size()
	dst := make([]byte, len(srcs[0]))
	bits := make([]uint64, len(srcs))
	for at := 0; at < len(dst); at += size {
		for i, s := range srcs {
			bits[i] = load(s[at:], size)
		}
		if o.DType.Float() {
			store(dst[at:], size, referenceFloat(o, bits))
		} else {
			store(dst[at:], size, referenceInteger(o, bits))
		}
	}
	return dst
}

func load(b []byte, size int) uint64 {
	var w [8]byte
	copy(w[:], b[:size])
	return binary.LittleEndian.Uint64(w[:])
}

func store(b []byte, size int, bits uint64) {
	var w [8]byte
	binary.LittleEndian.PutUint64(w[:], bits)
	copy(b[:size], w[:])
}

func referenceFloat(o Op, bits []uint64) uint64 {
	round := func(x float64) float64 {
		if o.DType == kolo.Float64 {
			return x
		}
		return float64(float32(x))
	}
	var acc float64
	for i, b := range bits {
		x := decode(o.DType, b)
		if o.Kind == kolo.OpPreMulSum {
			x = round(x * round(o.Scale))
		}
		switch {
		case i == 0:
			acc = x
		case o.Kind == kolo.OpProd:
			acc = round(acc * x)
		case o.Kind == kolo.OpMax:
			acc = -least(-acc, -x)
		case o.Kind == kolo.OpMin:
			acc = least(acc, x)
		default:
			acc = round(acc + x)
		}
	}
	if o.Kind == kolo.OpAvg {
		acc = round(acc / float64(o.Ranks))
	}
	return encode(o.DType, acc)
}

func least(a, b float64) float64 {
	switch {
	case a != a || b != b:
		return math.NaN()
	case a == 0 && b == 0 && (math.Signbit(a) || math.Signbit(b)):
		return math.Copysign(0, -1)
	case a < b:
		return a
	}
	return b
}

// decode is the value of a float's bits, exactly.
func decode(t kolo.DType, bits uint64) float64 {
	switch t {
	case kolo.Float32:
		return float64(math.Float32frombits(uint32(bits)))
	case kolo.Float64:
		return math.Float64frombits(bits)
	}
	exponent, fraction := halfWidths(t)
	sign := 1.0
	if bits>>15 != 0 {
		sign = -1
	}
	e := int(bits>>fraction) & (1<<exponent - 1)
	f := float64(bits & (1<<fraction - 1))
	bias := 1<<(exponent-1) - 1
	switch e {
	case 0:
		return math.Copysign(math.Ldexp(f, 1-bias-fraction), sign)
	case 1<<exponent - 1:
		if f != 0 {
			return math.NaN()
		}
		return math.Inf(int(sign))
	}
	return sign * math.Ldexp(1+math.Ldexp(f, -fraction), e-bias)
}

// encode rounds a value to the type, to nearest even.
func encode(t kolo.DType, x float64) uint64 {
	switch t {
	case kolo.Float32:
		return uint64(math.Float32bits(float32(x)))
	case kolo.Float64:
		return math.Float64bits(x)
	}
	exponent, fraction := halfWidths(t)
	bias := 1<<(exponent-1) - 1
	sign := uint64(0)
	if math.Signbit(x) {
		sign = 1 << 15
	}
	inf := uint64(1<<exponent-1) << fraction
	if x != x {
		return sign | inf | 1<<(fraction-1)
	}
	x = math.Abs(x)
	if x == 0 {
		return sign
	}
	e := max(math.Ilogb(x), 1-bias) // of the binade whose spacing applies
	steps := math.RoundToEven(math.Ldexp(x, fraction-e))
	if steps == math.Ldexp(2, fraction) {
		e, steps = e+1, steps/2
	}
	switch {
	case e > bias:
		return sign | inf
	case steps < math.Ldexp(1, fraction):
		return sign | uint64(steps)
	}
	return sign | uint64(e+bias)<<fraction | uint64(steps)&(1<<fraction-1)
}

func halfWidths(t kolo.DType) (exponent, fraction int) {
	if t == kolo.BFloat16 {
		return 8, 7
	}
	return 5, 10
}

func referenceInteger(o Op, bits []uint64) uint64 {
	acc := new(big.Int)
	for i, b := range bits {
		x := integer(o.DType, b)
		if o.Kind == kolo.OpPreMulSum {
			x.Mul(x, big.NewInt(int64(o.Scale)))
		}
		switch {
		case i == 0:
			acc = x
		case o.Kind == kolo.OpProd:
			acc.Mul(acc, x)
		case o.Kind == kolo.OpMax:
			if x.Cmp(acc) > 0 {
				acc = x
			}
		case o.Kind == kolo.OpMin:
			if x.Cmp(acc) < 0 {
				acc = x
			}
		default:
			acc.Add(acc, x)
		}
	}
	if o.Kind == kolo.OpAvg {
		acc = integer(o.DType, wrap(o.DType, acc))
		acc.Quo(acc, big.NewInt(int64(o.Ranks)))
	}
	return wrap(o.DType, acc)
}

// integer is the value of an integer's bits.
func integer(t kolo.DType, bits uint64) *big.Int {
	x := new(big.Int).SetUint64(bits)
	width := uint(8 * t.Size())
	if signed(t) && x.Bit(int(width-1)) == 1 {
		x.Sub(x, new(big.Int).Lsh(big.NewInt(1), width))
	}
	return x
}

// wrap is the last bits of x.
func wrap(t kolo.DType, x *big.Int) uint64 {
	modulus := new(big.Int).Lsh(big.NewInt(1), uint(8*t.Size()))
	return new(big.Int).Mod(x, modulus).Uint64()
}

func signed(t kolo.DType) bool {
	return t == kolo.Int8 || t == kolo.Int16 || t == kolo.Int32 || t == kolo.Int64
}

// isNaN says whether bits, of a float type, are a NaN.
func isNaN(t kolo.DType, bits uint64) bool {
	return t.Float() && decode(t, bits) != decode(t, bits)
}

// differs is the first element in which got and want differ, or -1. NaNs are all
// the same.
func differs(t kolo.DType, got, want []byte) int {
	if string(got) == string(want) {
		return -1
	}
	size := t.Size()
	for at := 0; at < len(want); at += size {
		g, w := load(got[at:], size), load(want[at:], size)
		if g != w && !(isNaN(t, g) && isNaN(t, w)) {
			return at / size
		}
	}
	return -1
}
