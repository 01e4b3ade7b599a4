package pipeline

import (
	"fmt"

	"github.com/kolo-ccl/kolo"
)

// Range is elements, or columns, From up to To.
type Range struct{ From, To int64 }

// Len is how many there are.
func (r Range) Len() int64 { return r.To - r.From }

// Split cuts n into k ranges whose lengths differ by one at most, the longer ones
// first; into n ranges if k is more. Of nothing it is one empty range, and so are less
// than one range taken as one.
func Split(n int64, k int) []Range {
	n = max(n, 0)
	k = int(max(1, min(int64(k), n)))
	list := make([]Range, k)
	at := int64(0)
	for i := range list {
		size := n / int64(k)
		if int64(i) < n%int64(k) {
			size++
		}
		list[i] = Range{at, at + size}
		at += size
	}
	return list
}

// grid is a tensor seen as rows of columns: the last dimension is the columns.
type grid struct{ rows, columns int64 }

func gridOf(shape []int64, count int64) (grid, error) {
	n := int64(1)
	for i, d := range shape {
		if d < 1 || n > count/d {
			return grid{}, fmt.Errorf("%w: pipeline: Shape[%d] is %d, and the buffer has %d elements", kolo.ErrArgument, i, d, count)
		}
		n *= d
	}
	if n != count {
		return grid{}, fmt.Errorf("%w: pipeline: Shape %v has %d elements, and the buffer %d", kolo.ErrArgument, shape, n, count)
	}
	last := shape[len(shape)-1]
	return grid{n / last, last}, nil
}

// pack copies the columns of r, of elements of a size, one row behind the other.
func (g grid) pack(dst, tensor []byte, r Range, size int64) {
	g.each(r, size, func(packed, spread, n int64) { copy(dst[packed:packed+n], tensor[spread:spread+n]) })
}

// unpack is the inverse of pack.
func (g grid) unpack(tensor, src []byte, r Range, size int64) {
	g.each(r, size, func(packed, spread, n int64) { copy(tensor[spread:spread+n], src[packed:packed+n]) })
}

// each calls f for each row with where its columns of r are, packed and in the
// tensor, in bytes:
//
//	packed = row * len(r) * size
//	spread = (row * columns + r.From) * size
func (g grid) each(r Range, size int64, f func(packed, spread, n int64)) {
	for row := range g.rows {
		f(row*r.Len()*size, (row*g.columns+r.From)*size, r.Len()*size)
	}
}
