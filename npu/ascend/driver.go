//go:build linux && (amd64 || arm64) && !noacl

package ascend

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/npu/driver"
)

// Driver is the NPUs that AscendCL has. It is an npu.Driver.
type Driver struct {
	lib      *library
	dcmi     *dcmi // nil where it is absent
	patience time.Duration
	core     *driver.Core
	suspect  bool // a record was dropped: a device may wait for it. Guarded by the core's lock
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
	v := &Driver{lib: lib, patience: c.Patience}
	v.core = driver.New(driver.Config{Name: v.Name(), Devices: n, Streams: maxStreams, Handles: maxHandles, Pin: true}, hooks{v})
	if lib.has(fnStreamAbort) { // without it a device could not be told that what it waits for will not come
		v.core.Chain()
	}
	v.dcmi, _ = loadDCMI(c.dcmiPlaces()) // one that is absent is told by Inspect
	return v, nil
}

// Name is "ascend".
func (v *Driver) Name() string { return "ascend" }

// Devices is how many devices the library shows to this process.
func (v *Driver) Devices() int { return v.core.Devices() }

// Library is the path of the library, as it was loaded, and its version.
func (v *Driver) Library() (path, version string) {
	return v.lib.path, fmt.Sprintf("%d.%d.%d", v.lib.version[0], v.lib.version[1], v.lib.version[2])
}

// Open takes a device into use.
func (v *Driver) Open(index int) (npu.Device, error) {
	d, err := v.core.Reserve(index)
	if err != nil {
		return nil, err
	}
	if err := newDevice(v, d).begin(); err != nil {
		return nil, err
	}
	return d, nil
}

// Close closes the devices that are open. The library stays initialised: a process
// initialises it once.
func (v *Driver) Close(ctx context.Context) error { return v.core.Close(ctx) }

// sweep finds streams that a device holds for what will not come, and ends what they
// have there. The lock is held.
func (v *Driver) sweep() {
	for _, d := range v.core.Opened() {
		for _, x := range d.Streams() {
			s := streamOf(x)
			for _, k := range s.flight {
				if err := v.core.Broken(&k.Task); err != nil {
					s.d.push(func() { s.breakDown(err) })
					break
				}
			}
		}
	}
}
