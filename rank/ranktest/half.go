package ranktest

import (
	"math"

	"github.com/kolo-ccl/kolo"
)

// width is how a 16-bit float is made: bits of the fraction, the exponent of the
// least normal number, and the least power of two that is too large.
type width struct {
	fraction   int
	least, max int
}

func widthOf(d kolo.DType) width {
	if d == kolo.BFloat16 {
		return width{7, -126, 128}
	}
	return width{10, -14, 16}
}

// halfOf is f rounded to nearest even as a Float16 or BFloat16, by the definition:
// f is a multiple of the unit in the last place of its binade, or is rounded to one.
func halfOf(d kolo.DType, f float32) uint16 {
	w := widthOf(d)
	sign := uint16(0)
	if math.Signbit(float64(f)) {
		sign = 0x8000
	}
	top := uint16(1<<(15-w.fraction)-1) << w.fraction // infinity
	x := math.Abs(float64(f))
	if x != x {
		return sign | top | 1<<(w.fraction-1)
	}
	exp := w.least
	if _, e := math.Frexp(x); x > 0 && e-1 > exp {
		exp = e - 1
	}
	units := math.RoundToEven(math.Ldexp(x, w.fraction-exp))
	if math.Ldexp(units, exp-w.fraction) >= math.Ldexp(1, w.max) {
		return sign | top
	}
	// From the least normal number on, units has its leading bit at 1<<fraction, and that
	// bit counts one up in the exponent, which starts at 0.
	return sign | uint16((exp-w.least)<<w.fraction+int(units))
}

// floatOf is the value of a Float16 or BFloat16, which a float32 holds exactly.
func floatOf(d kolo.DType, h uint16) float32 {
	w := widthOf(d)
	exp := int(h&0x7fff) >> w.fraction
	part := float64(h & (1<<w.fraction - 1))
	v := 0.0
	switch {
	case exp == 1<<(15-w.fraction)-1 && part != 0:
		v = math.NaN()
	case exp == 1<<(15-w.fraction)-1:
		v = math.Inf(1)
	case exp == 0:
		v = math.Ldexp(part, w.least-w.fraction)
	default:
		v = math.Ldexp(part+math.Ldexp(1, w.fraction), w.least+exp-1-w.fraction)
	}
	if h&0x8000 != 0 {
		v = -v
	}
	return float32(v)
}

// Float32s is the value of each Float16 or BFloat16.
func Float32s(d kolo.DType, bits []uint16) []float32 {
	out := make([]float32, len(bits))
	for i, h := range bits {
		out[i] = floatOf(d, h)
	}
	return out
}

// Halves is each value as a Float16 or BFloat16, rounded to nearest even.
func Halves(d kolo.DType, values []float32) []uint16 {
	out := make([]uint16, len(values))
	for i, f := range values {
		out[i] = halfOf(d, f)
	}
	return out
}
