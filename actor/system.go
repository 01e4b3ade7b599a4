package actor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kolo-ccl/kolo"

	proto "github.com/asynkron/protoactor-go/actor"
)

// Config is how a System runs. The zero value works.
type Config struct {
	// Budget is the most messages that a Tell handles on the caller's goroutine
	// before it leaves the rest to the worker and returns. 0 or less means 4096.
	Budget int
	// Steps, if set, makes a stepped system for tests: nothing runs by itself, and
	// System.Step handles one message of a shard that Steps picks. One seed gives one
	// schedule.
	Steps *rand.Rand
	// Beside, if set, is a system that is open: both use one ActorSystem of protoactor, of
	// which the first takes milliseconds to make. Nothing else is shared, and either may be
	// closed first.
	Beside *System
}

// System is a set of shards and actors that live and end together, with one
// protoactor ActorSystem, of its own or of Config.Beside.
type System struct {
	cfg Config
	*core
	worker worker
	end    sync.Once

	mu       sync.Mutex
	cells    map[*cell]struct{}
	spawning int // actors that are about to be in cells
	closing  bool
	stopped  chan struct{} // closed when Close has told every actor to stop
	empty    chan struct{} // closed when closing and no cell is left
	exits    []error       // panics of OnExit, the first maxExits
	pending  []*Shard      // stepped: runnable shards
}

const (
	maxExits = 16 // panics of OnExit that Close reports
	maxNamed = 8  // actors that Close names when it gives up
)

// NewSystem makes a system. Close it.
func NewSystem(cfg Config) *System {
	if cfg.Budget <= 0 {
		cfg.Budget = 4096
	}
	s := &System{cfg: cfg, core: coreBeside(cfg.Beside), cells: map[*cell]struct{}{},
		stopped: make(chan struct{}), empty: make(chan struct{})}
	s.worker.init()
	if cfg.Steps == nil {
		// ended by Close
		go s.worker.loop()
	}
	return s
}

// core is what protoactor has of a System. It has no goroutine, and nothing of a System
// is left in it when all actors of that have ended.
type core struct {
	proto    *proto.ActorSystem
	guardian proto.SupervisorStrategy // one for all: protoactor keeps a process for each for ever

	mu    sync.Mutex
	users int // systems that are not closed
}

// coreBeside is the core of a system that is open, or one that nobody uses.
func coreBeside(s *System) *core {
	if s != nil {
		s.core.mu.Lock()
		defer s.core.mu.Unlock()
		if s.core.users > 0 {
			s.core.users++
			return s.core
		}
	}
	c := cores.Get().(*core)
	c.users = 1
	return c
}

// leave gives a core back when its last system is closed.
func (c *core) leave() {
	c.mu.Lock()
	c.users--
	last := c.users == 0
	c.mu.Unlock()
	if last {
		cores.Put(c)
	}
}

// cores are used again, since protoactor makes 32 maps in each of 1024 buckets for a
// registry of processes: 66,000 allocations.
var cores = sync.Pool{New: func() any {
	return &core{guardian: failFast(), proto: proto.NewActorSystem(
		proto.WithLoggerFactory(func(*proto.ActorSystem) *slog.Logger { return slog.New(slog.DiscardHandler) }),
		proto.WithDeadLetterThrottleInterval(time.Nanosecond))}
}}

// failFast ends an actor whose handler has failed. It is never restarted.
func failFast() proto.SupervisorStrategy {
	return proto.NewOneForOneStrategy(0, 0, func(any) proto.Directive { return proto.StopDirective })
}

func (s *System) spawn(c *cell) error {
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		return fmt.Errorf("%w: actor %s: the system is closing", kolo.ErrClosed, c.props.Name)
	}
	s.spawning++
	s.mu.Unlock()
	props := proto.PropsFromProducer(func() proto.Actor { return c },
		proto.WithMailbox(func() proto.Mailbox { return &c.mail }),
		proto.WithGuardian(s.guardian))
	pid, err := s.proto.Root.SpawnNamed(props, s.proto.ProcessRegistry.NextId()+"/"+c.props.Name)
	c.pid = pid
	s.mu.Lock()
	s.spawning--
	if err == nil {
		s.cells[c] = struct{}{}
	}
	s.signalEmpty()
	late := s.closing
	s.mu.Unlock()
	if err != nil {
		return fmt.Errorf("spawn actor %s: %w", c.props.Name, err)
	}
	if late { // Close may have looked before the actor was there
		c.stop(nil)
	}
	return nil
}

// gone forgets an actor that has ended. The error is of its OnExit.
func (s *System) gone(c *cell, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.cells, c)
	if err != nil && len(s.exits) < maxExits {
		s.exits = append(s.exits, err)
	}
	s.signalEmpty()
}

// signalEmpty says, under the lock, that a closing system has no actor left.
func (s *System) signalEmpty() {
	if !s.closing || len(s.cells)+s.spawning > 0 {
		return
	}
	select {
	case <-s.empty:
	default:
		close(s.empty)
	}
}

// Actors is the number of actors that have not ended.
func (s *System) Actors() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.cells)
}

// start runs a shard that has become runnable, on the caller's goroutine.
func (s *System) start(sh *Shard) {
	if s.cfg.Steps != nil {
		s.mu.Lock()
		s.pending = append(s.pending, sh)
		s.mu.Unlock()
		return
	}
	carry(sh, s.cfg.Budget)
}

// Step handles one message of a stepped system and says whether there was one.
func (s *System) Step() bool {
	s.mu.Lock()
	if len(s.pending) == 0 {
		s.mu.Unlock()
		return false
	}
	i := s.cfg.Steps.IntN(len(s.pending))
	sh := s.pending[i]
	s.pending = append(s.pending[:i], s.pending[i+1:]...)
	s.mu.Unlock()
	defer func() { // also if the handler ends the goroutine
		more := append([]*Shard(nil), sh.ready...)
		sh.ready = sh.ready[:0]
		if sh.next() {
			more = append(more, sh)
		}
		s.mu.Lock()
		s.pending = append(s.pending, more...)
		s.mu.Unlock()
	}()
	sh.handle(1)
	return true
}

// Run handles messages of a stepped system until none is left.
func (s *System) Run() {
	for s.Step() {
	}
}

// Close stops every actor, after the messages that are in its mailbox, waits until
// all have ended, and ends the worker. It may be called again, and by several
// goroutines; each call waits. If ctx ends first the error is the context's: then
// some handler is stuck, the actors that it may be are in the error, and Close has to
// be called again once it is not. Another error reports panics of OnExit.
func (s *System) Close(ctx context.Context) error {
	s.mu.Lock()
	first := !s.closing
	s.closing = true
	cells := make([]*cell, 0, len(s.cells))
	for c := range s.cells {
		cells = append(cells, c)
	}
	s.signalEmpty()
	s.mu.Unlock()
	if first {
		s.stopAll(cells)
	}
	if s.cfg.Steps != nil {
		s.Run()
	}
	select {
	case <-s.empty:
	case <-ctx.Done():
		select {
		case <-s.empty:
		default:
			return fmt.Errorf("close actor system: %w: %d actors still run: %s", ctx.Err(), s.Actors(), s.names())
		}
	}
	s.end.Do(func() {
		<-s.stopped
		if s.cfg.Steps == nil {
			s.worker.close()
		}
		s.core.leave()
	})
	return errors.Join(s.exits...)
}

// stopAll tells actors to stop, on a goroutine of its own, since a handler that runs
// there may be stuck.
func (s *System) stopAll(cells []*cell) {
	stop := func() {
		defer close(s.stopped)
		for _, c := range cells {
			c.stop(nil)
		}
	}
	if s.cfg.Steps != nil {
		stop()
		return
	}
	// ends when the handlers that it runs have returned; Close waits for it
	go stop()
}

// names lists actors that have not ended, those first whose shard is at work.
func (s *System) names() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var busy, idle []string
	for c := range s.cells {
		if c.shard.busy() {
			busy = append(busy, c.props.Name)
		} else {
			idle = append(idle, c.props.Name)
		}
	}
	slices.Sort(busy)
	slices.Sort(idle)
	all := append(busy, idle...)
	if len(all) > maxNamed {
		all = append(all[:maxNamed], "...")
	}
	return strings.Join(all, ", ")
}
