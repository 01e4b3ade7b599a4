package perf

import (
	"bytes"
	"math"

	"github.com/kolo-ccl/kolo"
)

// Element i of a buffer is number index(i) of a table of period numbers. Each
// period takes the table from a place that is stride further, so that the sequence
// repeats after period*period elements. Both are primes: no power of two, and no
// block that an algorithm would cut, is a multiple of them.
const (
	period = 4093
	stride = 97
)

// reduced stands, where a rank is named, for the fold of all ranks' values.
const reduced = -1

// pattern is what all ranks' inputs hold, and what the fold of them is.
type pattern struct {
	dtype kolo.DType
	ranks [][]byte // a table per rank
	fold  []byte   // and the table of the results
	exact bool     // the results have no rounding
}

// newPattern makes the tables for so many ranks. Whatever the order and the
// grouping in which values are folded, no step of it rounds, if exact.
func newPattern(d kolo.DType, op kolo.ReduceOp, ranks int) *pattern {
	p := &pattern{dtype: d, fold: make([]byte, period*d.Size())}
	v := newValues(d, op.Kind, ranks)
	p.exact = v.exact
	for r := range ranks {
		p.ranks = append(p.ranks, make([]byte, period*d.Size()))
		for i := range period {
			put(p.ranks[r], d, i, v.at(r, i))
		}
	}
	for i := range period {
		sum := get(p.ranks[0], d, i)
		for _, t := range p.ranks[1:] {
			sum = fold(d, op.Kind, sum, get(t, d, i))
		}
		if op.Kind == kolo.OpAvg {
			sum = divide(d, sum, ranks)
		}
		put(p.fold, d, i, sum)
	}
	return p
}

// values makes the numbers of the tables.
//
//	max, min and no operation   anything; floats are whole numbers
//	sum of integers             anything: they wrap
//	product of integers         odd numbers: no factor is lost among zeros
//	sum of floats               whole numbers so small that the sum is exact
//	product of floats           powers of two with signs, of so few ranks per index that
//	                            no exponent overflows
//	average                     multiples of the number of ranks, whose sum is exact
type values struct {
	dtype kolo.DType
	op    kolo.OpKind
	ranks int
	bound int64 // whole numbers are from -bound to bound, or from 0 without a sign
	every int   // one in so many ranks has a factor other than 1 or -1
	exact bool
}

func newValues(d kolo.DType, op kolo.OpKind, ranks int) values {
	v := values{dtype: d, op: op, ranks: ranks, exact: true}
	n := int64(ranks)
	most := int64(1) << significand(d)
	if !d.Float() {
		most = 1<<min(width(d)-1, 53) - 1
	}
	switch {
	case op == kolo.OpSum && d.Float():
		v.bound = most / n
	case op == kolo.OpAvg:
		v.bound = most / n / n
	case op == kolo.OpProd:
		v.every = (ranks + maxExponent(d) - 1) / maxExponent(d)
		v.bound = 1
	default:
		v.bound = most
	}
	if v.bound == 0 {
		v.bound, v.exact = 1, false
	}
	return v
}

// maxExponent is a power of two that a float type holds, and its reciprocal too.
func maxExponent(d kolo.DType) int {
	switch d {
	case kolo.Float16:
		return 14
	case kolo.Float64:
		return 1022
	}
	return 126
}

// at is number i of a rank.
func (v *values) at(rank, i int) uint64 {
	h := mix(uint64(rank)<<32 | uint64(i))
	switch {
	case v.op == kolo.OpProd && v.dtype.Float():
		x := 1.0
		if (rank+i)%v.every == 0 {
			x = math.Ldexp(1, int(h>>1%3)-1)
		}
		if h&1 != 0 {
			x = -x
		}
		return fromFloat(v.dtype, x)
	case v.op == kolo.OpProd:
		return cut(v.dtype, h|1)
	case v.op != kolo.OpAvg && !v.dtype.Float():
		return cut(v.dtype, h)
	}
	k := int64(h % uint64(2*v.bound+1))
	if v.dtype.Float() || signed(v.dtype) {
		k -= v.bound
	} else {
		k /= 2
	}
	if v.op == kolo.OpAvg {
		k *= int64(v.ranks)
	}
	if v.dtype.Float() {
		return fromFloat(v.dtype, float64(k))
	}
	return cut(v.dtype, uint64(k))
}

// mix is the last step of the splitmix64 generator: 64 bits that look random, for
// 64 bits that do not.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// table is the table of a rank, or of the results.
func (p *pattern) table(rank int) []byte {
	if rank == reduced {
		return p.fold
	}
	return p.ranks[rank]
}

// fill writes elements from, from+1, ... of a rank's sequence.
func (p *pattern) fill(dst []byte, rank int, from int64) {
	table, size := p.table(rank), int64(p.dtype.Size())
	runs(from, int64(len(dst))/size, func(at, k, n int64) {
		copy(dst[at*size:(at+n)*size], table[k*size:])
	})
}

// compare counts the elements that are not from, from+1, ... of a rank's sequence,
// and says which is the first and what it should be.
func (p *pattern) compare(got []byte, rank int, from int64) (wrong, first int64, want uint64) {
	table, size := p.table(rank), int64(p.dtype.Size())
	runs(from, int64(len(got))/size, func(at, k, n int64) {
		a, b := got[at*size:(at+n)*size], table[k*size:(k+n)*size]
		if bytes.Equal(a, b) {
			return
		}
		for i := range int(n) {
			if w := get(b, p.dtype, i); get(a, p.dtype, i) != w {
				if wrong == 0 {
					first, want = at+int64(i), w
				}
				wrong++
			}
		}
	})
	return wrong, first, want
}

// runs cuts n elements of a sequence, from element from on, into runs that are
// contiguous in the table: run n elements, of which the first is element at of the n
// and number k of the table.
func runs(from, n int64, run func(at, k, n int64)) {
	for at := int64(0); at < n; {
		i := from + at
		k := (i%period + i/period*stride) % period
		m := min(n-at, period-i%period, period-k)
		run(at, k, m)
		at += m
	}
}
