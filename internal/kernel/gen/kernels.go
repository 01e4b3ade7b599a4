package main

import (
	"fmt"
	"slices"
)

// A kernel folds any number of sources and stores the result to any number of
// destinations, a few vectors of each at a time:
//
//	for every block of the bytes from..to
//	    accumulators = first source
//	    for every other source: accumulators = accumulators op source
//	    finish: divide, scale, round to the element type
//	    for every destination: destination = accumulators
//
// All sources of a block are read before a destination is written, so that a
// destination may be a source. The loop is one for all kernels of an
// architecture; an element type and an operation fill in first, fold and finish.
//
// The kernels are no Go functions. The one that is, spread, loads its arguments
// into registers and jumps to a kernel by number: a call through a Go function
// value would make the slices of every caller escape to the heap.
type kernel struct {
	element element
	op      op
}

func (k kernel) name() string { return k.op.name + k.element.name }

// half says whether elements are of 16 bits and are computed in float32, so that
// a vector of results has two of accumulators.
func (k kernel) half() bool {
	return k.element.narrow() && !k.op.compares()
}

// ordered says whether floats of 16 bits are compared as integers. Flipping all
// bits but the sign of the negative ones puts them in order, -0 before +0:
//
//	-NaN  -Inf ... -0 +0 ... +Inf  +NaN
//
// An addition that wraps, of offset, moves all NaNs to the top of a maximum and to
// the bottom of a minimum, where they win. Both steps are undone at the end.
func (k kernel) ordered() bool {
	return k.element.narrow() && k.op.compares()
}

func (k kernel) offset() uint16 {
	inf := uint16(0x7c00)
	if k.element.class == bfloat16 {
		inf = 0x7f80
	}
	if k.op.fold == "max" {
		return 0x8000 - ((inf | 0x8000) ^ 0x7fff) // -Inf becomes the least integer
	}
	return 0x7fff - inf // +Inf becomes the largest
}

// lanes names what is computed with: f, i or u, and the size in bytes.
func (k kernel) lanes() string {
	switch {
	case k.half():
		return "f4"
	case k.ordered():
		return "i2"
	case k.element.class == float:
		return fmt.Sprintf("f%d", k.element.size)
	case k.element.class == signed:
		return fmt.Sprintf("i%d", k.element.size)
	}
	return fmt.Sprintf("u%d", k.element.size)
}

// class is how elements are computed with.
type class int

const (
	float    class = iota // in its own width
	float16               // in float32, converted by instructions of the processor
	bfloat16              // in float32, converted by shifts
	signed
	unsigned
)

// element is an element type.
type element struct {
	name  string // of the kernels
	dtype string // its name in package kolo
	class class
	size  int // of an element, in bytes
}

var elements = []element{
	{"I8", "Int8", signed, 1},
	{"I16", "Int16", signed, 2},
	{"I32", "Int32", signed, 4},
	{"F16", "Float16", float16, 2},
	{"F32", "Float32", float, 4},
	{"I64", "Int64", signed, 8},
	{"U64", "Uint64", unsigned, 8},
	{"U8", "Uint8", unsigned, 1},
	{"U16", "Uint16", unsigned, 2},
	{"U32", "Uint32", unsigned, 4},
	{"F64", "Float64", float, 8},
	{"BF16", "BFloat16", bfloat16, 2},
}

func (e element) integer() bool { return e.class == signed || e.class == unsigned }

func (e element) narrow() bool { return e.class == float16 || e.class == bfloat16 }

// op is an operation. Integers scale in finish, which wraps to the same result;
// floats scale every source, which rounds differently.
type op struct {
	name string
	kind string // its name in package kolo, or in package kernel
	fold string // sum, prod, max or min
}

var ops = []op{
	{"sum", "OpSum", "sum"},
	{"prod", "OpProd", "prod"},
	{"max", "OpMax", "max"},
	{"min", "OpMin", "min"},
	{"avg", "OpAvg", "sum"},
	{"scale", "OpPreMulSum", "sum"},
	{"mean", "avgByPower", "sum"}, // OpAvg of 2, 4, 8 ... ranks: the product with the reciprocal is exact and fast
}

func (k kernel) scalesSources() bool { return k.op.name == "scale" && !k.element.integer() }
func (k kernel) scalesResult() bool  { return k.op.name == "scale" && k.element.integer() }

// final is the operation on the sum and the factor that gives the result, if any.
func (k kernel) final() string {
	switch k.op.name {
	case "avg":
		return "avg"
	case "mean":
		return "prod"
	}
	return ""
}

// compares says whether the operation picks one of two elements.
func (o op) compares() bool { return o.fold == "max" || o.fold == "min" }

// kernels lists all kernels in the order of their numbers.
func kernels() []kernel {
	var ks []kernel
	for _, e := range elements {
		for _, o := range ops {
			if k := (kernel{e, o}); k.representative() == k {
				ks = append(ks, k)
			}
		}
	}
	return ks
}

// representative is the kernel that does the work of k. Signed and unsigned
// integers share those that do not compare. The average of integers is a sum, to
// be divided by the caller.
func (k kernel) representative() kernel {
	if k.element.integer() && k.final() != "" {
		k.op = ops[0]
	}
	if k.element.class == unsigned && !k.op.compares() {
		for _, e := range elements {
			if e.class == signed && e.size == k.element.size {
				k.element = e
			}
		}
	}
	return k
}

// number is the index in kernels of what does the work of k.
func (k kernel) number() int {
	return slices.Index(kernels(), k.representative())
}
