package kernel

import (
	"fmt"

	"github.com/kolo-ccl/kolo"
)

// maxRanks is the largest divisor of OpAvg.
const maxRanks = 1<<31 - 1

// Op is an elementwise operation. It is a value; two Ops that compare equal give
// the same bits. Make it with OpOf.
type Op struct {
	DType kolo.DType
	Kind  kolo.OpKind
	Ranks int     // OpAvg's divisor: the size of the group, whatever the number of sources
	Scale float64 // OpPreMulSum's factor
}

// OpOf is the operation op on elements of type d in a group of ranks ranks. Of
// ranks and op.Scale it keeps what op.Kind uses. It panics where op.Check(d) has
// an error, and for an average over less than one rank or more than 2^31-1.
func OpOf(d kolo.DType, op kolo.ReduceOp, ranks int) Op {
	if err := op.Check(d); err != nil {
		panic(fmt.Sprintf("kernel: %v", err))
	}
	o := Op{DType: d, Kind: op.Kind}
	switch op.Kind {
	case kolo.OpAvg:
		if ranks < 1 || ranks > maxRanks {
			panic(fmt.Sprintf("kernel: an average over %d ranks", ranks))
		}
		o.Ranks = ranks
	case kolo.OpPreMulSum:
		o.Scale = op.Scale
	}
	return o
}

// Partial is the operation that joins results on their way, when a reduction is
// made in several calls: OpSum for OpAvg and OpPreMulSum, else o itself.
//
//	OpAvg        Partial calls first; o.Fold(dst, dst) at the end divides
//	OpPreMulSum  o.Fold(dst, src) scales each rank's own elements; Partial calls then
func (o Op) Partial() Op {
	if o.Kind == kolo.OpAvg || o.Kind == kolo.OpPreMulSum {
		return Op{DType: o.DType, Kind: kolo.OpSum}
	}
	return o
}

// Fold sets dst to srcs[0] op srcs[1] op ... in one pass. A single source is
// copied, and divided or scaled where o is OpAvg or OpPreMulSum. All slices have
// one length, a multiple of the element size. dst may be exactly one of the
// sources, at any place. Fold panics without a source and on unequal lengths.
func (o Op) Fold(dst []byte, srcs ...[]byte) {
	dsts := [1][]byte{dst}
	o.Spread(dsts[:], srcs)
}

// Reduce sets dst to a op b. It is Fold of two sources.
func (o Op) Reduce(dst, a, b []byte) {
	dsts, srcs := [1][]byte{dst}, [2][]byte{a, b}
	o.Spread(dsts[:], srcs[:])
}

// Accumulate sets dst to dst op a. It is Fold of two sources, dst on the left.
func (o Op) Accumulate(dst, a []byte) {
	dsts, srcs := [1][]byte{dst}, [2][]byte{dst, a}
	o.Spread(dsts[:], srcs[:])
}

// Spread folds srcs as Fold does and stores the result to every one of dsts, in
// one pass and without scratch memory. There may be more or fewer destinations
// than sources, or none. Each destination may be exactly one of the sources; two
// destinations may be the same slice. Spread panics without a source and on
// unequal lengths.
func (o Op) Spread(dsts, srcs [][]byte) {
	n := o.length(dsts, srcs)
	if o.Copies(len(srcs)) {
		for _, d := range dsts {
			copy(d, srcs[0])
		}
		return
	}
	if len(dsts) == 0 {
		return
	}
	if done := o.vector(dsts, srcs, n); done < n {
		o.scalar(dsts, srcs, done, n)
	}
}

// Copies says whether the result of so many sources is the only one of them.
func (o Op) Copies(sources int) bool {
	return sources == 1 && o.Kind != kolo.OpAvg && o.Kind != kolo.OpPreMulSum
}

// length is the length in bytes that all the slices have.
func (o Op) length(dsts, srcs [][]byte) int {
	if len(srcs) == 0 {
		panic("kernel: no source")
	}
	n := len(srcs[0])
	for _, s := range srcs[1:] {
		if len(s) != n {
			panic(fmt.Sprintf("kernel: sources of %d and %d bytes", n, len(s)))
		}
	}
	for _, d := range dsts {
		if len(d) != n {
			panic(fmt.Sprintf("kernel: sources of %d bytes, a destination of %d", n, len(d)))
		}
	}
	size := o.DType.Size()
	if size == 0 {
		panic(fmt.Sprintf("kernel: no element type %d", o.DType))
	}
	if n&(size-1) != 0 {
		panic(fmt.Sprintf("kernel: %d bytes are no whole number of %v", n, o.DType))
	}
	return n
}
