package npu_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/actor"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/npu/sim"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// control is a device with its actor.
type control struct {
	c    *sim.Cluster
	d    npu.Device
	sys  *actor.System
	a    *npu.Actor
	s    *actor.Shard
	exit chan error
}

func newControl(t *testing.T, cfg actor.Config) *control {
	t.Helper()
	c, err := sim.New(sim.Config{Devices: 2, Fast: true})
	require.NoError(t, err)
	d, err := c.Open(0)
	require.NoError(t, err)
	k := &control{c: c, d: d, sys: actor.NewSystem(cfg), exit: make(chan error, 1)}
	k.s = k.sys.NewShard("device")
	k.a, err = npu.Spawn(k.s, d, func(err error) { k.exit <- err })
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, k.sys.Close(context.Background()))
		require.NoError(t, c.Close(context.Background()))
	})
	return k
}

func TestActorOfALostDevice(t *testing.T) {
	k := newControl(t, actor.Config{})
	_, err := k.a.Alloc(t.Context(), 8)
	require.NoError(t, err)
	k.c.Lose(0)
	_, err = k.a.Alloc(t.Context(), 8)
	require.ErrorIs(t, err, npu.ErrLost)
	m := &npu.CheckHealth{}
	require.ErrorIs(t, k.a.Ask(t.Context(), m), npu.ErrLost)
	require.Equal(t, 1, m.Health.Buffers)
	require.ErrorIs(t, <-k.exit, npu.ErrLost)
	_, err = k.a.Alloc(t.Context(), 8)
	require.ErrorIs(t, err, npu.ErrLost, "who asks later hears why")
	_, err = k.a.Close(t.Context())
	require.NoError(t, err)
}

// What is answered after its asker has given up is given back.
func TestActorTakesBackWhatNobodyWaitsFor(t *testing.T) {
	k := newControl(t, actor.Config{Steps: rand.New(rand.NewPCG(1, 1))})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := k.a.Alloc(ctx, 8)
	require.ErrorIs(t, err, kolo.ErrCanceled)
	_, err = k.a.Stream(ctx, npu.StreamConfig{})
	require.ErrorIs(t, err, kolo.ErrCanceled)
	k.sys.Run()
	h := k.d.Health()
	require.Zero(t, h.Buffers)
	require.Zero(t, h.Streams)
}

// A handle that is none, or another device's, is refused and ends nothing.
func TestActorClosesItsOwnHandles(t *testing.T) {
	k := newControl(t, actor.Config{})
	other, err := k.c.Open(1)
	require.NoError(t, err)
	s, err := other.NewStream(npu.StreamConfig{})
	require.NoError(t, err)
	require.ErrorIs(t, k.a.Ask(t.Context(), &npu.CloseHandle{}), kolo.ErrArgument)
	require.ErrorIs(t, k.a.Ask(t.Context(), &npu.CloseHandle{Handle: s}), npu.ErrForeign)
	require.NoError(t, s.Sync(t.Context()), "it is open still")
	own, err := k.a.Stream(t.Context(), npu.StreamConfig{})
	require.NoError(t, err)
	for range 2 { // closed once, it may be closed again
		require.NoError(t, k.a.Ask(t.Context(), &npu.CloseHandle{Handle: own}))
	}
	_, err = npu.Spawn(k.s, nil, nil)
	require.ErrorIs(t, err, kolo.ErrArgument)
}

// A handler of the same shard tells, and is told.
func TestActorTells(t *testing.T) {
	k := newControl(t, actor.Config{})
	answered := make(chan struct{})
	asker := &asker{k: k, m: &npu.AllocMemory{Size: 8}}
	asker.m.Done = func() { close(answered) }
	ref, err := actor.Spawn[*begin](k.s, actor.Props{Name: "asker"}, asker)
	require.NoError(t, err)
	require.NoError(t, ref.Tell(&begin{}))
	<-answered
	require.NoError(t, asker.m.Err)
	require.EqualValues(t, 8, asker.m.Memory.Size)
}

type asker struct {
	k *control
	m *npu.AllocMemory
}

type begin struct{}

func (a *asker) Handle(*begin) error {
	if err := a.k.a.Tell(a.k.s, a.m); err != nil {
		return errors.Join(errors.New("tell"), err)
	}
	return nil
}

// slow is a device that waits in what it is asked for: it says that it is there, and
// goes on when it is let.
type slow struct {
	npu.Device
	in, out chan struct{}
}

func (d *slow) wait() {
	d.in <- struct{}{}
	<-d.out
}

func (d *slow) Alloc(n int64) (kolo.Memory, error) { d.wait(); return d.Device.Alloc(n) }

func (d *slow) NewStream(c npu.StreamConfig) (npu.Stream, error) {
	d.wait()
	return d.Device.NewStream(c)
}

func (d *slow) NewEvent(name string) (npu.Event, error) { d.wait(); return d.Device.NewEvent(name) }

func (d *slow) NewNotify(name string) (npu.Notify, error) { d.wait(); return d.Device.NewNotify(name) }

// What a device is making while its asker gives up is given back when it is made; what
// it refuses then is nobody's.
func TestActorTakesBackWhatIsBeingMade(t *testing.T) {
	for name, m := range map[string]npu.Message{"memory": &npu.AllocMemory{Size: 8}, "stream": &npu.OpenStream{}, "event": &npu.OpenEvent{Name: "e"},
		"notify": &npu.OpenNotify{Name: "n"}, "no memory": &npu.AllocMemory{Size: -1}} {
		synctest.Test(t, func(t *testing.T) {
			k := newControl(t, actor.Config{})
			d := &slow{k.d, make(chan struct{}), make(chan struct{})}
			a, err := npu.Spawn(k.s, d, nil)
			require.NoError(t, err)
			require.Equal(t, npu.Device(d), a.Device())
			first := make(chan kolo.Memory)
			go func() { // ends below: it runs the actor while others ask
				m, err := a.Alloc(context.Background(), 16)
				if err != nil {
					t.Errorf("%s: %v", name, err)
				}
				first <- m
			}()
			<-d.in
			ctx, cancel := context.WithCancel(t.Context())
			asked := make(chan error)
			go func() { asked <- a.Ask(ctx, m) }() // ends below
			synctest.Wait()                        // it is behind the first
			d.out <- struct{}{}
			<-d.in
			cancel()
			require.ErrorIs(t, <-asked, kolo.ErrCanceled, name)
			d.out <- struct{}{}
			memory := <-first
			h := d.Health()
			require.Equal(t, []int{1, 0}, []int{h.Buffers, h.Streams}, name)
			require.NoError(t, a.Free(t.Context(), memory))
			require.ErrorIs(t, a.Free(t.Context(), memory), npu.ErrFreed)
			cancel()
			_, err = a.Close(ctx)
			if err != nil {
				require.ErrorIs(t, err, kolo.ErrCanceled, "the context had ended")
			}
			left, err := a.Close(t.Context())
			require.NoError(t, err)
			require.Equal(t, npu.Left{}, left, name)
		})
	}
}
