package driver

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime/debug"
	"sync"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/internal/ctxerr"
	"github.com/kolo-ccl/kolo/npu"
)

// Hooks is what a driver does for all its devices. Its methods are called with the
// lock.
type Hooks interface {
	// Enter is called when the lock was taken for something that comes from outside. It
	// gives the moment on the driver's clock, 0 if it keeps none.
	Enter() time.Duration
	// NewTask makes a task: the Task in a struct of the driver's, which Own points to.
	NewTask() *Task
	// Begin has a task begin, without waiting for it. Task.End follows once, at once or
	// later. Of tasks that were dropped, only callbacks come here.
	Begin(t *Task)
	// Leave is called when everything that may begin has begun, before the lock is given
	// back.
	Leave()
}

// Config says what a driver has.
type Config struct {
	Name    string // of the driver
	Devices int    // how many there are
	Streams int    // the most that are open on a device
	Handles int    // the most events and notifies that are open on a device
	Pin     bool   // memory of the host that a task uses is kept in place until it has ended
}

// Core is what the devices of a driver share.
type Core struct {
	cfg   Config
	hooks Hooks

	mu     sync.Mutex
	order  npu.Order
	at     time.Duration // the moment of what the host asks for
	open   []*Device     // by index; nil where none is open
	spaces map[kolo.Space]*Device
	closed bool
}

// New makes the core of a driver without open devices.
func New(c Config, h Hooks) *Core {
	return &Core{cfg: c, hooks: h, open: make([]*Device, c.Devices), spaces: map[kolo.Space]*Device{}}
}

// Chain says that devices keep the order between their streams too: see npu.Order.
// It is for before the first device.
func (c *Core) Chain() { c.order.Chain = true }

// Lock takes the lock, for what is the driver's own.
func (c *Core) Lock() { c.mu.Lock() }

// Unlock gives the lock back. Nothing begins by that.
func (c *Core) Unlock() { c.mu.Unlock() }

// Enter takes the lock for something that comes from outside.
func (c *Core) Enter() {
	c.mu.Lock()
	c.at = c.hooks.Enter()
}

// Leave begins what may begin and gives the lock back.
func (c *Core) Leave() {
	c.Turn()
	c.mu.Unlock()
}

// Turn begins what may begin. The lock is held.
func (c *Core) Turn() {
	for t := c.order.Ready(); t != nil; t = c.order.Ready() {
		c.begin(t.Data.(*Task))
	}
	c.hooks.Leave()
}

// begin has a task begin, or ends it if it cannot or was dropped. The lock is held.
func (c *Core) begin(t *Task) {
	t.why = t.Err
	if t.Kind == npu.TaskCall {
		c.hooks.Begin(t)
		return
	}
	switch err := t.Hindrance(); {
	case t.Err != nil, c.order.Broken(&t.Task) != nil: // the second fails the stream
		t.End(nil)
		return
	case err != nil:
		t.End(err)
		return
	}
	for _, d := range t.Parts {
		d.users++
	}
	t.counted = true
	c.hooks.Begin(t)
}

// Pass says that the device has a task and keeps what comes later behind it: see
// npu.Order. The lock is held.
func (c *Core) Pass(t *Task) { c.order.Pass(&t.Task) }

// Broken says why a Wait that was passed waits for what will not come: see npu.Order.
// The lock is held.
func (c *Core) Broken(t *Task) error { return c.order.Broken(&t.Task) }

// Devices is how many devices there are.
func (c *Core) Devices() int { return c.cfg.Devices }

// Opened are the devices that are open. The lock is held.
func (c *Core) Opened() (list []*Device) {
	for _, d := range c.open {
		if d != nil {
			list = append(list, d)
		}
	}
	return list
}

// Reserve takes a number for a device that is to be opened. Admit or Vacate follows.
func (c *Core) Reserve(index int) (*Device, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fail := func(err error) (*Device, error) {
		return nil, &npu.Error{Op: "open", Device: index, Err: err}
	}
	switch {
	case c.closed:
		return fail(kolo.ErrClosed)
	case index < 0 || index >= len(c.open):
		return fail(fmt.Errorf("%w: there are devices 0 to %d", kolo.ErrArgument, len(c.open)-1))
	case c.open[index] != nil:
		return fail(fmt.Errorf("%w: it is open; close it first, or share the Device", npu.ErrBusy))
	}
	d := &Device{core: c, index: index}
	c.open[index] = d
	return d, nil
}

// Admit makes a reserved device one that users have. Of the info, the driver, the
// index and the space are set here. The error is kolo.ErrClosed where the driver was
// closed meanwhile: the device counts as closed then, and the driver gives it back.
func (c *Core) Admit(d *Device, info npu.Info, h DeviceHooks) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	info.Driver, info.Index, info.Space = c.cfg.Name, d.index, npu.NewSpace()
	d.info, d.hooks = info, h
	if c.closed {
		d.closing, d.closed = true, true
		return &npu.Error{Op: "open", Device: d.index, Err: kolo.ErrClosed}
	}
	c.spaces[info.Space] = d
	return nil
}

// Vacate ends the time of a device, which may then be opened again. The lock is held.
func (c *Core) Vacate(d *Device) {
	if c.open[d.index] == d {
		c.open[d.index] = nil
	}
}

// Close closes the devices that are open, and lets none be opened.
func (c *Core) Close(ctx context.Context) error {
	c.mu.Lock()
	c.closed = true
	open := c.Opened()
	c.mu.Unlock()
	var errs []error
	for _, d := range open {
		if d.admitted() {
			errs = append(errs, d.Close(ctx))
		}
	}
	return errors.Join(errs...)
}

// Closed says whether Close was called. The lock is held.
func (c *Core) Closed() bool { return c.closed }

// Locate finds memory: the device and the allocation, nil for the host's. There is no
// allocation of no bytes. The lock is held.
func (c *Core) Locate(m kolo.Memory) (Place, error) {
	p := Place{Memory: m}
	if m.Space == kolo.HostSpace {
		return p, nil
	}
	if p.Device = c.spaces[m.Space]; p.Device == nil {
		return Place{}, fmt.Errorf("%w: space %d is that of no device which is open here", npu.ErrForeign, m.Space)
	}
	if m.Size == 0 {
		return p, nil
	}
	var err error
	if p.Block, err = p.Device.blocks.Find(m); err != nil {
		return Place{}, fmt.Errorf("memory of device %d: %w", p.Device.index, err)
	}
	return p, nil
}

// Place is memory and where it is.
type Place struct {
	kolo.Memory
	Device *Device    // nil for the host's
	Block  *npu.Block // nil for the host's, and for no bytes
}

// Bytes are the bytes, of the host or of a device whose blocks have Data.
func (p Place) Bytes() []byte {
	switch {
	case p.Device == nil:
		return p.Host
	case p.Block == nil:
		return nil
	}
	off := p.Addr - p.Block.Addr
	return p.Block.Data[off : off+uint64(p.Size) : off+uint64(p.Size)]
}

// foreign is the error of an event or a notify that another driver has made, or nobody.
func (c *Core) foreign(what string, v any) error {
	if v == nil || reflect.ValueOf(v).Kind() == reflect.Pointer && reflect.ValueOf(v).IsNil() {
		return fmt.Errorf("%w: the %s is nil; driver %s wants one that its own devices have made", npu.ErrForeign, what, c.cfg.Name)
	}
	return fmt.Errorf("%w: the %s is a %T of another driver; driver %s wants one that its own devices have made", npu.ErrForeign, what, v, c.cfg.Name)
}

// Protect calls f and turns a panic of what users wrote into an error.
func Protect(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%w: %w: %v\n%s", npu.ErrFault, kolo.ErrPanic, v, debug.Stack())
		}
	}()
	return f()
}

// Settle calls f and then tells then what came of it: its error, its panic as Protect has
// it, or that it has ended the goroutine, as a test that fails does. The goroutine ends
// behind that.
func Settle(f func() error, then func(error)) {
	err := fmt.Errorf("%w: the function has ended its goroutine, by runtime.Goexit or FailNow of a test", npu.ErrFault)
	defer func() { then(err) }()
	err = Protect(f)
}

// receive waits for an answer, or for the context. An answer that is there counts also
// where the context has ended.
func receive(ctx context.Context, done <-chan error, wrap func(string, error) error) error {
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done:
		return err
	default:
		return wrap("sync", ctxerr.Of(ctx))
	}
}
