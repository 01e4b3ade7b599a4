//go:build linux && (amd64 || arm64) && !noacl

package ascend

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/internal/ctxerr"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/npu/driver"
)

// device is an NPU that is open. What is below "thread" belongs to its thread; the
// rest is guarded by the core's lock.
type device struct {
	*driver.Device
	v     *Driver
	index int

	events   []uintptr // of AscendCL, to be used again
	commands []func()
	calls    []func()
	ending   bool // commands and calls end when they are empty

	work  chan struct{} // has one when there are commands
	serve chan struct{} // has one when there are calls
	ended chan struct{} // closed when the device is given back

	// thread
	context   uintptr
	service   uintptr       // a stream for the report thread alone
	reporter  uintptr       // the report thread's number
	reported  chan struct{} // closed when the report thread has ended
	stop      chan struct{} // closed when it is to end
	stopping  atomic.Bool
	name      string
	memory    int64
	canReach  []bool
	links     []kolo.Link
	peers     map[int]bool // that access was enabled to
	healthAt  time.Time
	finishing bool
	alive     map[uintptr]bool // events of AscendCL
}

// limits of a device.
const (
	maxStreams  = 1024
	maxHandles  = 1 << 16
	maxAhead    = 256 // tasks of a stream that the device has: a full stream blocks its caller
	bounceSize  = 4 << 20
	scratchSize = bounceSize
)

func newDevice(v *Driver, d *driver.Device) *device {
	return &device{Device: d, v: v, index: d.Index(), peers: map[int]bool{}, alive: map[uintptr]bool{},
		work: make(chan struct{}, 1), serve: make(chan struct{}, 1), ended: make(chan struct{}), reported: make(chan struct{}), stop: make(chan struct{})}
}

// own is this driver's part of a device, nil for the host.
func own(d *driver.Device) *device {
	if d == nil {
		return nil
	}
	return d.Hooks().(*device)
}

// allocation is what AscendCL knows a block by.
type allocation struct {
	raw uintptr // what aclrtMalloc gave
	key []byte  // or the key of memory of another process
}

// Alloc asks the device for memory.
func (d *device) Alloc(size int64) (*npu.Block, error) {
	var raw uintptr
	var addr uint64
	err := d.do(func() (err error) {
		raw, addr, err = d.malloc(size)
		return err
	}, func() { _ = d.v.lib.call(fnFree, raw) }) // nobody has used it
	if err != nil {
		return nil, err
	}
	return &npu.Block{Addr: addr, Size: size, Own: allocation{raw: raw}}, nil
}

// malloc asks for memory at a multiple of npu.Alignment, which AscendCL promises less
// than: where it does not come by itself there is more of it.
func (d *device) malloc(size int64) (raw uintptr, addr uint64, err error) {
	raw, err = d.v.lib.made(fnMalloc, uintptr(size), hugeFirst)
	if err != nil || raw%npu.Alignment == 0 {
		return raw, uint64(raw), err
	}
	if err = d.v.lib.call(fnFree, raw); err != nil {
		return 0, 0, err
	}
	raw, err = d.v.lib.made(fnMalloc, uintptr(size+npu.Alignment), hugeFirst)
	return raw, (uint64(raw) + npu.Alignment - 1) &^ (npu.Alignment - 1), err
}

// Free gives memory back. Of a device that is lost nothing is left to give.
func (d *device) Free(b *npu.Block) error {
	if !d.usable() {
		return nil
	}
	return d.do(func() error { return d.v.lib.call(fnFree, b.Own.(allocation).raw) }, nil)
}

// NewStream makes a stream of AscendCL.
func (d *device) NewStream(s *driver.Stream) (driver.StreamHooks, error) {
	x := &stream{Stream: s, d: d}
	if err := d.do(x.create, x.destroy); err != nil {
		return nil, err
	}
	return x, nil
}

// Edge has no figures: AscendCL does not declare any.
func (d *device) Edge(peer *driver.Device) (kolo.Edge, bool) {
	p := own(peer)
	switch {
	case p == nil:
		return kolo.Edge{Link: kolo.LinkPCIe}, true
	case p == d:
		return kolo.Edge{Link: kolo.LinkSelf}, true
	case d.canReach[p.index]:
		return kolo.Edge{Link: d.links[p.index]}, true
	}
	return kolo.Edge{}, false
}

// link is what lies between two devices: what aclrtGetDevicesTopo says, else DCMI. What
// can be accessed and is not said to be behind PCIe is HCCS.
func (v *Driver) link(a, b int) kolo.Link {
	path := pathOf(v.lib.topo(a, b))
	if path == PathUnknown && v.dcmi != nil {
		path, _ = v.dcmi.between(a, b)
	}
	if l, ok := path.Link(); ok {
		return l
	}
	return kolo.LinkHCCS
}

// pathOf is the best of the paths that bits of aclrtGetDevicesTopo stand for.
func pathOf(bits uint64) Path {
	for _, p := range []struct {
		bit  uint64
		path Path
	}{{topoHCCS, PathHCCS}, {topoSIO, PathSIO}, {topoSwitch, PathSwitch}, {topoPIX, PathPIX}, {topoPHB, PathPHB}, {topoSYS, PathSYS}} {
		if bits&p.bit != 0 {
			return p.path
		}
	}
	return PathUnknown
}

// Cut ends what streams of other devices have in flight with a device.
func (d *device) Cut(cause error) {
	for _, p := range d.v.core.Opened() {
		if p == d.Device || p.Hooks() == nil {
			continue
		}
		for _, x := range p.Streams() {
			s := streamOf(x)
			if slices.ContainsFunc(s.flight, func(k *task) bool { return slices.Contains(k.Parts, d.Device) }) {
				s.d.push(func() { s.breakDown(cause) })
			}
		}
	}
}

// Lose ends what the device has, and what others have with it.
func (d *device) Lose(cause error) {
	for _, x := range d.Streams() {
		streamOf(x).resolve(allOfThem, cause)
	}
	d.Cut(cause)
}

// Tell has f called by the goroutine that calls users.
func (d *device) Tell(f func()) {
	d.callOut(func() {
		_ = driver.Protect(func() error { f(); return nil }) // of a panic there is nobody to tell
	})
}

// lose notes that the device cannot be relied on: everything on it ends, now.
func (d *device) lose(cause error) {
	d.v.core.Enter()
	defer d.v.core.Leave()
	d.Device.Lose(cause)
}

// loses says whether an error of the library tells that the device is lost; then it is.
func (d *device) loses(err error) bool {
	if !errors.Is(err, npu.ErrLost) {
		return false
	}
	d.lose(err)
	return true
}

// usable says whether the library may still be asked about the device.
func (d *device) usable() bool {
	d.v.core.Lock()
	defer d.v.core.Unlock()
	return d.Lost() == nil
}

// Finish has the device's thread give everything back.
func (d *device) Finish(streams []*driver.Stream, blocks []*npu.Block) {
	d.push(func() { d.finish(streams, blocks) })
}

// grace is how long the end of a device may take, whatever the context says: nothing
// is waited for in it but the library.
const grace = 5 * time.Second

// Wait waits until the device is given back.
func (d *device) Wait(ctx context.Context) error {
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-d.ended:
		return nil
	case <-timer.C:
	}
	select {
	case <-d.ended:
		return nil
	case <-ctx.Done():
		return d.Error("close", fmt.Errorf("the library does not give the device back: %w", ctxerr.Of(ctx)))
	}
}

// address of host memory or of a device's.
func address(m kolo.Memory) uintptr {
	if m.Space != kolo.HostSpace {
		return uintptr(m.Addr)
	}
	return uintptr(unsafe.Pointer(unsafe.SliceData(m.Host)))
}
