package pipeline_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/npu/sim"
	"github.com/kolo-ccl/kolo/pipeline"
	"github.com/kolo-ccl/kolo/plan"
	"github.com/kolo-ccl/kolo/rank"

	"github.com/stretchr/testify/require"
)

// place is a rank with a device, and the two streams of a pipeline.
type place struct {
	t                  *testing.T
	ctx                context.Context
	w                  *rank.World
	g                  *rank.Group
	d                  npu.Device
	producer, consumer npu.Stream
}

// onDevices runs f for each rank in a bubble.
func onDevices(t *testing.T, n int, cfg sim.Config, f func(p *place) error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cfg.Devices = n
		c, err := sim.New(cfg)
		require.NoError(t, err)
		world := rank.Config{Topology: plan.OneProcess(n), Algorithm: "fabric", CloseTimeout: time.Second,
			Engine: func(host channel.Engine) channel.Engine { return c.Engine(host) }}
		require.NoError(t, world.Run(t.Context(), n, func(ctx context.Context, w *rank.World) error {
			d, err := c.Open(int(w.Rank()))
			if err != nil {
				return err
			}
			p := &place{t: t, ctx: ctx, w: w, g: w.Group(), d: d}
			p.producer, err = d.NewStream(npu.StreamConfig{Name: "producer"})
			require.NoError(t, err)
			p.consumer, err = d.NewStream(npu.StreamConfig{Name: "consumer"})
			require.NoError(t, err)
			return f(p)
		}))
		require.NoError(t, c.Close(t.Context()))
	})
}

func (p *place) buffer(n int64) rank.Buffer {
	m, err := p.d.Alloc(4 * n)
	require.NoError(p.t, err)
	return rank.Buffer{Memory: m, DType: kolo.Float32}
}

// set is a kernel that computes elements From..To of every row of columns.
func (p *place) set(b rank.Buffer, columns int64, r pipeline.Range, took time.Duration, value func(i int64) float32) error {
	return p.producer.Launch(npu.Kernel{Name: "compute", Time: took, Args: []kolo.Memory{b.Memory}, Host: func(args [][]byte) error {
		for row := int64(0); row < b.Count(); row += columns {
			for i := row + r.From; i < row+r.To; i++ {
				binary.NativeEndian.PutUint32(args[0][4*i:], math.Float32bits(value(i)))
			}
		}
		return nil
	}})
}

// values reads the buffer on the Consumer, without waiting for anything else.
func (p *place) values(b rank.Buffer) []float32 {
	bytes := make([]byte, b.Memory.Len())
	require.NoError(p.t, p.consumer.Copy(kolo.HostMemory(bytes), b.Memory))
	require.NoError(p.t, p.consumer.Sync(p.ctx))
	list := make([]float32, b.Count())
	for i := range list {
		list[i] = math.Float32frombits(binary.NativeEndian.Uint32(bytes[4*i:]))
	}
	return list
}

// K chunks take as long as the longer of computing and reducing, and one chunk of the
// shorter: to the nanosecond, whatever starting a kernel or a transfer costs.
func TestOverlapReachesItsBound(t *testing.T) {
	const n = 32 * 7 * 4000 // elements: every number of chunks below has equal ones
	overheads := map[string]sim.Config{
		"none":   {Launch: -1, HCCS: sim.Line{Latency: -1}},
		"stated": {}, // 5 us to start a kernel, 2 us to cross a link
	}
	for name, cfg := range overheads {
		for _, k := range []int{2, 4, 8, 16, 32} {
			for _, ratio := range []float64{0.5, 1, 2} {
				t.Run(fmt.Sprintf("%s/k=%d/ratio=%v", name, k, ratio), func(t *testing.T) {
					onDevices(t, 2, cfg, func(p *place) error { return p.overlap(n, k, ratio, name == "none") })
				})
			}
		}
	}
}

func (p *place) overlap(n int64, k int, ratio float64, free bool) error {
	a, err := pipeline.NewAllReduce(pipeline.Config{Group: p.g, Buffer: p.buffer(n), Chunks: k, Producer: p.producer, Consumer: p.consumer})
	if err != nil {
		return err
	}
	took := time.Duration(0)
	var report pipeline.Report
	for range 2 { // the first step only says how long a chunk is on the wire
		step, err := a.Begin()
		if err != nil {
			return err
		}
		start := time.Now()
		for i := range a.Chunks() {
			if err := p.producer.Launch(npu.Kernel{Time: took}); err != nil {
				return err
			}
			if err := step.Ready(i); err != nil {
				return err
			}
		}
		require.Equal(p.t, start, time.Now(), "nothing waits on the host")
		if report, err = step.Wait(p.ctx); err != nil {
			return err
		}
		took = time.Duration(ratio * float64(report.Comm) / float64(k))
		if err := rank.Barrier(p.ctx, p.g); err != nil {
			return err
		}
	}
	require.Len(p.t, report.Chunks, k)
	require.Equal(p.t, pipeline.Bound(report.Compute, report.Comm, k), report.Overlapped)
	best := float64(max(report.Compute, report.Comm)) / float64(pipeline.Bound(report.Compute, report.Comm, k))
	require.InDelta(p.t, best, report.Efficiency, 1e-9)
	require.InDelta(p.t, 1-1/float64(k), report.Hidden, 1e-6)
	if free {
		require.InDelta(p.t, ratio, float64(report.Compute)/float64(report.Comm), 1e-3)
		require.InDelta(p.t, 1/(1+min(ratio, 1/ratio)/float64(k)), report.Efficiency, 1e-3) // 0.941 for 16 equal chunks
	}
	return a.Close()
}

// Flat and along the last dimension, on devices and on the host, in any order of the
// chunks that each rank likes.
func TestChunksOfEveryKind(t *testing.T) {
	const rows, columns = 3, 10
	for _, shape := range [][]int64{nil, {rows, columns}, {rows * columns}} {
		for seed := range uint64(6) {
			check := func(t *testing.T, g *rank.Group, b rank.Buffer, p *place, all []float32) error {
				rng := rand.New(rand.NewPCG(seed, uint64(g.Rank())))
				c := pipeline.Config{Group: g, Buffer: b, Chunks: 4, Shape: shape}
				if p != nil {
					c.Producer, c.Consumer = p.producer, p.consumer
				}
				a, err := pipeline.NewAllReduce(c)
				if err != nil {
					return err
				}
				width := int64(rows * columns)
				if len(shape) == 2 {
					width = columns
				}
				for s := range 3 {
					step, err := a.Begin()
					if err != nil {
						return err
					}
					value := func(i int64) float32 { return float32(int64(s)*100 + i + 1000*int64(g.Rank())) }
					for _, i := range rng.Perm(a.Chunks()) {
						r := a.Chunk(i)
						if p != nil {
							require.NoError(t, p.set(b, width, r, time.Duration(rng.IntN(1000)), value))
						} else {
							for row := int64(0); row < int64(len(all)); row += width {
								for i := row + r.From; i < row+r.To; i++ {
									all[i] = value(i)
								}
							}
						}
						require.NoError(t, step.Ready(i))
						require.ErrorIs(t, step.Ready(i), kolo.ErrArgument)
					}
					if p != nil {
						all = p.values(b) // ordered by the streams alone
					}
					if _, err := step.Wait(t.Context()); err != nil {
						return err
					}
					for i, x := range all {
						require.Equal(t, float32(3*(s*100+i)+3000), x, "seed %d", seed)
					}
				}
				return a.Close()
			}
			t.Run(fmt.Sprintf("%v/seed=%d", shape, seed), func(t *testing.T) {
				onDevices(t, 3, sim.Config{}, func(p *place) error {
					return check(t, p.g, p.buffer(rows*columns), p, nil)
				})
				require.NoError(t, rank.Run(t.Context(), 3, func(_ context.Context, w *rank.World) error {
					x := make([]float32, rows*columns)
					return check(t, w.Group(), rank.Of(x), nil, x)
				}))
			})
		}
	}
}

// An abort in the middle resolves every chunk with its cause, at once, and leaves the
// runtime without a buffer.
func TestAbortInTheMiddle(t *testing.T) {
	stop := errors.New("stop")
	onDevices(t, 2, sim.Config{Launch: -1}, func(p *place) error {
		b := p.buffer(8 * 1_400_000)
		a, err := pipeline.NewAllReduce(pipeline.Config{Group: p.g, Buffer: b, Chunks: 8, Shape: []int64{2, 4 * 1_400_000},
			Producer: p.producer, Consumer: p.consumer})
		require.NoError(p.t, err)
		step, err := a.Begin()
		require.NoError(p.t, err)
		for i := range 6 {
			require.NoError(p.t, p.producer.Launch(npu.Kernel{Time: ms}))
			require.NoError(p.t, step.Ready(i))
		}
		require.ErrorIs(p.t, a.Close(), kolo.ErrArgument)
		_, err = step.Wait(p.ctx)
		require.ErrorIs(p.t, err, kolo.ErrArgument, "two chunks are missing")
		start := time.Now()
		if p.g.Rank() == 0 {
			time.Sleep(2*ms + ms/2) // in a bubble: three chunks are computed
		} else {
			time.Sleep(3 * ms) // in a bubble
		}
		if p.g.Rank() == 0 {
			require.NoError(p.t, step.Abort(stop))
		} else {
			require.ErrorIs(p.t, p.g.Err(), stop)
			require.NoError(p.t, step.Abort(stop))
		}
		_, err = step.Wait(p.ctx)
		require.ErrorIs(p.t, err, stop)
		require.LessOrEqual(p.t, time.Since(start), 4*ms)
		require.Error(p.t, p.consumer.Sync(p.ctx))
		require.NoError(p.t, p.producer.Sync(p.ctx))
		require.NoError(p.t, a.Close())
		require.NoError(p.t, p.d.Free(b.Memory))
		require.Zero(p.t, p.d.Health().Buffers)
		return nil
	})
}

const ms = time.Millisecond

func TestAllReduceThatIsRefused(t *testing.T) {
	require.NoError(t, rank.Run(t.Context(), 1, func(_ context.Context, w *rank.World) error {
		b := rank.Of(make([]float32, 12))
		for name, c := range map[string]pipeline.Config{
			"no group":         {Buffer: b},
			"no buffer":        {Group: w.Group()},
			"negative":         {Group: w.Group(), Buffer: b, Chunks: -1},
			"shape":            {Group: w.Group(), Buffer: b, Shape: []int64{5, 2}},
			"too many":         {Group: w.Group(), Buffer: b, Chunks: 1 << 20},
			"device, no queue": {Group: w.Group(), Shape: []int64{2, 2}, Buffer: rank.Buffer{DType: kolo.Float32, Memory: kolo.Memory{Space: 7, Size: 16}}},
		} {
			_, err := pipeline.NewAllReduce(c)
			require.ErrorIs(t, err, kolo.ErrArgument, name)
		}
		refuseForeign(t, w.Group())
		a, err := pipeline.NewAllReduce(pipeline.Config{Group: w.Group(), Buffer: b})
		require.NoError(t, err)
		require.Equal(t, 12, a.Chunks())
		require.NoError(t, a.Close())
		require.NoError(t, a.Close())
		_, err = a.Begin()
		require.ErrorIs(t, err, kolo.ErrClosed)
		return nil
	}))
}

// refuseForeign has memory and streams of two devices in one pipeline.
func refuseForeign(t *testing.T, g *rank.Group) {
	t.Helper()
	c, err := sim.New(sim.Config{Devices: 2, Fast: true})
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close(context.Background())) }()
	var streams [2]npu.Stream
	var buffers [2]rank.Buffer
	for i := range 2 {
		d, err := c.Open(i)
		require.NoError(t, err)
		streams[i], err = d.NewStream(npu.StreamConfig{})
		require.NoError(t, err)
		m, err := d.Alloc(64)
		require.NoError(t, err)
		buffers[i] = rank.Buffer{Memory: m, DType: kolo.Float32}
	}
	for name, p := range map[string]pipeline.Config{
		"memory of another device":   {Buffer: buffers[1], Producer: streams[0], Consumer: streams[0]},
		"columns of another device":  {Buffer: buffers[1], Producer: streams[0], Consumer: streams[0], Shape: []int64{4, 4}},
		"consumer of another device": {Buffer: buffers[0], Producer: streams[0], Consumer: streams[1]},
	} {
		p.Group = g
		_, err := pipeline.NewAllReduce(p)
		require.ErrorIs(t, err, npu.ErrForeign, name)
	}
	_, err = pipeline.NewReducer(pipeline.ReducerConfig{Group: g, Params: []pipeline.Param{{Name: "w", Gradient: buffers[1]}}, Producer: streams[0], Consumer: streams[0]})
	require.ErrorIs(t, err, npu.ErrForeign)
	_, err = pipeline.NewFused(pipeline.FusedConfig{Group: g, Product: buffers[1], Rows: 1, Compute: func(npu.Stream, pipeline.Range) error { return nil },
		Producer: streams[0], Consumer: streams[0]})
	require.ErrorIs(t, err, npu.ErrForeign)
	for i := range 2 { // and nothing is left
		require.Equal(t, 1, streams[i].Device().Health().Buffers)
	}
}
