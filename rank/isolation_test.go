package rank

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"

	"github.com/stretchr/testify/require"
)

const (
	isolatedLarge  = 64 << 20
	isolatedRounds = 3
	isolatedTurns  = 30 // large calls without small ones, each round
)

// BenchmarkIsolation is the latency of a tensor-parallel AllReduce by two ranks while
// data-parallel ones of 64 MiB run in the same process all the time, beside the
// same without them, in turns: what priorities and blocks are for. It varies the ranks
// (two that are a group of each kind, or four in two groups of each), the size and the
// priority of the small calls, how long a rank waits for a timer between them, as it does
// for a device, and the algorithm of the large ones. The large calls' rate is that of
// one group, alone and beside small calls. Where the time goes is logged.
func BenchmarkIsolation(b *testing.B) {
	const pause = 100 * time.Microsecond
	for _, s := range []isolated{
		{n: 2, bytes: 64 << 10},
		{n: 2, bytes: 64 << 10, priority: 1},
		{n: 2, bytes: 64 << 10, priority: 1, pause: pause},
		{n: 2, bytes: 64 << 10, priority: 1, large: "ring"},
		{n: 2, bytes: 1 << 10, priority: 1},
		{n: 4, bytes: 64 << 10},
		{n: 4, bytes: 64 << 10, priority: 1},
		{n: 4, bytes: 64 << 10, priority: 1, pause: pause},
		{n: 4, bytes: 1 << 10, priority: 1},
	} {
		if s.large == "" {
			s.large = fabricName
		}
		b.Run(fmt.Sprintf("n=%d/bytes=%d/priority=%d/pause=%v/large=%s", s.n, s.bytes, s.priority, s.pause, s.large), func(b *testing.B) {
			b.ReportMetric(0, "ns/op")
			s.measure(b)
		})
	}
}

// isolated is one such measurement.
type isolated struct {
	n, bytes, priority int
	pause              time.Duration
	large              string

	calls int // of a round
	began time.Time
	of    *isolatedEngine
	made  [2][]smallCall // by ranks 0 and 1
	idle  smallTimes
	busy  smallTimes
	alone []time.Duration // large calls of rank 0
	along []time.Duration
}

// smallCall is when a rank was to make a call, made it and returned, and smallJob when
// the engine had a call's data and when it had done it.
type (
	smallCall struct{ due, start, end time.Duration }
	smallJob  struct{ start, end time.Duration }
)

// smallTimes are the durations of calls and of their parts.
type smallTimes struct {
	call  []time.Duration // from a rank's call to its return
	wake  []time.Duration // until a rank whose timer is due runs
	apart []time.Duration // from the first rank's call to the last one's
	hub   []time.Duration // from there to the engine
	job   []time.Duration // until it is done
	back  []time.Duration // until the last rank has returned
}

func (s *isolated) now() time.Duration { return time.Since(s.began) }

// isolatedEngine notes when the jobs of the group of ranks 0 and 1 begin and end.
type isolatedEngine struct {
	channel.Engine
	s    *isolated
	mark atomic.Pointer[byte] // where rank 0's buffer is
	done func(t channel.Turn, err error)
	jobs []smallJob
	at   int
}

func (e *isolatedEngine) Start(t channel.Turn, j *channel.Job) {
	if j.Size() == 4*int64(e.s.bytes) && &j.Parts[0].Src[0].Host[0] == e.mark.Load() {
		if e.done == nil {
			e.done = j.Done
			j.Done = e.ended
		}
		if e.at < len(e.jobs) {
			e.jobs[e.at].start = e.s.now()
		}
	}
	e.Engine.Start(t, j)
}

func (e *isolatedEngine) ended(t channel.Turn, err error) {
	if e.at < len(e.jobs) {
		e.jobs[e.at].end = e.s.now()
	}
	e.at++
	e.done(t, err)
}

func (s *isolated) measure(b *testing.B) {
	s.began, s.calls = time.Now(), 12000
	if s.bytes < 16<<10 {
		s.calls = 40000
	}
	if s.pause > 0 {
		s.calls = 1000
	}
	for i := range s.made {
		s.made[i] = make([]smallCall, s.calls)
	}
	s.of = &isolatedEngine{s: s, jobs: make([]smallJob, s.calls)}
	cfg := Config{Engine: func(e channel.Engine) channel.Engine {
		s.of.Engine = e
		return s.of
	}}
	require.NoError(b, cfg.Run(b.Context(), s.n, s.rank))
	require.Greater(b, len(s.along), 3, "the large calls must have run beside the small ones")
	for _, q := range []int{50, 99} {
		idle, busy := quantile(s.idle.call, q), quantile(s.busy.call, q)
		b.ReportMetric(micros(idle), fmt.Sprintf("p%d-idle-us", q))
		b.ReportMetric(micros(busy), fmt.Sprintf("p%d-busy-us", q))
		b.ReportMetric(micros(busy)/micros(idle), fmt.Sprintf("p%d-busy/idle", q))
	}
	idle, busy := mean(s.idle.call), mean(s.busy.call)
	b.ReportMetric(micros(idle), "mean-idle-us")
	b.ReportMetric(micros(busy), "mean-busy-us")
	b.ReportMetric(micros(busy)/micros(idle), "mean-busy/idle")
	b.ReportMetric(isolatedLarge/1e3/micros(mean(s.alone)), "large-alone-GB/s")
	b.ReportMetric(isolatedLarge/1e3/micros(mean(s.along)), "large-beside-GB/s")
	text := "microseconds     idle mean     p50     p90     p99   busy mean     p50     p90     p99\n" // a log has ten lines
	for i, part := range []string{"call", "wake", "apart", "to engine", "job", "back"} {
		text += fmt.Sprintf("%-12s%s%s\n", part, s.idle.columns(i), s.busy.columns(i))
	}
	b.Log(text)
}

// columns are the mean and quantiles of part i.
func (s *smallTimes) columns(i int) string {
	l := [][]time.Duration{s.call, s.wake, s.apart, s.hub, s.job, s.back}[i]
	return fmt.Sprintf("%14.1f%8.1f%8.1f%8.1f", micros(mean(l)), micros(quantile(l, 50)), micros(quantile(l, 90)), micros(quantile(l, 99)))
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

func quantile(l []time.Duration, percent int) time.Duration {
	slices.Sort(l)
	return l[(len(l)-1)*percent/100]
}

func mean(l []time.Duration) time.Duration {
	var sum time.Duration
	for _, d := range l {
		sum += d
	}
	return sum / time.Duration(len(l))
}

// rank is what one rank does: rounds of small calls, large ones, and both.
func (s *isolated) rank(ctx context.Context, w *World) error {
	pair, twin := w.Rank()/2*2, w.Rank()%2
	of := GroupConfig{Name: "dp", Ranks: []kolo.Rank{twin, twin + 2}, Algorithm: s.large}
	if s.n == 2 {
		of.Ranks = []kolo.Rank{0, 1}
	}
	tp, err := w.NewGroup(GroupConfig{Name: "tp", Ranks: []kolo.Rank{pair, pair + 1}, Priority: s.priority})
	if err != nil {
		return err
	}
	dp, err := w.NewGroup(of)
	if err != nil {
		return err
	}
	small, large := make([]float32, s.bytes/4), make([]float32, isolatedLarge/4)
	if err := s.smallCalls(ctx, w, tp, small, nil); err != nil {
		return err
	}
	if _, err := s.largeCalls(ctx, dp, large, 3, nil); err != nil { // its pages are there
		return err
	}
	if w.Rank() == 0 {
		s.of.mark.Store(&bytesOf(small)[0])
	}
	for range isolatedRounds {
		if err := Barrier(ctx, w.Group()); err != nil {
			return err
		}
		if err := s.smallCalls(ctx, w, tp, small, &s.idle); err != nil {
			return err
		}
		times, err := s.largeCalls(ctx, dp, large, isolatedTurns, nil)
		if err != nil {
			return err
		}
		if w.Rank() == 0 {
			s.alone = append(s.alone, times...)
		}
		if err := s.both(ctx, w, tp, dp, small, large); err != nil {
			return err
		}
	}
	return nil
}

// both makes small calls while large ones run.
func (s *isolated) both(ctx context.Context, w *World, tp, dp *Group, small, large []float32) error {
	var stop atomic.Bool
	ended := make(chan error, 1)
	// ended by stop
	go func() {
		times, err := s.largeCalls(ctx, dp, large, 1<<30, &stop)
		if w.Rank() == 0 && err == nil {
			s.along = append(s.along, times[:len(times)-1]...) // the last ran alone
		}
		ended <- err
	}()
	err := s.smallCalls(ctx, w, tp, small, &s.busy)
	stop.Store(true)
	if e := <-ended; err == nil {
		err = e
	}
	return err
}

// smallCalls makes the small calls, and notes in to what they took.
func (s *isolated) smallCalls(ctx context.Context, w *World, g *Group, buf []float32, to *smallTimes) error {
	made := make([]smallCall, s.calls)
	if w.Rank() < 2 {
		made = s.made[w.Rank()]
	}
	if err := Barrier(ctx, w.Group()); err != nil {
		return err
	}
	if w.Rank() == 0 {
		s.of.at = 0
	}
	if err := Barrier(ctx, w.Group()); err != nil {
		return err
	}
	timer := time.NewTimer(s.pause)
	defer timer.Stop()
	due := s.now() + s.pause
	for i := range made {
		if s.pause > 0 {
			<-timer.C
		}
		start := s.now()
		if err := AllReduce(ctx, g, buf, kolo.Sum); err != nil {
			return err
		}
		end := s.now()
		made[i] = smallCall{due, start, end}
		timer.Reset(s.pause)
		due = end + s.pause
	}
	if err := Barrier(ctx, w.Group()); err != nil {
		return err
	}
	if w.Rank() != 0 || to == nil {
		return nil
	}
	for i, a := range made {
		b, j := s.made[1][i], s.of.jobs[i]
		last := max(a.start, b.start)
		to.call = append(to.call, a.end-a.start, b.end-b.start)
		to.wake = append(to.wake, a.start-a.due, b.start-b.due)
		to.apart = append(to.apart, last-min(a.start, b.start))
		to.hub = append(to.hub, j.start-last)
		to.job = append(to.job, j.end-j.start)
		to.back = append(to.back, max(a.end, b.end)-j.end)
	}
	return nil
}

// largeCalls makes so many large calls, or until every member has seen stop: the flag
// travels in the data, so that all make the same number of calls.
func (s *isolated) largeCalls(ctx context.Context, g *Group, buf []float32, turns int, stop *atomic.Bool) ([]time.Duration, error) {
	var times []time.Duration
	for range turns {
		buf[0] = 0
		if stop != nil && stop.Load() {
			buf[0] = 1
		}
		start := time.Now()
		if err := AllReduce(ctx, g, buf, kolo.Sum); err != nil {
			return nil, err
		}
		times = append(times, time.Since(start))
		if buf[0] > 0 {
			break
		}
	}
	return times, nil
}
