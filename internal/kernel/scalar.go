package kernel

import (
	"fmt"
	"unsafe"

	"github.com/kolo-ccl/kolo"
)

// block is how many elements the scalar form reduces at a time: the accumulators
// are on the stack and the block's part of every source stays in the cache.
const block = 64

// scalar is Spread in plain Go, of the bytes from..to of every slice.
func (o Op) scalar(dsts, srcs [][]byte, from, to int) {
	switch o.DType {
	case kolo.Int8:
		spreadNumbers[int8](o, dsts, srcs, from, to)
	case kolo.Int16:
		spreadNumbers[int16](o, dsts, srcs, from, to)
	case kolo.Int32:
		spreadNumbers[int32](o, dsts, srcs, from, to)
	case kolo.Int64:
		spreadNumbers[int64](o, dsts, srcs, from, to)
	case kolo.Uint8:
		spreadNumbers[uint8](o, dsts, srcs, from, to)
	case kolo.Uint16:
		spreadNumbers[uint16](o, dsts, srcs, from, to)
	case kolo.Uint32:
		spreadNumbers[uint32](o, dsts, srcs, from, to)
	case kolo.Uint64:
		spreadNumbers[uint64](o, dsts, srcs, from, to)
	case kolo.Float32:
		spreadNumbers[float32](o, dsts, srcs, from, to)
	case kolo.Float64:
		spreadNumbers[float64](o, dsts, srcs, from, to)
	case kolo.Float16, kolo.BFloat16:
		spreadHalves(o, dsts, srcs, from, to)
	default:
		panic(fmt.Sprintf("kernel: no element type %d", o.DType))
	}
}

// spreadNumbers is Spread of elements that Go computes with. A source's block is
// read before the same block of any destination is written, so that a destination
// may be a source.
func spreadNumbers[T number](o Op, dsts, srcs [][]byte, from, to int) {
	if o.Kind == kolo.OpPreMulSum && o.DType.Float() {
		spreadScaled[T](o, dsts, srcs, from, to)
		return
	}
	var acc [block]T
	size := int(unsafe.Sizeof(acc[0]))
	for at := from; at < to; at += block * size {
		end := min(at+block*size, to)
		out := acc[:(end-at)/size]
		if len(dsts) == 1 && len(srcs) == 2 {
			out = view[T](dsts[0][at:end])
		}
		if len(srcs) == 1 {
			copy(out, view[T](srcs[0][at:end]))
		} else {
			combine(o.Kind, out, view[T](srcs[0][at:end]), view[T](srcs[1][at:end]))
			for _, s := range srcs[2:] {
				combine(o.Kind, out, out, view[T](s[at:end]))
			}
		}
		finish(o, out)
		for _, d := range dsts {
			copy(view[T](d[at:end]), out)
		}
	}
}

// spreadScaled is spreadNumbers for OpPreMulSum of floats. The products pass
// through memory, which keeps the compiler from fusing them into the sums.
func spreadScaled[T number](o Op, dsts, srcs [][]byte, from, to int) {
	var acc, product [block]T
	size := int(unsafe.Sizeof(acc[0]))
	for at := from; at < to; at += block * size {
		end := min(at+block*size, to)
		out, p := acc[:(end-at)/size], product[:(end-at)/size]
		scale(out, view[T](srcs[0][at:end]), T(o.Scale))
		for _, s := range srcs[1:] {
			scale(p, view[T](s[at:end]), T(o.Scale))
			add(out, out, p)
		}
		for _, d := range dsts {
			copy(view[T](d[at:end]), out)
		}
	}
}

// spreadHalves is Spread of Float16 and BFloat16, in float32.
func spreadHalves(o Op, dsts, srcs [][]byte, from, to int) {
	const size = 2
	var acc, next [block]float32
	scaled := o.Kind == kolo.OpPreMulSum
	for at := from; at < to; at += block * size {
		end := min(at+block*size, to)
		out, x := acc[:(end-at)/size], next[:(end-at)/size]
		widen(o.DType, out, view[uint16](srcs[0][at:end]))
		if scaled {
			scale(out, out, float32(o.Scale))
		}
		for _, s := range srcs[1:] {
			widen(o.DType, x, view[uint16](s[at:end]))
			if scaled {
				scale(x, x, float32(o.Scale))
			}
			combine(o.Kind, out, out, x)
		}
		if o.Kind == kolo.OpAvg {
			divideFloats(out, float32(o.Ranks))
		}
		narrow(o.DType, view[uint16](dsts[0][at:end]), out)
		for _, d := range dsts[1:] {
			copy(d[at:end], dsts[0][at:end])
		}
	}
}

// combine sets d to a op b. The scaling of OpPreMulSum and the division of OpAvg
// are not part of it.
func combine[T number](kind kolo.OpKind, d, a, b []T) {
	switch kind {
	case kolo.OpSum, kolo.OpAvg, kolo.OpPreMulSum:
		add(d, a, b)
	case kolo.OpProd:
		multiply(d, a, b)
	case kolo.OpMax:
		maximum(d, a, b)
	case kolo.OpMin:
		minimum(d, a, b)
	default:
		panic(fmt.Sprintf("kernel: no reduce operation %d", kind))
	}
}

// finish turns the sum in d into the result. OpPreMulSum of integers scales here:
// in arithmetic that wraps, the scaled sum is the sum of the scaled.
func finish[T number](o Op, d []T) {
	switch {
	case o.Kind == kolo.OpAvg && o.DType.Float():
		divideFloats(d, T(o.Ranks))
	case o.Kind == kolo.OpAvg:
		divideIntegers(d, o.Ranks)
	case o.Kind == kolo.OpPreMulSum:
		scale(d, d, T(int64(o.Scale)))
	}
}

// divide is the division of OpAvg of integers.
func (o Op) divide(b []byte) {
	switch o.DType {
	case kolo.Int8:
		divideIntegers(view[int8](b), o.Ranks)
	case kolo.Int16:
		divideIntegers(view[int16](b), o.Ranks)
	case kolo.Int32:
		divideIntegers(view[int32](b), o.Ranks)
	case kolo.Int64:
		divideIntegers(view[int64](b), o.Ranks)
	case kolo.Uint8:
		divideIntegers(view[uint8](b), o.Ranks)
	case kolo.Uint16:
		divideIntegers(view[uint16](b), o.Ranks)
	case kolo.Uint32:
		divideIntegers(view[uint32](b), o.Ranks)
	case kolo.Uint64:
		divideIntegers(view[uint64](b), o.Ranks)
	}
}

// view is b as elements of type T.
func view[T any](b []byte) []T {
	var t T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(t)))
}
