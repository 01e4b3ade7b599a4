package pcie

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/internal/kernel"
)

// DefaultBlock is the size of a bounce buffer: large beside what a transfer of a device
// costs by itself, small beside the host's caches.
const DefaultBlock = 512 << 10

// Config says what is staged. Peer or Always must be set.
type Config struct {
	// Peer says whether there is a way between two devices that is better than the host:
	// peer access, or a network port. It is asked for pairs of device spaces that differ.
	Peer func(a, b kolo.Space) bool
	// Always stages every job, also one within the host.
	Always bool
	// Block is the size of a bounce buffer in bytes. 0 means DefaultBlock.
	Block int
	// Warned, if set, is told once for each pair of devices that is staged, by the
	// goroutine that starts the job: why, and what to check. It must not block.
	Warned func(text string)
}

// Engine is an engine around another that stages what that one has no way for. Its
// other jobs are handed on.
type Engine struct {
	inner channel.Engine
	cfg   Config
	open  sync.WaitGroup // jobs that are staged; none is added once it is closed
	pool  sync.Pool      // of *[]byte: bounce buffers

	mu     sync.Mutex
	closed bool
	warned map[[2]kolo.Space]bool
	staged Report
}

// Report counts what was staged.
type Report struct {
	Jobs  int64
	Bytes int64 // read from sources
	Pairs int   // of devices
}

// NewEngine makes the engine. inner moves between the host and each device, and stays its
// maker's to close, after this one.
func NewEngine(inner channel.Engine, c Config) (*Engine, error) {
	if inner == nil || c.Peer == nil && !c.Always || c.Block < 0 {
		return nil, fmt.Errorf("%w: pcie: an engine needs one beneath, Config.Peer or Always, and no negative Block", kolo.ErrArgument)
	}
	if c.Block == 0 {
		c.Block = DefaultBlock
	}
	e := &Engine{inner: inner, cfg: c, warned: map[[2]kolo.Space]bool{}}
	e.pool.New = func() any {
		b := make([]byte, c.Block)
		return &b
	}
	return e, nil
}

// Reaches is what the engine beneath reaches.
func (e *Engine) Reaches(s kolo.Space) bool { return e.inner.Reaches(s) }

// Lend lends the goroutine to the engine beneath.
func (e *Engine) Lend(done *atomic.Uint32, priority int, call int64) {
	e.inner.Lend(done, priority, call)
}

// Close waits for what is staged. A job that is to be staged after that gets kolo.ErrClosed.
func (e *Engine) Close() {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	e.open.Wait()
}

// Report says what was staged so far.
func (e *Engine) Report() Report {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.staged
	r.Pairs = len(e.warned)
	return r
}

// Start begins a job.
func (e *Engine) Start(t channel.Turn, j *channel.Job) {
	if !e.cfg.Always && !e.stages(j) {
		e.inner.Start(t, j)
		return
	}
	s := &staging{e: e, job: j}
	var bytes int64
	for i := range j.Parts {
		bytes += j.Parts[i].Len() * int64(len(j.Parts[i].Src))
	}
	if !e.begins(bytes) {
		j.Done(t, fmt.Errorf("%w: the pcie engine", kolo.ErrClosed))
		return
	}
	s.left.Store(int32(len(s.lanes)) + 1)
	for i := range s.lanes {
		l := &s.lanes[i]
		l.s = s
		l.job.Priority, l.job.Call = j.Priority, max(j.Call, bytes)
		l.job.Done = l.done
		l.run(t)
	}
	s.over(t)
}

// begins counts a job that reads so many bytes, unless the engine is closed.
func (e *Engine) begins(bytes int64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false
	}
	e.staged.Jobs++
	e.staged.Bytes += bytes
	e.open.Add(1)
	return true
}

// stages says whether a job has a part between devices that have no better way, and
// warns of it.
func (e *Engine) stages(j *channel.Job) (yes bool) {
	for i := range j.Parts {
		p := &j.Parts[i]
		for _, list := range [][]kolo.Memory{p.Src[min(1, len(p.Src)):], p.Dst} {
			for _, m := range list {
				yes = e.apart(p.Src[0].Space, m.Space) || yes
			}
		}
	}
	return yes
}

// apart says whether a pair of spaces has no better way than the host.
func (e *Engine) apart(a, b kolo.Space) bool {
	if a == b || a == kolo.HostSpace || b == kolo.HostSpace || e.cfg.Peer(a, b) {
		return false
	}
	pair := [2]kolo.Space{min(a, b), max(a, b)}
	e.mu.Lock()
	first := !e.warned[pair]
	e.warned[pair] = true
	e.mu.Unlock()
	if first && e.cfg.Warned != nil {
		e.cfg.Warned(fmt.Sprintf("pcie: the devices of spaces %d and %d have no peer access and no port to each other, so their data is staged through host memory, "+
			"at less than half of PCIe's rate; check that both are on one HCCS or PCIe domain (npu-smi info -t topo), that peer access is allowed "+
			"(IOMMU and ACS off, no isolation by a container or virtual machine), or give each a RoCE port", pair[0], pair[1]))
	}
	return true
}

// staging is a job on its way. Its two lanes take blocks in turn, each with bounce
// buffers of its own.
type staging struct {
	e     *Engine
	job   *channel.Job
	lanes [2]lane
	left  atomic.Int32 // lanes that have not ended, and Start

	mu   sync.Mutex
	part int
	off  int64
	err  error
}

// The steps of a block.
const (
	stepIdle int = iota
	stepIn
	stepFold
	stepOut
)

// lane moves one block at a time: in, folded on the host if the job folds, out.
type lane struct {
	s     *staging
	job   channel.Job
	step  int
	part  *channel.Part
	off   int64
	n     int64
	at    []*[]byte // a bounce buffer for each source
	err   error
	state atomic.Int32 // who goes on: see run
}

// The states of a lane between Start and Done of a step.
const (
	laneStarting int32 = iota
	laneDone           // Done came inside of Start
	laneWaits          // Done is to go on
)

// next takes a block.
func (s *staging) next(l *lane) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ; s.err == nil && s.part < len(s.job.Parts); s.part, s.off = s.part+1, 0 {
		p := &s.job.Parts[s.part]
		if left := p.Len() - s.off; left > 0 {
			l.part, l.off, l.n = p, s.off, min(left, int64(s.e.cfg.Block))
			s.off += l.n
			return true
		}
	}
	return false
}

// run does steps until one of them goes on elsewhere or there is no block any more. An
// engine that does a step at once is called again from here, not from its own Done.
func (l *lane) run(t channel.Turn) {
	for {
		if !l.prepare() {
			l.end(t)
			return
		}
		l.state.Store(laneStarting)
		l.s.e.inner.Start(t, &l.job)
		if l.state.Swap(laneWaits) == laneStarting {
			return
		}
	}
}

// done hears that a step has ended.
func (l *lane) done(t channel.Turn, err error) {
	l.err = err
	if l.state.Swap(laneDone) == laneWaits {
		l.run(t)
	}
}

// prepare makes the job of the next step.
func (l *lane) prepare() bool {
	if l.err != nil {
		l.s.fail(l.err)
		return false
	}
	switch {
	case l.step == stepIn && !l.s.job.Op.Copies(len(l.part.Src)):
		l.step = stepFold
	case l.step == stepIn || l.step == stepFold:
		l.step = stepOut
	default:
		if !l.s.next(l) {
			return false
		}
		l.step = stepIn
		for len(l.at) < len(l.part.Src) {
			l.at = append(l.at, l.s.e.pool.Get().(*[]byte))
		}
	}
	l.fill()
	return true
}

// fill makes the parts of a step.
func (l *lane) fill() {
	l.job.Reset()
	l.job.Op = kernel.Op{}
	add := func(dst, src kolo.Memory) {
		p := l.job.Add()
		p.Dst, p.Src = append(p.Dst, dst), append(p.Src, src)
	}
	bounce := func(i int) kolo.Memory { return kolo.HostMemory((*l.at[i])[:l.n:l.n]) }
	switch l.step {
	case stepIn:
		for i, m := range l.part.Src {
			add(bounce(i), m.Slice(l.off, l.n))
		}
	case stepFold:
		l.job.Op = l.s.job.Op
		p := l.job.Add()
		p.Dst = append(p.Dst, bounce(0))
		for i := range l.part.Src {
			p.Src = append(p.Src, bounce(i))
		}
	case stepOut:
		for _, m := range l.part.Dst {
			add(m.Slice(l.off, l.n), bounce(0))
		}
	}
}

func (s *staging) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = fmt.Errorf("staged through the host: %w", err)
	}
}

// end gives the bounce buffers back.
func (l *lane) end(t channel.Turn) {
	for _, b := range l.at {
		l.s.e.pool.Put(b)
	}
	l.at = nil
	l.s.over(t)
}

// over ends the job when both lanes have ended.
func (s *staging) over(t channel.Turn) {
	if s.left.Add(-1) > 0 {
		return
	}
	s.mu.Lock()
	err := s.err
	s.mu.Unlock()
	e := s.e
	s.job.Done(t, err)
	e.open.Done()
}
