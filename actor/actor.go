package actor

import (
	"cmp"
	"fmt"
	"runtime/debug"
	"sync/atomic"

	"github.com/kolo-ccl/kolo"

	proto "github.com/asynkron/protoactor-go/actor"
)

// Handler is what an actor does. Handle is called with one message at a time and
// must not block. If it returns an error or panics, the actor ends: it gets no
// further message and Props.OnExit is called with the error. It is never restarted.
type Handler[M any] interface {
	Handle(m M) error
}

// Ref addresses an actor that takes messages of type M. The zero Ref addresses
// nobody. M should be a pointer or an interface holding pointers: then sending
// allocates nothing.
type Ref[M any] struct {
	c    *cell
	from *Shard
}

// PanicError is the error of an actor whose handler panicked.
type PanicError struct {
	Actor string
	Value any
	Stack []byte
}

// Error is the panic's value and the actor's name.
func (e *PanicError) Error() string {
	return fmt.Sprintf("%v: %s: %v", kolo.ErrPanic, e.Actor, e.Value)
}

// Unwrap makes errors.Is(err, kolo.ErrPanic) true, and reaches an error that was
// the value of the panic.
func (e *PanicError) Unwrap() []error {
	if err, ok := e.Value.(error); ok {
		return []error{kolo.ErrPanic, err}
	}
	return []error{kolo.ErrPanic}
}

// Props says how an actor is spawned.
type Props struct {
	Name string
	// Limit is the most messages that may wait for the actor; more are refused with
	// kolo.ErrLimit. 0 or less means 65536.
	Limit int
	// OnExit is called once when the actor has ended: with the error of its handler,
	// a *PanicError, or nil when it was stopped. It runs on the actor's shard and
	// must not block. If it panics, System.Close reports that.
	OnExit func(error)
	// Dropped is called, on the actor's shard, for each message that Tell took but that
	// was not handled because the actor had failed by then, with why. It must not block.
	Dropped func(m any, err error)
}

// Spawn starts an actor on a shard.
func Spawn[M any](s *Shard, p Props, h Handler[M]) (Ref[M], error) {
	if p.Limit <= 0 {
		p.Limit = 1 << 16
	}
	c := &cell{shard: s, props: p, handle: func(m any) error { return h.Handle(m.(M)) }}
	c.mail = mailbox{c: c}
	if err := s.sys.spawn(c); err != nil {
		return Ref[M]{}, err
	}
	return Ref[M]{c: c}, nil
}

// Tell puts m into the actor's mailbox. The goroutine that calls may then run the
// actor, and others that it sends to, before Tell returns; see Config.Budget. The
// error is kolo.ErrClosed for an actor that has ended or been told to stop, and
// kolo.ErrLimit for a full mailbox: m was not taken then. What was taken is handled,
// unless the actor fails before.
//
// Code that runs inside a handler tells through a Ref made by From.
func (r Ref[M]) Tell(m M) error { return r.c.tell(r.from, m) }

// From is the same address for use inside handlers of shard s, and only there:
// what it makes runnable runs after the handler has returned, not inside it.
func (r Ref[M]) From(s *Shard) Ref[M] { return Ref[M]{c: r.c, from: s} }

// Valid says whether r addresses an actor at all, living or not.
func (r Ref[M]) Valid() bool { return r.c != nil }

// Waiting is the number of messages in the mailbox.
func (r Ref[M]) Waiting() int { return r.c.queued() }

// Stop ends the actor after the messages that are in its mailbox. It may be called
// more than once and does not wait.
func (r Ref[M]) Stop() { r.c.stop(r.from) }

// cell is an actor: its mailbox towards protoactor, its handler towards us.
type cell struct {
	shard   *Shard
	props   Props
	handle  func(any) error
	pid     *proto.PID
	mail    mailbox
	waiting int         // messages in the shard's queue; guarded by the shard
	dead    atomic.Bool // set on the shard when the handler has failed or Stop was handled
	stopped bool        // Stop was sent; guarded by the shard
	current any         // the message being handled; what protoactor sees is the cell itself
	err     error       // why the handler failed
}

func (c *cell) tell(from *Shard, m any) error {
	if c == nil {
		return fmt.Errorf("%w: message to nobody", kolo.ErrClosed)
	}
	if c.dead.Load() {
		if c.err != nil { // written before dead
			return fmt.Errorf("%w: actor %s has ended: %w", kolo.ErrClosed, c.props.Name, c.err)
		}
		return fmt.Errorf("%w: actor %s has ended", kolo.ErrClosed, c.props.Name)
	}
	switch c.shard.post(from, item{c: c, m: m}) {
	case full:
		return fmt.Errorf("%w: mailbox of %s holds %d messages", kolo.ErrLimit, c.props.Name, c.props.Limit)
	case stopped:
		return fmt.Errorf("%w: actor %s was told to stop", kolo.ErrClosed, c.props.Name)
	}
	return nil
}

// queued is the number of messages that wait.
func (c *cell) queued() int {
	if c == nil {
		return 0
	}
	c.shard.mu.Lock()
	defer c.shard.mu.Unlock()
	return c.waiting
}

func (c *cell) stop(from *Shard) {
	if c != nil {
		c.shard.post(from, item{c: c, m: stopMail})
	}
}

// mailbox is the mailbox that protoactor sees. Messages of ours never pass through
// its Post methods but go straight to the shard's queue.
type mailbox struct {
	c       *cell
	invoker proto.MessageInvoker
}

// RegisterHandlers is called once by protoactor, when the actor is spawned.
func (b *mailbox) RegisterHandlers(inv proto.MessageInvoker, _ proto.Dispatcher) { b.invoker = inv }

// Start is called by protoactor when the actor may run.
func (b *mailbox) Start() {}

// UserMessageCount is the number of messages that wait.
func (b *mailbox) UserMessageCount() int { return b.c.queued() }

// PostUserMessage takes a message sent by PID. Nobody has our PIDs; protoactor
// itself sends such a message when it is asked to poison an actor.
func (b *mailbox) PostUserMessage(m any) { b.PostSystemMessage(m) }

// PostSystemMessage takes protoactor's own messages: stop, failure. They come while
// the actor runs, so that its shard has somebody to run it. Started is left out: it
// comes from whoever spawns, and nobody asks for it.
func (b *mailbox) PostSystemMessage(m any) {
	if _, ok := m.(*proto.Started); !ok {
		b.c.shard.post(nil, item{c: b.c, m: system{m}})
	}
}

// system wraps a message of protoactor's own.
type system struct{ m any }

type stopRequest struct{}

var stopMail any = stopRequest{}

// Receive is called by protoactor with c itself in place of our message, so that
// it cannot mistake a message of ours for one of its own.
func (c *cell) Receive(ctx proto.Context) {
	switch ctx.Message().(type) {
	case *cell:
		if err := c.handle(c.current); err != nil {
			c.err = err
			ctx.Stop(ctx.Self())
			c.dead.Store(true)
		}
	case *proto.Stopped:
		c.dead.Store(true)
		c.exit()
	}
}

// exit tells the owner that the actor has ended, and counts it out whatever the
// owner does.
func (c *cell) exit() {
	var err error
	over := false
	defer func() {
		v := recover()
		if v == nil && !over {
			v = errGoexit
		}
		if v != nil {
			err = &PanicError{Actor: c.props.Name + ", in OnExit", Value: v, Stack: debug.Stack()}
		}
		c.shard.sys.gone(c, err)
	}()
	if c.props.OnExit != nil {
		c.props.OnExit(c.err)
	}
	over = true
}

// run handles one item of the shard's queue.
func (c *cell) run(m any) {
	switch m := m.(type) {
	case system:
		c.mail.system(m.m)
		return
	case stopRequest:
		c.mail.invoker.InvokeSystemMessage(&proto.Stop{})
		return
	}
	if c.dead.Load() {
		if c.props.Dropped != nil {
			c.props.Dropped(m, cmp.Or(c.err, kolo.ErrClosed))
		}
		return
	}
	c.current = m
	c.mail.invoker.InvokeUserMessage(c)
	c.current = nil
}

func (b *mailbox) system(m any) {
	switch m.(type) {
	case *proto.SuspendMailbox, *proto.ResumeMailbox, *proto.MailboxMessage: // a failed actor is stopped, never resumed
		return
	}
	b.invoker.InvokeSystemMessage(m)
}

// failed ends the actor after a panic in its handler.
func (c *cell) failed(v any) {
	c.err = &PanicError{Actor: c.props.Name, Value: v, Stack: debug.Stack()}
	c.dead.Store(true)
	c.mail.invoker.EscalateFailure(c.err, c.current)
	c.current = nil
}
