package rank

import (
	"unsafe"

	"github.com/kolo-ccl/kolo"
)

// Number is an element type of a Go slice that collectives take. Float16 and
// BFloat16 have no Go type; see Float16s and BFloat16s, and Bytes for the 8-bit floats.
type Number interface {
	~int8 | ~int16 | ~int32 | ~int64 | ~int |
		~uint8 | ~uint16 | ~uint32 | ~uint64 | ~uint |
		~float32 | ~float64
}

// Buffer is a typed range of memory: what a collective reads or writes. The zero
// Buffer is no memory, as for the output of a rank that is not the root.
type Buffer struct {
	Memory kolo.Memory
	DType  kolo.DType
}

// Of is the Buffer of a slice. It shares the slice's memory.
func Of[T Number](s []T) Buffer {
	return Buffer{Memory: kolo.HostMemory(bytesOf(s)), DType: dtypeOf[T]()}
}

// Float16s is the Buffer of IEEE 754 binary16 values, as bits.
func Float16s(bits []uint16) Buffer {
	return Buffer{Memory: kolo.HostMemory(bytesOf(bits)), DType: kolo.Float16}
}

// BFloat16s is the Buffer of bfloat16 values, as bits.
func BFloat16s(bits []uint16) Buffer {
	return Buffer{Memory: kolo.HostMemory(bytesOf(bits)), DType: kolo.BFloat16}
}

// Bytes is the Buffer of elements of any type, as they lie in memory. It is for types
// that have no Go type, as kolo.Float8E4M3. It shares the slice's memory, which is to be aligned to
// the elements, or to 8 bytes where they are larger.
func Bytes(d kolo.DType, b []byte) Buffer { return Buffer{Memory: kolo.HostMemory(b), DType: d} }

// Count is the number of elements.
func (b Buffer) Count() int64 {
	if n := int64(b.DType.Size()); n > 0 {
		return b.Memory.Len() / n
	}
	return 0
}

func bytesOf[T Number](s []T) []byte {
	if len(s) == 0 {
		return nil
	}
	var x T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(x)))
}

// dtypeOf is the element type of T.
func dtypeOf[T Number]() kolo.DType {
	var zero T
	size := unsafe.Sizeof(zero)
	if half := T(1) / T(2); half != 0 {
		if size == 4 {
			return kolo.Float32
		}
		return kolo.Float64
	}
	signed := zero-1 < zero
	switch size {
	case 1:
		if signed {
			return kolo.Int8
		}
		return kolo.Uint8
	case 2:
		if signed {
			return kolo.Int16
		}
		return kolo.Uint16
	case 4:
		if signed {
			return kolo.Int32
		}
		return kolo.Uint32
	}
	if signed {
		return kolo.Int64
	}
	return kolo.Uint64
}

// span is a range of addresses of a space, for comparing.
type span struct {
	lo, hi uintptr
	space  kolo.Space
}

// spanOf is where memory lies; empty for no memory.
func spanOf(m kolo.Memory) span {
	if m.Space != kolo.HostSpace && m.Size > 0 {
		return span{uintptr(m.Addr), uintptr(m.Addr) + uintptr(m.Size), m.Space}
	}
	if len(m.Host) == 0 {
		return span{}
	}
	lo := uintptr(unsafe.Pointer(unsafe.SliceData(m.Host)))
	return span{lo: lo, hi: lo + uintptr(len(m.Host))}
}

// extent is where host memory lies; zero for none.
type extent struct{ lo, n uintptr }

func extentOf[T any](s []T) extent {
	if len(s) == 0 {
		return extent{}
	}
	return extent{uintptr(unsafe.Pointer(unsafe.SliceData(s))), uintptr(len(s)) * unsafe.Sizeof(s[0])}
}

func (s span) empty() bool { return s.lo == s.hi }

func (s span) overlaps(t span) bool {
	return !s.empty() && !t.empty() && s.space == t.space && s.lo < t.hi && t.lo < s.hi
}

// aligned says whether the span starts at a multiple of size.
func (s span) aligned(size int) bool { return s.lo%uintptr(size) == 0 }

// elementsOf is memory as elements; their size divides its length and it is aligned.
func elementsOf[T Number](b []byte) []T {
	var x T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(x)))
}
