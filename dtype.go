package kolo

import "fmt"

// DType is the type of an element. The values are HCCL's HcclDataType.
type DType uint8

// The element types.
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
)

// NumDTypes is one more than the largest DType.
const NumDTypes = 12

// DTypes lists every element type in the order of their numbers.
func DTypes() []DType {
	return []DType{Int8, Int16, Int32, Float16, Float32, Int64, Uint64, Uint8, Uint16, Uint32, Float64, BFloat16}
}

// Size is the size of an element in bytes, 0 for a value that is no DType.
func (d DType) Size() int {
	switch d {
	case Int8, Uint8:
		return 1
	case Int16, Uint16, Float16, BFloat16:
		return 2
	case Int32, Uint32, Float32:
		return 4
	case Int64, Uint64, Float64:
		return 8
	}
	return 0
}

// Valid says whether d is one of the element types.
func (d DType) Valid() bool { return d < NumDTypes }

// Float says whether d is a floating-point type.
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
	return 0, fmt.Errorf("%w: no element type %q; known: int8 to int64, uint8 to uint64, fp16, bfp16, fp32, fp64", ErrArgument, name)
}
