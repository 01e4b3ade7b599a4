package kernel

import (
	"math/bits"
	"unsafe"
)

// number lists the element types that Go itself computes with.
type number interface {
	int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64 | float32 | float64
}

// eight points to s[i:i+8], which the caller knows to exist: the loops below have
// no bounds checks. Eight elements at a time keep their speed from depending on
// where the linker places them.
func eight[T any](s []T, i int) *[8]T {
	var t T
	return (*[8]T)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(s)), i*int(unsafe.Sizeof(t))))
}

// The loops set d[i] from a[i] and b[i]; d may be a or b. The operation is not a
// parameter of type: its calls would not be inlined.

func add[T number](d, a, b []T) {
	i := 0
	for a, b = a[:len(d)], b[:len(d)]; i+8 <= len(d); i += 8 {
		x, y, z := eight(d, i), eight(a, i), eight(b, i)
		x[0] = y[0] + z[0]
		x[1] = y[1] + z[1]
		x[2] = y[2] + z[2]
		x[3] = y[3] + z[3]
		x[4] = y[4] + z[4]
		x[5] = y[5] + z[5]
		x[6] = y[6] + z[6]
		x[7] = y[7] + z[7]
	}
	for ; i < len(d); i++ {
		d[i] = a[i] + b[i]
	}
}

func multiply[T number](d, a, b []T) {
	i := 0
	for a, b = a[:len(d)], b[:len(d)]; i+8 <= len(d); i += 8 {
		x, y, z := eight(d, i), eight(a, i), eight(b, i)
		x[0] = y[0] * z[0]
		x[1] = y[1] * z[1]
		x[2] = y[2] * z[2]
		x[3] = y[3] * z[3]
		x[4] = y[4] * z[4]
		x[5] = y[5] * z[5]
		x[6] = y[6] * z[6]
		x[7] = y[7] * z[7]
	}
	for ; i < len(d); i++ {
		d[i] = a[i] * b[i]
	}
}

func maximum[T number](d, a, b []T) {
	i := 0
	for a, b = a[:len(d)], b[:len(d)]; i+8 <= len(d); i += 8 {
		x, y, z := eight(d, i), eight(a, i), eight(b, i)
		x[0] = max(y[0], z[0])
		x[1] = max(y[1], z[1])
		x[2] = max(y[2], z[2])
		x[3] = max(y[3], z[3])
		x[4] = max(y[4], z[4])
		x[5] = max(y[5], z[5])
		x[6] = max(y[6], z[6])
		x[7] = max(y[7], z[7])
	}
	for ; i < len(d); i++ {
		d[i] = max(a[i], b[i])
	}
}

func minimum[T number](d, a, b []T) {
	i := 0
	for a, b = a[:len(d)], b[:len(d)]; i+8 <= len(d); i += 8 {
		x, y, z := eight(d, i), eight(a, i), eight(b, i)
		x[0] = min(y[0], z[0])
		x[1] = min(y[1], z[1])
		x[2] = min(y[2], z[2])
		x[3] = min(y[3], z[3])
		x[4] = min(y[4], z[4])
		x[5] = min(y[5], z[5])
		x[6] = min(y[6], z[6])
		x[7] = min(y[7], z[7])
	}
	for ; i < len(d); i++ {
		d[i] = min(a[i], b[i])
	}
}

// scale sets d[i] to a[i]*factor.
func scale[T number](d, a []T, factor T) {
	i := 0
	for a = a[:len(d)]; i+8 <= len(d); i += 8 {
		x, y := eight(d, i), eight(a, i)
		x[0] = y[0] * factor
		x[1] = y[1] * factor
		x[2] = y[2] * factor
		x[3] = y[3] * factor
		x[4] = y[4] * factor
		x[5] = y[5] * factor
		x[6] = y[6] * factor
		x[7] = y[7] * factor
	}
	for ; i < len(d); i++ {
		d[i] = a[i] * factor
	}
}

// divideFloats divides each d[i]. A division is rounded correctly; a product with
// the reciprocal would not be.
func divideFloats[T number](d []T, by T) {
	for i := range d {
		d[i] /= by
	}
}

// divideIntegers divides each d[i] and truncates toward zero. Elements of up to 32
// bits are multiplied by c/2^64 with c = 2^64/by rounded up. That makes a quotient
// too large by less than 2^-32; the next integer is at least 1/by > 2^-31 away.
func divideIntegers[T number](d []T, by int) {
	switch {
	case by == 1:
	case unsafe.Sizeof(d[0]) == 8:
		for i, x := range d {
			if x < 0 {
				d[i] = T(int64(x) / int64(by))
			} else {
				d[i] = T(uint64(x) / uint64(by))
			}
		}
	default:
		c := ^uint64(0)/uint64(by) + 1
		for i, x := range d {
			negative := int64(x) >> 63 // 0 or -1
			q, _ := bits.Mul64(c, uint64((int64(x)^negative)-negative))
			d[i] = T((int64(q) ^ negative) - negative)
		}
	}
}
