package npu

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/internal/drivers"
)

// Driver knows the devices of one kind. All its methods may be called by any
// goroutine.
type Driver interface {
	// Name is the name that the driver is registered under.
	Name() string
	// Devices is how many devices there are. They are numbered from 0.
	Devices() int
	// Open takes a device into use. It belongs to whoever opened it until it is closed;
	// until then it cannot be opened again.
	Open(index int) (Device, error)
	// Close closes the devices that are open, as Device.Close does, and ends the
	// goroutines of the driver. It may be called again.
	Close(ctx context.Context) error
}

// Config is what a driver is made with.
type Config struct {
	// Options is text that the driver understands, as "servers=2 devices=4" for the
	// simulated one. The empty text is its default.
	Options string
}

// Open makes a driver that was registered under a name.
func Open(name string, c Config) (Driver, error) {
	open, err := registry.Get(name)
	if err != nil {
		return nil, err
	}
	d, err := open(c)
	if err != nil {
		return nil, fmt.Errorf("open device driver %s: %w", name, err)
	}
	return d, nil
}

// Register makes a driver known under a name. It is called by init functions of
// driver packages and panics if the name is taken.
func Register(name string, open func(Config) (Driver, error)) { registry.Add(name, open) }

// Drivers lists the names of the drivers that are linked in.
func Drivers() []string { return registry.Names() }

// NewSpace is a number for the memory of a device, never given twice in a process:
// a handle that outlives its device finds nobody. Drivers call it when they open a
// device.
func NewSpace() kolo.Space { return kolo.Space(registry.spaces.Add(1)) }

var registry = struct {
	*drivers.Table[func(Config) (Driver, error)]
	spaces atomic.Uint32 // the last one given
}{Table: drivers.New[func(Config) (Driver, error)]("device driver")}
