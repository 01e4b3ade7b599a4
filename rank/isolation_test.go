package rank

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"

	"github.com/stretchr/testify/require"
)

// BenchmarkIsolation is the latency of a tensor-parallel AllReduce of 64 KiB by
// two ranks while data-parallel ones of 64 MiB run in the same process all the time,
// beside the same without them: what priorities and blocks are for.
func BenchmarkIsolation(b *testing.B) {
	for _, priority := range []int{0, 1} {
		b.Run(fmt.Sprintf("n=4/bytes=65536/priority=%d", priority), func(b *testing.B) {
			idle := tensorLatency(b, priority, false)
			busy := tensorLatency(b, priority, true)
			for i, name := range []string{"median", "mean", "p99"} {
				b.ReportMetric(float64(idle[i].Nanoseconds()), "idle-"+name+"-ns/op")
				b.ReportMetric(float64(busy[i].Nanoseconds()), "busy-"+name+"-ns/op")
				b.ReportMetric(float64(busy[i])/float64(idle[i]), "busy/idle-"+name)
			}
		})
	}
}

// tensorLatency is the median, mean and 99th percentile of the small AllReduce.
func tensorLatency(b *testing.B, priority int, busy bool) (latency [3]time.Duration) {
	const bytes, large, calls = 64 << 10, 64 << 20, 5000 // long enough for many of the large ones
	var stop atomic.Bool
	var turns atomic.Int64
	err := Run(b.Context(), 4, func(ctx context.Context, w *World) error {
		pair, twin := kolo.Rank(int(w.Rank())/2*2), kolo.Rank(int(w.Rank())%2)
		tp, err := w.NewGroup(GroupConfig{Name: "tp", Ranks: []kolo.Rank{pair, pair + 1}, Priority: priority})
		if err != nil {
			return err
		}
		dp, err := w.NewGroup(GroupConfig{Name: "dp", Ranks: []kolo.Rank{twin, twin + 2}})
		if err != nil {
			return err
		}
		buf := make([]float32, large/4)
		if err := AllReduce(ctx, dp, buf, kolo.Sum); err != nil { // its pages are there
			return err
		}
		ended := make(chan error, 1)
		go func() { ended <- dataParallel(ctx, dp, buf, busy, &stop, &turns) }()
		times, err := tensorParallel(ctx, tp, make([]float32, bytes/4), calls)
		if w.Rank() == 0 && err == nil {
			var sum time.Duration
			for _, d := range times {
				sum += d
			}
			latency = [3]time.Duration{times[calls/2], sum / calls, times[calls*99/100]}
		}
		if err == nil {
			err = Barrier(ctx, w.Group())
		}
		stop.Store(true)
		if e := <-ended; err == nil {
			err = e
		}
		return err
	})
	require.NoError(b, err)
	if busy {
		require.Greater(b, turns.Load(), int64(4), "the large calls must have run beside the small ones")
	}
	return latency
}

func tensorParallel(ctx context.Context, g *Group, buf []float32, calls int) ([]time.Duration, error) {
	var times []time.Duration
	for range calls {
		start := time.Now()
		if err := AllReduce(ctx, g, buf, kolo.Sum); err != nil {
			return nil, err
		}
		times = append(times, time.Since(start))
	}
	slices.Sort(times)
	return times, nil
}

// dataParallel reduces again and again until every member has seen stop: the flag
// travels in the data, so that all make the same number of calls.
func dataParallel(ctx context.Context, g *Group, buf []float32, busy bool, stop *atomic.Bool, turns *atomic.Int64) error {
	for busy {
		buf[0] = 0
		if stop.Load() {
			buf[0] = 1
		}
		if err := AllReduce(ctx, g, buf, kolo.Sum); err != nil {
			return err
		}
		turns.Add(1)
		busy = buf[0] == 0
	}
	return nil
}
