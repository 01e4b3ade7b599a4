package perf

import (
	"fmt"
	"math"

	"github.com/kolo-ccl/kolo"
)

// Limits of a Range.
const (
	maxSize  = 1 << 40 // bytes
	maxSizes = 1 << 16 // sizes of one run
)

// Above alignFrom, sizes that ranks divide are multiples of alignTo bytes per rank,
// as in hccl_test.
const (
	alignFrom = 16 << 20
	alignTo   = 512
)

// Range is a range of sizes in bytes: from Min to Max by Factor, or by Step when
// Factor is 0. Step 0 stays at Min.
type Range struct {
	Min, Max, Step int64
	Factor         float64
}

// Validate says what is wrong with the range, or nil.
func (r Range) Validate() error {
	switch {
	case r.Min < 1:
		return fmt.Errorf("%w: the least size is %d bytes; want 1 or more", kolo.ErrArgument, r.Min)
	case r.Max < r.Min:
		return fmt.Errorf("%w: the largest size, %d bytes, is less than the least, %d", kolo.ErrArgument, r.Max, r.Min)
	case r.Max > maxSize:
		return fmt.Errorf("%w: the largest size is %d bytes; want at most %d", kolo.ErrArgument, r.Max, int64(maxSize))
	case r.Step < 0:
		return fmt.Errorf("%w: a step of %d bytes", kolo.ErrArgument, r.Step)
	case r.Factor != 0 && !(r.Factor > 1 && r.Factor <= maxSize):
		return fmt.Errorf("%w: a factor of %v; want more than 1", kolo.ErrArgument, r.Factor)
	}
	return nil
}

// Aligned is the range with its ends and its step rounded for the operator, the
// ends down and the step up.
func (r Range) Aligned(o Operator, ranks int) Range {
	if o.split() {
		n := int64(ranks)
		r.Min, r.Max = align(r.Min, n), align(r.Max, n)
		r.Step = (r.Step + n - 1) / n * n
	}
	return r
}

// align rounds a size that n ranks divide.
func align(size, n int64) int64 {
	unit := n
	if size > alignFrom {
		unit *= alignTo
	}
	return max(size/unit*unit, n)
}

// Counts are the elements of the whole vector for each size: a part of an element
// counts as one, and where the ranks divide the vector each gets the same number. A
// size that gives the count before again is left out.
func (r Range) Counts(o Operator, ranks int, d kolo.DType) ([]int64, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	r = r.Aligned(o, ranks)
	var counts []int64
	for size := r.Min; size <= r.Max; size = r.after(size) {
		n := r.count(size, o, int64(ranks), int64(d.Size()))
		if k := len(counts); k > 0 && counts[k-1] == n {
			continue
		}
		if len(counts) == maxSizes {
			return nil, fmt.Errorf("%w: more than %d sizes; take a larger step, or a factor", kolo.ErrArgument, maxSizes)
		}
		counts = append(counts, n)
	}
	return counts, nil
}

func (r Range) count(size int64, o Operator, ranks, width int64) int64 {
	if !o.split() {
		return (size + width - 1) / width
	}
	size = align(size, ranks)
	n := (size + width - 1) / width
	return (n + ranks - 1) / ranks * ranks
}

// after is the size that follows.
func (r Range) after(size int64) int64 {
	switch {
	case r.Factor > 0:
		return max(size+1, int64(math.Min(float64(size)*r.Factor, maxSize+1)))
	case r.Step == 0:
		return math.MaxInt64
	}
	return size + r.Step
}
