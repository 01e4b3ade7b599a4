//go:build linux && (amd64 || arm64) && !noacl

package ascend_test

import (
	"testing"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/npu"
)

// What the driver costs, over the stand-in, whose streams are threads that hand over
// under one lock: a device's own time is not in it.
func BenchmarkCopy(b *testing.B) {
	for _, c := range []struct {
		name string
		tail int // copies for each wait
	}{{"tasks=1/wait=each", 1}, {"tasks=100/wait=last", 100}} {
		b.Run("bytes=64/"+c.name, func(b *testing.B) {
			r := newRig(b, 1)
			s, err := r.devices[0].NewStream(npu.StreamConfig{})
			r.ok(err)
			dst, src := r.alloc(0, 64), r.alloc(0, 64)
			b.SetBytes(64)
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				r.ok(s.Copy(dst, src))
				if (i+1)%c.tail == 0 {
					r.ok(s.Sync(r.ctx))
				}
			}
			r.ok(s.Sync(r.ctx))
		})
	}
}

// A callback is a way to the device and back.
func BenchmarkCallback(b *testing.B) {
	r := newRig(b, 1)
	s := r.stream(0)
	m := r.alloc(0, 64)
	b.ReportAllocs()
	done := make(chan error, 1)
	for b.Loop() {
		r.ok(s.Copy(m.Slice(0, 32), kolo.HostMemory(make([]byte, 32))))
		r.ok(s.Callback(func(err error) { done <- err }))
		r.ok(<-done)
	}
}
