package ranktest

import (
	"fmt"
	"slices"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/rank"
)

// Fold is the reduction of the inputs of all ranks, element by element in rank
// order: ((in[0] op in[1]) op in[2]) and so on. All inputs have one length.
func Fold[T rank.Number](op kolo.ReduceOp, in ...[]T) []T {
	if len(in) == 0 {
		panic("ranktest: nothing to fold")
	}
	out := make([]T, len(in[0]))
	for i := range out {
		x := scaled(op, in[0][i])
		for _, s := range in[1:] {
			x = combined(op, x, scaled(op, s[i]))
		}
		if op.Kind == kolo.OpAvg {
			x = quotient(x, len(in))
		}
		out[i] = x
	}
	return out
}

// FoldHalves is Fold of Float16 or BFloat16 elements: computed in float32 and
// rounded once.
func FoldHalves(d kolo.DType, op kolo.ReduceOp, in ...[]uint16) []uint16 {
	wide := make([][]float32, len(in))
	for r, s := range in {
		wide[r] = Float32s(d, s)
	}
	return Halves(d, Fold(op, wide...))
}

// scaled is an element with the factor of PreMulSum.
func scaled[T rank.Number](op kolo.ReduceOp, x T) T {
	switch {
	case op.Kind != kolo.OpPreMulSum:
		return x
	case isFloat[T]():
		return T(x * T(op.Scale)) // the conversion keeps the product from being fused into a sum
	}
	return x * T(int64(op.Scale))
}

func combined[T rank.Number](op kolo.ReduceOp, x, y T) T {
	switch op.Kind {
	case kolo.OpSum, kolo.OpAvg, kolo.OpPreMulSum:
		return x + y
	case kolo.OpProd:
		return x * y
	case kolo.OpMax:
		return max(x, y) // of floats: NaN if one is NaN, and +0 before -0
	case kolo.OpMin:
		return min(x, y)
	}
	panic(fmt.Sprintf("ranktest: no reduce operation %d", op.Kind))
}

// quotient is x over n, toward zero for integers, whatever T can hold of n.
func quotient[T rank.Number](x T, n int) T {
	var zero T
	switch {
	case isFloat[T]():
		return x / T(n)
	case zero-1 < zero:
		return T(int64(x) / int64(n))
	}
	return T(uint64(x) / uint64(n))
}

func isFloat[T rank.Number]() bool { return T(1)/T(2) != 0 }

// fold is Fold of bytes.
func fold(d kolo.DType, op kolo.ReduceOp, in [][]byte) []byte {
	switch d {
	case kolo.Int8:
		return foldBytes[int8](op, in)
	case kolo.Int16:
		return foldBytes[int16](op, in)
	case kolo.Int32:
		return foldBytes[int32](op, in)
	case kolo.Int64:
		return foldBytes[int64](op, in)
	case kolo.Uint8:
		return foldBytes[uint8](op, in)
	case kolo.Uint16:
		return foldBytes[uint16](op, in)
	case kolo.Uint32:
		return foldBytes[uint32](op, in)
	case kolo.Uint64:
		return foldBytes[uint64](op, in)
	case kolo.Float32:
		return foldBytes[float32](op, in)
	case kolo.Float64:
		return foldBytes[float64](op, in)
	}
	return bytesOf(FoldHalves(d, op, numbers[uint16](in)...))
}

func foldBytes[T rank.Number](op kolo.ReduceOp, in [][]byte) []byte {
	return bytesOf(Fold(op, numbers[T](in)...))
}

// numbers are copies of bytes as elements.
func numbers[T rank.Number](in [][]byte) [][]T {
	out := make([][]T, len(in))
	for r, b := range in {
		size := rank.Of([]T{0}).DType.Size()
		out[r] = make([]T, len(b)/size)
		copy(bytesOf(out[r]), b)
	}
	return out
}

func bytesOf[T rank.Number](s []T) []byte { return rank.Of(s).Memory.Host }

// Bytes is a copy of the bytes of a slice, as Answer gives them.
func Bytes[T rank.Number](s []T) []byte { return slices.Clone(bytesOf(s)) }
