//go:build linux && (amd64 || arm64) && !noacl

package ascend

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/internal/kernel"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/npu/ascend/standin"
	"github.com/kolo-ccl/kolo/npu/driver"

	"github.com/stretchr/testify/require"
)

// opened is a driver over the stand-in with its first devices open.
func opened(t *testing.T, devices int) (*Driver, []npu.Device) {
	t.Helper()
	lib := standin.Open(t)
	v, err := New(Config{Library: lib.Path, DCMI: "none"})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 30*time.Second)
	t.Cleanup(func() {
		defer cancel()
		if err := v.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	var list []npu.Device
	for i := range devices {
		d, err := v.Open(i)
		require.NoError(t, err)
		list = append(list, d)
	}
	return v, list
}

func alloc(t *testing.T, d npu.Device, size int64) kolo.Memory {
	t.Helper()
	m, err := d.Alloc(size)
	require.NoError(t, err)
	return m
}

// started begins a job of one part and gives where its end is told.
func started(e channel.Engine, priority int, op kernel.Op, dst kolo.Memory, src ...kolo.Memory) <-chan error {
	done := make(chan error, 1)
	j := &channel.Job{Op: op, Priority: priority, Done: func(_ channel.Turn, err error) { done <- err }}
	p := j.Add()
	p.Dst, p.Src = append(p.Dst, dst), append(p.Src, src...)
	e.Start(nil, j)
	return done
}

// An engine that is closed as soon as its last job is done gives its streams back all
// the same: that of the job is still in the callback that told of the end.
func TestEngineClosedAtTheEndOfAJob(t *testing.T) {
	v, d := opened(t, 1)
	a, host := alloc(t, d[0], 512), kolo.HostMemory(make([]byte, 512))
	e := &engine{v: v, lanes: map[lanePlace][]*lane{}}
	closed := make(chan struct{})
	j := &channel.Job{Done: func(channel.Turn, error) {}}
	p := j.Add()
	p.Dst, p.Src = append(p.Dst, host), append(p.Src, a)
	e.Start(nil, j, func() {
		go func() { // ends with Close
			e.Close()
			close(closed)
		}()
		select {
		case <-closed:
		case <-time.After(20 * time.Millisecond): // Close waits for this callback
		}
	})
	<-closed
	h := d[0].Health()
	require.Zero(t, h.Streams, "streams after Close")
	require.Equal(t, 1, h.Buffers, "buffers after Close")
}

// Memory of the host is its owner's again when a job is done, also where a device is
// lost while a callback copies it.
func TestEngineWaitsForItsCallbacks(t *testing.T) {
	v, d := opened(t, 1)
	e := &engine{v: v, lanes: map[lanePlace][]*lane{}}
	s := &busyStream{in: make(chan struct{}), out: make(chan struct{}), lost: errors.New("lost")}
	x := own(d[0].(*driver.Device))
	e.lanes[lanePlace{x, 0}] = []*lane{{lanePlace: lanePlace{x, 0}, s: s, scratch: alloc(t, d[0], laneScratch)}}
	a, host := alloc(t, d[0], 512), kolo.HostMemory(make([]byte, 512))
	done, begun := make(chan error, 1), make(chan struct{})
	j := &channel.Job{Op: kernel.OpOf(kolo.Int32, kolo.Sum, 1), Done: func(_ channel.Turn, err error) { done <- err }}
	p := j.Add()
	p.Dst, p.Src = append(p.Dst, host), append(p.Src, host, a)
	go func() { // ends with Start
		e.Start(nil, j, func() {})
		close(begun)
	}()
	<-s.in
	<-begun
	for range 100 {
		runtime.Gosched()
	}
	select {
	case err := <-done:
		t.Fatalf("done (%v) while a callback uses the memory", err)
	default:
	}
	close(s.out)
	require.ErrorIs(t, <-done, s.lost)
}

// busyStream is a stream that fails while its first callback runs.
type busyStream struct {
	npu.Stream
	in, out chan struct{}
	lost    error
	called  bool
}

func (s *busyStream) Copy(_, _ kolo.Memory) error { return s.lost }

func (s *busyStream) Abort(error) {}

func (s *busyStream) Callback(f func(error)) error {
	if s.called {
		return s.lost
	}
	s.called = true
	go func() { // ends when the test lets it
		close(s.in)
		<-s.out
		f(nil)
	}()
	return nil
}

// Jobs of a priority run on streams of that priority.
func TestEngineKeepsPrioritiesApart(t *testing.T) {
	v, d := opened(t, 1)
	e := v.Engine(nil)
	defer e.Close()
	a, host := alloc(t, d[0], 512), kolo.HostMemory(make([]byte, 512))
	for _, priority := range []int{0, 5, 0, 5} {
		require.NoError(t, <-started(e, priority, kernel.Op{}, host, a))
	}
	var have []int
	v.core.Lock()
	for _, s := range d[0].(*driver.Device).Streams() {
		have = append(have, s.Priority())
	}
	v.core.Unlock()
	require.ElementsMatch(t, []int{0, 5}, have)
}

// What an engine has of a device that was closed goes with it.
func TestEngineForgetsDevicesThatAreClosed(t *testing.T) {
	v, _ := opened(t, 0)
	e := &engine{v: v, lanes: map[lanePlace][]*lane{}}
	host := kolo.HostMemory(make([]byte, 512))
	for range 3 {
		d, err := v.Open(0)
		require.NoError(t, err)
		a := alloc(t, d, 512)
		require.NoError(t, <-started(v.core.Engine(nil, e), 0, kernel.Op{}, host, a))
		e.mu.Lock()
		require.Len(t, e.lanes, 1)
		e.mu.Unlock()
		require.NoError(t, d.Close(t.Context()))
	}
	e.Close()
}
