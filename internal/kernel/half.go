package kernel

import (
	"math"

	"github.com/kolo-ccl/kolo"
)

// widen sets d to the Float16 or BFloat16 elements of s, exactly.
func widen(t kolo.DType, d []float32, s []uint16) {
	s = s[:len(d)]
	if t == kolo.BFloat16 {
		for i, h := range s {
			d[i] = widenBFloat16(h)
		}
		return
	}
	for i, h := range s {
		d[i] = widenFloat16(h)
	}
}

// narrow sets d to the elements of s as Float16 or BFloat16, rounded to nearest
// even.
func narrow(t kolo.DType, d []uint16, s []float32) {
	s = s[:len(d)]
	if t == kolo.BFloat16 {
		for i, f := range s {
			d[i] = narrowBFloat16(f)
		}
		return
	}
	for i, f := range s {
		d[i] = narrowFloat16(f)
	}
}

// A Float16 has 1 bit of sign, 5 of exponent with bias 15, 10 of fraction; a
// float32 has 1, 8 with bias 127, and 23. A BFloat16 is the upper half of a
// float32.
const (
	rebias    = (127 - 15) << 23 // between the exponents, in place
	spare     = 23 - 10          // fraction bits that a Float16 lacks
	infinity  = 0x7f800000
	tooLarge  = (127 + 16) << 23 // 2^16: no Float16 is as large
	subnormal = (127 - 14) << 23 // 2^-14: the least normal Float16
	quiet     = 0x7fc00000
)

func widenFloat16(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	abs := uint32(h&0x7fff) << spare
	switch {
	case abs >= 31<<23: // infinity or NaN
		abs |= infinity
	case abs >= 1<<23:
		abs += rebias
	default: // let the subtraction find the leading bit
		abs = math.Float32bits(math.Float32frombits(abs+subnormal) - math.Float32frombits(subnormal))
	}
	return math.Float32frombits(sign | abs)
}

func narrowFloat16(f float32) uint16 {
	u := math.Float32bits(f)
	sign := uint16(u >> 16 & 0x8000)
	abs := u & 0x7fffffff
	switch {
	case abs > infinity:
		return sign | 0x7e00
	case abs >= tooLarge:
		return sign | 0x7c00
	case abs >= subnormal: // a carry may reach the exponent, and infinity, as it must
		odd := abs >> spare & 1
		return sign | uint16((abs-rebias+(1<<(spare-1)-1)+odd)>>spare)
	default: // the sum with 0.5 has its last bit at 2^-24, a Float16's last: the addition rounds
		return sign | uint16(math.Float32bits(math.Float32frombits(abs)+0.5)-math.Float32bits(0.5))
	}
}

func widenBFloat16(h uint16) float32 {
	return math.Float32frombits(uint32(h) << 16)
}

func narrowBFloat16(f float32) uint16 {
	u := math.Float32bits(f)
	if u&0x7fffffff > infinity {
		return uint16((u | quiet) >> 16)
	}
	return uint16((u + 0x7fff + u>>16&1) >> 16)
}
