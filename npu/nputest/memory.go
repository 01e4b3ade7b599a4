package nputest

import (
	"encoding/binary"
	"errors"
	"math"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/npu"

	"github.com/stretchr/testify/require"
)

func checkOpenOnce(r *rig) {
	_, err := r.driver.Open(0)
	r.is(err, npu.ErrBusy)
	_, err = r.driver.Open(r.driver.Devices())
	r.is(err, kolo.ErrArgument)
	_, err = r.driver.Open(-1)
	r.is(err, kolo.ErrArgument)
	info := r.d.Info()
	require.NotEqual(r, kolo.HostSpace, info.Space)
	require.Equal(r, r.driver.Name(), info.Driver)
	require.Equal(r, info, r.d.Info())
	r.ok(r.d.Health().Err)
	r.ok(r.d.Close(r.ctx))
	r.ok(r.d.Close(r.ctx))
	again := r.open(0)
	require.NotEqual(r, info.Space, again.Info().Space, "a handle must not find another device's memory")
}

func checkMemory(r *rig) {
	var list []kolo.Memory
	for _, n := range []int{1, 511, 512, 513, 4096, 100_000, 1 << 20} {
		m := r.alloc(r.d, n)
		require.Equal(r, r.d.Info().Space, m.Space)
		require.EqualValues(r, n, m.Size)
		require.Zero(r, m.Addr%npu.Alignment, "alignment")
		for _, o := range list {
			require.False(r, m.Addr < o.Addr+uint64(o.Size) && o.Addr < m.Addr+uint64(m.Size), "allocations overlap")
		}
		list = append(list, m)
	}
	h := r.d.Health()
	require.Equal(r, len(list), h.Buffers)
	require.GreaterOrEqual(r, h.Used, int64(1<<20))
	r.is(r.d.Free(list[3].Slice(0, 100)), kolo.ErrArgument)
	r.is(r.d.Free(list[3].Slice(512, 1)), kolo.ErrArgument)
	r.is(r.d.Free(kolo.HostMemory(make([]byte, 8))), npu.ErrForeign)
	for _, m := range list {
		r.ok(r.d.Free(m))
		r.is(r.d.Free(m), npu.ErrFreed)
	}
	require.Zero(r, r.d.Health().Buffers)
	for _, n := range []int64{0, -1} {
		_, err := r.d.Alloc(n)
		r.is(err, kolo.ErrArgument)
	}
}

func checkOutOfMemory(r *rig) {
	size := r.d.Info().Memory
	if size <= 0 {
		r.Skip("the driver does not say how much memory there is")
	}
	_, err := r.d.Alloc(size + 1)
	r.is(err, npu.ErrMemory)
	r.is(err, kolo.ErrLimit)
	_, err = r.d.Alloc(math.MaxInt64)
	r.is(err, npu.ErrMemory)
	r.ok(r.d.Free(r.alloc(r.d, 1)))
}

func checkBytes(r *rig) {
	s := r.stream(r.d)
	for i, n := range []int{1, 3, 64, 511, 512, 4097, 65_536, 1<<20 + 5} {
		a, b := r.alloc(r.d, n), r.alloc(r.d, n)
		want, got := pattern(n, i), make([]byte, n)
		r.ok(s.Copy(a, kolo.HostMemory(want)))
		r.ok(s.Copy(b, a))
		r.ok(s.Copy(kolo.HostMemory(got), b))
		r.sync(s)
		require.True(r, string(want) == string(got), "%d bytes there and back", n)
	}
	m := r.alloc(r.d, 4096)
	r.write(m, s, make([]byte, 4096))
	r.write(m.Slice(512, 1024), s, pattern(1024, 9))
	got := r.read(m, s)
	require.Equal(r, pattern(1024, 9), got[512:1536])
	require.Equal(r, make([]byte, 512), got[:512])
	require.Equal(r, make([]byte, 4096-1536), got[1536:])
	r.ok(s.Copy(m.Slice(4096, 0), m.Slice(0, 0)))
	r.sync(s)
}

func checkReduce(r *rig) {
	s := r.stream(r.d)
	const n = 1000
	a, b := r.alloc(r.d, 4*n), r.alloc(r.d, 4*n)
	for _, c := range []struct {
		op kolo.ReduceOp
		f  func(x, y float32) float32
	}{
		{kolo.Sum, func(x, y float32) float32 { return x + y }},
		{kolo.Prod, func(x, y float32) float32 { return x * y }},
		{kolo.Max, func(x, y float32) float32 { return max(x, y) }},
		{kolo.Min, func(x, y float32) float32 { return min(x, y) }},
	} {
		x, y := make([]byte, 4*n), make([]byte, 4*n)
		for i := range n {
			binary.NativeEndian.PutUint32(x[4*i:], math.Float32bits(float32(i-500)))
			binary.NativeEndian.PutUint32(y[4*i:], math.Float32bits(float32(3*i-1000)))
		}
		r.write(a, s, x)
		r.write(b, s, y)
		if err := s.Reduce(a, b, kolo.Float32, c.op); errors.Is(err, kolo.ErrUnsupported) {
			r.Logf("%v is not supported", c.op)
			continue
		}
		got := r.read(a, s)
		for i := range n {
			if v := math.Float32frombits(binary.NativeEndian.Uint32(got[4*i:])); v != c.f(float32(i-500), float32(3*i-1000)) {
				r.Fatalf("%v: element %d is %v", c.op, i, v)
			}
		}
		require.Equal(r, y, r.read(b, s), "the source stays")
	}
	r.is(s.Reduce(a, b, kolo.Float32, kolo.Avg), kolo.ErrUnsupported)
	r.is(s.Reduce(a.Slice(0, 6), b.Slice(0, 6), kolo.Float32, kolo.Sum), kolo.ErrArgument)
	r.is(s.Reduce(a, b.Slice(0, 8), kolo.Float32, kolo.Sum), kolo.ErrArgument)
}
