package sim

import (
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/npu/driver"
)

// move is the use of what moves n bytes; nil stands for the host. There is none
// within the host.
func (c *Cluster) move(from, to *device, n int64) *use {
	u := &use{name: "copy", bytes: n}
	switch {
	case from == nil && to == nil:
		return nil
	case from == to:
		u.lanes, u.bytes, u.fixed = []*lane{to.slot.copies}, 2*n, c.cfg.Launch
	default:
		u.lanes = c.route(slotOf(from), slotOf(to))
	}
	return u
}

// fold is the use of a device's vector engine that reads and writes n bytes.
func (c *Cluster) fold(d *device, n int64) *use {
	return &use{name: "reduce", lanes: []*lane{d.slot.vector}, bytes: n, fixed: c.cfg.Launch}
}

// compute is the use of a kernel.
func (c *Cluster) compute(d *device, name string, cost time.Duration, bytes int64) *use {
	return &use{name: name, lanes: []*lane{d.slot.compute}, bytes: bytes, fixed: c.cfg.Launch + cost}
}

// route are the lanes from one place to another; nil stands for the host.
func (c *Cluster) route(from, to *slot) []*lane {
	switch {
	case from == nil:
		return []*lane{to.fromHost}
	case to == nil:
		return []*lane{from.toHost}
	case from.server == to.server:
		return []*lane{from.peers[to.index%c.cfg.Devices]}
	}
	return []*lane{from.portOut, to.portIn}
}

func slotOf(d *device) *slot {
	if d == nil {
		return nil
	}
	return d.slot
}

// Edge says how the device reaches another's memory, nil for the host's. Within the
// device it is a copy.
func (d *device) Edge(peer *driver.Device) (kolo.Edge, bool) {
	cfg, to := &d.c.cfg, own(peer)
	line := func(k kolo.Link, l Line) (kolo.Edge, bool) {
		return kolo.Edge{Link: k, Latency: l.Latency, Bandwidth: l.Bandwidth}, true
	}
	switch {
	case to == nil:
		return line(kolo.LinkPCIe, cfg.PCIe)
	case to == d:
		return line(kolo.LinkSelf, Line{Bandwidth: cfg.HBM / 2, Latency: cfg.Launch})
	case cfg.NoPeer:
		return kolo.Edge{}, false
	case to.slot.server == d.slot.server:
		return line(kolo.LinkHCCS, cfg.HCCS)
	}
	return line(kolo.LinkRoCE, cfg.RoCE)
}
