package actor

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/kolo-ccl/kolo"

	proto "github.com/asynkron/protoactor-go/actor"
)

// Config is how a System runs. The zero value works.
type Config struct {
	// Budget is the most messages that a Tell handles on the caller's goroutine
	// before it leaves the rest to the worker and returns. 0 means 4096.
	Budget int
	// Steps, if set, makes a stepped system for tests: nothing runs by itself, and
	// System.Step handles one message of a shard that Steps picks. One seed gives one
	// schedule.
	Steps *rand.Rand
}

// System is a set of shards and actors that live and end together, with one
// protoactor ActorSystem. Making one costs a few milliseconds and 3 MB.
type System struct {
	cfg    Config
	proto  *proto.ActorSystem
	worker worker

	mu      sync.Mutex
	cells   map[*cell]struct{}
	closing bool
	empty   chan struct{} // closed when closing and no cell is left
	closed  chan struct{}
	pending []*Shard // stepped: runnable shards
}

// NewSystem makes a system. Close it.
func NewSystem(cfg Config) *System {
	if cfg.Budget == 0 {
		cfg.Budget = 4096
	}
	s := &System{cfg: cfg, cells: map[*cell]struct{}{}, empty: make(chan struct{}), closed: make(chan struct{})}
	s.proto = proto.NewActorSystem(
		proto.WithLoggerFactory(func(*proto.ActorSystem) *slog.Logger { return slog.New(slog.DiscardHandler) }),
		proto.WithDeadLetterThrottleInterval(time.Nanosecond))
	s.worker.init()
	if cfg.Steps == nil {
		// ended by Close
		go s.worker.loop()
	}
	return s
}

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
	s.cells[c] = struct{}{}
	s.mu.Unlock()
	props := proto.PropsFromProducer(func() proto.Actor { return c },
		proto.WithMailbox(func() proto.Mailbox { return &c.mail }),
		proto.WithGuardian(failFast()))
	pid, err := s.proto.Root.SpawnNamed(props, s.proto.ProcessRegistry.NextId()+"/"+c.props.Name)
	if err != nil {
		s.gone(c)
		return fmt.Errorf("spawn actor %s: %w", c.props.Name, err)
	}
	c.pid = pid
	return nil
}

// gone forgets an actor that has ended.
func (s *System) gone(c *cell) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.cells, c)
	if s.closing && len(s.cells) == 0 {
		s.signalEmpty()
	}
}

func (s *System) signalEmpty() {
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
	sh.handle(1)
	more := append([]*Shard(nil), sh.ready...)
	sh.ready = sh.ready[:0]
	if sh.next() {
		more = append(more, sh)
	}
	s.mu.Lock()
	s.pending = append(s.pending, more...)
	s.mu.Unlock()
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
// some handler is stuck, and its actors' names are in the error.
func (s *System) Close(ctx context.Context) error {
	s.mu.Lock()
	first := !s.closing
	s.closing = true
	cells := make([]*cell, 0, len(s.cells))
	for c := range s.cells {
		cells = append(cells, c)
	}
	if len(cells) == 0 {
		s.signalEmpty()
	}
	s.mu.Unlock()
	for _, c := range cells {
		c.stop(nil)
	}
	if s.cfg.Steps != nil {
		s.Run()
	}
	select {
	case <-s.empty:
	case <-ctx.Done():
		return fmt.Errorf("close actor system: %w: %d actors still run, %s among them", ctx.Err(), s.Actors(), s.someName())
	}
	if first {
		if s.cfg.Steps == nil {
			s.worker.close()
		}
		s.proto.Shutdown()
		close(s.closed)
	}
	<-s.closed
	return nil
}

func (s *System) someName() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.cells {
		return c.props.Name
	}
	return "none"
}
