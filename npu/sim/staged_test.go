package sim_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/channel/hccs"
	"github.com/kolo-ccl/kolo/channel/pcie"
	"github.com/kolo-ccl/kolo/internal/kernel"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/npu/sim"

	"github.com/stretchr/testify/require"
)

// stagedRig is a few devices and an engine that stages.
type stagedRig struct {
	c        *sim.Cluster
	devices  []npu.Device
	plain    channel.Engine
	engine   *pcie.Engine
	warnings []string
}

func newStagedRig(t *testing.T, noPeer bool, block int) *stagedRig {
	return newStagedRigOf(t, sim.Config{Devices: 3, Fast: true, NoPeer: noPeer}, block)
}

func newStagedRigOf(t *testing.T, cfg sim.Config, block int) *stagedRig {
	c, err := sim.New(cfg)
	require.NoError(t, err)
	host := hccs.NewEngine(1)
	r := &stagedRig{c: c, plain: c.Engine(host)}
	bySpace := map[kolo.Space]npu.Device{}
	for i := range 3 {
		d, err := c.Open(i)
		require.NoError(t, err)
		r.devices = append(r.devices, d)
		bySpace[d.Info().Space] = d
	}
	var mu sync.Mutex
	r.engine, err = pcie.NewEngine(r.plain, pcie.Config{Block: block,
		Peer: func(a, b kolo.Space) bool { _, ok := bySpace[a].Edge(b); return ok },
		Warned: func(s string) {
			mu.Lock()
			defer mu.Unlock()
			r.warnings = append(r.warnings, s)
		}})
	require.NoError(t, err)
	t.Cleanup(func() {
		r.engine.Close()
		r.plain.Close()
		require.NoError(t, c.Close(context.Background()))
		host.Close()
	})
	return r
}

// stagedJob does a job and waits for it.
func stagedJob(e channel.Engine, op kernel.Op, dst, src []kolo.Memory) error {
	done := make(chan error, 1)
	j := &channel.Job{Op: op, Done: func(_ channel.Turn, err error) { done <- err }}
	p := j.Add()
	p.Dst, p.Src = append(p.Dst, dst...), append(p.Src, src...)
	e.Start(nil, j)
	return <-done
}

// on puts bytes on a device.
func (r *stagedRig) on(t *testing.T, device int, b []byte) kolo.Memory {
	m, err := r.devices[device].Alloc(int64(len(b)))
	require.NoError(t, err)
	m = m.Slice(0, int64(len(b)))
	require.NoError(t, stagedJob(r.plain, kernel.Op{}, []kolo.Memory{m}, []kolo.Memory{kolo.HostMemory(b)}))
	return m
}

func (r *stagedRig) read(t *testing.T, m kolo.Memory) []byte {
	b := make([]byte, m.Len())
	require.NoError(t, stagedJob(r.plain, kernel.Op{}, []kolo.Memory{kolo.HostMemory(b)}, []kolo.Memory{m}))
	return b
}

func stagedBytes(device, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8*13 + device*101 + 1)
	}
	return b
}

// Copies and folds between devices without peer access are what the host computes, at
// sizes around a block's, in place too.
func TestDevicesWithoutPeerAccess(t *testing.T) {
	const block = 4096
	r := newStagedRig(t, true, block)
	sum := kernel.Op{DType: kolo.Uint8, Kind: kolo.OpSum}
	for _, n := range []int{1, block - 1, block, block + 1, 3*block + 5, 40 * block} {
		a, b, c := stagedBytes(0, n), stagedBytes(1, n), stagedBytes(2, n)
		on := []kolo.Memory{r.on(t, 0, a), r.on(t, 1, b), r.on(t, 2, c)}
		require.ErrorIs(t, stagedJob(r.plain, kernel.Op{}, on[1:2], on[:1]), kolo.ErrUnsupported, "the devices alone have no way")
		require.NoError(t, stagedJob(r.engine, kernel.Op{}, on[1:2], on[:1]))
		require.True(t, bytes.Equal(a, r.read(t, on[1])), "copy of %d bytes", n)
		want := make([]byte, n)
		sum.Fold(want, a, a, c)
		require.NoError(t, stagedJob(r.engine, sum, on, on))
		for d := range on {
			require.True(t, bytes.Equal(want, r.read(t, on[d])), "sum of %d bytes on npu%d", n, d)
		}
	}
	require.Len(t, r.warnings, 2, "one for each pair that a source and a first source, or destination, make")
	require.Contains(t, r.warnings[0], "no peer access")
	require.Contains(t, strings.Join(r.warnings, ""), "npu-smi info -t topo")
	require.Positive(t, r.engine.Report().Bytes)
	require.Equal(t, 2, r.engine.Report().Pairs)
}

// Where there is a better way it is taken, and nothing is said.
func TestABetterWayIsTaken(t *testing.T) {
	r := newStagedRig(t, false, 0)
	b := stagedBytes(0, 100_000)
	from, to := r.on(t, 0, b), r.on(t, 1, make([]byte, len(b)))
	require.NoError(t, stagedJob(r.engine, kernel.Op{}, []kolo.Memory{to}, []kolo.Memory{from}))
	require.True(t, bytes.Equal(b, r.read(t, to)))
	require.Empty(t, r.warnings)
	require.Zero(t, r.engine.Report())
}

// A device that is gone fails the job with the cause, and the engine goes on.
func TestFailureOfALeg(t *testing.T) {
	r := newStagedRig(t, true, 1000)
	b := stagedBytes(0, 50_000+rand.IntN(1000))
	from, to, other := r.on(t, 0, b), r.on(t, 1, b), r.on(t, 2, b)
	require.NoError(t, r.devices[1].Close(t.Context()))
	require.ErrorContains(t, stagedJob(r.engine, kernel.Op{}, []kolo.Memory{to}, []kolo.Memory{from}), "staged through the host")
	require.NoError(t, stagedJob(r.engine, kernel.Op{}, []kolo.Memory{other}, []kolo.Memory{from}))
}

// The way in of a block goes beside the way out of the one before: in exact virtual time a
// copy takes what one of the two legs takes, and a block more. The second lane begins when
// the link is free, so the link's latency (5 us) does not count there.
func TestLegsOverlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const block, blocks = 512 << 10, 64
		r := newStagedRigOf(t, sim.Config{Devices: 3, NoPeer: true}, block)
		from, to := r.on(t, 0, stagedBytes(0, block*blocks)), r.on(t, 1, stagedBytes(1, block*blocks))
		took := func(n int64) time.Duration {
			begin := time.Now()
			require.NoError(t, stagedJob(r.engine, kernel.Op{}, []kolo.Memory{to.Slice(0, n)}, []kolo.Memory{from.Slice(0, n)}))
			return time.Since(begin)
		}
		one, all := took(block), took(block*blocks)
		leg := one / 2
		t.Logf("a block of %d KiB takes %v each way; %d of them %v, %v without overlap: %.1f%% hidden",
			block>>10, leg, blocks, all, one*blocks, 100*float64(one*blocks-all)/float64(leg*blocks))
		require.Equal(t, leg*(blocks+1)-5*time.Microsecond, all)
	})
}
