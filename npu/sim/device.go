package sim

import (
	"context"
	"time"

	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/npu/driver"
)

// device is a slot that is open.
type device struct {
	*driver.Device
	c     *Cluster
	slot  *slot
	arena *npu.Arena
}

// limits of a device.
const (
	maxStreams = 2048
	maxHandles = 1 << 16
	baseAddr   = 1 << 32
)

// own is the cluster's part of a device, nil for the host.
func own(d *driver.Device) *device {
	if d == nil {
		return nil
	}
	return d.Hooks().(*device)
}

// Alloc takes room in the arena; the bytes are the host's.
func (d *device) Alloc(size int64) (*npu.Block, error) {
	d.c.core.Lock()
	addr, err := d.arena.Alloc(size)
	d.c.core.Unlock()
	if err != nil {
		return nil, err
	}
	return &npu.Block{Addr: addr, Size: size, Data: make([]byte, size)}, nil
}

// Free gives room back.
func (d *device) Free(b *npu.Block) error {
	d.c.core.Lock()
	defer d.c.core.Unlock()
	return d.arena.Free(b.Addr)
}

// NewStream makes a stream.
func (d *device) NewStream(s *driver.Stream) (driver.StreamHooks, error) {
	return &stream{Stream: s, d: d}, nil
}

// Since is the time that the model says.
func (d *device) Since(earlier, later *driver.Event) func() (time.Duration, error) {
	between := later.Stamp - earlier.Stamp
	return func() (time.Duration, error) { return between, nil }
}

// CloseEvent has nothing to give back.
func (d *device) CloseEvent(*driver.Event) {}

// Cut ends what streams of other devices and engines do with the device.
func (d *device) Cut(cause error) {
	for _, w := range d.c.touching(d) {
		if w.owner != d {
			d.c.cancel(w, cause)
		}
	}
}

// Lose ends everything that has to do with the device.
func (d *device) Lose(cause error) {
	for _, w := range d.c.touching(d) {
		d.c.cancel(w, cause)
	}
}

// Tell has f called by the goroutine of the clock.
func (d *device) Tell(f func()) {
	d.c.run(d.c.clock.at, func() error { f(); return nil }, func(error) {}) // of a panic there is nobody to tell
}

// Finish gives the slot back.
func (d *device) Finish([]*driver.Stream, []*npu.Block) { d.c.core.Vacate(d.Device) }

// Wait has nothing to wait for.
func (d *device) Wait(context.Context) error { return nil }
