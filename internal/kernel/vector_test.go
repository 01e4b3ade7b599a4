package kernel

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"
)

// The scalar form is compared with the reference elsewhere; here it is the
// reference for the vector form, which Fold and Spread choose where there is one.

// scalarFold is Fold in the scalar form, whatever the machine has.
func scalarFold(o Op, srcs [][]byte) []byte {
	dst := make([]byte, len(srcs[0]))
	if len(dst) > 0 {
		o.scalar([][]byte{dst}, srcs, 0, len(dst))
	}
	return dst
}

func TestScalarMatchesReference(t *testing.T) {
	rng := rand.New(rand.NewPCG(21, 22))
	for i, o := range allOps() {
		for j, n := range []int{1, 7, 64, 130} {
			srcs, check := sources(rng, o.DType, 1+(i+j)%5, n*o.DType.Size())
			same(t, o, srcs, scalarFold(o, srcs), reference(o, srcs))
			check(t)
		}
	}
}

func TestVectorMatchesScalarAtEveryLength(t *testing.T) {
	rng := rand.New(rand.NewPCG(23, 24))
	for i, o := range mainOps() {
		size := o.DType.Size()
		for n := range min(301, 700/size) {
			if racing && (i+n)%3 != 0 {
				continue // slow: each length with every third operation
			}
			k := 1 + (i+n)%9
			srcs, check := sources(rng, o.DType, k, n*size)
			skew := rng.IntN(64)
			dst := newGuarded(n*size, skew)
			want := scalarFold(o, srcs)
			o.Fold(dst.bytes, srcs...)
			same(t, o, srcs, dst.bytes, want)
			dst.check(t, skew)
			before := clones(srcs)
			o.Spread(srcs, srcs)
			for _, s := range srcs {
				same(t, o, before, s, want)
			}
			check(t)
		}
	}
}

func TestVectorMatchesScalarAtEveryAlignment(t *testing.T) {
	rng := rand.New(rand.NewPCG(25, 26))
	for _, o := range mainOps() {
		n := 75 * o.DType.Size()
		srcs, _ := sources(rng, o.DType, 2, n)
		want := scalarFold(o, srcs)
		for skew := range 64 {
			a, b, dst := newGuarded(n, skew), newGuarded(n, 63-skew), newGuarded(n, (7*skew)%64)
			copy(a.bytes, srcs[0])
			copy(b.bytes, srcs[1])
			o.Reduce(dst.bytes, a.bytes, b.bytes)
			same(t, o, srcs, dst.bytes, want)
			dst.check(t, 7*skew%64)
			o.Accumulate(a.bytes, b.bytes)
			same(t, o, srcs, a.bytes, want)
			a.check(t, skew)
		}
	}
}

// Slices that are longer than one assembly call handles, few and many of them.
func TestLongSlicesAreHandledInParts(t *testing.T) {
	rng := rand.New(rand.NewPCG(27, 28))
	for _, o := range []Op{OpOf(kolo.Float32, kolo.Sum, 2), OpOf(kolo.BFloat16, kolo.Avg, 7), OpOf(kolo.Int8, kolo.Avg, 3), OpOf(kolo.Float16, kolo.Min, 3)} {
		for _, shape := range []struct{ k, bytes int }{{1, 300<<10 + 6}, {2, 600<<10 + 2}, {40, 20<<10 + 34}, {300, 4<<10 + 2}} {
			n := shape.bytes / o.DType.Size() * o.DType.Size()
			pattern := make([]byte, n+shape.k*64)
			fill(rng, o.DType, pattern[:len(pattern)/8*8])
			var srcs [][]byte
			for i := range shape.k { // different at every place, and cheap to make
				srcs = append(srcs, pattern[64*i:64*i+n])
			}
			want := scalarFold(o, srcs)
			dsts := [][]byte{make([]byte, n), make([]byte, n)}
			o.Spread(dsts, srcs)
			same(t, o, srcs, dsts[0], want)
			same(t, o, srcs, dsts[1], want)
		}
	}
}

// Every 16-bit float with partners from everywhere.
func TestEveryHalfWithManyPartners(t *testing.T) {
	partners := 32
	if racing || testing.Short() {
		partners = 2
	}
	all := make([]byte, 2<<16)
	for i := range 1 << 16 {
		binary.LittleEndian.PutUint16(all[2*i:], uint16(i))
	}
	rng := rand.New(rand.NewPCG(29, 30))
	for _, d := range []kolo.DType{kolo.Float16, kolo.BFloat16} {
		bits := specials(d)
		for len(bits) < partners {
			bits = append(bits, rng.Uint64()&0xffff)
		}
		rng.Shuffle(len(bits), func(i, j int) { bits[i], bits[j] = bits[j], bits[i] })
		for i, b := range bits[:partners] {
			partner, dst := make([]byte, len(all)), make([]byte, len(all))
			for at := 0; at < len(all); at += 2 {
				store(partner[at:], 2, b)
			}
			for _, r := range []kolo.ReduceOp{kolo.Sum, kolo.Prod, kolo.Max, kolo.Min, kolo.Avg, kolo.PreMulSum(decode(d, b))} {
				o := OpOf(d, r, 3)
				srcs := [][]byte{all, partner}
				o.Fold(dst, srcs...)
				same(t, o, srcs, dst, scalarFold(o, srcs))
				if i == 0 {
					same(t, o, srcs, dst, reference(o, srcs))
				}
			}
		}
	}
}

// A factor of any NaN gives NaN, and no rounding turns it into a number.
func TestFactorNaN(t *testing.T) {
	for _, d := range []kolo.DType{kolo.Float16, kolo.BFloat16, kolo.Float32, kolo.Float64} {
		for _, bits := range []uint64{math.MaxUint64, math.MaxInt64, 0x7ff0000000000001, 0x7fffffffe0000000} {
			o := Op{DType: d, Kind: kolo.OpPreMulSum, Scale: math.Float64frombits(bits)}
			src, dst := make([]byte, 40*d.Size()), make([]byte, 40*d.Size())
			o.Fold(dst, src, src)
			for at := 0; at < len(dst); at += d.Size() {
				if got := load(dst[at:], d.Size()); !isNaN(d, got) {
					t.Fatalf("%v: zero times NaN is %#x", d, got)
				}
			}
		}
	}
}

// Stopping the world must not wait for a long reduction to end. Were it one call of
// assembly, the median delay would be half the time that the reduction takes.
func TestStopTheWorldIsNotDelayed(t *testing.T) {
	if racing {
		t.Skip("the race detector's own work is far longer than the assembly")
	}
	const long = 250 * time.Millisecond // much longer than a thread waits for a processor that others want
	o := OpOf(kolo.Float32, kolo.Sum, 1)
	dst, src := make([]byte, 2<<20), make([]byte, 2<<20)
	srcs, took := [][]byte{src, src}, time.Duration(0)
	for took < long {
		srcs = append(srcs, srcs...)
		start := time.Now()
		o.Fold(dst, srcs...)
		took = time.Since(start)
	}
	var stop atomic.Bool
	started, done := make(chan struct{}), make(chan struct{})
	go func() { // ends when stop is set
		defer close(done)
		close(started)
		for !stop.Load() {
			o.Fold(dst, srcs...)
		}
	}()
	<-started
	var delays []time.Duration
	for range 11 {
		start := time.Now()
		for time.Since(start) < took/8 { // let the reduction get on its way
			runtime.Gosched()
		}
		var m runtime.MemStats
		start = time.Now()
		runtime.ReadMemStats(&m)
		delays = append(delays, time.Since(start))
	}
	stop.Store(true)
	<-done
	slices.Sort(delays)
	if median := delays[len(delays)/2]; median > took/5 {
		t.Fatalf("stopping the world took %v in the median, %v at most; the reduction takes %v", median, delays[len(delays)-1], took)
	}
}

func FuzzVectorMatchesScalar(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7}, uint8(0), uint8(2), uint8(1))
	f.Add([]byte("\x00\x7c\x00\xfc\x01\x7c\xff\xff\x00\x80\x00\x00"), uint8(3), uint8(3), uint8(3))
	f.Add(make([]byte, 700), uint8(40), uint8(5), uint8(31))
	ops := mainOps()
	f.Fuzz(func(t *testing.T, data []byte, op, k, skew uint8) {
		o := ops[int(op)%len(ops)]
		count := int(k)%10 + 1
		n := len(data) / count / o.DType.Size() * o.DType.Size()
		var srcs [][]byte
		for i := range count {
			at := int(skew) % 64
			g := newGuarded(n, at)
			copy(g.bytes, data[i*n:])
			srcs = append(srcs, g.bytes)
		}
		want := scalarFold(o, srcs)
		dst := newGuarded(n, int(skew)/4)
		o.Fold(dst.bytes, srcs...)
		same(t, o, srcs, dst.bytes, want)
		dst.check(t, int(skew)/4)
		if n <= 64 {
			same(t, o, srcs, want, reference(o, srcs))
		}
		before := clones(srcs)
		o.Spread(srcs[:1+count/2], srcs)
		same(t, o, before, srcs[count/2], want)
	})
}
