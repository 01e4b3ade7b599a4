package perf

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/kolo-ccl/kolo"
)

// A number here is the bits of an element, in the low end of a uint64.

// put writes the bits of element i.
func put(b []byte, d kolo.DType, i int, bits uint64) {
	switch d.Size() {
	case 1:
		b[i] = byte(bits)
	case 2:
		binary.NativeEndian.PutUint16(b[2*i:], uint16(bits))
	case 4:
		binary.NativeEndian.PutUint32(b[4*i:], uint32(bits))
	default:
		binary.NativeEndian.PutUint64(b[8*i:], bits)
	}
}

// get reads the bits of element i.
func get(b []byte, d kolo.DType, i int) uint64 {
	switch d.Size() {
	case 1:
		return uint64(b[i])
	case 2:
		return uint64(binary.NativeEndian.Uint16(b[2*i:]))
	case 4:
		return uint64(binary.NativeEndian.Uint32(b[4*i:]))
	}
	return binary.NativeEndian.Uint64(b[8*i:])
}

// text is the number for people.
func text(d kolo.DType, bits uint64) string {
	switch {
	case d.Float():
		return fmt.Sprint(toFloat(d, bits))
	case signed(d):
		return fmt.Sprint(extend(d, bits))
	}
	return fmt.Sprint(bits)
}

// signed says whether an integer type has a sign.
func signed(d kolo.DType) bool {
	switch d {
	case kolo.Int8, kolo.Int16, kolo.Int32, kolo.Int64:
		return true
	}
	return false
}

// width is the number of bits of an element.
func width(d kolo.DType) uint { return uint(8 * d.Size()) }

// extend is a signed integer's value.
func extend(d kolo.DType, bits uint64) int64 {
	free := 64 - width(d)
	return int64(bits<<free) >> free
}

// cut forgets what an integer of the type does not hold.
func cut(d kolo.DType, bits uint64) uint64 {
	free := 64 - width(d)
	return bits << free >> free
}

// significand is the number of bits in which a float type holds integers exactly.
func significand(d kolo.DType) uint {
	switch d {
	case kolo.Float16:
		return 11
	case kolo.BFloat16:
		return 8
	case kolo.Float32:
		return 24
	}
	return 53
}

// toFloat is the value of a float of any type.
func toFloat(d kolo.DType, bits uint64) float64 {
	switch d {
	case kolo.Float16:
		sign, exponent, fraction := 1-2*float64(bits>>15), int(bits>>10&31), float64(bits&1023)
		switch {
		case exponent == 31 && fraction != 0:
			return math.NaN()
		case exponent == 31:
			return math.Inf(int(sign))
		case exponent == 0:
			return sign * math.Ldexp(fraction, -24)
		}
		return sign * math.Ldexp(1024+fraction, exponent-25)
	case kolo.BFloat16:
		return float64(math.Float32frombits(uint32(bits) << 16))
	case kolo.Float32:
		return float64(math.Float32frombits(uint32(bits)))
	}
	return math.Float64frombits(bits)
}

// fromFloat is the float of the type whose value is x. Zero and what the type holds
// exactly, without being subnormal, is all that it knows.
func fromFloat(d kolo.DType, x float64) uint64 {
	switch d {
	case kolo.Float16:
		if x == 0 {
			return 0
		}
		fraction, exponent := math.Frexp(math.Abs(x)) // 0.5 <= fraction < 1
		bits := uint64(exponent+14)<<10 | uint64(fraction*2048)&1023
		if x < 0 {
			bits |= 1 << 15
		}
		return bits
	case kolo.BFloat16:
		return uint64(math.Float32bits(float32(x)) >> 16)
	case kolo.Float32:
		return uint64(math.Float32bits(float32(x)))
	}
	return math.Float64bits(x)
}

// fold is a op b. An average folds like a sum.
func fold(d kolo.DType, op kolo.OpKind, a, b uint64) uint64 {
	if d.Float() {
		x, y := toFloat(d, a), toFloat(d, b)
		switch op {
		case kolo.OpProd:
			return fromFloat(d, x*y)
		case kolo.OpMax:
			return fromFloat(d, max(x, y))
		case kolo.OpMin:
			return fromFloat(d, min(x, y))
		}
		return fromFloat(d, x+y)
	}
	less := a < b
	if signed(d) {
		less = extend(d, a) < extend(d, b)
	}
	switch op {
	case kolo.OpProd:
		return cut(d, a*b)
	case kolo.OpMax, kolo.OpMin:
		if less == (op == kolo.OpMin) {
			return a
		}
		return b
	}
	return cut(d, a+b)
}

// divide is the sum of n numbers divided by n.
func divide(d kolo.DType, sum uint64, n int) uint64 {
	switch {
	case d.Float():
		return fromFloat(d, toFloat(d, sum)/float64(n))
	case signed(d):
		return cut(d, uint64(extend(d, sum)/int64(n)))
	}
	return sum / uint64(n)
}
