package sim

import (
	"context"
	"fmt"
	"slices"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/npu"
)

// device is a slot that is open.
type device struct {
	c       *Cluster
	slot    *slot
	info    npu.Info
	space   kolo.Space
	arena   *npu.Arena
	blocks  npu.Blocks
	streams []*stream // that are not closed
	handles int       // events and notifies that are not closed
	made    int       // streams ever
	closing bool      // nothing more may begin
	closed  bool
}

// limits of a device.
const (
	maxStreams = 2048
	maxHandles = 1 << 16
	baseAddr   = 1 << 32
)

func newDevice(c *Cluster, s *slot) *device {
	d := &device{c: c, slot: s, space: npu.NewSpace(), arena: npu.NewArena(baseAddr, c.cfg.Memory)}
	d.info = npu.Info{Driver: c.Name(), Index: s.index, Server: s.server, Space: d.space,
		Name: "simulated NPU", Memory: d.arena.Size(), Simulated: true}
	return d
}

func (d *device) Info() npu.Info { return d.info }

func (d *device) Alloc(size int64) (kolo.Memory, error) {
	d.c.mu.Lock()
	defer d.c.mu.Unlock()
	if err := d.trouble(); err != nil {
		return kolo.Memory{}, d.error("alloc", err)
	}
	addr, err := d.arena.Alloc(size)
	if err != nil {
		return kolo.Memory{}, d.error("alloc", err)
	}
	d.blocks.Add(&npu.Block{Addr: addr, Size: size, Data: make([]byte, size)})
	return kolo.Memory{Space: d.space, Addr: addr, Size: size}, nil
}

func (d *device) Free(m kolo.Memory) error {
	d.c.mu.Lock()
	defer d.c.mu.Unlock()
	switch {
	case d.closed:
		return d.error("free", d.trouble())
	case m.Space != d.space:
		return d.error("free", fmt.Errorf("%w: the memory is of space %d, this device's is %d", npu.ErrForeign, m.Space, d.space))
	}
	b, err := d.blocks.Remove(m)
	if err != nil {
		return d.error("free", err)
	}
	return d.arena.Free(b.Addr)
}

func (d *device) NewStream(cfg npu.StreamConfig) (npu.Stream, error) {
	d.c.mu.Lock()
	defer d.c.mu.Unlock()
	if err := d.trouble(); err != nil {
		return nil, d.error("new stream", err)
	}
	if len(d.streams) >= maxStreams {
		return nil, d.error("new stream", fmt.Errorf("%w: %d streams are open; close some", kolo.ErrLimit, len(d.streams)))
	}
	if cfg.Name == "" {
		cfg.Name = fmt.Sprintf("stream %d", d.made)
	}
	d.made++
	s := &stream{d: d, name: cfg.Name, priority: cfg.Priority, who: fmt.Sprintf("stream %q of device %d", cfg.Name, d.slot.index)}
	d.streams = append(d.streams, s)
	return s, nil
}

func (d *device) NewEvent(name string) (npu.Event, error) {
	d.c.mu.Lock()
	defer d.c.mu.Unlock()
	if err := d.newHandle(); err != nil {
		return nil, d.error("new event", err)
	}
	return &eventHandle{d: d, mark: npu.Mark{Name: name}}, nil
}

func (d *device) NewNotify(name string) (npu.Notify, error) {
	d.c.mu.Lock()
	defer d.c.mu.Unlock()
	if err := d.newHandle(); err != nil {
		return nil, d.error("new notify", err)
	}
	return &notify{d: d, flag: npu.Flag{Name: name}}, nil
}

func (d *device) newHandle() error {
	if err := d.trouble(); err != nil {
		return err
	}
	if d.handles >= maxHandles {
		return fmt.Errorf("%w: %d events and notifies are open; close some", kolo.ErrLimit, d.handles)
	}
	d.handles++
	return nil
}

func (d *device) Health() npu.Health {
	d.c.mu.Lock()
	defer d.c.mu.Unlock()
	h := npu.Health{Err: d.trouble(), Streams: len(d.streams), Buffers: len(d.blocks.All()), Used: d.arena.Used()}
	for _, s := range d.streams {
		h.Tasks += s.queue.Len()
	}
	return h
}

func (d *device) Abort(cause error) {
	d.c.mu.Lock()
	defer d.c.mu.Unlock()
	d.c.enter()
	d.abort(cause)
	d.c.turn()
}

func (d *device) abort(cause error) {
	for _, s := range d.streams {
		s.abort(cause)
	}
}

// Close stops the streams, cuts what others do with the device, and waits for what
// runs on it.
func (d *device) Close(ctx context.Context) error {
	c := d.c
	c.mu.Lock()
	if d.closed {
		c.mu.Unlock()
		return nil
	}
	c.enter()
	if !d.closing {
		d.closing = true
		cause := d.error("close", kolo.ErrClosed)
		if d.slot.broken == nil {
			d.abort(cause)
		}
		for _, w := range c.touching(d) {
			if w.owner != d {
				c.cancel(w, cause)
			}
		}
	}
	var idle []chan struct{}
	for _, s := range d.streams {
		if !s.queue.Idle() {
			done := make(chan struct{})
			idle = append(idle, done)
			s.idle = append(s.idle, done)
		}
	}
	c.turn()
	c.mu.Unlock()
	for _, done := range idle {
		select {
		case <-done:
		case <-ctx.Done():
			return d.error("close", fmt.Errorf("%w: waiting for what runs: %w", kolo.ErrCanceled, ctx.Err()))
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !d.closed {
		d.closed = true
		d.slot.device = nil
		delete(c.spaces, d.space)
		for _, s := range d.streams {
			s.closed = true
		}
		d.streams, d.blocks = nil, npu.Blocks{}
		d.arena = npu.NewArena(baseAddr, c.cfg.Memory)
	}
	return nil
}

func (d *device) error(op string, err error) error {
	return &npu.Error{Op: op, Device: d.slot.index, Err: err}
}

// leave takes a stream off the list.
func (d *device) leave(s *stream) {
	if i := slices.Index(d.streams, s); i >= 0 {
		d.streams = slices.Delete(d.streams, i, i+1)
	}
}
