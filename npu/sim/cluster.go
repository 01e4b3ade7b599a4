package sim

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kolo-ccl/kolo/internal/ctxerr"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/npu/driver"
)

// Cluster is a set of simulated devices that reach each other. It is an npu.Driver.
// All its methods may be called by any goroutine; in a synctest bubble it belongs to
// the bubble that it was made in.
type Cluster struct {
	cfg Config

	core  *driver.Core
	slots []*slot

	// guarded by the core's lock
	clock   clock
	waiting []*use   // that have not begun: by priority, then first come
	works   []*chain // that are not over
	spans   []Span
	lost    int           // spans that were not kept
	scanned int           // number of the last scan
	quiet   chan struct{} // closed when a closed cluster has no goroutine left
}

// slot is where a device sits, open or not.
type slot struct {
	index, server int

	compute, vector, copies *lane
	fromHost, toHost        *lane
	portIn, portOut         *lane
	peers                   []*lane // HCCS to the device of each place in the server
	faults                  []fault
	begun                   int // tasks and jobs
	lost                    bool
}

// New makes a cluster. Close it.
func New(cfg Config) (*Cluster, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	c := &Cluster{cfg: cfg, quiet: make(chan struct{})}
	c.core = driver.New(driver.Config{Name: "sim", Devices: cfg.Servers * cfg.Devices, Streams: maxStreams, Handles: maxHandles}, hooks{c})
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
	d, err := c.core.Reserve(index)
	if err != nil {
		return nil, err
	}
	return c.opened(d)
}

// opened ends an Open of a device that is reserved.
func (c *Cluster) opened(d *driver.Device) (npu.Device, error) {
	if err := c.admit(d); err != nil {
		c.core.Lock()
		defer c.core.Unlock()
		c.core.Vacate(d)
		c.settle() // a Close may wait for it
		return nil, err
	}
	return d, nil
}

// admit opens a device that is reserved.
func (c *Cluster) admit(d *driver.Device) error {
	s := c.slots[d.Index()]
	c.core.Lock()
	lost := s.lost
	c.core.Unlock()
	if lost {
		return d.Error("open", npu.ErrLost)
	}
	x := &device{Device: d, c: c, slot: s, arena: npu.NewArena(baseAddr, c.cfg.Memory)}
	return c.core.Admit(d, npu.Info{Server: s.server, Name: "simulated NPU", Memory: x.arena.Size(), Simulated: true}, x)
}

// Close closes the devices that are open and ends the clock. Jobs of an Engine that
// are not done then are resolved with kolo.ErrClosed.
func (c *Cluster) Close(ctx context.Context) error {
	if err := c.core.Close(ctx); err != nil {
		return err
	}
	c.core.Lock()
	c.settle()
	c.core.Unlock()
	select {
	case <-c.quiet:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the simulated cluster: %w", ctxerr.Of(ctx))
	}
}

// Now is the time of the cluster's clock, since it was made.
func (c *Cluster) Now() time.Duration {
	c.core.Lock()
	defer c.core.Unlock()
	return c.clock.now()
}

// hooks are what the core asks of a cluster.
type hooks struct{ c *Cluster }

// Enter sets the moment of what the host asks for.
func (h hooks) Enter() time.Duration {
	h.c.clock.at = h.c.clock.now()
	return h.c.clock.at
}

// Leave begins uses of lanes.
func (h hooks) Leave() {
	h.c.scan()
	h.c.arm()
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
