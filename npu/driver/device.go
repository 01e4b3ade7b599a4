package driver

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/internal/ctxerr"
	"github.com/kolo-ccl/kolo/npu"
)

// DeviceHooks is a device as its hardware has it. The first four methods are called
// without the lock and may take their time, the others with it.
type DeviceHooks interface {
	// Alloc gives memory of at least one byte, at a multiple of npu.Alignment.
	Alloc(size int64) (*npu.Block, error)
	// Free gives back what Alloc gave. Nothing uses it.
	Free(b *npu.Block) error
	// NewStream makes a stream.
	NewStream(s *Stream) (StreamHooks, error)
	// Wait waits until what Finish began has ended, or for the context.
	Wait(ctx context.Context) error

	// Edge says how the device reaches the memory of a space; to is the device that it is
	// of, nil for the host's. Both are usable.
	Edge(to *Device) (kolo.Edge, bool)
	// Since says how to measure the time between two events that are reached, of which
	// the later is of this device. It is measured without the lock.
	Since(earlier, later *Event) func() (time.Duration, error)
	// CloseEvent is told that an event is closed.
	CloseEvent(e *Event)
	// Cut has what streams of other devices, and engines, have begun with this device end
	// with the cause: it is being closed.
	Cut(cause error)
	// Lose has everything that has begun on the device or with it end with the cause: it
	// is lost.
	Lose(cause error)
	// Tell has f called without the lock, by a goroutine that may wait for the device's
	// other ones, as the one that calls users may.
	Tell(f func())
	// Finish begins to give the device back, with streams and blocks that were not. The
	// driver calls Core.Vacate when another may be opened in its place.
	Finish(streams []*Stream, blocks []*npu.Block)
}

// Device is an npu.Device. Core.Reserve makes it.
type Device struct {
	core  *Core
	index int
	info  npu.Info
	hooks DeviceHooks // nil until the device is admitted

	blocks  npu.Blocks
	used    int64     // bytes that are allocated, or about to be
	streams []*Stream // that are not closed
	opening int       // streams that are being made
	made    int       // streams ever
	handles int       // events and notifies that are not closed
	users   int       // tasks that have begun, of any stream, with its memory
	lost    error
	closing bool // nothing more may begin
	closed  bool
	idle    []chan struct{} // closed when nothing is in flight
	watches []*watch        // who is told of a loss
}

// watch is somebody who is told of a loss.
type watch struct{ tell func(error) }

// Info is that of npu.Device.
func (d *Device) Info() npu.Info { return d.info }

// Index is the number of the device.
func (d *Device) Index() int { return d.index }

// Hooks is the device as its hardware has it.
func (d *Device) Hooks() DeviceHooks { return d.hooks }

// Core is what the device shares with the others of its driver.
func (d *Device) Core() *Core { return d.core }

// Streams are those that are open. The lock is held.
func (d *Device) Streams() []*Stream { return d.streams }

// admitted says whether users may have the device.
func (d *Device) admitted() bool {
	d.core.mu.Lock()
	defer d.core.mu.Unlock()
	return d.hooks != nil
}

// Alloc is that of npu.Device.
func (d *Device) Alloc(size int64) (kolo.Memory, error) {
	c := d.core
	c.mu.Lock()
	err := d.Trouble()
	switch {
	case err != nil:
	case size <= 0:
		err = fmt.Errorf("%w: %d bytes asked for", kolo.ErrArgument, size)
	case d.info.Memory > 0 && size > d.info.Memory-d.used, size > math.MaxInt64-2*npu.Alignment:
		err = fmt.Errorf("%w: %d bytes asked for, %d of %d are used by this process", npu.ErrMemory, size, d.used, d.info.Memory)
	default:
		d.used += size
	}
	c.mu.Unlock()
	if err != nil {
		return kolo.Memory{}, d.Error("alloc", err)
	}
	b, err := d.hooks.Alloc(size)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil && d.closed {
		err = d.Trouble() // and the memory has gone with the device
	}
	if err == nil {
		err = d.blocks.Add(b)
	}
	if err != nil {
		if !d.closed {
			d.used -= size
		}
		return kolo.Memory{}, d.Error("alloc", err)
	}
	return kolo.Memory{Space: d.info.Space, Addr: b.Addr, Size: b.Size}, nil
}

// Free is that of npu.Device.
func (d *Device) Free(m kolo.Memory) error {
	b, err := d.take(m, func(b *npu.Block) error {
		if b.Imported {
			return fmt.Errorf("%w: the memory is another process's; give it back as it was imported", kolo.ErrArgument)
		}
		return nil
	})
	if err == nil {
		err = d.hooks.Free(b)
	}
	if err != nil {
		return d.Error("free", err)
	}
	return nil
}

// Import makes memory of another process, as large as the block, memory of this device.
// What overlaps memory that the device has already is refused with kolo.ErrOverlap.
func (d *Device) Import(b *npu.Block) (kolo.Memory, error) {
	c := d.core
	c.mu.Lock()
	defer c.mu.Unlock()
	if d.closed {
		return kolo.Memory{}, d.Error("import", d.Trouble())
	}
	if err := d.blocks.Add(b); err != nil {
		return kolo.Memory{}, d.Error("import", fmt.Errorf("%w: memory of this process, or imported before", err))
	}
	b.Imported = true
	return kolo.Memory{Space: d.info.Space, Addr: b.Addr, Size: b.Size}, nil
}

// Unimport undoes an Import and gives its block.
func (d *Device) Unimport(m kolo.Memory) (*npu.Block, error) {
	b, err := d.take(m, func(b *npu.Block) error {
		if !b.Imported {
			return fmt.Errorf("%w: the memory was not imported; Free it", kolo.ErrArgument)
		}
		return nil
	})
	if err != nil {
		return nil, d.Error("unimport", err)
	}
	return b, nil
}

// take takes a block out that is exactly the memory, that nobody uses, and that may go.
func (d *Device) take(m kolo.Memory, may func(*npu.Block) error) (*npu.Block, error) {
	c := d.core
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case d.closed:
		return nil, d.Trouble()
	case m.Space != d.info.Space:
		return nil, fmt.Errorf("%w: the memory is of space %d, this device's is %d", npu.ErrForeign, m.Space, d.info.Space)
	}
	b, err := d.blocks.Find(m)
	if err == nil {
		err = may(b)
	}
	if err == nil {
		b, err = d.blocks.Remove(m)
	}
	if err == nil && !b.Imported {
		d.used -= b.Size
	}
	return b, err
}

// NewStream is that of npu.Device.
func (d *Device) NewStream(cfg npu.StreamConfig) (npu.Stream, error) {
	s, err := d.Stream(cfg)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Stream is NewStream, for drivers.
func (d *Device) Stream(cfg npu.StreamConfig) (*Stream, error) {
	c := d.core
	c.mu.Lock()
	err := d.Trouble()
	if n := len(d.streams) + d.opening; err == nil && n >= c.cfg.Streams {
		err = fmt.Errorf("%w: %d streams are open; close some", kolo.ErrLimit, n)
	}
	if err != nil {
		c.mu.Unlock()
		return nil, d.Error("new stream", err)
	}
	if cfg.Name == "" {
		cfg.Name = fmt.Sprintf("stream %d", d.made)
	}
	d.made++
	d.opening++
	c.mu.Unlock()
	s := &Stream{device: d, name: cfg.Name, priority: cfg.Priority, who: fmt.Sprintf("stream %q of device %d", cfg.Name, d.index)}
	s.hooks, err = d.hooks.NewStream(s)
	c.mu.Lock()
	defer c.mu.Unlock()
	d.opening--
	if err == nil && d.closed {
		err = d.Trouble() // and the stream has gone with the device
	}
	if err != nil {
		return nil, d.Error("new stream", err)
	}
	d.streams = append(d.streams, s)
	return s, nil
}

// NewEvent is that of npu.Device.
func (d *Device) NewEvent(name string) (npu.Event, error) {
	if err := d.newHandle("new event"); err != nil {
		return nil, err
	}
	return &Event{device: d, mark: npu.Mark{Name: name}}, nil
}

// NewNotify is that of npu.Device.
func (d *Device) NewNotify(name string) (npu.Notify, error) {
	if err := d.newHandle("new notify"); err != nil {
		return nil, err
	}
	return &Notify{device: d, flag: npu.Flag{Name: name}}, nil
}

func (d *Device) newHandle(op string) error {
	d.core.mu.Lock()
	defer d.core.mu.Unlock()
	if err := d.Trouble(); err != nil {
		return d.Error(op, err)
	}
	if d.handles >= d.core.cfg.Handles {
		return d.Error(op, fmt.Errorf("%w: %d events and notifies are open; close some", kolo.ErrLimit, d.handles))
	}
	d.handles++
	return nil
}

// Edge is that of npu.Device.
func (d *Device) Edge(s kolo.Space) (kolo.Edge, bool) {
	c := d.core
	c.mu.Lock()
	defer c.mu.Unlock()
	to := c.spaces[s]
	if d.Trouble() != nil || s != kolo.HostSpace && (to == nil || to.Trouble() != nil) {
		return kolo.Edge{}, false
	}
	return d.hooks.Edge(to)
}

// Health is that of npu.Device.
func (d *Device) Health() npu.Health {
	d.core.mu.Lock()
	defer d.core.mu.Unlock()
	h := npu.Health{Err: d.Trouble(), Streams: len(d.streams), Buffers: len(d.blocks.All()), Used: d.used}
	for _, s := range d.streams {
		h.Tasks += s.queue.Len()
	}
	return h
}

// Abort is that of npu.Device.
func (d *Device) Abort(cause error) {
	d.core.Enter()
	defer d.core.Leave()
	if d.Trouble() == nil {
		d.abort(cause)
	}
}

func (d *Device) abort(cause error) {
	for _, s := range d.streams {
		s.abort(cause)
	}
}

// OnLost is that of npu.Watched.
func (d *Device) OnLost(f func(cause error)) (forget func()) {
	c := d.core
	w := &watch{f}
	c.mu.Lock()
	lost := d.lost
	if lost == nil && !d.closed {
		d.watches = append(d.watches, w)
	}
	c.mu.Unlock()
	if lost != nil {
		f(lost)
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		d.watches = slices.DeleteFunc(d.watches, func(x *watch) bool { return x == w })
	}
}

// Lose notes that the device cannot be relied on: everything on it ends with an error
// that is npu.ErrLost and the cause, if there is one. The lock is held.
func (d *Device) Lose(cause error) {
	if d.lost != nil || d.closed {
		return
	}
	err := npu.ErrLost
	if cause != nil {
		err = fmt.Errorf("%w: %w", npu.ErrLost, cause)
	}
	d.lost = d.Error("lose", err)
	for _, s := range d.streams {
		s.Fail(d.lost)
	}
	d.hooks.Lose(d.lost)
	for _, w := range d.watches {
		d.hooks.Tell(func() { w.tell(d.lost) }) // which does not change any more
	}
	d.watches = nil
}

// Lost is why the device cannot be relied on, nil if it can. The lock is held.
func (d *Device) Lost() error { return d.lost }

// Closed says whether the device is given back, or about to be. The lock is held.
func (d *Device) Closed() bool { return d.closed }

// Close is that of npu.Device: what the device has begun is aborted and waited for, and
// what others do with it cut; then the driver gives it back.
func (d *Device) Close(ctx context.Context) error {
	c := d.core
	quiet := make(chan struct{})
	c.Enter()
	if !d.closing {
		d.closing = true
		cause := d.Error("close", kolo.ErrClosed)
		if d.lost == nil {
			d.abort(cause)
		}
		d.hooks.Cut(cause)
	}
	d.idle = append(d.idle, quiet)
	d.settle()
	c.Leave()
	select {
	case <-quiet:
	case <-ctx.Done():
		select {
		case <-quiet: // there was nothing to wait for
		default:
			return d.Error("close", fmt.Errorf("wait for what runs: %w", ctxerr.Of(ctx)))
		}
	}
	c.Enter()
	if !d.closed {
		d.closed = true
		delete(c.spaces, d.info.Space)
		streams, blocks := d.streams, d.blocks.All()
		for _, s := range streams {
			s.closed = true
		}
		d.streams, d.blocks, d.used, d.watches = nil, npu.Blocks{}, 0, nil
		d.hooks.Finish(streams, blocks)
	}
	c.Leave()
	return d.hooks.Wait(ctx)
}

// settle tells who waits that nothing is in flight. The lock is held.
func (d *Device) settle() {
	if len(d.idle) == 0 || d.users > 0 || slices.ContainsFunc(d.streams, func(s *Stream) bool { return !s.queue.Idle() }) {
		return
	}
	for _, c := range d.idle {
		close(c)
	}
	d.idle = nil
}

// Trouble says why the device cannot be used. The lock is held.
func (d *Device) Trouble() error {
	switch {
	case d.lost != nil && !d.closed:
		return d.lost
	case d.closing:
		return fmt.Errorf("%w: device %d", kolo.ErrClosed, d.index)
	}
	return nil
}

// Error is an error of the device.
func (d *Device) Error(op string, err error) error {
	return &npu.Error{Op: op, Device: d.index, Err: err}
}

// leave takes a stream off the list. The lock is held.
func (d *Device) leave(s *Stream) {
	if i := slices.Index(d.streams, s); i >= 0 {
		d.streams = slices.Delete(d.streams, i, i+1)
	}
}
