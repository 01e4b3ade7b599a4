//go:build linux && (amd64 || arm64) && !noacl

package rank_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/npu/ascend"
	"github.com/kolo-ccl/kolo/npu/ascend/standin"
	"github.com/kolo-ccl/kolo/npu/driver"
	"github.com/kolo-ccl/kolo/plan"
	"github.com/kolo-ccl/kolo/rank"
	"github.com/kolo-ccl/kolo/rank/ranktest"

	"github.com/stretchr/testify/require"
)

// npus is a world whose rank i has device i of a library that stands in for
// AscendCL's.
type npus struct {
	*testing.T
	lib     *standin.Library // nil for simulated ones
	v       npuDriver
	devices []npu.Device
	streams []npu.Stream
	worlds  []*rank.World
	ctx     context.Context
}

// npuDriver is what ascend.Driver and sim.Cluster have in common.
type npuDriver interface {
	Open(i int) (npu.Device, error)
	Engine(host channel.Engine) *driver.Engine
	Close(ctx context.Context) error
}

// openNPUs opens n ranks which the default driver joins.
func openNPUs(t *testing.T, n int) *npus {
	lib := standin.Open(t)
	v, err := ascend.New(ascend.Config{Library: lib.Path, DCMI: "none"})
	require.NoError(t, err)
	a := openDevices(t, n, v, by(""))
	a.lib = lib
	return a
}

// openDevices opens n ranks of a driver's devices.
func openDevices(t *testing.T, n int, v npuDriver, config func([]npu.Device) rank.Config) *npus {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	a := &npus{T: t, v: v, ctx: ctx}
	t.Cleanup(func() {
		defer cancel()
		for _, w := range a.worlds {
			if err := w.Close(ctx); err != nil {
				t.Errorf("close a world: %v", err)
			}
		}
		if err := v.Close(ctx); err != nil {
			t.Errorf("close the driver: %v", err)
		}
	})
	for i := range n {
		d, err := v.Open(i)
		require.NoError(t, err)
		s, err := d.NewStream(npu.StreamConfig{})
		require.NoError(t, err)
		a.devices, a.streams = append(a.devices, d), append(a.streams, s)
	}
	c := config(a.devices)
	c.Timeout, c.Topology = 20*time.Second, plan.OneProcess(n)
	c.Engine = func(host channel.Engine) channel.Engine { return v.Engine(host) }
	var err error
	a.worlds, err = rank.Open(n, c)
	require.NoError(t, err)
	return a
}

// onDevice is a buffer of device i with the bytes of one of the host.
func (a *npus) onDevice(i int, b rank.Buffer) rank.Buffer {
	a.Helper()
	n := b.Memory.Len()
	if n == 0 {
		return b
	}
	m, err := a.devices[i].Alloc(n)
	require.NoError(a, err)
	require.NoError(a, a.streams[i].Copy(m, b.Memory))
	require.NoError(a, a.streams[i].Sync(a.ctx))
	return rank.Buffer{Memory: m, DType: b.DType}
}

// read brings the bytes of a buffer of device i, and frees it.
func (a *npus) read(i int, b rank.Buffer) []byte {
	a.Helper()
	bytes := make([]byte, b.Memory.Len())
	if len(bytes) > 0 {
		require.NoError(a, a.streams[i].Copy(kolo.HostMemory(bytes), b.Memory))
		require.NoError(a, a.streams[i].Sync(a.ctx))
		require.NoError(a, a.devices[i].Free(b.Memory))
	}
	return bytes
}

// deviceCall is what rank r of n asks for, with count elements in each part.
func deviceCall(k kolo.Collective, d kolo.DType, op kolo.ReduceOp, n, count int, r kolo.Rank) rank.Request {
	buffer := func(parts int, full bool) rank.Buffer {
		b := rank.Buffer{Memory: kolo.HostMemory(make([]byte, parts*count*d.Size())), DType: d}
		if full {
			ranktest.Fill(b, op, r)
		}
		return b
	}
	q := rank.Request{Collective: k, Root: kolo.Rank(n - 1)}
	root := r == q.Root
	switch k {
	case kolo.AllReduce:
		q.In, q.Out, q.Op = buffer(1, true), buffer(1, false), op
	case kolo.Reduce:
		if q.In, q.Op = buffer(1, true), op; root {
			q.Out = buffer(1, false)
		}
	case kolo.Broadcast:
		q.Out = buffer(1, root)
	case kolo.AllGather:
		q.In, q.Out = buffer(1, true), buffer(n, false)
	case kolo.ReduceScatter:
		q.In, q.Out, q.Op = buffer(n, true), buffer(1, false), op
	case kolo.Gather:
		if q.In = buffer(1, true); root {
			q.Out = buffer(n, false)
		}
	case kolo.Scatter:
		if q.Out = buffer(1, false); root {
			q.In = buffer(n, true)
		}
	case kolo.AllToAll:
		q.In, q.Out = buffer(n, true), buffer(n, false)
	}
	return q
}

// TestCollectivesOfNPUs compares with the naive answer: every collective by every
// algorithm that serves it, with types that a device folds and types that it does not.
func TestCollectivesOfNPUs(t *testing.T) {
	openNPUs(t, 4).everyCollective(1003)
}

// everyCollective makes every collective by every algorithm that serves it.
func (a *npus) everyCollective(count int) {
	a.Helper()
	t, n := a.T, len(a.worlds)
	kinds := []kolo.Collective{kolo.AllReduce, kolo.Reduce, kolo.Broadcast, kolo.AllGather, kolo.ReduceScatter, kolo.Gather, kolo.Scatter, kolo.AllToAll}
	done := 0
	for _, algorithm := range plan.Algorithms() {
		groups := make([]*rank.Group, n)
		for r, w := range a.worlds {
			g, err := w.NewGroup(rank.GroupConfig{Name: algorithm.Name, Ranks: []kolo.Rank{0, 1, 2, 3}[:n], Algorithm: algorithm.Name})
			if err != nil {
				t.Logf("%s: %v", algorithm.Name, err)
				groups = nil
				break
			}
			groups[r] = g
		}
		if groups == nil {
			continue
		}
		for i, k := range kinds {
			types := []kolo.DType{kolo.Float32, kolo.Int16}
			ops := []kolo.ReduceOp{kolo.Sum, kolo.Max}
			if algorithm.Name == "fabric" || algorithm.Name == "ring" {
				types = []kolo.DType{kolo.Float32, kolo.Int16, kolo.BFloat16, kolo.Uint64}
				ops = []kolo.ReduceOp{kolo.Sum, kolo.Max, kolo.Avg}
			}
			d, op := types[(done+i)%len(types)], ops[(done+i)%len(ops)]
			if op.Check(d) != nil {
				op = kolo.Sum
			}
			if a.collective(groups, k, d, op, count, fmt.Sprintf("%v of %v %v by %s", k, d, op, algorithm.Name)) {
				done++
			}
		}
	}
	if done < 40 {
		t.Errorf("%d calls only", done)
	}
	t.Logf("%d calls", done)
}

// collective makes one call on all ranks; false if the algorithm does not serve it.
func (a *npus) collective(groups []*rank.Group, k kolo.Collective, d kolo.DType, op kolo.ReduceOp, count int, what string) bool {
	a.Helper()
	n := len(groups)
	hosts, calls, errs := make([]rank.Request, n), make([]rank.Request, n), make([]error, n)
	for r := range n {
		hosts[r] = deviceCall(k, d, op, n, count, kolo.Rank(r))
		calls[r] = hosts[r]
		calls[r].In, calls[r].Out = a.onDevice(r, hosts[r].In), a.onDevice(r, hosts[r].Out)
	}
	var wg sync.WaitGroup
	for r := range n {
		wg.Go(func() { errs[r] = rank.Do(a.ctx, groups[r], calls[r]) })
	}
	wg.Wait()
	want := ranktest.Answer(hosts)
	if err := errors.Join(errs...); err != nil && !errors.Is(err, kolo.ErrUnsupported) {
		a.Fatalf("%s: %v", what, err)
	}
	for r := range n {
		got := a.read(r, calls[r].Out)
		if errs[r] == nil && string(got) != string(want[r]) {
			a.Errorf("%s: rank %d has another result than the host", what, r)
		}
		a.read(r, calls[r].In)
	}
	return errs[0] == nil
}

// TestStreamsOfNPUs makes an AllReduce between the streams of each device.
func TestStreamsOfNPUs(t *testing.T) {
	const n, count = 3, 200_000
	a := openNPUs(t, n)
	hosts := make([]rank.Request, n)
	works, calls := make([]rank.Work, n), make([]rank.Request, n)
	got := make([][]byte, n)
	consumers := make([]npu.Stream, n)
	for r := range n {
		hosts[r] = deviceCall(kolo.AllReduce, kolo.Float32, kolo.Sum, n, count, kolo.Rank(r))
		calls[r] = hosts[r]
		calls[r].In, calls[r].Out = a.onDevice(r, hosts[r].Out), a.onDevice(r, hosts[r].Out) // zeros, until the producer has run
		var err error
		consumers[r], err = a.devices[r].NewStream(npu.StreamConfig{})
		require.NoError(t, err)
		require.NoError(t, a.streams[r].Copy(calls[r].In.Memory, hosts[r].In.Memory))
		works[r] = rank.DoOn(a.worlds[r].Group(), calls[r], rank.Between{Producer: a.streams[r], Consumer: consumers[r]})
		got[r] = make([]byte, calls[r].Out.Memory.Len())
		require.NoError(t, consumers[r].Copy(kolo.HostMemory(got[r]), calls[r].Out.Memory))
	}
	want := ranktest.Answer(hosts)
	for r := range n {
		require.NoError(t, works[r].Wait(a.ctx))
		require.NoError(t, consumers[r].Sync(a.ctx))
		require.True(t, string(want[r]) == string(got[r]), "rank %d", r)
		a.read(r, calls[r].In)
		a.read(r, calls[r].Out)
	}
}

// TestLostNPUFailsItsGroup loses a device in the middle of calls: every rank hears it,
// with the cause, and groups without the device go on.
func TestLostNPUFailsItsGroup(t *testing.T) {
	const n, count = 4, 100_000
	for _, algorithm := range []string{"fabric", "ring"} {
		t.Run(algorithm, func(t *testing.T) {
			a := openNPUs(t, n)
			groups, others := make([]*rank.Group, n), make([]*rank.Group, 2)
			var err error
			for r, w := range a.worlds {
				groups[r], err = w.NewGroup(rank.GroupConfig{Name: "all", Ranks: []kolo.Rank{0, 1, 2, 3}, Algorithm: algorithm})
				require.NoError(t, err)
				if r < 2 {
					others[r], err = w.NewGroup(rank.GroupConfig{Name: "two", Ranks: []kolo.Rank{0, 1}, Algorithm: algorithm})
					require.NoError(t, err)
				}
			}
			require.True(t, a.collective(groups, kolo.AllReduce, kolo.Float32, kolo.Sum, count, "before"))
			errs := make([]error, n)
			var wg sync.WaitGroup
			for r := range n {
				call := deviceCall(kolo.AllReduce, kolo.Float32, kolo.Sum, n, count, kolo.Rank(r))
				call.In, call.Out = a.onDevice(r, call.In), a.onDevice(r, call.Out)
				wg.Go(func() {
					for errs[r] == nil {
						if errs[r] = rank.Do(a.ctx, groups[r], call); r == 0 && groups[r].Calls() == 3 {
							a.lib.Lose(3, 507010)
						}
					}
				})
			}
			wg.Wait()
			for r, err := range errs {
				require.ErrorIs(t, err, kolo.ErrLost, "rank %d", r)
				if text := err.Error(); !strings.Contains(text, "507010") && !strings.Contains(text, "507057") { // of the device, or of one that has used it
					t.Errorf("rank %d hears no cause: %v", r, err)
				}
			}
			require.ErrorIs(t, a.devices[3].Health().Err, npu.ErrLost)
			require.NoError(t, a.devices[0].Health().Err)
			require.True(t, a.collective(others, kolo.AllReduce, kolo.Float32, kolo.Sum, count, "after"))
		})
	}
}

// TestCriticalHealthFailsGroups has DCMI find a device in a critical state while ranks
// wait for its rank, which does nothing: they hear it, with what DCMI has said.
func TestCriticalHealthFailsGroups(t *testing.T) {
	const n = 3
	lib := standin.Open(t)
	v, err := ascend.New(ascend.Config{Library: lib.Path, DCMI: lib.DCMI})
	require.NoError(t, err)
	var devices []npu.Device
	for i := range n {
		d, err := v.Open(i)
		require.NoError(t, err)
		devices = append(devices, d)
	}
	worlds, err := rank.Open(n, rank.Config{Timeout: time.Hour, Devices: devices,
		Engine: func(host channel.Engine) channel.Engine { return v.Engine(host) }})
	require.NoError(t, err)
	defer func() {
		for _, w := range worlds {
			if err := w.Close(context.Background()); err != nil {
				t.Errorf("close a world: %v", err)
			}
		}
		if err := v.Close(context.Background()); err != nil {
			t.Errorf("close the driver: %v", err)
		}
	}()
	for _, s := range worlds[0].Settings() {
		if s.Name == "Topology" {
			require.Contains(t, s.Value, "3 pairs measured")
			require.Contains(t, s.Value, "hccs")
		}
	}
	work := rank.AllReduceAsync(worlds[0].Group(), []float32{1}, kolo.Sum)
	lib.Health(2, uint32(ascend.Major), 0) // is no loss
	require.NoError(t, devices[2].Health().Err)
	lib.Health(2, uint32(ascend.Critical), 0)
	defer lib.Health(2, uint32(ascend.Normal), 0)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err = work.Wait(ctx)
	require.ErrorIs(t, err, npu.ErrLost)
	require.ErrorContains(t, err, "DCMI says that its health is critical fault")
	require.ErrorIs(t, rank.AllReduce(ctx, worlds[1].Group(), []float32{1}, kolo.Sum), npu.ErrLost)
}
