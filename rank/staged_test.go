//go:build linux && (amd64 || arm64) && !noacl

package rank_test

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/kolo-ccl/kolo"
	_ "github.com/kolo-ccl/kolo/channel/roce"
	_ "github.com/kolo-ccl/kolo/channel/tcp"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/npu/ascend"
	"github.com/kolo-ccl/kolo/npu/ascend/standin"
	"github.com/kolo-ccl/kolo/npu/sim"
	"github.com/kolo-ccl/kolo/rank"

	"github.com/stretchr/testify/require"
)

// Every collective of device memory over drivers that reach the host's only: over the
// stand-in of AscendCL and over simulated devices without a link to each other, as on two
// servers.
func TestCollectivesOfDevicesOverTheNetwork(t *testing.T) {
	for _, driver := range []string{"roce", "tcp"} {
		t.Run("sim over "+driver, func(t *testing.T) {
			c, err := sim.New(sim.Config{Devices: 4, Fast: true, NoPeer: true})
			require.NoError(t, err)
			a := openDevices(t, 4, c, func(devices []npu.Device) rank.Config {
				return rank.Config{Driver: driver, Devices: devices} // the medium of the group goes by the host
			})
			a.everyCollective(1003)
		})
	}
	t.Run("ascend over roce", func(t *testing.T) {
		lib := standin.Open(t)
		v, err := ascend.New(ascend.Config{Library: lib.Path, DCMI: "none"})
		require.NoError(t, err)
		a := openDevices(t, 3, v, by("roce"))
		a.lib = lib
		a.everyCollective(1003)
	})
}

// by is a configuration with a driver, which knows the devices or does not.
func by(driver string) func([]npu.Device) rank.Config {
	return func([]npu.Device) rank.Config { return rank.Config{Driver: driver} }
}

// Where the devices of a process have no way to each other, the last resort is taken by
// itself, for every collective by every algorithm, and each pair is told of once; where
// they have one, nothing is said.
func TestDevicesWithoutAWayToEachOther(t *testing.T) {
	for _, apart := range []bool{true, false} {
		c, err := sim.New(sim.Config{Devices: 4, Fast: true, NoPeer: apart})
		require.NoError(t, err)
		var mu sync.Mutex
		var warnings []string
		a := openDevices(t, 4, c, func(devices []npu.Device) rank.Config {
			return rank.Config{Devices: devices, Warned: func(w rank.Warning) {
				mu.Lock()
				defer mu.Unlock()
				warnings = append(warnings, w.Text)
			}}
		})
		a.everyCollective(1003)
		mu.Lock()
		defer mu.Unlock()
		if !apart {
			require.Empty(t, warnings)
			continue
		}
		require.Len(t, warnings, 6, "one for each pair of four devices")
		slices.Sort(warnings)
		require.Len(t, slices.Compact(warnings), 6)
		require.Contains(t, warnings[0], "have no peer access")
		require.Contains(t, warnings[0], "npu-smi info -t topo")
	}
}

// A simulated device that is lost fails its group on every rank, with the cause, and the
// others go on.
func TestLostDeviceOverTheNetwork(t *testing.T) {
	const n, count = 4, 50_000
	c, err := sim.New(sim.Config{Devices: n, Fast: true})
	require.NoError(t, err)
	a := openDevices(t, n, c, by("roce"))
	groups, others := make([]*rank.Group, n), make([]*rank.Group, 2)
	for r, w := range a.worlds {
		groups[r], err = w.NewGroup(rank.GroupConfig{Name: "all", Ranks: []kolo.Rank{0, 1, 2, 3}, Algorithm: "ring"})
		require.NoError(t, err)
		if r < 2 {
			others[r], err = w.NewGroup(rank.GroupConfig{Name: "two", Ranks: []kolo.Rank{0, 1}, Algorithm: "ring"})
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
					c.Lose(3)
				}
			}
		})
	}
	wg.Wait()
	for r, err := range errs {
		require.ErrorIs(t, err, npu.ErrLost, "rank %d", r)
		require.ErrorContains(t, err, "device 3")
	}
	require.True(t, a.collective(others, kolo.AllReduce, kolo.Float32, kolo.Sum, count, "after"))
	require.False(t, errors.Is(a.devices[0].Health().Err, npu.ErrLost))
}
