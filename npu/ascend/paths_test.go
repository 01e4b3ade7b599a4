//go:build linux && (amd64 || arm64) && !noacl

package ascend_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/internal/kernel"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/npu/ascend"
	"github.com/kolo-ccl/kolo/npu/ascend/standin"

	"github.com/stretchr/testify/require"
)

// An Open that fails half way gives back what it had, and another one works.
func TestOpenThatFails(t *testing.T) {
	r := newRig(t, 0)
	for _, function := range []string{"aclrtSetDevice", "aclrtGetCurrentContext", "aclrtCreateStream", "aclrtSubscribeReport"} {
		r.lib.Inject(function, 507899, 0)
		_, err := r.v.Open(0)
		require.ErrorContains(t, err, function)
		var typed *npu.Error
		require.ErrorAs(t, err, &typed)
		require.Equal(t, "open", typed.Op)
		r.lib.Inject(function, 0, 0)
		d, err := r.v.Open(0)
		require.NoError(t, err, "after %s", function)
		r.ok(d.Close(r.ctx))
	}
}

// Opening and closing at the same time leaves no goroutine and nothing of the library.
func TestOpenWhileTheDriverCloses(t *testing.T) {
	for range 10 {
		r := newRig(t, 0)
		var open sync.WaitGroup
		for i := range 4 {
			open.Go(func() {
				if _, err := r.v.Open(i); err != nil && !errors.Is(err, kolo.ErrClosed) {
					t.Error(err)
				}
			})
		}
		open.Go(func() {
			if err := r.v.Close(r.ctx); err != nil {
				t.Error(err)
			}
		})
		open.Wait()
		r.ok(r.v.Close(r.ctx))
	}
}

// A device whose thread does not answer is told of in time, and what it makes later for
// nobody is given back.
func TestPatience(t *testing.T) {
	r := &rig{TB: t, lib: standin.Open(t)}
	v, err := ascend.New(ascend.Config{Library: r.lib.Path, DCMI: "none", Patience: 50 * time.Millisecond})
	r.ok(err)
	r.v, r.ctx = v, t.Context()
	d, err := v.Open(0)
	r.ok(err)
	r.devices = []npu.Device{d}
	s := r.stream(0)
	in, out := make(chan struct{}), make(chan struct{})
	r.ok(s.Launch(npu.Kernel{Name: "stuck", Code: ascend.Launch(func(uintptr) error { close(in); <-out; return nil })}))
	<-in
	_, err = d.Alloc(512)
	require.ErrorIs(t, err, kolo.ErrDeadline)
	require.ErrorContains(t, err, "50ms")
	_, err = d.NewStream(npu.StreamConfig{})
	require.ErrorIs(t, err, kolo.ErrDeadline)
	h := d.Health()
	require.Zero(t, h.Used)
	require.Equal(t, 1, h.Streams)
	close(out)
	r.ok(s.Sync(r.ctx))
	r.ok(v.Close(r.ctx)) // the stand-in counts what is left
}

// A stream that cannot be made anew after an abort stays failed, and says why, until
// another abort finds that it can.
func TestStreamThatCannotBeReplaced(t *testing.T) {
	const create = "aclrtCreateStream"
	r := newRig(t, 1)
	a, _ := r.filled(0, 512, 1)
	s, b := r.stream(0), r.alloc(0, 512)
	r.lib.Fault(0, 507015, 0)
	r.ok(s.Copy(b, a))
	require.ErrorIs(t, s.Sync(r.ctx), npu.ErrFault)
	r.lib.Inject(create, 507899, 0)
	s.Abort(errors.New("again"))
	m := r.alloc(0, 512) // behind the abort, on the device's thread
	err := s.Copy(b, m)
	require.ErrorContains(t, err, create)
	require.ErrorIs(t, s.Sync(r.ctx), npu.ErrFault)
	r.lib.Inject(create, 0, 0)
	s.Abort(errors.New("once more"))
	r.ok(s.Copy(b, a))
	r.ok(s.Sync(r.ctx))
}

// do makes one job and waits for its end.
func do(e channel.Engine, op kernel.Op, dst, src []kolo.Memory) error {
	done := make(chan error, 1)
	j := &channel.Job{Op: op, Done: func(_ channel.Turn, err error) { done <- err }}
	p := j.Add()
	p.Dst, p.Src = append(p.Dst, dst...), append(p.Src, src...)
	e.Start(nil, j)
	return <-done
}

// What an engine cannot do is told once, its streams serve the next job, and closing
// gives everything back.
func TestEngineFails(t *testing.T) {
	r := newRig(t, 2)
	e := r.v.Engine(nil)
	sum, prod := kernel.OpOf(kolo.Int32, kolo.Sum, 1), kernel.OpOf(kolo.Int32, kolo.Prod, 1)
	a, was := r.filled(0, 4096, 1)
	b, add := r.filled(1, 4096, 2)
	host := kolo.HostMemory(make([]byte, 4096))
	list := func(m ...kolo.Memory) []kolo.Memory { return m }
	fails := func(want error, op kernel.Op, dst, src []kolo.Memory) {
		t.Helper()
		before := [2]int{r.devices[0].Health().Streams, r.devices[1].Health().Streams}
		require.ErrorIs(t, do(e, op, dst, src), want)
		require.NoError(t, do(e, kernel.Op{}, list(host), list(a)), "the next job")
		require.Equal(t, was, host.Host)
		for i, n := range before {
			require.LessOrEqual(t, r.devices[i].Health().Streams, max(n, 1))
		}
	}
	freed, spare := r.alloc(0, 4096), r.alloc(0, 4096)
	r.ok(r.devices[0].Free(freed))              // nothing is allocated behind it, which might get its place
	for _, op := range []kernel.Op{sum, prod} { // on the device, and by way of the host
		fails(npu.ErrFreed, op, list(a), list(a, freed))
		fails(npu.ErrFreed, op, list(freed), list(a, b))
		r.lib.Fault(0, 507015, 0)
		fails(npu.ErrFault, op, list(spare), list(a, a))
		r.lib.Fault(0, 0, 0)
	}
	fails(npu.ErrFreed, kernel.Op{}, list(host), list(freed))
	fails(npu.ErrForeign, sum, list(a), list(a, kolo.Memory{Space: 1 << 30, Addr: 512, Size: 4096}))
	out := r.alloc(1, 4096)
	r.ok(do(e, sum, list(out, host), list(a, b)))
	want := make([]byte, 4096)
	sum.Fold(want, was, add)
	require.Equal(t, want, r.read(1, out))
	require.Equal(t, want, host.Host)
	e.Close()
	for _, d := range r.devices {
		require.Zero(t, d.Health().Streams, "the engine's streams")
	}
	require.ErrorIs(t, do(e, sum, list(a), list(a, b)), kolo.ErrClosed)
}

// A device without room for the engine's own memory refuses the job, not the next.
func TestEngineWithoutMemory(t *testing.T) {
	r := newRig(t, 1)
	e := r.v.Engine(nil)
	defer e.Close()
	a := r.alloc(0, 512)
	free := r.devices[0].Info().Memory - r.devices[0].Health().Used
	all, err := r.devices[0].Alloc(free)
	r.ok(err)
	host := kolo.HostMemory(make([]byte, 512))
	require.ErrorIs(t, do(e, kernel.Op{}, []kolo.Memory{host}, []kolo.Memory{a}), npu.ErrMemory)
	r.ok(r.devices[0].Free(all))
	r.ok(do(e, kernel.Op{}, []kolo.Memory{host}, []kolo.Memory{a}))
	_, _ = r.devices[0].Alloc(1) // the rig closes the device with what is open
}
