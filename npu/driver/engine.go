package driver

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
)

// EngineHooks is how a driver's devices move and fold memory.
type EngineHooks interface {
	// Start begins a job with memory of a device in it. After Job.Done, ended is called.
	Start(t channel.Turn, j *channel.Job, ended func())
	// Close gives back what the engine has of devices. No job is on its way.
	Close()
}

// Engine is a channel.Engine of the memory of a driver's devices and of the host.
type Engine struct {
	core  *Core
	host  channel.Engine
	hooks EngineHooks
	ended func()

	mu     sync.Mutex
	open   sync.WaitGroup // jobs with memory of devices; none is added once it is closed
	closed bool
}

// Engine makes an engine. Jobs of host memory alone are given to host, which stays its
// maker's to close; with a nil host they are done at once.
func (c *Core) Engine(host channel.Engine, h EngineHooks) *Engine {
	e := &Engine{core: c, host: host, hooks: h}
	e.ended = e.open.Done
	return e
}

// Start begins a job. After Close one with memory of a device gets kolo.ErrClosed.
func (e *Engine) Start(t channel.Turn, j *channel.Job) {
	switch near := hostOnly(j); {
	case near && e.host != nil:
		e.host.Start(t, j)
	case near:
		var err error
		for i := 0; i < len(j.Parts) && err == nil; i++ {
			err = Spread(j, &j.Parts[i])
		}
		j.Done(t, err)
	case e.begins():
		e.hooks.Start(t, j, e.ended)
	default:
		j.Done(t, fmt.Errorf("%w: the engine of driver %s", kolo.ErrClosed, e.core.cfg.Name))
	}
}

// begins counts a job, unless the engine is closed.
func (e *Engine) begins() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.open.Add(1)
	}
	return !e.closed
}

// Reaches says whether the memory is the host's or that of a device that is open.
func (e *Engine) Reaches(s kolo.Space) bool {
	if s == kolo.HostSpace {
		return e.host == nil || e.host.Reaches(s)
	}
	e.core.mu.Lock()
	defer e.core.mu.Unlock()
	return e.core.spaces[s] != nil
}

// Lend helps the host's engine. A device needs no help.
func (e *Engine) Lend(done *atomic.Uint32, priority int, call int64) {
	if e.host != nil {
		e.host.Lend(done, priority, call)
	}
}

// Close waits for the jobs that were started with devices, however long these take: a
// device that hangs is closed first, which ends its jobs. It may be called again.
func (e *Engine) Close() {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	e.open.Wait()
	e.hooks.Close()
}

// Spread does a part of a job whose memory is all the host's.
func Spread(j *channel.Job, p *channel.Part) error {
	return Protect(func() error {
		j.Op.Spread(hosts(p.Dst), hosts(p.Src))
		return nil
	})
}

func hostOnly(j *channel.Job) bool {
	elsewhere := func(m kolo.Memory) bool { return m.Space != kolo.HostSpace }
	return !slices.ContainsFunc(j.Parts, func(p channel.Part) bool {
		return slices.ContainsFunc(p.Src, elsewhere) || slices.ContainsFunc(p.Dst, elsewhere)
	})
}

func hosts(list []kolo.Memory) (bytes [][]byte) {
	for _, m := range list {
		bytes = append(bytes, m.Host)
	}
	return bytes
}
