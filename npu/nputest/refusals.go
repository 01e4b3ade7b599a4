package nputest

import (
	"context"
	"fmt"
	"math"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/npu"

	"github.com/stretchr/testify/require"
)

// names requires that an error says what it is about.
func (r *rig) names(err error, what ...string) {
	r.Helper()
	for _, w := range what {
		require.ErrorContains(r, err, w)
	}
	var typed *npu.Error
	require.ErrorAs(r, err, &typed)
	require.Equal(r, r.d.Info().Index, typed.Device)
}

func checkBusy(r *rig) {
	s, err := r.d.NewStream(npu.StreamConfig{Name: "prefetch"})
	r.ok(err)
	a, b, e, n := r.alloc(r.d, 8), r.alloc(r.d, 8), r.event(r.d), r.notify(r.d)
	gate := r.gate(s)
	r.ok(s.Copy(b, a))
	r.ok(s.Record(e))
	r.ok(s.Signal(n))
	where := fmt.Sprintf("device %d", r.d.Info().Index)
	for _, err := range []error{s.Close(), r.d.Free(a), r.d.Free(b), e.Close(), n.Close(), gate.Close()} {
		r.is(err, npu.ErrBusy)
		r.names(err, where, "abort")
	}
	r.names(s.Close(), "prefetch")
	r.names(r.d.Free(a), "prefetch")
	r.ok(gate.Set())
	r.sync(s)
	for _, err := range []error{s.Close(), r.d.Free(a), r.d.Free(b), e.Close(), n.Close(), gate.Close()} {
		r.ok(err)
	}
	for _, err := range []error{s.Close(), e.Close(), n.Close()} {
		r.ok(err) // again
	}
}

func checkFreed(r *rig) {
	s := r.stream(r.d)
	a, b := r.alloc(r.d, 64), r.alloc(r.d, 64)
	r.ok(r.d.Free(a))
	host := kolo.HostMemory(make([]byte, 64))
	for _, err := range []error{s.Copy(b, a), s.Copy(a, b), s.Copy(host, a), s.Copy(a.Slice(8, 8), b.Slice(0, 8)), s.Reduce(b, a, kolo.Int8, kolo.Sum)} {
		r.is(err, npu.ErrFreed)
		r.is(err, kolo.ErrArgument)
		r.names(err, fmt.Sprintf("stream %q", s.Name()), "freed")
	}
	beyond := b
	beyond.Size++
	r.is(s.Copy(beyond, kolo.HostMemory(make([]byte, 65))), npu.ErrFreed)
	r.sync(s) // what was refused is not the stream's failure
	r.ok(r.d.Free(b))
}

func checkBadCalls(r *rig) {
	s := r.stream(r.d)
	a := r.alloc(r.d, 64)
	r.is(s.Copy(a, kolo.HostMemory(make([]byte, 63))), kolo.ErrArgument)
	r.is(s.Copy(kolo.HostMemory(make([]byte, 8)), kolo.HostMemory(make([]byte, 8))), npu.ErrForeign)
	r.is(s.Copy(a, kolo.Memory{Space: 1 << 31, Addr: 512, Size: 64}), npu.ErrForeign)
	r.is(s.Callback(nil), kolo.ErrArgument)
	for _, err := range []error{s.Record(nil), s.Wait(nil), s.Signal(nil), s.Await(nil)} {
		r.is(err, npu.ErrForeign)
		require.ErrorContains(r, err, " is nil")
	}
	r.is(r.notify(r.d).Fail(nil), kolo.ErrArgument)
	r.sync(s)
}

func checkClosedHandles(r *rig) {
	s, e, n := r.stream(r.d), r.event(r.d), r.notify(r.d)
	r.ok(e.Close())
	r.ok(n.Close())
	_, query := e.Query()
	_, since := e.Since(e)
	for _, err := range []error{s.Record(e), s.Wait(e), s.Signal(n), s.Await(n), e.Sync(r.ctx), query, since, n.Set(), n.Fail(errWanted), n.Reset()} {
		r.is(err, kolo.ErrClosed)
	}
	r.sync(s)
	a := r.alloc(r.d, 8)
	r.ok(s.Close())
	for _, err := range []error{s.Copy(a, a), s.Sync(r.ctx), s.Callback(func(error) {})} {
		r.is(err, kolo.ErrClosed)
	}
	s.Abort(errWanted)
}

func checkForeign(r *rig) {
	peer := r.peer()
	s, e, n := r.stream(r.d), r.event(peer), r.notify(peer)
	m := r.alloc(peer, 64)
	for _, err := range []error{s.Record(e), s.Wait(e), s.Await(n), s.Copy(kolo.HostMemory(make([]byte, 64)), m)} {
		r.is(err, npu.ErrForeign)
		r.names(err, fmt.Sprintf("stream %q of device %d", s.Name(), r.d.Info().Index))
	}
	r.names(s.Wait(e), fmt.Sprintf("device %d", peer.Info().Index), "notify")
	r.is(r.d.Free(m), npu.ErrForeign)
	r.sync(s)
}

func checkPeers(r *rig) {
	peer := r.peer()
	if _, ok := r.d.Edge(peer.Info().Space); !ok {
		r.Skip("the devices do not reach each other")
	}
	s, p, n := r.stream(r.d), r.stream(peer), r.notify(peer)
	a, b, out := r.alloc(r.d, 5000), r.alloc(peer, 5000), make([]byte, 5000)
	r.write(a, s, pattern(5000, 4))
	r.ok(p.Await(n))
	r.ok(p.Copy(kolo.HostMemory(out), b))
	r.ok(s.Copy(b, a)) // a write to the peer
	r.ok(s.Signal(n))
	r.sync(p)
	require.Equal(r, pattern(5000, 4), out)
	r.write(b, p, pattern(5000, 5))
	r.ok(s.Copy(a, b)) // a read from the peer
	r.sync(s)
	require.Equal(r, pattern(5000, 5), r.read(a, s))
	r.gate(s)
	r.ok(s.Copy(b, a))
	r.is(peer.Free(b), npu.ErrBusy)
	s.Abort(errWanted)
	r.sync(s)
	r.ok(peer.Free(b))
	r.is(s.Copy(b, a), npu.ErrFreed)
}

func checkClose(r *rig) {
	s, e, n := r.stream(r.d), r.event(r.d), r.notify(r.d)
	m := r.alloc(r.d, 1<<20)
	ends := make(chan error, 2)
	for range 4 {
		r.ok(s.Copy(m, kolo.HostMemory(pattern(1<<20, 1))))
	}
	r.callback(s, func(err error) { ends <- err })
	p := r.stream(r.d)
	r.ok(p.Await(n))
	r.callback(p, func(err error) { ends <- err })
	r.ok(p.Record(e))
	r.ok(r.d.Close(r.ctx))
	for range 2 {
		if err := receive(r, ends); err != nil { // what was first may have ended well
			r.is(err, kolo.ErrClosed)
		}
	}
	r.ok(r.d.Close(r.ctx))
}

func checkClosedDevice(r *rig) {
	s, e, n := r.stream(r.d), r.event(r.d), r.notify(r.d)
	m := r.alloc(r.d, 8)
	r.ok(r.d.Close(r.ctx))
	_, alloc := r.d.Alloc(8)
	_, stream := r.d.NewStream(npu.StreamConfig{})
	_, event := r.d.NewEvent("x")
	_, notify := r.d.NewNotify("x")
	for i, err := range []error{alloc, stream, event, notify, r.d.Free(m), s.Copy(m, kolo.HostMemory(make([]byte, 8))), s.Sync(r.ctx), e.Sync(r.ctx), n.Set()} {
		require.ErrorIs(r, err, kolo.ErrClosed, "call %d", i)
	}
	r.is(r.d.Health().Err, kolo.ErrClosed)
	_, ok := r.d.Edge(m.Space)
	require.False(r, ok)
	for _, err := range []error{s.Close(), e.Close(), n.Close()} {
		r.ok(err)
	}
	again := r.open(0)
	r.alloc(again, 8)
	r.is(r.stream(again).Copy(m, kolo.HostMemory(make([]byte, 8))), npu.ErrForeign)
	ctx, cancel := context.WithCancel(r.ctx)
	cancel()
	r.ok(again.Close(ctx)) // nothing to wait for
}

// checkOverlap has memory named twice in one task.
func checkOverlap(r *rig) {
	s := r.stream(r.d)
	m := r.alloc(r.d, 4096)
	for _, err := range []error{s.Copy(m, m), s.Copy(m.Slice(0, 1024), m.Slice(1023, 1024)), s.Copy(m.Slice(1023, 1024), m.Slice(0, 1024)),
		s.Reduce(m.Slice(0, 1024), m.Slice(4, 1024), kolo.Float32, kolo.Sum)} {
		r.is(err, kolo.ErrOverlap)
	}
	r.ok(s.Copy(m.Slice(0, 1024), m.Slice(1024, 1024))) // beside each other
	r.sync(s)
}

// checkCosts has kernels whose cost is none.
func checkCosts(r *rig) {
	s := r.stream(r.d)
	for _, k := range []npu.Kernel{{Time: -1}, {Bytes: -1}, {FLOPs: -1}, {FLOPs: math.NaN()}} {
		r.is(s.Launch(k), kolo.ErrArgument)
	}
	r.sync(s)
}

// checkAbortWithoutCause aborts with nothing to say why.
func checkAbortWithoutCause(r *rig) {
	s := r.stream(r.d)
	for _, abort := range []func(error){s.Abort, r.d.Abort} {
		gate, told := r.gate(s), make(chan error, 1)
		r.callback(s, func(err error) { told <- err })
		abort(nil)
		r.is(receive(r, told), kolo.ErrAborted)
		r.sync(s)
		r.ok(gate.Close())
	}
}
