package pipeline_test

import (
	"context"
	"testing"
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

// In real time too, sixteen chunks that take 25 ms to compute and 25 ms on the wire take
// little longer than either: the larger of both, as measured, is 0.85 of the whole or more
// (0.94 is the bound, and 0.5 is one after the other). Another program that takes the
// processors away spoils a try, so the best of several counts.
func TestOverlapInRealTime(t *testing.T) {
	const chunks, each, tries = 16, 25 * time.Millisecond, 8
	best := 0.0
	for range tries {
		report := overlapInRealTime(t, chunks, each)
		efficiency := report.Efficiency
		t.Logf("compute %v, communication %v, overlapped %v, efficiency %.3f", report.Compute, report.Comm, report.Overlapped, efficiency)
		require.GreaterOrEqual(t, report.Compute, (chunks-1)*each, "the simulated device is paced")
		if best = max(best, efficiency); best >= 0.85 {
			return
		}
	}
	t.Errorf("the best of %d tries is an efficiency of %.3f", tries, best)
}

// overlapInRealTime is a step of rank 0 of two, in real time.
func overlapInRealTime(t *testing.T, chunks int, each time.Duration) (report pipeline.Report) {
	const n = 16 << 10 // elements, half of which each device sends to the other, twice
	c, err := sim.New(sim.Config{Devices: 2, Launch: -1,
		HCCS: sim.Line{Bandwidth: 4 * n / float64(chunks) / each.Seconds(), Latency: -1}})
	require.NoError(t, err)
	world := rank.Config{Topology: plan.OneProcess(2), Algorithm: "fabric", Engine: func(host channel.Engine) channel.Engine { return c.Engine(host) }}
	require.NoError(t, world.Run(t.Context(), 2, func(ctx context.Context, w *rank.World) error {
		d, err := c.Open(int(w.Rank()))
		if err != nil {
			return err
		}
		p := &place{t: t, ctx: ctx, w: w, g: w.Group(), d: d}
		p.producer, err = d.NewStream(npu.StreamConfig{Name: "producer"})
		require.NoError(t, err)
		p.consumer, err = d.NewStream(npu.StreamConfig{Name: "consumer"})
		require.NoError(t, err)
		b := p.buffer(n)
		a, err := pipeline.NewAllReduce(pipeline.Config{Group: p.g, Buffer: b, Op: kolo.Sum, Chunks: chunks, Producer: p.producer, Consumer: p.consumer})
		require.NoError(t, err)
		if err := rank.Barrier(ctx, p.g); err != nil {
			return err
		}
		step, err := a.Begin()
		require.NoError(t, err)
		for i := range chunks {
			value := func(i int64) float32 { return float32((i + 1) * int64(1+w.Rank())) }
			require.NoError(t, p.set(b, n, a.Chunk(i), each, value))
			require.NoError(t, step.Ready(i))
		}
		mine, err := step.Wait(ctx)
		if err != nil {
			return err
		}
		if w.Rank() == 0 {
			report = mine
		}
		for i, x := range p.values(b) {
			require.Equal(t, float32(3*(i+1)), x)
		}
		return a.Close()
	}))
	require.NoError(t, c.Close(t.Context()))
	return report
}
