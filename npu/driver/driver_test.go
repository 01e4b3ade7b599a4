package driver_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/internal/kernel"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/npu/driver"

	"github.com/stretchr/testify/require"
)

var (
	_ npu.Device     = (*driver.Device)(nil)
	_ npu.Watched    = (*driver.Device)(nil)
	_ npu.Stream     = (*driver.Stream)(nil)
	_ npu.Event      = (*driver.Event)(nil)
	_ npu.Notify     = (*driver.Notify)(nil)
	_ channel.Engine = (*driver.Engine)(nil)
)

// Handles of another driver, and nil ones, are refused by what they are used for.
func TestForeignHandles(t *testing.T) {
	_, mine := opened(t, 1)
	_, others := opened(t, 1)
	s, err := mine[0].NewStream(npu.StreamConfig{})
	require.NoError(t, err)
	own, err := mine[0].NewEvent("own")
	require.NoError(t, err)
	e, err := others[0].NewEvent("e")
	require.NoError(t, err)
	n, err := others[0].NewNotify("n")
	require.NoError(t, err)
	for _, e := range []npu.Event{e, nil, (*driver.Event)(nil)} {
		_, since := own.Since(e)
		for _, err := range []error{s.Record(e), s.Wait(e), since} {
			require.ErrorIs(t, err, npu.ErrForeign)
			require.ErrorIs(t, err, kolo.ErrArgument)
		}
	}
	for _, n := range []npu.Notify{n, nil, (*driver.Notify)(nil)} {
		for _, err := range []error{s.Signal(n), s.Await(n)} {
			require.ErrorIs(t, err, npu.ErrForeign)
		}
	}
	require.NoError(t, s.Sync(t.Context()), "what was refused is not the stream's failure")
}

// What the hardware refuses leaves the accounts as they were.
func TestHardwareRefuses(t *testing.T) {
	p, list := opened(t, 1)
	d := list[0]
	p.refuse = errors.New("the bus is on fire")
	_, err := d.Alloc(512)
	require.ErrorIs(t, err, p.refuse)
	_, err = d.NewStream(npu.StreamConfig{})
	require.ErrorIs(t, err, p.refuse)
	p.refuse = nil
	require.Equal(t, npu.Health{}, d.Health())
	_, err = d.Alloc(plainMemory) // all of it is there still
	require.NoError(t, err)
}

func TestLimits(t *testing.T) {
	_, list := opened(t, 1)
	d := list[0]
	var open []interface{ Close() error }
	for range 64 {
		s, err := d.NewStream(npu.StreamConfig{})
		require.NoError(t, err)
		open = append(open, s)
	}
	for range 512 {
		e, err := d.NewEvent("e")
		require.NoError(t, err)
		open = append(open, e)
	}
	_, stream := d.NewStream(npu.StreamConfig{})
	_, event := d.NewEvent("e")
	_, notify := d.NewNotify("n")
	for _, err := range []error{stream, event, notify} {
		require.ErrorIs(t, err, kolo.ErrLimit)
	}
	for _, h := range open {
		require.NoError(t, h.Close())
	}
	n, err := d.NewNotify("n")
	require.NoError(t, err)
	require.NoError(t, n.Close())
}

// A lost device ends what waits on it, refuses all else with the cause, and closes.
func TestLose(t *testing.T) {
	p, list := opened(t, 2)
	d := list[0].(*driver.Device)
	s, err := d.NewStream(npu.StreamConfig{})
	require.NoError(t, err)
	n, err := d.NewNotify("n")
	require.NoError(t, err)
	m, err := d.Alloc(8)
	require.NoError(t, err)
	require.NoError(t, s.Await(n))
	told := make(chan error, 1)
	require.NoError(t, s.Callback(func(err error) { told <- err }))
	cause := errors.New("fell off the bus")
	p.core.Enter()
	d.Lose(cause)
	d.Lose(errors.New("again")) // the first cause stays
	p.core.Leave()
	require.ErrorIs(t, n.Set(), nil)
	_, alloc := d.Alloc(8)
	_, stream := d.NewStream(npu.StreamConfig{})
	_, event := d.NewEvent("e")
	for _, err := range []error{<-told, s.Sync(t.Context()), s.Copy(m, m), alloc, stream, event, d.Health().Err} {
		require.ErrorIs(t, err, npu.ErrLost)
		require.ErrorIs(t, err, kolo.ErrLost)
		require.ErrorIs(t, err, cause)
	}
	s.Abort(cause)
	d.Abort(cause)
	require.ErrorIs(t, s.Sync(t.Context()), npu.ErrLost, "an abort heals no device")
	o, err := list[1].NewStream(npu.StreamConfig{})
	require.NoError(t, err)
	b, err := list[1].Alloc(8)
	require.NoError(t, err)
	require.ErrorIs(t, o.Copy(b, m), npu.ErrLost, "nor is it a peer's any more")
	require.NoError(t, o.Sync(t.Context()))
	_, ok := list[1].Edge(d.Info().Space)
	require.False(t, ok)
	require.NoError(t, d.Close(t.Context()))
	require.ErrorIs(t, d.Health().Err, kolo.ErrClosed)
}

// Who watches a device hears of its loss once, without the lock, and only of that.
func TestOnLost(t *testing.T) {
	p, list := opened(t, 2)
	d := list[0].(*driver.Device)
	heard := make(chan string, 10)
	note := func(who string) func(error) {
		return func(err error) {
			if err != d.Health().Err { // which takes the lock
				who += fmt.Sprintf(" of %v", err)
			}
			heard <- who
		}
	}
	d.OnLost(note("first"))
	d.OnLost(note("forgotten"))()
	d.OnLost(note("second"))
	list[1].(*driver.Device).OnLost(note("of another device"))
	for range 2 {
		p.core.Enter()
		d.Lose(errors.New("fell off the bus"))
		p.core.Leave()
	}
	for _, who := range []string{"first", "second"} {
		require.Equal(t, who, <-heard)
	}
	d.OnLost(note("late"))()
	require.Equal(t, "late", <-heard)
	require.NoError(t, list[1].Close(t.Context()))
	list[1].(*driver.Device).OnLost(note("closed"))()
	require.NoError(t, p.Close(t.Context()))
	require.Empty(t, heard, "to be closed is no loss")
}

// Memory of other processes is given back as it was imported, not freed.
func TestImport(t *testing.T) {
	_, list := opened(t, 1)
	d := list[0].(*driver.Device)
	m, err := d.Import(&npu.Block{Addr: 1 << 40, Size: 64, Data: make([]byte, 64)})
	require.NoError(t, err)
	require.Zero(t, d.Health().Used)
	for name, b := range map[string]*npu.Block{
		"within":  {Addr: 1<<40 + 8, Size: 8},
		"around":  {Addr: 1<<40 - 8, Size: 80},
		"its end": {Addr: 1<<40 + 60, Size: 8},
		"again":   {Addr: 1 << 40, Size: 64},
	} {
		_, err = d.Import(b)
		require.ErrorIs(t, err, kolo.ErrOverlap, name)
	}
	require.ErrorIs(t, d.Free(m), kolo.ErrArgument)
	own, err := d.Alloc(64)
	require.NoError(t, err)
	_, err = d.Unimport(own)
	require.ErrorIs(t, err, kolo.ErrArgument)
	b, err := d.Unimport(m)
	require.NoError(t, err)
	require.EqualValues(t, 64, b.Size)
	_, err = d.Unimport(m)
	require.ErrorIs(t, err, npu.ErrFreed)
	require.EqualValues(t, 64, d.Health().Used)
	require.NoError(t, d.Close(t.Context()))
	_, err = d.Import(&npu.Block{Addr: 1 << 40, Size: 64})
	require.ErrorIs(t, err, kolo.ErrClosed)
	_, err = d.Unimport(m)
	require.ErrorIs(t, err, kolo.ErrClosed)
}

// A Sync that has its answer gives it, also to somebody who is out of time.
func TestSyncIsAnsweredFirst(t *testing.T) {
	_, list := opened(t, 1)
	s, err := list[0].NewStream(npu.StreamConfig{})
	require.NoError(t, err)
	n, err := list[0].NewNotify("n")
	require.NoError(t, err)
	e, err := list[0].NewEvent("e")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, s.Await(n))
	require.NoError(t, s.Record(e))
	for _, err := range []error{s.Sync(ctx), e.Sync(ctx)} {
		require.ErrorIs(t, err, kolo.ErrCanceled)
	}
	_, err = e.Since(e)
	require.ErrorIs(t, err, npu.ErrBusy)
	require.NoError(t, n.Set())
	require.NoError(t, e.Sync(t.Context()))
	fresh, err := list[0].NewEvent("fresh")
	require.NoError(t, err)
	_, err = fresh.Since(e)
	require.ErrorIs(t, err, kolo.ErrArgument)
}

// Close waits for a callback that runs, may be asked again, and says where it waits.
func TestCloseWaits(t *testing.T) {
	p, list := opened(t, 2)
	s, err := list[0].NewStream(npu.StreamConfig{})
	require.NoError(t, err)
	in, out := make(chan struct{}), make(chan struct{})
	require.NoError(t, s.Callback(func(error) { close(in); <-out }))
	<-in
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err = list[0].Close(ctx)
	require.ErrorIs(t, err, kolo.ErrCanceled)
	require.ErrorContains(t, err, "device 0")
	_, err = list[0].Alloc(8)
	require.ErrorIs(t, err, kolo.ErrClosed)
	_, err = p.Open(0)
	require.ErrorIs(t, err, npu.ErrBusy)
	close(out)
	require.NoError(t, list[0].Close(t.Context()))
	require.NoError(t, p.Close(t.Context()))
	_, err = p.Open(0)
	require.ErrorIs(t, err, kolo.ErrClosed)
}

// A device that is admitted after its driver was closed is nobody's.
func TestAdmitAfterClose(t *testing.T) {
	p := newPlain(1)
	d, err := p.core.Reserve(0)
	require.NoError(t, err)
	require.NoError(t, p.Close(t.Context()))
	require.ErrorIs(t, p.core.Admit(d, npu.Info{}, &place{Device: d, p: p}), kolo.ErrClosed)
	require.ErrorIs(t, d.Health().Err, kolo.ErrClosed)
}

func TestEngine(t *testing.T) {
	p, list := opened(t, 2)
	e := p.core.Engine(nil, spread{p.core})
	m, err := list[0].Alloc(4)
	require.NoError(t, err)
	s, err := list[0].NewStream(npu.StreamConfig{})
	require.NoError(t, err)
	do := func(op kernel.Op, dst kolo.Memory, src ...kolo.Memory) (err error) {
		j := &channel.Job{Op: op, Done: func(_ channel.Turn, e error) { err = e }}
		q := j.Add()
		q.Dst, q.Src = append(q.Dst, dst), append(q.Src, src...)
		e.Start(nil, j)
		return err
	}
	sum := kernel.OpOf(kolo.Int8, kolo.Sum, 1)
	a, b, c := []byte{1, 2, 3, 4}, []byte{10, 20, 30, 40}, make([]byte, 4)
	require.NoError(t, do(sum, kolo.HostMemory(c), kolo.HostMemory(a), kolo.HostMemory(b)))
	require.Equal(t, []byte{11, 22, 33, 44}, c)
	require.NoError(t, do(sum, m, kolo.HostMemory(a), kolo.HostMemory(c)))
	require.NoError(t, s.Copy(kolo.HostMemory(c), m))
	require.NoError(t, s.Sync(t.Context()))
	require.Equal(t, []byte{12, 24, 36, 48}, c)
	require.True(t, e.Reaches(kolo.HostSpace))
	require.True(t, e.Reaches(m.Space))
	require.NoError(t, list[0].Close(t.Context()))
	require.False(t, e.Reaches(m.Space))
	require.ErrorIs(t, do(sum, kolo.HostMemory(c), m), npu.ErrForeign)
	e.Lend(nil, 0, 0)
	e.Close()
	e.Close()
	require.ErrorIs(t, do(sum, m, m), kolo.ErrClosed, "what is closed makes nothing that nobody closes")
}
