//go:build (amd64 || arm64) && !purego

package kernel

import (
	"math"
	"unsafe"

	"github.com/kolo-ccl/kolo"
)

//go:generate go run ./gen

// Assembly cannot be preempted, and a collection of garbage waits for the slowest
// goroutine to stop. So a call of spread handles at most maxSlice bytes of each
// slice and touches at most maxTouched in all, which takes some 50 microseconds,
// and the Go function around it, not inlined, is where the goroutine stops.
const (
	maxSlice   = 256 << 10
	maxTouched = 3 * maxSlice
	minSlice   = 1 << 10 // however many slices there are; a multiple of what kernels take at a time
)

// The columns of kernelNumbers are the kinds of operations and one more.
const (
	numKinds   = kolo.OpPreMulSum + 1
	avgByPower = numKinds // OpAvg of floats where Ranks is a power of two
	numColumns = numKinds + 1
)

// spread runs kernel number kernel over the bytes from..to, a multiple of grain and
// not zero, of ndst and nsrc slices, not none, whose headers are at dsts and srcs.
//
//go:noescape
func spread(kernel int, dsts, srcs *[]byte, ndst, nsrc, from, to int, factor uint64)

// vector is Spread of the first bytes of n, as many as the kernels take. It returns
// their number.
func (o Op) vector(dsts, srcs [][]byte, n int) int {
	if !hasVectors || n < grain || o.Kind >= numKinds {
		return 0
	}
	n &^= grain - 1
	if o.Kind == kolo.OpAvg && !o.DType.Float() {
		o.averageIntegers(dsts, srcs, n)
		return n
	}
	column, factor := o.Kind, uint64(0)
	switch {
	case o.Kind == kolo.OpPreMulSum:
		factor = o.lanes(o.Scale)
	case o.Kind == kolo.OpAvg && o.Ranks&(o.Ranks-1) == 0:
		column, factor = avgByPower, o.lanes(1/float64(o.Ranks))
	case o.Kind == kolo.OpAvg:
		factor = o.lanes(float64(o.Ranks))
	}
	kernel := int(kernelNumbers[o.DType][column])
	if n <= minSlice {
		bounded(kernel, dsts, srcs, 0, n, factor)
		return n
	}
	step := max(min(maxSlice, maxTouched/(len(dsts)+len(srcs))&^(minSlice-1)), minSlice)
	for from := 0; from < n; from += step {
		bounded(kernel, dsts, srcs, from, min(from+step, n), factor)
	}
	return n
}

//go:noinline
func bounded(kernel int, dsts, srcs [][]byte, from, to int, factor uint64) {
	announce(dsts, srcs, from, to)
	spread(kernel, unsafe.SliceData(dsts), unsafe.SliceData(srcs), len(dsts), len(srcs), from, to, factor)
}

// averageIntegers sums up a part into the first destination, divides it there while
// it is in the cache, and copies it to the others.
func (o Op) averageIntegers(dsts, srcs [][]byte, n int) {
	const step = 8 << 10
	kernel := int(kernelNumbers[o.DType][kolo.OpSum])
	for from := 0; from < n; from += step {
		to := min(from+step, n)
		bounded(kernel, dsts[:1], srcs, from, to, 0)
		sum := dsts[0][from:to]
		o.divide(sum)
		for _, d := range dsts[1:] {
			copy(d[from:to], sum)
		}
	}
}

// lanes is x as elements are computed with, as often as it fits.
func (o Op) lanes(x float64) uint64 {
	switch o.DType {
	case kolo.Float64:
		return math.Float64bits(x)
	case kolo.Float32, kolo.Float16, kolo.BFloat16:
		if x != x {
			x = math.NaN() // the rounding of BFloat16 wants one without low bits
		}
		return uint64(math.Float32bits(float32(x))) * (1<<32 + 1)
	case kolo.Int8, kolo.Uint8:
		return uint64(uint8(int64(x))) * (^uint64(0) / 0xff)
	case kolo.Int16, kolo.Uint16:
		return uint64(uint16(int64(x))) * (^uint64(0) / 0xffff)
	case kolo.Int32, kolo.Uint32:
		return uint64(uint32(int64(x))) * (1<<32 + 1)
	}
	return uint64(int64(x))
}
