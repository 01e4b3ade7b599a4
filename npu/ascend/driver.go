//go:build linux && (amd64 || arm64) && !noacl

package ascend

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/npu"
)

// Driver is the NPUs that AscendCL has. It is an npu.Driver.
type Driver struct {
	lib      *library
	dcmi     *dcmi // nil where it is absent
	patience time.Duration
	count    int

	mu      sync.Mutex
	order   npu.Order
	open    []*device // by index; nil while it is not open
	spaces  map[kolo.Space]*device
	wake    []*device // that have got something to do
	suspect bool      // a record was dropped: a device may wait for it
	closed  bool
}

// New loads the library, initialises it, and asks what devices there are. Close the
// driver. What is absent is one error: kolo.ErrUnsupported.
func New(c Config) (*Driver, error) {
	if c.Patience == 0 {
		c.Patience = patience
	}
	lib, err := load(c.places())
	if err != nil {
		return nil, err
	}
	runtime.LockOSThread() // for the error text
	defer runtime.UnlockOSThread()
	if err := lib.init(); err != nil {
		return nil, fmt.Errorf("initialise %s: %w", lib.path, err)
	}
	n, err := lib.devices()
	if err != nil {
		return nil, fmt.Errorf("count the devices of %s: %w; is the kernel driver loaded, and may this user open /dev/davinci*?", lib.path, err)
	}
	if n == 0 {
		return nil, fmt.Errorf("%w: %s is here, but there is no device; look at npu-smi info, /dev/davinci* and ASCEND_RT_VISIBLE_DEVICES", kolo.ErrUnsupported, lib.path)
	}
	v := &Driver{lib: lib, patience: c.Patience, count: n, open: make([]*device, n), spaces: map[kolo.Space]*device{}}
	v.order.Chain = lib.has(fnStreamAbort) // without it a device could not be told that what it waits for will not come
	v.dcmi, _ = loadDCMI(c.dcmiPlaces())   // one that is absent is told by Inspect
	return v, nil
}

// Name is "ascend".
func (v *Driver) Name() string { return "ascend" }

// Devices is how many devices the library shows to this process.
func (v *Driver) Devices() int { return v.count }

// Library is the path of the library, as it was loaded, and its version.
func (v *Driver) Library() (path, version string) {
	return v.lib.path, fmt.Sprintf("%d.%d.%d", v.lib.version[0], v.lib.version[1], v.lib.version[2])
}

// Open takes a device into use.
func (v *Driver) Open(index int) (npu.Device, error) {
	d, err := v.reserve(index)
	if err == nil {
		err = d.begin()
	}
	if err != nil {
		return nil, &npu.Error{Op: "open", Device: index, Err: err}
	}
	return d, nil
}

func (v *Driver) reserve(index int) (*device, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case v.closed:
		return nil, kolo.ErrClosed
	case index < 0 || index >= v.count:
		return nil, fmt.Errorf("%w: there are devices 0 to %d", kolo.ErrArgument, v.count-1)
	case v.open[index] != nil:
		return nil, fmt.Errorf("%w: it is open; close it first, or share the Device", npu.ErrBusy)
	}
	d := newDevice(v, index)
	v.open[index] = d
	return d, nil
}

// Close closes the devices that are open. The library stays initialised: a process
// initialises it once.
func (v *Driver) Close(ctx context.Context) error {
	v.mu.Lock()
	v.closed = true
	var open []*device
	for _, d := range v.open {
		if d != nil {
			open = append(open, d)
		}
	}
	v.mu.Unlock()
	var errs []error
	for _, d := range open {
		errs = append(errs, d.Close(ctx))
	}
	return errors.Join(errs...)
}

// enter takes the driver's lock; leave gives it back, after what may begin has begun,
// and wakes the devices that have got something to do.
func (v *Driver) enter() { v.mu.Lock() }

func (v *Driver) leave() {
	for t := v.order.Ready(); t != nil; t = v.order.Ready() {
		v.dispatch(t.Data.(*task))
	}
	if v.suspect {
		v.suspect = false
		v.sweep()
	}
	wake := v.wake
	v.wake = nil
	v.mu.Unlock()
	for _, d := range wake {
		d.kick()
	}
}

// sweep finds streams that a device holds for what will not come, and ends what they
// have there. v.mu is held.
func (v *Driver) sweep() {
	for _, d := range v.open {
		if d == nil {
			continue
		}
		for _, s := range d.streams {
			for _, k := range s.flight {
				if err := v.order.Broken(&k.Task); err != nil {
					d.push(func() { s.breakDown(err) })
					break
				}
			}
		}
	}
}

// locate finds the device and the allocation of memory; both are nil for the host's.
func (v *Driver) locate(m kolo.Memory) (*device, *npu.Block, error) {
	if m.Space == kolo.HostSpace {
		return nil, nil, nil
	}
	d := v.spaces[m.Space]
	if d == nil {
		return nil, nil, fmt.Errorf("%w: space %d is that of no device which is open here", npu.ErrForeign, m.Space)
	}
	if m.Size == 0 {
		return d, nil, nil
	}
	b, err := d.blocks.Find(m)
	if err != nil {
		return nil, nil, fmt.Errorf("memory of device %d: %w", d.index, err)
	}
	return d, b, nil
}
