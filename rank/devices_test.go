package rank_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/npu/sim"
	"github.com/kolo-ccl/kolo/plan"
	"github.com/kolo-ccl/kolo/rank"

	"github.com/stretchr/testify/require"
)

// cluster is a world over simulated devices, rank i on device i.
type cluster struct {
	*testing.T
	c       *sim.Cluster
	devices []npu.Device
	worlds  []*rank.World
}

func openCluster(t *testing.T, cfg sim.Config, rc rank.Config) *cluster {
	t.Helper()
	c, err := sim.New(cfg)
	require.NoError(t, err)
	x := &cluster{T: t, c: c}
	for i := range c.Devices() {
		d, err := c.Open(i)
		require.NoError(t, err)
		x.devices = append(x.devices, d)
	}
	rc.Devices = x.devices
	rc.Engine = func(host channel.Engine) channel.Engine { return c.Engine(host) }
	x.worlds, err = rank.Open(c.Devices(), rc)
	require.NoError(t, err)
	return x
}

func (x *cluster) close() {
	for _, w := range x.worlds {
		if err := w.Close(context.Background()); err != nil {
			x.Errorf("close a world: %v", err)
		}
	}
	if err := x.c.Close(context.Background()); err != nil {
		x.Errorf("close the cluster: %v", err)
	}
}

func TestDeviceTopology(t *testing.T) {
	for _, c := range []struct {
		name            string
		cfg             sim.Config
		near, far       kolo.Edge
		server, servers int
	}{
		{"one server", sim.Config{Devices: 4}, npu.Nominal(kolo.LinkHCCS), npu.Nominal(kolo.LinkHCCS), 4, 1},
		{"two servers", sim.Config{Servers: 2, Devices: 2}, npu.Nominal(kolo.LinkHCCS), npu.Nominal(kolo.LinkRoCE), 2, 2},
		{"no access", sim.Config{Devices: 4, NoPeer: true}, npu.NominalByHost(), npu.NominalByHost(), 4, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := openCluster(t, c.cfg, rank.Config{})
			defer x.close()
			top, err := rank.DeviceTopology(x.devices)
			require.NoError(t, err)
			require.Len(t, top.Groups(), c.servers)
			require.True(t, top.Medium)
			require.Equal(t, plan.QuantiseEdge(c.near), top.Edge(0, 1))
			require.Equal(t, plan.QuantiseEdge(c.far), top.Edge(0, 3))
			for _, s := range x.worlds[0].Settings() {
				if s.Name == "Topology" {
					require.Equal(t, rank.Setting{Name: "Topology", Value: top.String(), Source: "Devices"}, s)
				}
			}
		})
	}
	_, err := rank.DeviceTopology(nil)
	require.ErrorIs(t, err, kolo.ErrArgument)
	for _, list := range [][]npu.Device{make([]npu.Device, 1), make([]npu.Device, 2)} {
		_, err := rank.Open(2, rank.Config{Devices: list})
		require.ErrorIs(t, err, kolo.ErrArgument)
	}
}

// TestChoiceByDevices measures in virtual time what the choice is worth: what is chosen
// by the devices' topology is not far from the fastest that there is.
func TestChoiceByDevices(t *testing.T) {
	for _, c := range []struct {
		name string
		cfg  sim.Config
		size int64
	}{
		{"mesh", sim.Config{Devices: 4}, 16 << 20},
		{"two servers", sim.Config{Servers: 2, Devices: 2}, 16 << 20},
	} {
		t.Run(c.name, func(t *testing.T) {
			took := map[string]time.Duration{}
			for _, algorithm := range []string{"", "fabric", "ring", "mesh", "halving-doubling"} {
				synctest.Test(t, func(t *testing.T) {
					x := openCluster(t, c.cfg, rank.Config{Algorithm: algorithm})
					defer x.close()
					took[algorithm] = x.allReduce(c.size)
				})
			}
			t.Logf("%v", took)
			for name, d := range took {
				if took[""] > 3*d {
					t.Errorf("the choice takes %v, %s %v", took[""], name, d)
				}
			}
		})
	}
}

// allReduce is the time that an AllReduce of device buffers takes, 0 if it is refused.
func (x *cluster) allReduce(size int64) time.Duration {
	begin, errs := time.Now(), make([]error, len(x.worlds))
	var wg sync.WaitGroup
	for i, w := range x.worlds {
		m, err := x.devices[i].Alloc(size)
		require.NoError(x, err)
		b := rank.Buffer{Memory: m, DType: kolo.Float32}
		wg.Go(func() {
			errs[i] = rank.Do(x.Context(), w.Group(), rank.Request{Collective: kolo.AllReduce, In: b, Out: b, Op: kolo.Sum})
		})
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(x, err)
	}
	return time.Since(begin)
}

// TestLossOfAnIdleDevice loses a device that nobody works on: who waits for its rank
// hears it at once, not at the deadline, and so does a group that is made later.
func TestLossOfAnIdleDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := openCluster(t, sim.Config{Devices: 3}, rank.Config{Timeout: time.Hour})
		defer x.close()
		two := make([]*rank.Group, 2)
		for i := range two {
			var err error
			two[i], err = x.worlds[i].NewGroup(rank.GroupConfig{Name: "two", Ranks: []kolo.Rank{0, 1}})
			require.NoError(t, err)
		}
		begin := time.Now()
		work := rank.AllReduceAsync(x.worlds[0].Group(), []float32{1}, kolo.Sum)
		synctest.Wait()
		x.c.Lose(2)
		check := func(r kolo.Rank, err error) {
			t.Helper()
			require.ErrorIs(t, err, npu.ErrLost)
			var typed *kolo.Error
			require.ErrorAs(t, err, &typed)
			require.Equal(t, r, typed.Peer, "in the group's numbering")
			require.ErrorContains(t, err, fmt.Sprintf("the device of rank %d is lost", int(r)))
		}
		check(2, work.Wait(t.Context()))
		check(2, rank.AllReduce(t.Context(), x.worlds[1].Group(), []float32{1}, kolo.Sum))
		late, err := x.worlds[0].NewGroup(rank.GroupConfig{Name: "late", Ranks: []kolo.Rank{0, 2}})
		require.NoError(t, err)
		check(1, rank.AllReduce(t.Context(), late, []float32{1}, kolo.Sum))
		require.Equal(t, begin, time.Now(), "nobody has waited")
		for i := range two { // the group without the device goes on
			defer func(w rank.Work) { require.NoError(t, w.Wait(context.Background())) }(rank.AllReduceAsync(two[i], []float32{1}, kolo.Sum))
		}
	})
}

// A handle whose size is negative is refused before anything waits for its bytes.
func TestMemoryOfANegativeSize(t *testing.T) {
	x := openCluster(t, sim.Config{Devices: 2, Fast: true}, rank.Config{Timeout: 20 * time.Second})
	defer x.close()
	m, err := x.devices[0].Alloc(64)
	require.NoError(t, err)
	m.Size = -8
	b := rank.Buffer{Memory: m, DType: kolo.Float32}
	for _, r := range []rank.Request{
		{Collective: kolo.Send, In: b, Peer: 1}, {Collective: kolo.Recv, Out: b, Peer: 1},
		{Collective: kolo.AllReduce, In: b, Out: b}, {Collective: kolo.AllReduce, Tensors: []rank.Buffer{b}},
	} {
		err := rank.Do(t.Context(), x.worlds[0].Group(), r)
		require.ErrorIs(t, err, kolo.ErrArgument, "%v", r.Collective)
		require.ErrorContains(t, err, "-8 bytes")
	}
	win, err := x.worlds[0].NewWindow(rank.WindowConfig{})
	require.NoError(t, err)
	_, err = win.Register("r", m)
	require.ErrorIs(t, err, kolo.ErrArgument)
	require.ErrorContains(t, err, "-8 bytes")
}
