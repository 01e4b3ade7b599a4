package hccs

import (
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/internal/cpu"
)

// How a job is done. The figures were measured on two cores; see BenchmarkEngine.
const (
	smallJob   = 96 << 10 // bytes touched up to which a job is done at once
	loneJob    = 4 << 20  // the same where there is one worker, which would be no hand more; larger ones give way to urgent ones
	wideBlock  = 16 << 10 // bytes of a block, of each operand, where there are more than fewWide
	slimBlock  = 32 << 10 // and where there are not
	fewWide    = 4
	leastBlock = 8 << 10   // in a job of no more than channel.MaxAwaited bytes, which is cut into
	fewBlocks  = 8         // so many blocks if they are not smaller
	leastTaken = 256 << 10 // bytes touched by who has a share of it before more is taken
	takeBytes  = 1 << 20   // bytes touched by a helper before it looks for a more urgent job
	takeLess   = 512 << 10 // and where the job is larger than largeJob, as those are that no cache holds: at once
	largeJob   = 32 << 20
	aroundCopy = 64 << 20 // bytes touched by a job of copies that writes around the caches, which keep little of so much
	aroundFold = 96 << 20 // and by one that folds, which writes less of them
	lendSpins  = 10000    // looks of a lender that finds nothing to do: longer than a slice of another takes, and less than to be woken
	yieldEvery = 16       // looks between two yields

	// For awaited jobs.
	latePeer    = 4000       // looks, some 2 us, at the end of the own part before blocks of the other's are taken
	staySpins   = 20000      // looks, some 10 us, of the starter for the end of what a helper does
	lingerLooks = 50000      // looks, some 25 to 50 us, of a worker for the next job before it yields
	nextLooks   = 8000       // and where it has found but one since it yielded: a rank may have come to stand behind it
	slotLooks   = 1000       // and where it has found none: it may be on the ranks' processor
	lingerAll   = 16 * 50000 // looks before it parks
	slots       = 1000       // yields before it does where it has found none
	fewMissed   = 3          // jobs that may be started while it finds none, as they wait for that processor
	leastAlone  = 16         // jobs for which no worker is woken after more were;
	mostAlone   = 1 << 9     // each time twice as many, up to this
)

// Engine is the software DMA engine of a process: host memory, host kernels. Small
// jobs are done on the goroutine that starts them; large ones are cut into blocks
// that the workers and the lent goroutines take. Awaited ones in between are shared by the
// goroutine that starts them and workers that look for them: two to four accesses to
// one word are all that they pass between processors.
type Engine struct {
	urgency
	procs   int
	small   int64 // bytes touched by a job that is done at once
	mu      sync.Mutex
	cond    *sync.Cond
	jobs    []*channel.Job // started and not finished, most urgent first
	closing bool
	workers sync.WaitGroup
	open    atomic.Int32                // jobs started and not finished
	top     atomic.Pointer[channel.Job] // the most urgent of them
	shared  atomic.Pointer[channel.Job] // the awaited job that was started last
	_       [cacheLine]byte
	awaited atomic.Uint32 // counts the awaited jobs that were started
	alone   atomic.Uint32 // of these, the one up to which no worker is woken
	lingers atomic.Int32  // workers in linger
	_       [cacheLine]byte
}

// Busy says whether a job that was started is left to workers and lent goroutines.
func (e *Engine) Busy() bool { return e.open.Load() > 0 }

// Yields says whether there are such jobs and all are less urgent than class c.
func (e *Engine) Yields(c Class) bool {
	j := e.top.Load()
	return j != nil && Class(j.State.Class.Load()) < c
}

// cacheLine is what processors move at a time, in pairs of lines.
const cacheLine = 128

// NewEngine makes an engine with workers goroutines, which are parked while there
// is no large job; 0 means one per processor (GOMAXPROCS). With one, whoever starts a job
// does it, unless it is very large. Close it.
func NewEngine(workers int) *Engine {
	e := &Engine{procs: runtime.GOMAXPROCS(0), small: smallJob}
	e.cond = sync.NewCond(&e.mu)
	if workers <= 0 {
		workers = e.procs
	}
	if workers == 1 {
		e.small = loneJob
	}
	for range workers {
		// ended by Close
		e.workers.Go(e.work)
	}
	return e
}

// Reaches is true for host memory only.
func (e *Engine) Reaches(s kolo.Space) bool { return s == kolo.HostSpace }

// Close waits for the jobs that were started and ends the workers. No job may be
// started afterwards. It may be called again.
func (e *Engine) Close() {
	e.mu.Lock()
	e.closing = true
	e.mu.Unlock()
	e.cond.Broadcast()
	e.workers.Wait()
}

// Start does a small job at once and lays a large one open for the workers.
func (e *Engine) Start(t channel.Turn, j *channel.Job) {
	size := j.State.Sized
	if !j.State.Cut {
		size = j.Size()
	}
	if size <= e.small {
		j.Done(t, runAll(j))
		return
	}
	if j.State.Err.Load() != nil {
		j.State.Err.Store(nil)
	}
	blocks := cut(j, size)
	if j.Awaited && size <= channel.MaxAwaited && blocks <= channel.MaxShares {
		e.stay(t, j, blocks)
		return
	}
	j.State.Back = !j.State.Back
	j.State.Left.Store(int64(blocks))
	c := ClassOf(j.Priority, max(size, j.Call))
	j.State.Class.Store(int32(c))
	e.mu.Lock()
	e.list(j, blocks)
	j.State.Side[0].Set(0, blocks/2) // from here on a helper of the job's last run may end this one
	j.State.Side[1].Set(blocks/2, blocks)
	e.mu.Unlock()
	e.wake(c)
}

// stay does a job with whoever joins, until all is done or a helper takes long for its
// last blocks: then that one ends the job. Each core begins at its own end, where the other
// core's caches hold nothing: to bring 16 KiB from there takes longer than the rest of a call.
// For the same reason none takes what is left of the other's part before that one is late.
func (e *Engine) stay(t channel.Turn, j *channel.Job, blocks int) {
	share, least := &j.State.Shares, int(j.State.Least.Load())
	upper := cpu.CPU()&1 == 1
	r := share.Lay(blocks, least, upper)
	if e.shared.Load() != j {
		e.shared.Store(j)
	}
	if n := e.awaited.Add(1); e.lingers.Load() == 0 && !e.Busy() && int32(n-e.alone.Load()) > 0 && e.procs > 1 {
		e.cond.Signal()
	}
	for r.N > 0 {
		runBlocks(j, r)
		r, _ = share.Take(r.N, least, upper)
	}
	for i := 0; i < staySpins; i++ {
		if share.Left() == 1 { // nobody else looks at the job any more
			j.Done(t, failed(j))
			return
		}
		if share.Open() && (i >= latePeer || share.Alone(blocks, upper)) {
			for r = share.Steal(least, upper); r.N > 0; i = 0 {
				runBlocks(j, r)
				r, _ = share.Take(r.N, least, upper)
			}
		}
	}
	if _, left := share.Take(1, 1, upper); left == 0 {
		j.Done(t, failed(j))
	}
}

// join does blocks of a job that its starter is at.
func (e *Engine) join(j *channel.Job) {
	upper := cpu.CPU()&1 == 1
	share, least := &j.State.Shares, int(j.State.Least.Load())
	for i := 0; share.Open(); i++ {
		r, left := share.Take(0, least, upper)
		if r.N == 0 && i >= latePeer {
			r = share.Steal(least, upper)
		}
		if r.N == 0 {
			continue
		}
		for i = 0; r.N > 0; {
			runBlocks(j, r)
			r, left = share.Take(r.N, least, upper)
		}
		if left == 0 {
			j.Done(nil, failed(j))
			return
		}
	}
}

// runBlocks does blocks of a job that were taken from one part. A panic in one is the job's error.
func runBlocks(j *channel.Job, r channel.Range) {
	defer catch(j)
	upper := r.From >= r.Middle
	for least := int(j.State.Least.Load()); r.N > 0; {
		k := min(r.N, least)
		r.N -= k
		b := r.From
		if upper {
			b += r.N
		} else {
			r.From += k
		}
		if r.Back {
			b = mirrored(r.Middle, j.State.Blocks, b, k)
		}
		for end := b + k; b < end; {
			b += runBlock(j, b, end)
		}
	}
}

// mirrored is where k blocks from b on lie, if what is before and what is behind middle is each
// mirrored.
func mirrored(middle, blocks, b, k int) int {
	if b < middle {
		return middle - b - k
	}
	return middle + blocks - b - k
}

// catch makes a panic the job's error.
func catch(j *channel.Job) {
	if v := recover(); v != nil {
		err := channel.Panicked("engine, in a job", v)
		j.State.Err.CompareAndSwap(nil, &err)
	}
}

// failed is the error of a job that is done.
func failed(j *channel.Job) error {
	if first := j.State.Err.Load(); first != nil {
		return *first
	}
	return nil
}

// list puts a job among the others, by urgency; e.mu is held.
func (e *Engine) list(j *channel.Job, blocks int) {
	at := len(e.jobs)
	for at > 0 && before(j, blocks, e.jobs[at-1]) {
		at--
	}
	e.jobs = append(e.jobs, nil)
	copy(e.jobs[at+1:], e.jobs[at:])
	e.jobs[at] = j
	e.listed()
}

// before says whether j, of so many blocks, goes before a job that is listed: by
// priority, then those of small calls, and among equals the one with less to do.
func before(j *channel.Job, blocks int, listed *channel.Job) bool {
	if j.Priority != listed.Priority {
		return j.Priority > listed.Priority
	}
	if c, other := j.State.Class.Load(), listed.State.Class.Load(); c != other {
		return c > other
	}
	return int64(blocks) < listed.State.Left.Load()
}

// wake wakes a worker for jobs of class c, unless the lent goroutines, or workers that
// linger, keep the processors busy: whoever starts a job and waits for it is one hand
// more. One of them at least must be here, to wake a worker when it leaves.
func (e *Engine) wake(c Class) {
	if n := e.hands(c) + int(e.lingers.Load()); n == 0 || n < e.procs-1 {
		e.cond.Signal()
	}
}

// cut divides the parts of a job that touches size bytes into blocks and returns
// their number.
func cut(j *channel.Job, size int64) int {
	s := &j.State
	if s.Cut {
		return s.Blocks
	}
	s.First = s.First[:0]
	wide, around := 0, int64(aroundCopy)
	for i := range j.Parts {
		if len(j.Parts[i].Src) > 1 {
			around = aroundFold
		}
		wide = max(wide, len(j.Parts[i].Src)+len(j.Parts[i].Dst))
	}
	s.Block = slimBlock
	if wide > fewWide {
		s.Block = wideBlock
	}
	if size <= channel.MaxAwaited { // so few that it counts how even the shares are
		all := int64(0)
		for i := range j.Parts {
			all += j.Parts[i].Len()
		}
		s.Block = min(s.Block, max(leastBlock, (all/fewBlocks+leastBlock-1)/leastBlock*leastBlock))
	}
	n := int64(0)
	for i := range j.Parts {
		s.First = append(s.First, int32(n))
		n += (j.Parts[i].Len() + s.Block - 1) / s.Block
	}
	most, run := int64(takeBytes), int64(1)
	if size > largeJob {
		most = takeLess
		run = max(1, most*n/size)
	}
	s.Most = max(1, most*n/size)
	s.Least.Store(int32(max(1, leastTaken*n/size)))
	s.Run.Store(int32(run))
	s.Blocks, s.Sized, s.Around, s.Cut = int(n), size, size >= around, true
	return s.Blocks
}

// pick is the most urgent job that has blocks to take, or nil. With one job, the
// usual case, it takes no lock.
func (e *Engine) pick() *channel.Job {
	j := e.top.Load()
	switch {
	case j == nil:
		return nil
	case isOpen(j):
		return j
	case e.open.Load() < 2:
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.waiting()
}

// waiting is pick with e.mu held.
func (e *Engine) waiting() *channel.Job {
	for _, j := range e.jobs {
		if isOpen(j) {
			return j
		}
	}
	return nil
}

// isOpen says whether the job has blocks to take.
func isOpen(j *channel.Job) bool { return j.State.Side[0].Open() || j.State.Side[1].Open() }

// listed notes what the list of jobs holds; e.mu is held.
func (e *Engine) listed() {
	var top *channel.Job
	if len(e.jobs) > 0 {
		top = e.jobs[0]
	}
	e.open.Store(int32(len(e.jobs)))
	e.top.Store(top)
}

// help does some blocks of j, unless it is to give way. Each core begins with its own half, so
// that a buffer that is reduced again and again stays in that core's caches.
func (e *Engine) help(j *channel.Job) {
	c := Class(j.State.Class.Load())
	e.helps[c].Add(1)
	defer e.helps[c].Add(-1)
	if !e.admits(c, e.procs) {
		return
	}
	if n := e.doSome(j); n > 0 && j.State.Left.Add(-n) == 0 {
		j.Done(nil, e.unlist(j))
	}
}

// doSome does some blocks of j and returns their number, one if somebody waits for
// what is more urgent. In a job that no cache holds those of a slice are one piece. A panic in
// one is the job's error.
func (e *Engine) doSome(j *channel.Job) (n int64) {
	defer catch(j)
	side := cpu.CPU() & 1
	for range 2 {
		for n == 0 || n < j.State.Most { // read behind a Take: before it, the job may be another by now
			most := 1
			if !e.hurried(Class(j.State.Class.Load())) {
				most = int(j.State.Run.Load())
			}
			b, k := j.State.Side[side].Take(most)
			if k == 0 {
				break
			}
			n += int64(k)
			if j.State.Back {
				b = mirrored(j.State.Blocks/2, j.State.Blocks, b, k)
			}
			for end := b + k; b < end; {
				b += runBlock(j, b, end)
			}
			if e.hurried(Class(j.State.Class.Load())) {
				e.looks.Add(1)
				return n
			}
		}
		side = 1 - side
	}
	return n
}

// runAll does a small job.
func runAll(j *channel.Job) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = channel.Panicked("engine, in a job", v)
		}
	}()
	for i := range j.Parts {
		runPart(j, i, 0, j.Parts[i].Len())
	}
	return nil
}

// unlist takes a job that is done off the list and returns its error.
func (e *Engine) unlist(j *channel.Job) error {
	e.mu.Lock()
	for i, k := range e.jobs {
		if k == j {
			e.jobs = append(e.jobs[:i], e.jobs[i+1:]...)
			break
		}
	}
	e.listed()
	e.mu.Unlock()
	return failed(j)
}

// runBlock does block b of a job and those of the same part behind it and before end. It
// returns their number. What is copied to several places is to be in the first cache when it
// is read again, so it is no more than wideBlock bytes at a time.
func runBlock(j *channel.Job, b, end int) int {
	first := j.State.First
	lo, hi := 0, len(first)-1
	for lo < hi { // the last part whose first block is at most b
		mid := (lo + hi + 1) / 2
		if int(first[mid]) <= b {
			lo = mid
		} else {
			hi = mid - 1
		}
	}
	n := end - b
	if lo+1 < len(first) {
		n = min(n, int(first[lo+1])-b)
	}
	if len(j.Parts[lo].Src) == 1 && len(j.Parts[lo].Dst) > 1 {
		n = max(1, min(n, int(wideBlock/j.State.Block)))
	}
	off := int64(b-int(first[lo])) * j.State.Block
	runPart(j, lo, off, min(int64(n)*j.State.Block, j.Parts[lo].Len()-off))
	return n
}

// runPart does n bytes of a part, from off on.
func runPart(j *channel.Job, i int, off, n int64) {
	if n <= 0 {
		return
	}
	p := &j.Parts[i]
	if len(p.Src) > few || len(p.Dst) > few {
		l := lists.Get().(*sliceLists)
		l.src, l.dst = memories(l.src[:0], p.Src, off, n), memories(l.dst[:0], p.Dst, off, n)
		spread(j, l.dst, l.src)
		clear(l.src)
		clear(l.dst)
		lists.Put(l)
		return
	}
	var space [2][few][]byte
	spread(j, memories(space[1][:0], p.Dst, off, n), memories(space[0][:0], p.Src, off, n))
}

// spread does some bytes of a part.
func spread(j *channel.Job, dst, src [][]byte) {
	if j.State.Around {
		j.Op.SpreadAround(dst, src)
	} else {
		j.Op.Spread(dst, src)
	}
}

// few is the number of operands whose slices fit on the stack.
const few = 8

// lists keeps the slices of parts with more operands.
var lists = sync.Pool{New: func() any { return &sliceLists{} }}

type sliceLists struct{ src, dst [][]byte }

// memories appends the bytes off to off+n of each memory.
func memories(to [][]byte, list []kolo.Memory, off, n int64) [][]byte {
	for i := range list {
		to = append(to, list[i].Host[off:off+n])
	}
	return to
}

// Lend helps until done is set, or until there was nothing to do for a while: with
// jobs that are no less urgent than the call. Who does the others gives its
// processor away after each block meanwhile. No more goroutines than processors are
// taken at a time for calls of one class.
func (e *Engine) Lend(done *atomic.Uint32, priority int, call int64) {
	c := ClassOf(priority, call)
	defer e.leave(c)
	if e.lent[c].Add(1) > int32(e.procs) {
		return
	}
	for i := 0; i < lendSpins && done.Load() == 0; i++ {
		if e.open.Load() > 0 {
			if j := e.pick(); j != nil && Class(j.State.Class.Load()) >= c {
				e.help(j)
				i = 0
				if done.Load() == 0 && e.pick() != nil {
					runtime.Gosched() // to ranks that have something to call
				}
				continue
			}
		}
		if i%yieldEvery == yieldEvery-1 {
			runtime.Gosched()
		}
	}
}

// leave ends a Lend for class c. What it leaves undone, or was begun in reliance on it, goes to a
// worker.
func (e *Engine) leave(c Class) {
	e.lent[c].Add(-1)
	if e.open.Load() == 0 {
		return
	}
	if j := e.pick(); j != nil {
		e.wake(Class(j.State.Class.Load()))
	}
}

// calls says whether awaited jobs have been started since a worker has seen so many of
// them, for which it is to linger.
func (e *Engine) calls(seen uint32) bool {
	n := e.awaited.Load()
	return n != seen && int32(n-e.alone.Load()) > 0
}

// linger looks for a job for a moment, since ranks that only wait for each other start
// one after the other, in less time than it takes to wake a worker. They take turns on one
// processor and this goroutine is on another: it yields only where no job comes, as it
// may be that it keeps them from theirs.
func (e *Engine) linger() (found bool) {
	defer e.lingers.Add(-1)
	if int(e.lingers.Add(1)) >= e.procs {
		return false
	}
	looks, left, streak := slotLooks, slots*slotLooks, 0
	for i := 0; left > 0; i++ {
		if j := e.shared.Load(); j != nil && j.State.Shares.Open() {
			e.join(j)
			i, looks, left, found = 0, nextLooks, lingerAll, true
			if streak++; streak > 1 { // all ranks have come since: none waits behind this goroutine
				looks = lingerLooks
			}
		}
		if e.open.Load() > 0 && e.pick() != nil {
			return true
		}
		if i == looks {
			left -= looks
			i, looks, streak = 0, slotLooks, 0
			runtime.Gosched()
		}
	}
	return found
}

// work is a worker.
func (e *Engine) work() {
	seen, alone := e.awaited.Load(), uint32(leastAlone)
	for {
		j := e.pick()
		if j != nil {
			c := Class(j.State.Class.Load())
			e.wake(c) // one wakes the next
			e.help(j)
			if e.hands(classes-1) > 0 || e.hurried(c) { // ranks wait; beside goroutines that only compute, a turn is long in coming
				runtime.Gosched()
			}
			continue
		}
		if e.calls(seen) {
			since := e.awaited.Load()
			found := e.linger()
			if seen = e.awaited.Load(); found {
				alone = leastAlone
			} else if seen-since > fewMissed {
				e.alone.Store(seen + alone)
				alone = min(2*alone, mostAlone)
			}
			continue
		}
		e.mu.Lock()
		for e.waiting() == nil && !e.calls(seen) {
			if e.closing && len(e.jobs) == 0 {
				e.mu.Unlock()
				return
			}
			if e.closing { // the last blocks are being done by others
				e.mu.Unlock()
				runtime.Gosched()
				e.mu.Lock()
				continue
			}
			e.cond.Wait()
		}
		e.mu.Unlock()
	}
}
