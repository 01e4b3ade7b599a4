package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/npu"
)

// Cluster is a set of simulated devices that reach each other. It is an npu.Driver.
// All its methods may be called by any goroutine; in a synctest bubble it belongs to
// the bubble that it was made in.
type Cluster struct {
	cfg Config

	mu      sync.Mutex
	clock   clock
	order   npu.Order
	slots   []*slot
	spaces  map[kolo.Space]*device
	waiting []*use   // that have not begun: by priority, then first come
	works   []*chain // that are not over
	spans   []Span
	lost    int // spans that were not kept
	scanned int // number of the last scan
	closed  bool
	quiet   chan struct{} // closed when a closed cluster has no goroutine left
}

// slot is where a device sits, open or not.
type slot struct {
	index, server int
	device        *device // nil while it is not open

	compute, vector, copies *lane
	fromHost, toHost        *lane
	portIn, portOut         *lane
	peers                   []*lane // HCCS to the device of each place in the server
	faults                  []fault
	begun                   int // tasks and jobs
	broken                  error
}

// New makes a cluster. Close it.
func New(cfg Config) (*Cluster, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	c := &Cluster{cfg: cfg, spaces: map[kolo.Space]*device{}, quiet: make(chan struct{})}
	c.clock.fast, c.clock.base = cfg.Fast, time.Now()
	for i := range cfg.Servers * cfg.Devices {
		s := &slot{index: i, server: i / cfg.Devices}
		engine := func(name string, rate float64, slots int) *lane {
			return &lane{name: fmt.Sprintf("npu%d/%s", i, name), rate: rate, slots: slots, slow: 1}
		}
		link := func(l Line, format string, args ...any) *lane {
			return &lane{name: fmt.Sprintf(format, args...), rate: l.Bandwidth, latency: l.Latency, slots: 1, slow: 1}
		}
		s.compute = engine("compute", 0, 1)
		s.vector = engine("vector", cfg.HBM, 1)
		s.copies = engine("copy", cfg.HBM, cfg.CopyEngines)
		s.fromHost, s.toHost = link(cfg.PCIe, "pcie %d in", i), link(cfg.PCIe, "pcie %d out", i)
		s.portIn, s.portOut = link(cfg.RoCE, "roce %d in", i), link(cfg.RoCE, "roce %d out", i)
		for k := range cfg.Devices {
			s.peers = append(s.peers, link(cfg.HCCS, "hccs %d>%d", i, s.server*cfg.Devices+k))
		}
		c.slots = append(c.slots, s)
	}
	return c, nil
}

// Name is "sim".
func (c *Cluster) Name() string { return "sim" }

// Devices is how many devices all servers have.
func (c *Cluster) Devices() int { return len(c.slots) }

// Open takes a device into use. Device i is on server i / Config.Devices.
func (c *Cluster) Open(index int) (npu.Device, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fail := func(err error) (npu.Device, error) {
		return nil, &npu.Error{Op: "open", Device: index, Err: err}
	}
	if c.closed {
		return fail(kolo.ErrClosed)
	}
	if index < 0 || index >= len(c.slots) {
		return fail(fmt.Errorf("%w: there are devices 0 to %d", kolo.ErrArgument, len(c.slots)-1))
	}
	s := c.slots[index]
	switch {
	case s.device != nil:
		return fail(fmt.Errorf("%w: it is open; close it first, or share the Device", npu.ErrBusy))
	case s.broken != nil:
		return fail(s.broken)
	}
	d := newDevice(c, s)
	s.device = d
	c.spaces[d.space] = d
	return d, nil
}

// Close closes the devices that are open and ends the clock. Jobs of an Engine that
// are not done then are resolved with kolo.ErrClosed.
func (c *Cluster) Close(ctx context.Context) error {
	c.mu.Lock()
	c.closed = true
	var open []*device
	for _, s := range c.slots {
		if s.device != nil {
			open = append(open, s.device)
		}
	}
	c.mu.Unlock()
	var errs []error
	for _, d := range open {
		errs = append(errs, d.Close(ctx))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	c.mu.Lock()
	c.settle()
	c.mu.Unlock()
	select {
	case <-c.quiet:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: waiting for the simulated cluster: %w", kolo.ErrCanceled, ctx.Err())
	}
}

// Now is the time of the cluster's clock, since it was made.
func (c *Cluster) Now() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.clock.now()
}

// enter sets the moment of what the host asks for. c.mu is held.
func (c *Cluster) enter() { c.clock.at = c.clock.now() }

// turn begins what may begin now. It ends everything that changes the order or the
// lanes. c.mu is held.
func (c *Cluster) turn() {
	for t := c.order.Ready(); t != nil; t = c.order.Ready() {
		c.dispatch(t.Data.(*task))
	}
	c.scan()
	c.arm()
}

// locate finds the memory: the bytes, and for device memory the device and the
// allocation.
func (c *Cluster) locate(m kolo.Memory) (bytes []byte, d *device, b *npu.Block, err error) {
	if m.Space == kolo.HostSpace {
		return m.Host, nil, nil, nil
	}
	d = c.spaces[m.Space]
	if d == nil {
		return nil, nil, nil, fmt.Errorf("%w: space %d is that of no device which is open here", npu.ErrForeign, m.Space)
	}
	if m.Size == 0 {
		return nil, d, nil, nil
	}
	if b, err = d.blocks.Find(m); err != nil {
		return nil, nil, nil, fmt.Errorf("memory of device %d: %w", d.slot.index, err)
	}
	off := m.Addr - b.Addr
	return b.Data[off : off+uint64(m.Size) : off+uint64(m.Size)], d, b, nil
}

// trouble says why device d cannot be used.
func (d *device) trouble() error {
	switch {
	case d.slot.broken != nil:
		return d.slot.broken
	case d.closing:
		return fmt.Errorf("%w: device %d", kolo.ErrClosed, d.slot.index)
	}
	return nil
}

// touching are the works that have to do with a device, in the order they began.
func (c *Cluster) touching(d *device) (list []*chain) {
	for _, w := range c.works {
		if slices.Contains(w.devices, d) {
			list = append(list, w)
		}
	}
	return list
}
