package nputest

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/npu"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// errWanted is the failure that checks make.
var errWanted = errors.New("made by the check")

// rig is a driver under test with its first device open.
type rig struct {
	testing.TB
	kit    Kit
	driver npu.Driver
	d      npu.Device
	ctx    context.Context

	mu    sync.Mutex
	calls map[int]int // of the callbacks that were accepted, how often each was called
	next  int
}

// newRig opens the driver. At the end of the test it closes it and asks what must
// hold always.
func newRig(t testing.TB, k Kit) *rig {
	t.Helper()
	r := &rig{TB: t, kit: k, calls: map[int]int{}}
	if !k.Bubble { // a bubble ends only when all its goroutines have
		before := goleak.IgnoreCurrent()
		t.Cleanup(func() { goleak.VerifyNone(t, before) })
	}
	r.driver = k.Open(t)
	ctx, cancel := context.WithTimeout(context.Background(), k.Patience)
	r.ctx = ctx
	t.Cleanup(func() {
		defer cancel()
		ending, stop := context.WithTimeout(context.Background(), k.Patience)
		defer stop()
		if err := r.driver.Close(ending); err != nil {
			t.Errorf("close the driver: %v", err)
		}
		if err := r.driver.Close(ending); err != nil {
			t.Errorf("close the driver again: %v", err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		for i, n := range r.calls {
			if n != 1 {
				t.Errorf("callback %d was called %d times", i, n)
			}
		}
	})
	r.d = r.open(0)
	return r
}

func (r *rig) ok(err error) {
	r.Helper()
	require.NoError(r, err)
}

func (r *rig) is(err, want error) {
	r.Helper()
	require.ErrorIs(r, err, want)
}

func (r *rig) open(i int) npu.Device {
	r.Helper()
	d, err := r.driver.Open(i)
	r.ok(err)
	return d
}

// peer opens the second device, or skips the check.
func (r *rig) peer() npu.Device {
	r.Helper()
	if r.driver.Devices() < 2 {
		r.Skip("there is one device only")
	}
	return r.open(1)
}

func (r *rig) stream(d npu.Device) npu.Stream {
	r.Helper()
	s, err := d.NewStream(npu.StreamConfig{})
	r.ok(err)
	return s
}

func (r *rig) alloc(d npu.Device, size int) kolo.Memory {
	r.Helper()
	m, err := d.Alloc(int64(size))
	r.ok(err)
	return m
}

func (r *rig) event(d npu.Device) npu.Event {
	r.Helper()
	e, err := d.NewEvent("check event")
	r.ok(err)
	return e
}

func (r *rig) notify(d npu.Device) npu.Notify {
	r.Helper()
	n, err := d.NewNotify("check notify")
	r.ok(err)
	return n
}

// gate holds a stream until it is opened.
func (r *rig) gate(s npu.Stream) npu.Notify {
	r.Helper()
	n := r.notify(s.Device())
	r.ok(s.Await(n))
	return n
}

func (r *rig) sync(s npu.Stream) {
	r.Helper()
	r.ok(s.Sync(r.ctx))
}

// callback has f called by the stream, and counts.
func (r *rig) callback(s npu.Stream, f func(error)) {
	r.Helper()
	called := r.counted()
	r.ok(s.Callback(func(err error) {
		called()
		f(err)
	}))
}

// attempt is a callback that may be refused, since the stream has failed; then it is
// never called.
func (r *rig) attempt(s npu.Stream) {
	r.Helper()
	called := r.counted()
	if err := s.Callback(func(error) { called() }); err != nil {
		r.is(err, errWanted)
		called() // a call that comes nevertheless is one too many
	}
}

// counted counts the calls of a function, which must be one in the end.
func (r *rig) counted() (called func()) {
	count := func(i, n int) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.calls[i] += n
	}
	r.mu.Lock()
	i := r.next
	r.next++
	r.mu.Unlock()
	count(i, 0)
	return func() { count(i, 1) }
}

// receive takes what a callback has sent.
func receive[T any](r *rig, from <-chan T) (x T) {
	r.Helper()
	select {
	case x = <-from:
	case <-r.ctx.Done():
		r.Fatal("nothing came")
	}
	return x
}

// write brings bytes to the device and waits.
func (r *rig) write(m kolo.Memory, s npu.Stream, bytes []byte) {
	r.Helper()
	r.ok(s.Copy(m, kolo.HostMemory(bytes)))
	r.sync(s)
}

// read brings the bytes of the device and waits.
func (r *rig) read(m kolo.Memory, s npu.Stream) []byte {
	r.Helper()
	bytes := make([]byte, m.Size)
	r.ok(s.Copy(kolo.HostMemory(bytes), m))
	r.sync(s)
	return bytes
}

// pattern is bytes that differ by index and by seed.
func pattern(n, seed int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8 + seed*131)
	}
	return b
}
