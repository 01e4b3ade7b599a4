package nputest

import (
	"context"
	"runtime"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/npu"

	"github.com/stretchr/testify/require"
)

// held says that the stream does not go on. Nothing can prove that; a stream that
// should not be held, but is, is found by the waits elsewhere.
func (r *rig) held(s npu.Stream) {
	r.Helper()
	idle, err := s.Query()
	r.ok(err)
	require.False(r, idle, "the stream should wait")
}

func checkReturnsAtOnce(r *rig) {
	s := r.stream(r.d)
	a, b, e, n := r.alloc(r.d, 64), r.alloc(r.d, 64), r.event(r.d), r.notify(r.d)
	idle, err := s.Query()
	r.ok(err)
	require.True(r, idle)
	gate := r.gate(s)
	called := make(chan error, 1)
	r.ok(s.Copy(b, a))
	r.ok(s.Reduce(b, a, kolo.Float32, kolo.Sum))
	r.ok(s.Record(e))
	r.ok(s.Wait(e))
	r.ok(s.Signal(n))
	r.ok(s.Await(n))
	if r.d.Info().Simulated {
		r.ok(s.Launch(npu.Kernel{Name: "nothing"}))
	}
	r.callback(s, func(err error) { called <- err })
	r.held(s)
	done, err := e.Query()
	r.ok(err)
	require.False(r, done)
	require.Positive(r, r.d.Health().Tasks)
	r.ok(gate.Set())
	r.sync(s)
	r.ok(receive(r, called))
	done, err = e.Query()
	r.ok(err)
	require.True(r, done)
	require.Zero(r, r.d.Health().Tasks)
}

func checkEventOrder(r *rig) {
	s, p, e := r.stream(r.d), r.stream(r.d), r.event(r.d)
	m, out := r.alloc(r.d, 1<<16), make([]byte, 1<<16)
	r.write(m, s, pattern(1<<16, 1))
	gate := r.gate(s)
	r.ok(s.Copy(m, kolo.HostMemory(pattern(1<<16, 2))))
	r.ok(s.Record(e))
	r.ok(p.Wait(e))
	r.ok(p.Copy(kolo.HostMemory(out), m))
	r.held(p)
	r.ok(gate.Set())
	r.sync(p)
	require.True(r, string(out) == string(pattern(1<<16, 2)), "the stream has read before the event")
	r.ok(e.Sync(r.ctx))
	r.sync(s)
}

func checkEventLatest(r *rig) {
	s, p, q := r.stream(r.d), r.stream(r.d), r.stream(r.d)
	e, f := r.event(r.d), r.event(r.d)
	r.ok(s.Record(e))
	r.ok(p.Wait(e))
	gate := r.gate(s)
	r.ok(s.Record(e)) // behind the gate: not what p waits for
	r.sync(p)
	r.ok(q.Wait(e)) // but what q does
	r.held(q)
	_, err := e.Since(f)
	r.is(err, kolo.ErrArgument)
	r.ok(s.Record(f))
	_, err = f.Since(e)
	r.is(err, npu.ErrBusy)
	r.ok(gate.Set())
	r.sync(q)
	r.sync(s)
	d, err := f.Since(e)
	r.ok(err)
	require.GreaterOrEqual(r, d, time.Duration(0))
}

func checkEventNever(r *rig) {
	s, e := r.stream(r.d), r.event(r.d)
	done, err := e.Query()
	r.ok(err)
	require.True(r, done)
	r.ok(e.Sync(r.ctx))
	r.ok(s.Wait(e))
	r.sync(s)
}

func checkNotifyBit(r *rig) {
	s, n := r.stream(r.d), r.notify(r.d)
	r.ok(n.Set())
	r.ok(n.Set())
	r.ok(s.Await(n))
	r.sync(s)
	r.ok(s.Await(n))
	r.held(s) // two Sets were one bit
	r.ok(n.Set())
	r.sync(s)
	r.ok(n.Set())
	r.ok(n.Reset())
	r.ok(s.Await(n))
	r.held(s)
	r.ok(n.Set())
	r.sync(s)
}

func checkNotifyStreams(r *rig) {
	s, p, n := r.stream(r.d), r.stream(r.d), r.notify(r.d)
	order := make(chan int, 2)
	gate := r.gate(s)
	r.ok(p.Await(n))
	r.callback(p, func(error) { order <- 2 })
	r.callback(s, func(error) { order <- 1 })
	r.ok(s.Signal(n))
	r.held(p)
	r.ok(gate.Set())
	r.sync(p)
	require.Equal(r, 1, receive(r, order))
	require.Equal(r, 2, receive(r, order))
}

func checkCallbacks(r *rig) {
	s := r.stream(r.d)
	m, host := r.alloc(r.d, 8), make([]byte, 8)
	const n = 50
	order := make(chan int, n)
	seen := make(chan string, 1)
	for i := range n {
		r.callback(s, func(err error) {
			if err != nil {
				r.Errorf("callback %d: %v", i, err)
			}
			order <- i
		})
	}
	r.ok(s.Copy(m, kolo.HostMemory([]byte("new data"))))
	r.ok(s.Copy(kolo.HostMemory(host), m))
	r.callback(s, func(error) {
		had := string(host)
		copy(host, "anything")
		if err := s.Copy(m, kolo.HostMemory(host)); err != nil { // a callback may ask for more
			r.Errorf("in a callback: %v", err)
		}
		seen <- had
	})
	require.Equal(r, "new data", receive(r, seen))
	for i := range n {
		require.Equal(r, i, receive(r, order))
	}
	require.Equal(r, "anything", string(r.read(m, s)))
}

// A callback that panics, or ends its goroutine as a test that fails does, fails its stream
// and nothing else.
func checkCallbacksThatDoNotReturn(r *rig) {
	other := r.stream(r.d)
	for name, f := range map[string]func(){"panics": func() { panic("nputest: wanted") }, "ends its goroutine": runtime.Goexit} {
		s := r.stream(r.d)
		after := make(chan error, 1)
		gate := r.gate(s) // so that what comes behind is accepted
		r.callback(s, func(error) { f() })
		r.callback(s, func(err error) { after <- err })
		r.ok(gate.Set())
		require.ErrorIs(r, receive(r, after), npu.ErrFault, name)
		require.ErrorIs(r, s.Sync(r.ctx), npu.ErrFault, name)
		seen := make(chan error, 1)
		r.callback(other, func(err error) { seen <- err })
		require.NoError(r, receive(r, seen), name)
		s.Abort(nil)
		r.sync(s)
	}
}

func checkErrorsStay(r *rig) {
	s := r.stream(r.d)
	a, b, e := r.alloc(r.d, 8), r.alloc(r.d, 8), r.event(r.d)
	r.write(b, s, pattern(8, 3))
	gate := r.gate(s)
	called := make(chan error, 1)
	r.ok(s.Copy(b, a))
	r.callback(s, func(err error) { called <- err })
	r.ok(gate.Fail(errWanted))
	r.is(receive(r, called), errWanted)
	r.is(s.Sync(r.ctx), errWanted)
	_, err := s.Query()
	r.is(err, errWanted)
	r.is(s.Copy(b, a), errWanted)
	r.is(s.Record(e), errWanted)
	r.is(s.Callback(func(error) { r.Error("a callback that was refused was called") }), errWanted)
	r.is(s.Sync(r.ctx), errWanted)
	require.Equal(r, pattern(8, 3), r.read(b, r.stream(r.d)), "what was dropped has no effect")
	r.ok(r.d.Health().Err)

	s.Abort(errWanted)
	r.ok(gate.Reset())
	r.ok(gate.Set())
	r.ok(s.Await(gate))
	require.Equal(r, pattern(8, 3), r.read(b, s), "after Abort the stream is as good as new")
	r.ok(s.Close())
}

func checkErrorsTravel(r *rig) {
	s, p, q := r.stream(r.d), r.stream(r.d), r.stream(r.d)
	e, n := r.event(r.d), r.notify(r.d)
	gate := r.gate(s)
	r.ok(s.Record(e))
	r.ok(s.Signal(n))
	r.ok(p.Wait(e))
	r.ok(q.Await(n))
	reached := make(chan error, 1)
	r.callback(q, func(err error) { reached <- err })
	r.ok(gate.Fail(errWanted))
	r.is(p.Sync(r.ctx), errWanted)
	r.is(q.Sync(r.ctx), errWanted)
	r.is(receive(r, reached), errWanted)
	r.is(e.Sync(r.ctx), errWanted)
	done, err := e.Query()
	require.True(r, done)
	r.is(err, errWanted)
	for _, x := range []npu.Stream{s, p, q} {
		x.Abort(errWanted)
	}
	r.ok(s.Record(e))
	r.ok(e.Sync(r.ctx))
	r.sync(p)
}

func checkAbort(r *rig) {
	s, p, e, n := r.stream(r.d), r.stream(r.d), r.event(r.d), r.notify(r.d)
	m := r.alloc(r.d, 1<<20)
	r.write(m, s, pattern(1<<20, 1))
	const calls = 3
	called := make(chan error, calls)
	gate := r.gate(s)
	r.ok(s.Copy(m, kolo.HostMemory(pattern(1<<20, 2))))
	for range calls {
		r.callback(s, func(err error) { called <- err })
	}
	r.ok(s.Record(e))
	r.ok(s.Signal(n))
	r.ok(p.Wait(e))
	s.Abort(errWanted)
	for range calls {
		r.is(receive(r, called), errWanted)
	}
	r.is(e.Sync(r.ctx), errWanted)
	r.is(p.Sync(r.ctx), errWanted)
	r.sync(s)
	require.True(r, string(r.read(m, s)) == string(pattern(1<<20, 1)), "what was dropped has no effect")
	r.ok(gate.Close()) // nobody awaits it any more
	s.Abort(errWanted) // of nothing
	r.ok(s.Close())

	// in the middle of work: each task is done or not, each callback is called
	s = r.stream(r.d)
	const tasks = 20
	ends := make(chan error, tasks)
	for range tasks {
		r.ok(s.Copy(m, kolo.HostMemory(pattern(1<<20, 3))))
		r.callback(s, func(err error) { ends <- err })
	}
	s.Abort(errWanted)
	failed := false
	for range tasks {
		err := receive(r, ends)
		if err != nil {
			r.is(err, errWanted)
		}
		require.False(r, failed && err == nil, "something has run behind what was dropped")
		failed = err != nil
	}
	r.sync(s)
}

func checkAbortDevice(r *rig) {
	var streams []npu.Stream
	ends := make(chan error, 3)
	for range 3 {
		s := r.stream(r.d)
		r.gate(s)
		r.callback(s, func(err error) { ends <- err })
		streams = append(streams, s)
	}
	r.d.Abort(errWanted)
	for _, s := range streams {
		r.is(receive(r, ends), errWanted)
		r.sync(s)
	}
}

func checkSyncContext(r *rig) {
	s, e := r.stream(r.d), r.event(r.d)
	gate := r.gate(s)
	r.ok(s.Record(e))
	ctx, cancel := context.WithCancel(r.ctx)
	cancel()
	for _, err := range []error{s.Sync(ctx), e.Sync(ctx)} {
		r.is(err, kolo.ErrCanceled)
		r.is(err, context.Canceled)
	}
	r.ok(gate.Set())
	r.sync(s)
}
