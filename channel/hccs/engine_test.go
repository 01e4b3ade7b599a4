package hccs

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/internal/kernel"

	"github.com/stretchr/testify/require"
)

// patience is how long a test waits for what should take no time.
const patience = 30 * time.Second

func newEngine(t testing.TB, workers int) *Engine {
	e := NewEngine(workers)
	e.small = smallJob // also of a single worker, who is what is tested
	t.Cleanup(func() { within(t, "Close", e.Close) })
	return e
}

// within fails the test if f does not end.
func within(t testing.TB, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	// ended by f
	go func() {
		defer close(done)
		f()
	}()
	await(t, what, done)
}

func await(t testing.TB, what string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("%s does not end", what)
	}
}

// noise makes n bytes of a seed.
func noise(n int, seed uint64) []byte {
	rng := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, n)
	for i := 0; i+8 <= n; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], rng.Uint64())
	}
	for i := n &^ 7; i < n; i++ {
		b[i] = byte(rng.Uint32())
	}
	return b
}

// copyJob is a job that copies n bytes, and its buffers.
type copyJob struct {
	channel.Job
	src, dst []byte
	done     chan struct{}
	turn     channel.Turn
}

func newCopy(n int, seed uint64, priority int) *copyJob {
	j := &copyJob{src: noise(n, seed), dst: make([]byte, n), done: make(chan struct{}, 1)}
	j.AddMove([]kolo.Memory{kolo.HostMemory(j.dst)}, []kolo.Memory{kolo.HostMemory(j.src)})
	j.Priority = priority
	j.Done = func(turn channel.Turn, err error) {
		j.turn = turn
		j.done <- struct{}{}
	}
	return j
}

func (j *copyJob) check(t testing.TB) {
	t.Helper()
	if string(j.dst) != string(j.src) {
		t.Errorf("a copy of %d bytes differs", len(j.src))
	}
}

// With one worker it would be no hand more.
func TestOneWorkerIsNotWoken(t *testing.T) {
	e := NewEngine(1)
	defer e.Close()
	j := newCopy(loneJob/2, 2, 0)
	e.Start(nil, &j.Job)
	if len(j.done) != 1 {
		t.Errorf("a job that touches %d bytes is not done when Start returns", j.Size())
	}
	j.check(t)
}

func TestSmallJobIsDoneInStart(t *testing.T) {
	e := newEngine(t, 1)
	for _, n := range []int{0, 1, 1000, smallJob / 2} {
		j := newCopy(n, 1, 0)
		e.Start(nil, &j.Job)
		require.Len(t, j.done, 1, "%d bytes", n)
		j.check(t)
	}
}

func TestLargeJobIsLeftToOthers(t *testing.T) {
	e := newEngine(t, 2)
	for _, n := range []int{smallJob/2 + 1, slimBlock*3 - 1, slimBlock * 4, 5<<20 + 3} {
		j := newCopy(n, 2, 0)
		e.Start(nil, &j.Job)
		await(t, "a job", j.done)
		require.Nil(t, j.turn)
		j.check(t)
	}
}

// A lone engine goroutine does a job that nobody waits in Lend for, on one
// processor too.
func TestJobRunsOnOneProcessor(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	e := newEngine(t, 1)
	j := newCopy(1<<20, 3, 0)
	e.Start(nil, &j.Job)
	await(t, "a job", j.done)
	j.check(t)
}

// A job is done forwards and backwards by turns: each half on its own, and the blocks that
// are taken together together.
func TestPlacesOfBlocks(t *testing.T) {
	for blocks := 1; blocks < 40; blocks++ {
		for k := 1; k <= blocks; k++ {
			for _, back := range []bool{false, true} {
				seen := make([]bool, blocks)
				half := blocks / 2
				for from, end := 0, half; from < blocks; end = blocks {
					for ; from < end; from += min(k, end-from) {
						n := min(k, end-from)
						at := from
						if back {
							at = mirrored(half, blocks, from, n)
						}
						require.Equal(t, from < half, at+n <= half, "%d blocks from %d of %d", n, from, blocks)
						for b := at; b < at+n; b++ {
							require.False(t, seen[b], "block %d of %d twice", b, blocks)
							seen[b] = true
						}
					}
				}
				require.NotContains(t, seen, false)
			}
		}
	}
}

// What is larger than the caches is written around them: with the same bytes, in place too.
func TestLargeJobsAroundTheCaches(t *testing.T) {
	e := newEngine(t, 2)
	for _, sources := range []int{1, 2} {
		for _, inPlace := range []bool{false, true} {
			const n = aroundFold/3 + 4096 + 64
			j := channel.Job{Op: kernel.OpOf(kolo.Uint8, kolo.Sum, sources)}
			p, want := j.Add(), make([]byte, n)
			for i := range sources {
				raw := noise(n, uint64(i))
				for k, b := range raw {
					want[k] += b
				}
				p.Src = append(p.Src, kolo.HostMemory(raw))
			}
			dst := [][]byte{make([]byte, n+1)[1:], make([]byte, n)}
			if inPlace {
				dst[1] = p.Src[sources-1].Host
			}
			for _, d := range dst {
				p.Dst = append(p.Dst, kolo.HostMemory(d))
			}
			require.NoError(t, run(t, e, &j))
			require.True(t, j.State.Around)
			for i, d := range dst {
				if !bytes.Equal(want, d) {
					t.Errorf("%d sources, in place %v: destination %d differs", sources, inPlace, i)
				}
			}
		}
	}
}

func TestManyParts(t *testing.T) {
	e := newEngine(t, 2)
	rng := rand.New(rand.NewPCG(4, 4))
	for _, parts := range []int{1, 2, 7, 300} {
		var j channel.Job
		var src, dst [][]byte
		for i := range parts {
			n := rng.IntN(20_000)
			switch rng.IntN(4) {
			case 0:
				n = 0
			case 1:
				n = rng.IntN(8)
			}
			if i == 0 {
				n = 200_000
			}
			p := j.Add()
			src, dst = append(src, noise(n, uint64(i))), append(dst, make([]byte, n))
			p.Src, p.Dst = append(p.Src, kolo.HostMemory(src[i])), append(p.Dst, kolo.HostMemory(dst[i]))
		}
		for range 2 { // an empty part at the end
			p := j.Add()
			p.Src, p.Dst = append(p.Src, kolo.HostMemory(nil)), append(p.Dst, kolo.HostMemory(nil))
		}
		done := make(chan struct{})
		j.Done = func(channel.Turn, error) { close(done) }
		e.Start(nil, &j)
		await(t, "a job", done)
		for i := range src {
			if string(src[i]) != string(dst[i]) {
				t.Errorf("part %d of %d, of %d bytes, differs", i, parts, len(src[i]))
			}
		}
	}
}

// floats makes n float32 whose sum depends on the order.
func floats(n int, seed uint64) (list []float32, raw []byte) {
	rng := rand.New(rand.NewPCG(seed, 2))
	for range n {
		f := float32(math.Ldexp(rng.Float64()-0.5, rng.IntN(40)))
		list = append(list, f)
		b := math.Float32bits(f)
		raw = append(raw, byte(b), byte(b>>8), byte(b>>16), byte(b>>24))
	}
	return list, raw
}

// Sources are folded left to right whatever their number, and stored to every
// destination, one of which is a source.
func TestFoldInOrder(t *testing.T) {
	e := newEngine(t, 2)
	for _, k := range []int{1, 2, 3, 8, 9, 40} {
		for _, n := range []int{1, 1000, 50_001} {
			var j channel.Job
			j.Op = kernel.OpOf(kolo.Float32, kolo.Sum, k)
			p := j.Add()
			var lists [][]float32
			for i := range k {
				list, raw := floats(n, uint64(100*k+i))
				lists = append(lists, list)
				p.Src = append(p.Src, kolo.HostMemory(raw))
			}
			p.Dst = append(p.Dst, p.Src[k-1], kolo.HostMemory(make([]byte, 4*n)))
			dst := p.Dst
			done := make(chan struct{})
			j.Done = func(channel.Turn, error) { close(done) }
			e.Start(nil, &j)
			await(t, "a fold", done)
			for i := range n {
				want := lists[0][i]
				for _, l := range lists[1:] {
					want += l[i]
				}
				for d, m := range dst {
					b := m.Host[4*i:]
					got := math.Float32frombits(uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24)
					if math.Float32bits(got) != math.Float32bits(want) {
						t.Fatalf("%d sources, destination %d, element %d of %d: %v, want %v", k, d, i, n, got, want)
					}
				}
			}
		}
	}
}

// busy makes an engine whose only worker is stuck in the Done of a job until free
// is closed.
func busy(t *testing.T) (e *Engine, free chan struct{}) {
	e = newEngine(t, 1)
	free = make(chan struct{})
	j := newCopy(1<<20, 5, 100)
	stuck := make(chan struct{})
	j.Done = func(channel.Turn, error) {
		close(stuck)
		<-free
	}
	e.Start(nil, &j.Job)
	await(t, "the first job", stuck)
	return e, free
}

func TestUrgentJobOvertakesOneThatRuns(t *testing.T) {
	e, free := busy(t)
	var mu sync.Mutex
	var order []string
	var jobs []*copyJob
	start := func(name string, n, priority int) *copyJob {
		j := newCopy(n, uint64(n), priority)
		tell := j.Done
		j.Done = func(turn channel.Turn, err error) {
			mu.Lock()
			order = append(order, name)
			mu.Unlock()
			tell(turn, err)
		}
		e.Start(nil, &j.Job)
		jobs = append(jobs, j)
		return j
	}
	low := start("low", 64*takeBytes, 0)
	e.help(&low.Job) // it runs: some of its blocks are done
	require.Less(t, low.State.Left.Load(), int64(64*takeBytes/slimBlock))
	start("usual", 4*slimBlock, 1)
	start("urgent", 8*takeBytes, 2)
	start("usual too", 4*slimBlock, 1)
	start("least", 4*slimBlock, -1)
	close(free)
	for _, j := range jobs {
		await(t, "a job", j.done)
		j.check(t)
	}
	require.Equal(t, []string{"urgent", "usual", "usual too", "low", "least"}, order)
}

func TestClassesOfCalls(t *testing.T) {
	order := []struct {
		name     string
		priority int
		size     int64
	}{
		{"low, large", -1, 1 << 40},
		{"low, small", -1, smallCall},
		{"usual, large", 0, smallCall + 1},
		{"usual, small", 0, 0},
		{"high, large", 1, 64 << 20},
		{"high, small", 1, 64 << 10},
	}
	for i := 1; i < len(order); i++ {
		a, b := order[i-1], order[i]
		require.Less(t, ClassOf(a.priority, a.size), ClassOf(b.priority, b.size), "%s, %s", a.name, b.name)
	}
	require.Equal(t, Class(classes-1), ClassOf(math.MaxInt, 0))
	require.Equal(t, Class(0), ClassOf(math.MinInt, math.MaxInt64))
}

// Who waits for a small call does no blocks of a large one, which would keep it for
// longer than its own call takes; unless the large one is of a higher priority.
func TestLendLeavesLessUrgentJobs(t *testing.T) {
	e, free := busy(t)
	defer close(free)
	const size = 4 * takeBytes
	j := newCopy(size, 8, 0)
	j.Call = 1 << 30
	e.Start(nil, &j.Job)
	var never atomic.Uint32
	within(t, "Lend for a small call", func() { e.Lend(&never, 0, 64<<10) })
	require.Equal(t, int64(size/slimBlock), j.State.Left.Load())
	within(t, "Lend for a low one", func() { e.Lend(&never, -1, 64<<10) })
	await(t, "the job", j.done)
	j.check(t)
}

func TestHelperGivesWayAfterABlock(t *testing.T) {
	e, free := busy(t)
	defer close(free)
	const blocks = 4 * takeBytes / slimBlock
	j := newCopy(4*takeBytes, 9, 0)
	j.Call = 1 << 30
	e.Start(nil, &j.Job)
	left := func() int64 {
		e.help(&j.Job)
		return j.State.Left.Load()
	}
	small, large := &e.lent[ClassOf(0, 64<<10)], &e.lent[ClassOf(0, 1<<30)]
	small.Store(1)
	require.Equal(t, int64(blocks-1), left())
	require.Equal(t, int64(blocks-2), left())
	small.Store(0)
	large.Store(1)
	require.Less(t, left(), int64(blocks-3), "its equals do not hurry it")
	large.Store(0)
	for left() > 0 {
	}
	await(t, "the job", j.done)
	j.check(t)
}

// A piece of a large call does not overtake a small call, though it is smaller.
func TestJobsOfSmallCallsGoFirst(t *testing.T) {
	e, free := busy(t)
	small, piece := newCopy(smallCall/2, 10, 0), newCopy(4*slimBlock, 11, 0)
	piece.Call = 1 << 30
	e.Start(nil, &piece.Job)
	e.Start(nil, &small.Job)
	require.Same(t, &small.Job, e.pick())
	close(free)
	for _, j := range []*copyJob{small, piece} {
		await(t, "a job", j.done)
		j.check(t)
	}
}

func TestLendHelpsAndReturns(t *testing.T) {
	e, free := busy(t)
	j := newCopy(4<<20, 6, 0)
	var done atomic.Uint32
	var by int // the stack depth says nothing; the worker is stuck, so it is this goroutine
	j.Done = func(channel.Turn, error) {
		by++
		done.Store(1)
	}
	e.Start(nil, &j.Job)
	for done.Load() == 0 {
		e.Lend(&done, 0, 1<<30)
	}
	require.Equal(t, 1, by)
	j.check(t)
	done.Store(0)
	within(t, "Lend with nothing to do", func() { e.Lend(&done, 0, 1<<30) })
	close(free)
}

func TestLendTakesNoMoreThanProcessors(t *testing.T) {
	e := newEngine(t, 1)
	var never atomic.Uint32
	e.lent[ClassOf(0, 1<<30)].Store(int32(e.procs))
	within(t, "one Lend too many", func() { e.Lend(&never, 0, 1<<30) })
	require.Equal(t, int32(e.procs), e.lent[ClassOf(0, 1<<30)].Load())
	e.lent[ClassOf(0, 1<<30)].Store(0)
}

// A goroutine that is on its way out of Lend counts as a helper and is none.
func TestJobStartedWhileLendersLeave(t *testing.T) {
	e := newEngine(t, 1)
	var over atomic.Bool
	var lenders sync.WaitGroup
	defer lenders.Wait()
	defer over.Store(true)
	for range 2 * e.procs {
		// ended by over
		lenders.Go(func() {
			var done atomic.Uint32
			done.Store(1)
			for !over.Load() {
				e.Lend(&done, 0, 1<<30)
				runtime.Gosched()
			}
		})
	}
	j := newCopy(smallJob, 7, 0)
	for range 1000 {
		e.Start(nil, &j.Job)
		await(t, "a job", j.done)
	}
}

func TestCloseWaitsForJobs(t *testing.T) {
	for range 20 {
		e := NewEngine(2)
		var jobs []*copyJob
		for i := range 8 {
			j := newCopy(300_000, uint64(i), i%3)
			e.Start(nil, &j.Job)
			jobs = append(jobs, j)
		}
		within(t, "Close", e.Close)
		for _, j := range jobs {
			require.Len(t, j.done, 1)
			j.check(t)
		}
		within(t, "Close", e.Close)
	}
}

// Jobs of all sizes are started again from their own Done, while others help: a
// helper that was about to take a block of the last run must do no harm to the next.
func TestRecycledJobs(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8))
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	e := newEngine(t, 4)
	var wg sync.WaitGroup
	var over atomic.Uint32
	for range 4 {
		// ended by over
		wg.Go(func() {
			for over.Load() == 0 {
				e.Lend(&over, 0, 1<<30)
			}
		})
	}
	var starters sync.WaitGroup
	for g := range uint64(4) {
		// ended by its count
		starters.Go(func() { recycle(t, e, rand.New(rand.NewPCG(seed, g)), 200) })
	}
	within(t, "the jobs", starters.Wait)
	over.Store(1)
	wg.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	require.Empty(t, e.jobs, "a job that has ended is still listed")
}

// recycle starts one job again and again with other parts.
func recycle(t *testing.T, e *Engine, rng *rand.Rand, rounds int) {
	src, dst := noise(1<<20, rng.Uint64()), make([]byte, 1<<20)
	done := make(chan struct{}, 2)
	j := &channel.Job{Done: func(channel.Turn, error) { done <- struct{}{} }}
	for range rounds {
		j.Reset()
		j.Priority, j.Awaited = rng.IntN(3), rng.IntN(2) == 0
		off, n := rng.IntN(1000), 1+rng.IntN(300_000)
		if rng.IntN(2) == 0 {
			n = smallJob/2 + 1 + rng.IntN(slimBlock) // few blocks
		}
		for at := 0; at < n; {
			p := j.Add()
			k := min(n-at, 1+rng.IntN(n))
			p.Src = append(p.Src, kolo.HostMemory(src[off+at:off+at+k]))
			p.Dst = append(p.Dst, kolo.HostMemory(dst[at:at+k]))
			at += k
		}
		clear(dst[:n])
		e.Start(nil, j)
		<-done
		if string(dst[:n]) != string(src[off:off+n]) {
			t.Errorf("a copy of %d bytes in %d parts differs", n, len(j.Parts))
		}
		if len(done) > 0 {
			t.Errorf("a job has ended twice")
		}
	}
}

// A helper that found the last run of a job takes blocks of the next as soon as they
// are open, and may end it: it must be listed by then, or it would be listed for ever.
func TestNoBlockIsOpenBeforeTheJobIsListed(t *testing.T) {
	e, free := busy(t)
	j := newCopy(smallJob, 8, 0)
	e.mu.Lock()
	begun, started := make(chan struct{}), make(chan struct{})
	// ended by the unlock below
	go func() {
		close(begun)
		e.Start(nil, &j.Job)
		close(started)
	}()
	<-begun
	for i := 0; i < 10_000; i++ {
		if j.State.Side[0].Open() || j.State.Side[1].Open() {
			t.Error("a block may be taken of a job that is not listed")
			break
		}
		runtime.Gosched()
	}
	e.mu.Unlock()
	await(t, "Start", started)
	close(free)
	await(t, "a job", j.done)
}

func BenchmarkEngine(b *testing.B) {
	for _, n := range []int{4 << 10, 64 << 10, 1 << 20, 16 << 20} {
		for _, k := range []int{1, 2, 8} {
			name := fmt.Sprintf("copy/bytes=%d", n)
			if k > 1 {
				name = fmt.Sprintf("fold/sources=%d/bytes=%d", k, n)
			}
			b.Run(name, func(b *testing.B) { benchmarkJob(b, k, n) })
		}
	}
}

// benchmarkJob folds k sources of n bytes; the goroutine that started the job helps.
func benchmarkJob(b *testing.B, k, n int) {
	e := newEngine(b, 0)
	var done atomic.Uint32
	ended := make(chan struct{}, 1)
	j := channel.Job{Op: kernel.OpOf(kolo.Float32, kolo.Sum, k), Done: func(channel.Turn, error) {
		done.Store(1)
		ended <- struct{}{}
	}}
	p := j.Add()
	for i := range k {
		_, raw := floats(n/4, uint64(i))
		p.Src = append(p.Src, kolo.HostMemory(raw))
	}
	p.Dst = append(p.Dst, kolo.HostMemory(make([]byte, n)))
	b.SetBytes(int64(n * k))
	b.ReportAllocs()
	for b.Loop() {
		done.Store(0)
		e.Start(nil, &j)
		e.Lend(&done, 0, 1<<30)
		<-ended
	}
}

// A kernel that panics, on a worker or on the goroutine that starts the job, is the
// error of that job; the engine goes on.
func TestEnginePanicIsTheErrorOfTheJob(t *testing.T) {
	e := newEngine(t, 2)
	for _, n := range []int{100, 4 << 20} {
		for _, short := range []int{1, 40 << 10, n / 2, n - 1} {
			if short >= n {
				continue
			}
			for _, awaited := range []bool{false, true} {
				j := channel.Job{Awaited: awaited}
				p := j.Add()
				p.Src = append(p.Src, kolo.HostMemory(noise(n, 1)), kolo.HostMemory(noise(short, 2)))
				p.Dst = append(p.Dst, kolo.HostMemory(make([]byte, n)))
				j.Op = kernel.OpOf(kolo.Float32, kolo.Sum, 2)
				require.ErrorIs(t, run(t, e, &j), kolo.ErrPanic)

				p.Src[1] = kolo.HostMemory(noise(n, 2))
				require.NoError(t, run(t, e, &j))
			}
		}
	}
}

// Awaited jobs that come one after the other get a worker that looks for them. It parks
// when no more come.
func TestWorkerLingersWhileAwaitedJobsCome(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	e := newEngine(t, 2)
	j := newCopy(channel.MaxAwaited/4, 9, 0)
	j.Awaited = true
	end := time.Now().Add(patience)
	for jobs := 0; jobs < 100 || e.lingers.Load() == 0; jobs++ {
		clear(j.dst)
		e.Start(nil, &j.Job)
		await(t, "an awaited job", j.done)
		if j.check(t); t.Failed() || time.Now().After(end) {
			t.Fatalf("after %d jobs %d workers linger", jobs, e.lingers.Load())
		}
	}
	for e.lingers.Load() > 0 {
		if runtime.Gosched(); time.Now().After(end) {
			t.Fatal("a worker lingers though no job comes")
		}
	}
}

// An awaited job is done by who starts it where nobody else can.
func TestAwaitedJobOnOneProcessor(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	e := newEngine(t, 1)
	j := newCopy(1<<20, 10, 0)
	j.Awaited = true
	for range 100 {
		clear(j.dst)
		e.Start(nil, &j.Job)
		require.Len(t, j.done, 1)
		<-j.done
		j.check(t)
	}
}

// run does a job and gives its error.
func run(t testing.TB, e *Engine, j *channel.Job) (err error) {
	t.Helper()
	done := make(chan struct{})
	j.Done = func(_ channel.Turn, e error) {
		err = e
		close(done)
	}
	e.Start(nil, j)
	await(t, "the job", done)
	return err
}
