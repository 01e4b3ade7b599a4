package rank

import (
	"context"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/actor"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/channel/hccs"
	"github.com/kolo-ccl/kolo/internal/kernel"
	"github.com/kolo-ccl/kolo/plan"
)

// What a probe measures with. It takes one to two milliseconds, so that a world may
// do it at its first choice.
const (
	probeBytes = 1 << 20 // a buffer: larger than a core's own caches
	probeTimes = 5       // repetitions; the median counts
	probeHops  = 500     // messages between two actors

	// How many times an actor message things take, fitted to measured calls of 8 B on
	// two cores (fabric, one-shot mesh and ring by 2 and 8 ranks): a call of the medium
	// and a rank in it; setting a Program going, and a step of it.
	hopsPerCall  = 1
	hopsPerRank  = 2
	hopsPerStart = 18
	hopsPerStep  = 7
)

// Probe measures what collectives of one process cost here: how fast memory is
// moved and folded, and what an actor message takes. A World without Config.Topology
// takes its figures from it, at its first choice of an algorithm. For a declared
// topology: t.With(rank.Probe()). Where a clock stands still, as in a synctest
// bubble, figures stay zero, which means the defaults.
func Probe() plan.Probe {
	var p plan.Probe
	p.Medium = true
	p.Process.Cores = runtime.GOMAXPROCS(0)
	engine := hccs.NewEngine(0)
	defer engine.Close()
	a, b, c := make([]byte, probeBytes), make([]byte, probeBytes), make([]byte, probeBytes)
	copied := medianOf(probeTimes, func() { onEngine(engine, kernel.Op{}, b, a) })
	sum := kernel.Op{DType: kolo.Float32, Kind: kolo.OpSum}
	folded := medianOf(probeTimes, func() { sum.Fold(c, a, b) })
	alone := medianOf(probeTimes, func() { copy(b, a) })
	if copied > 0 && folded > 0 && alone > 0 {
		p.Process.Memory = 2 * probeBytes / copied.Seconds()
		p.Reduce = probeBytes / folded.Seconds()
		p.Levels[0].Bandwidth = probeBytes / alone.Seconds()
	}
	if hop := probeHop(); hop > 0 && p.Levels[0].Bandwidth > 0 {
		p.Levels[0].Link = kolo.LinkHCCS
		p.Levels[0].Latency = hopsPerStep * hop
		p.Process.Rank = hopsPerRank * hop
		p.Process.Call = hopsPerCall * hop
		p.Process.Start = hopsPerStart * hop
	} else {
		p.Levels[0] = kolo.Edge{}
	}
	return p
}

// onEngine copies src to dst with all the hands that the engine has.
func onEngine(e channel.Engine, op kernel.Op, dst, src []byte) {
	var done atomic.Uint32
	ended := make(chan struct{})
	j := &channel.Job{Op: op, Done: func(channel.Turn, error) { done.Store(1); close(ended) }}
	j.AddMove([]kolo.Memory{kolo.HostMemory(dst)}, []kolo.Memory{kolo.HostMemory(src)})
	e.Start(nil, j)
	e.Lend(&done, j.Priority, j.Size())
	<-ended
}

// medianOf is the median time of n calls of f, after one that does not count.
func medianOf(n int, f func()) time.Duration {
	f()
	var times []time.Duration
	for range n {
		start := time.Now()
		f()
		times = append(times, time.Since(start))
	}
	slices.Sort(times)
	return times[n/2]
}

// echo is an actor that sends a message on to the next until its count is 0.
type echo struct {
	next actor.Ref[*echoes]
}

type echoes struct{ left int }

func (e *echo) Handle(m *echoes) error {
	if m.left--; m.left > 0 {
		return e.next.Tell(m)
	}
	return nil
}

// probeHop is the time of one message between actors of two shards; 0 if that
// could not be measured.
func probeHop() time.Duration {
	s := actor.NewSystem(actor.Config{})
	defer func() { _ = s.Close(context.Background()) }() // nothing runs any more, so it cannot fail
	var shards [2]*actor.Shard
	var actors [2]echo
	var refs [2]actor.Ref[*echoes]
	for i := range actors {
		shards[i] = s.NewShard("probe")
		r, err := actor.Spawn(shards[i], actor.Props{Name: "probe"}, &actors[i])
		if err != nil {
			return 0
		}
		refs[i] = r
	}
	for i := range actors {
		actors[i].next = refs[1-i].From(shards[i])
	}
	return medianOf(probeTimes, func() { _ = refs[0].Tell(&echoes{left: probeHops}) }) / probeHops // the actors live: Tell cannot fail
}
