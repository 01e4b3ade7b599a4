package ranktest

import (
	"encoding/binary"
	"math"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/rank"
)

// mix is a number that differs for every rank and every index, without a pattern
// that a shift or a swap could keep.
func mix(r kolo.Rank, i int) uint64 {
	x := (uint64(r)+1)*0x9e3779b97f4a7c15 ^ (uint64(i)+1)*0xd1b54a32d192ed03
	x = (x ^ x>>29) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>32) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Data is n elements of rank r: whole numbers from -4095 to 4095, or what of them
// fits T, that differ from rank to rank and from index to index. Sums over as many
// as 4096 ranks are exact in float32, in any order.
func Data[T rank.Number](r kolo.Rank, n int) []T {
	s := make([]T, n)
	for i := range s {
		s[i] = T(int64(mix(r, i)%8191) - 4095)
	}
	return s
}

// Inputs is Data of each of p ranks.
func Inputs[T rank.Number](p, n int) [][]T {
	out := make([][]T, p)
	for r := range out {
		out[r] = Data[T](kolo.Rank(r), n)
	}
	return out
}

// Noise fills b with bytes of rank r that have no structure. As floats they may be
// NaN; they are for collectives that only move.
func Noise(b []byte, r kolo.Rank) {
	var word [8]byte
	for i := 0; i < len(b); i += len(word) {
		binary.LittleEndian.PutUint64(word[:], mix(r, i))
		copy(b[i:], word[:])
	}
}

// Fill fills b with elements of rank r for which op gives one exact result whatever
// the order of folding, with up to 36 ranks. Integers are arbitrary, since they wrap.
// Floats are whole numbers from -7 to 7; where op is Prod, powers of two.
func Fill(b rank.Buffer, op kolo.ReduceOp, r kolo.Rank) {
	if !b.DType.Float() {
		Noise(b.Memory.Host, r)
		return
	}
	for i := range int(b.Count()) {
		x := mix(r, i)
		v := float64(int(x%15) - 7)
		if op.Kind == kolo.OpProd {
			if v = 1; x>>8%11 == 0 {
				v = 2
			}
			if x>>32&1 == 1 {
				v = -v
			}
		}
		put(b, i, v)
	}
}

// put stores v, rounded, as element i of floats.
func put(b rank.Buffer, i int, v float64) {
	size := b.DType.Size()
	to := b.Memory.Host[i*size : (i+1)*size]
	switch b.DType {
	case kolo.Float64:
		binary.NativeEndian.PutUint64(to, math.Float64bits(v))
	case kolo.Float32:
		binary.NativeEndian.PutUint32(to, math.Float32bits(float32(v)))
	default:
		binary.NativeEndian.PutUint16(to, halfOf(b.DType, float32(v)))
	}
}
