package kolo

import "fmt"

// DType is the type of an element. The values are HCCL's HcclDataType.
type DType uint8

// The element types. Those from Int128 on, but for BFloat16, are only moved: collectives
// that reduce refuse them, and no Go type stands for them (see rank.Buffer).
const (
	Int8     DType = 0
	Int16    DType = 1
	Int32    DType = 2
	Float16  DType = 3 // IEEE 754 binary16, as uint16 bits
	Float32  DType = 4
	Int64    DType = 5
	Uint64   DType = 6
	Uint8    DType = 7
	Uint16   DType = 8
	Uint32   DType = 9
	Float64  DType = 10
	BFloat16 DType = 11 // the upper half of a float32, as uint16 bits

	Int128     DType = 12
	HiFloat8   DType = 14 // Ascend's 8-bit float of tapered precision
	Float8E4M3 DType = 15 // 8-bit floats of the OCP formats, by bits of exponent and fraction
	Float8E5M2 DType = 16
	Float8E8M0 DType = 17 // a power of two: the scale of a block
)

// NumDTypes is one more than the largest DType.
const NumDTypes = 18

// DTypes lists every element type in the order of their numbers.
func DTypes() []DType {
	return append(ReducibleDTypes(), Int128, HiFloat8, Float8E4M3, Float8E5M2, Float8E8M0)
}

// ReducibleDTypes lists the element types that a ReduceOp takes, in the order of their numbers.
func ReducibleDTypes() []DType {
	return []DType{Int8, Int16, Int32, Float16, Float32, Int64, Uint64, Uint8, Uint16, Uint32, Float64, BFloat16}
}

// Size is the size of an element in bytes, 0 for a value that is no DType.
func (d DType) Size() int {
	switch d {
	case Int8, Uint8, HiFloat8, Float8E4M3, Float8E5M2, Float8E8M0:
		return 1
	case Int16, Uint16, Float16, BFloat16:
		return 2
	case Int32, Uint32, Float32:
		return 4
	case Int64, Uint64, Float64:
		return 8
	case Int128:
		return 16
	}
	return 0
}

// Valid says whether d is one of the element types.
func (d DType) Valid() bool { return d.Size() > 0 }

// Reducible says whether a ReduceOp takes d, which is otherwise only moved.
func (d DType) Reducible() bool { return d <= BFloat16 }

// Float says whether d is a floating-point type that is computed with.
func (d DType) Float() bool {
	return d == Float16 || d == Float32 || d == Float64 || d == BFloat16
}

// String is the name that hccl_test uses, as "fp32" or "int8".
func (d DType) String() string {
	switch d {
	case Int8:
		return "int8"
	case Int16:
		return "int16"
	case Int32:
		return "int32"
	case Float16:
		return "fp16"
	case Float32:
		return "fp32"
	case Int64:
		return "int64"
	case Uint64:
		return "uint64"
	case Uint8:
		return "uint8"
	case Uint16:
		return "uint16"
	case Uint32:
		return "uint32"
	case Float64:
		return "fp64"
	case BFloat16:
		return "bfp16"
	case Int128:
		return "int128"
	case HiFloat8:
		return "hif8"
	case Float8E4M3:
		return "fp8e4m3"
	case Float8E5M2:
		return "fp8e5m2"
	case Float8E8M0:
		return "fp8e8m0"
	}
	return fmt.Sprintf("DType(%d)", uint8(d))
}

// ParseDType reads a name that String writes; bf16, float32 and the like are
// taken too.
func ParseDType(name string) (DType, error) {
	for _, d := range DTypes() {
		if d.String() == name {
			return d, nil
		}
	}
	switch name {
	case "float16", "half":
		return Float16, nil
	case "float32", "float":
		return Float32, nil
	case "float64", "double":
		return Float64, nil
	case "bf16", "bfloat16":
		return BFloat16, nil
	}
	return 0, fmt.Errorf("%w: no element type %q; known: int8 to int64, uint8 to uint64, fp16, bfp16, fp32, fp64; to be moved only: int128, hif8, fp8e4m3, fp8e5m2, fp8e8m0", ErrArgument, name)
}
