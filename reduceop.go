package kolo

import (
	"fmt"
	"strconv"
	"strings"
)

// OpKind is the arithmetic of a ReduceOp. The first four are HCCL's HcclReduceOp.
type OpKind uint8

// The kinds. HCCL has neither average nor premultiplied sum; NCCL has both.
const (
	OpSum       OpKind = 0
	OpProd      OpKind = 1
	OpMax       OpKind = 2
	OpMin       OpKind = 3
	OpAvg       OpKind = 4
	OpPreMulSum OpKind = 5
)

// ReduceOp says how elements of several ranks become one. It is a value: two
// ReduceOps are the same operation when they compare equal.
//
// Integers wrap. Float16 and BFloat16 compute in float32 and round once per
// kernel call. NaN propagates in every op, and -0 is less than +0 in max and min.
// Avg is the sum divided by the number of ranks; for integers the quotient
// truncates toward zero. PreMulSum multiplies each rank's element by Scale first.
type ReduceOp struct {
	Kind  OpKind
	Scale float64 // PreMulSum's factor, 0 for the others
}

// The operations without a parameter. They are values to read, never to set.
var (
	Sum  = ReduceOp{Kind: OpSum}
	Prod = ReduceOp{Kind: OpProd}
	Max  = ReduceOp{Kind: OpMax}
	Min  = ReduceOp{Kind: OpMin}
	Avg  = ReduceOp{Kind: OpAvg}
)

// PreMulSum is the sum of scale times each rank's element. For integer types the
// factor must be a whole number that the type can hold.
func PreMulSum(scale float64) ReduceOp { return ReduceOp{Kind: OpPreMulSum, Scale: scale} }

// Valid says whether the kind is one of those above.
func (o ReduceOp) Valid() bool { return o.Kind <= OpPreMulSum }

// Check says why the pair of o and d cannot be computed, or nil: ErrArgument for what is no
// operation or type, ErrUnsupported for a type that is only moved and for a PreMulSum of an
// integer type whose factor the type cannot hold.
func (o ReduceOp) Check(d DType) error {
	switch {
	case !o.Valid():
		return fmt.Errorf("%w: no reduce operation %d; known: sum, prod, max, min, avg, premulsum", ErrArgument, o.Kind)
	case !d.Valid():
		return fmt.Errorf("%w: no element type %d", ErrArgument, d)
	case !d.Reducible():
		return fmt.Errorf("%w: %v of %v: such elements are moved and not computed with; reduce them as a wider type", ErrUnsupported, o, d)
	case o.Kind != OpPreMulSum || d.Float():
		return nil
	}
	if lo, hi := intRange(d); o.Scale != float64(int64(o.Scale)) || o.Scale < lo || o.Scale > hi {
		return fmt.Errorf("%w: premulsum by %v on %v: the factor must be a whole number from %.0f to %.0f", ErrUnsupported, o.Scale, d, lo, hi)
	}
	return nil
}

// intRange is the range of factors for an integer type; those of 64 bits are held
// to what a float64 carries exactly.
func intRange(d DType) (lo, hi float64) {
	bits := 8 * d.Size()
	if bits == 64 {
		bits = 54
	}
	switch d {
	case Uint8, Uint16, Uint32, Uint64:
		return 0, float64(uint64(1)<<bits - 1)
	}
	return -float64(uint64(1) << (bits - 1)), float64(uint64(1)<<(bits-1) - 1)
}

// String is hccl_test's name of the operation, as "sum" or "premulsum(0.5)".
func (o ReduceOp) String() string {
	switch o.Kind {
	case OpSum:
		return "sum"
	case OpProd:
		return "prod"
	case OpMax:
		return "max"
	case OpMin:
		return "min"
	case OpAvg:
		return "avg"
	case OpPreMulSum:
		return fmt.Sprintf("premulsum(%v)", o.Scale)
	}
	return fmt.Sprintf("ReduceOp(%d)", uint8(o.Kind))
}

// ParseReduceOp reads sum, prod, max, min, avg, or premulsum(x).
func ParseReduceOp(name string) (ReduceOp, error) {
	for _, o := range []ReduceOp{Sum, Prod, Max, Min, Avg} {
		if o.String() == name {
			return o, nil
		}
	}
	arg, begins := strings.CutPrefix(name, "premulsum(")
	if arg, ends := strings.CutSuffix(arg, ")"); begins && ends {
		if x, err := strconv.ParseFloat(arg, 64); err == nil {
			return PreMulSum(x), nil
		}
	}
	return ReduceOp{}, fmt.Errorf("%w: no reduce operation %q; known: sum, prod, max, min, avg, premulsum(x)", ErrArgument, name)
}
