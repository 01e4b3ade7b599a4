package npu

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/actor"
	"github.com/kolo-ccl/kolo/internal/ctxerr"
)

// Actor is the control plane of a device: memory, streams, events, notifies, health,
// and the end. It knows what it has given out, so that Close leaves nothing behind
// and says what had been forgotten. What is given out is then used directly; no task
// passes through the actor.
type Actor struct {
	device Device
	self   actor.Ref[Message]
	ended  chan struct{}
	err    error // why the actor ended; after ended
}

// Message is a request to a device's actor. It is made by who asks, who reads its
// results when it has been answered: Ask waits for that, Tell has Done called.
type Message interface {
	request() *Request
	// do asks the device.
	do(h *control) error
	// undo gives back what do got, when nobody waits for it any more.
	undo(h *control)
}

// Request is the part that all messages have.
type Request struct {
	// Err is why the device refused. It is for the asker to read once it was answered.
	Err error
	// Done, if set, is called by Tell's receiver when the message was answered, on the
	// actor's shard. It must not block.
	Done func()

	state atomic.Int32 // requestOpen and so on
	reply chan struct{}
}

// The states of a request.
const (
	requestOpen int32 = iota
	requestAnswered
	requestAbandoned
)

func (r *Request) request() *Request { return r }

func (r *Request) undo(*control) {}

// AllocMemory asks for Size bytes of device memory.
type AllocMemory struct {
	Request
	Size   int64
	Memory kolo.Memory // the answer
}

// FreeMemory gives memory back.
type FreeMemory struct {
	Request
	Memory kolo.Memory
}

// OpenStream asks for a stream.
type OpenStream struct {
	Request
	Config StreamConfig
	Stream Stream // the answer
}

// OpenEvent asks for an event.
type OpenEvent struct {
	Request
	Name  string
	Event Event // the answer
}

// OpenNotify asks for a notify.
type OpenNotify struct {
	Request
	Name   string
	Notify Notify // the answer
}

// CloseHandle gives a stream, an event or a notify back.
type CloseHandle struct {
	Request
	Handle Handle
}

// CheckHealth asks how the device is. A device that is lost ends its actor, with
// ErrLost.
type CheckHealth struct {
	Request
	Health Health // the answer
}

// shut ends the actor.
type shut struct {
	Request
	left Left // the answer
}

// Handle is a Stream, an Event or a Notify.
type Handle interface {
	Name() string
	Device() Device
	Close() error
}

// Left is what had not been given back when an actor was closed.
type Left struct {
	Buffers int
	Bytes   int64
	Handles int // streams, events and notifies
}

// control is the handler of a device's actor.
type control struct {
	device Device
	memory map[uint64]int64 // size by address
	open   map[Handle]struct{}
	stop   func()
}

// Spawn starts the actor of a device on a shard; the device is the actor's from then
// on. onExit is called once, on the shard, when the actor has ended: with nil after
// Close, with ErrLost when the device was found to be lost.
func Spawn(s *actor.Shard, d Device, onExit func(error)) (*Actor, error) {
	if d == nil {
		return nil, fmt.Errorf("%w: the actor of no device", kolo.ErrArgument)
	}
	a := &Actor{device: d, ended: make(chan struct{})}
	h := &control{device: d, memory: map[uint64]int64{}, open: map[Handle]struct{}{}}
	info := d.Info()
	name := fmt.Sprintf("%s device %d", info.Driver, info.Index)
	ref, err := actor.Spawn[Message](s, actor.Props{Name: name, OnExit: func(err error) {
		a.err = err
		close(a.ended)
		if onExit != nil {
			onExit(err)
		}
	}}, h)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	a.self = ref
	h.stop = ref.From(s).Stop
	return a, nil
}

// Device is the actor's device. Its streams may be used; its memory and handles are
// asked for through the actor.
func (a *Actor) Device() Device { return a.device }

// Ask sends m and waits until it is answered, or for the context: then what the
// device gives later is given back at once. It returns m's Err. It is not for
// handlers, which Tell.
func (a *Actor) Ask(ctx context.Context, m Message) error {
	r := m.request()
	r.state.Store(requestOpen)
	r.reply = make(chan struct{})
	if err := a.self.Tell(m); err != nil {
		return a.gone(err)
	}
	select {
	case <-r.reply:
		return r.Err
	case <-a.ended:
	case <-ctx.Done():
	}
	if !r.state.CompareAndSwap(requestOpen, requestAbandoned) {
		<-r.reply // the answer is on its way
		return r.Err
	}
	if ctx.Err() != nil {
		return fmt.Errorf("wait for device %d: %w", a.device.Info().Index, ctxerr.Of(ctx))
	}
	return a.gone(kolo.ErrClosed)
}

// Tell sends m from a handler of shard s. If m has Done, it is called when m was
// answered, unless the actor ends before: its onExit says so.
func (a *Actor) Tell(s *actor.Shard, m Message) error {
	r := m.request()
	r.state.Store(requestOpen)
	r.reply = nil
	return a.self.From(s).Tell(m)
}

// Alloc asks for memory, waiting as Ask does.
func (a *Actor) Alloc(ctx context.Context, size int64) (kolo.Memory, error) {
	m := &AllocMemory{Size: size}
	err := a.Ask(ctx, m)
	if err != nil {
		return kolo.Memory{}, err
	}
	return m.Memory, nil
}

// Free gives memory back, waiting as Ask does.
func (a *Actor) Free(ctx context.Context, m kolo.Memory) error {
	return a.Ask(ctx, &FreeMemory{Memory: m})
}

// Stream asks for a stream, waiting as Ask does.
func (a *Actor) Stream(ctx context.Context, c StreamConfig) (Stream, error) {
	m := &OpenStream{Config: c}
	if err := a.Ask(ctx, m); err != nil {
		return nil, err
	}
	return m.Stream, nil
}

// Close ends the actor and closes its device. It says what had not been given back.
// If ctx ends first, Close has to be called again.
func (a *Actor) Close(ctx context.Context) (Left, error) {
	m := &shut{}
	switch err := a.Ask(ctx, m); {
	case errors.Is(err, kolo.ErrCanceled):
		return Left{}, err
	case err != nil && !errors.Is(err, kolo.ErrClosed) && !errors.Is(err, kolo.ErrLost):
		return Left{}, err
	}
	select {
	case <-a.ended:
	case <-ctx.Done():
		return m.left, fmt.Errorf("wait for the actor of device %d: %w", a.device.Info().Index, ctxerr.Of(ctx))
	}
	return m.left, a.device.Close(ctx)
}

// gone says why the actor cannot be asked.
func (a *Actor) gone(err error) error {
	select {
	case <-a.ended:
		if a.err != nil {
			err = a.err
		}
	default:
	}
	return &Error{Op: "ask", Device: a.device.Info().Index, Err: err}
}

// Handle does what the message asks for.
func (h *control) Handle(m Message) error {
	r := m.request()
	if r.state.Load() == requestAbandoned {
		return nil
	}
	r.Err = m.do(h)
	if !r.state.CompareAndSwap(requestOpen, requestAnswered) {
		m.undo(h)
	} else {
		if r.reply != nil {
			close(r.reply)
		}
		if r.Done != nil {
			r.Done()
		}
	}
	if _, ok := m.(*CheckHealth); ok && errors.Is(r.Err, ErrLost) {
		return r.Err
	}
	return nil
}

func (m *AllocMemory) do(h *control) (err error) {
	m.Memory, err = h.device.Alloc(m.Size)
	if err == nil {
		h.memory[m.Memory.Addr] = m.Memory.Size
	}
	return err
}

func (m *AllocMemory) undo(h *control) {
	if m.Err == nil {
		_ = (&FreeMemory{Memory: m.Memory}).do(h) // nobody has used it: only a lost device refuses
	}
}

func (m *FreeMemory) do(h *control) error {
	err := h.device.Free(m.Memory)
	if err == nil {
		delete(h.memory, m.Memory.Addr)
	}
	return err
}

func (m *OpenStream) do(h *control) (err error) {
	m.Stream, err = h.device.NewStream(m.Config)
	return h.opened(m.Stream, err)
}

func (m *OpenStream) undo(h *control) { h.forget(m.Stream, m.Err) }

func (m *OpenEvent) do(h *control) (err error) {
	m.Event, err = h.device.NewEvent(m.Name)
	return h.opened(m.Event, err)
}

func (m *OpenEvent) undo(h *control) { h.forget(m.Event, m.Err) }

func (m *OpenNotify) do(h *control) (err error) {
	m.Notify, err = h.device.NewNotify(m.Name)
	return h.opened(m.Notify, err)
}

func (m *OpenNotify) undo(h *control) { h.forget(m.Notify, m.Err) }

func (m *CloseHandle) do(h *control) error {
	switch {
	case m.Handle == nil:
		return &Error{Op: "close", Device: h.device.Info().Index, Err: fmt.Errorf("%w: no handle", kolo.ErrArgument)}
	case m.Handle.Device() != h.device:
		return &Error{Op: "close", Device: h.device.Info().Index, Err: fmt.Errorf("%w: %q", ErrForeign, m.Handle.Name())}
	}
	err := m.Handle.Close()
	if err == nil {
		delete(h.open, m.Handle)
	}
	return err
}

func (m *CheckHealth) do(h *control) error {
	m.Health = h.device.Health()
	return m.Health.Err
}

func (m *shut) do(h *control) error {
	m.left = Left{Buffers: len(h.memory), Handles: len(h.open)}
	for _, n := range h.memory {
		m.left.Bytes += n
	}
	h.device.Abort(&Error{Op: "close", Device: h.device.Info().Index, Err: kolo.ErrClosed})
	h.stop()
	return nil
}

func (h *control) opened(x Handle, err error) error {
	if err == nil {
		h.open[x] = struct{}{}
	}
	return err
}

// forget gives back a handle that nobody waits for.
func (h *control) forget(x Handle, err error) {
	if err == nil {
		delete(h.open, x)
		_ = x.Close() // nobody has used it: only a lost device refuses
	}
}
