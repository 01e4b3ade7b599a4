package sim

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/npu"
)

// Config says what is simulated. The zero value is one server of eight devices.
type Config struct {
	Servers int   // 0 means 1
	Devices int   // of each server; 0 means 8
	Memory  int64 // bytes of each device; 0 means 64 GiB. Only what is allocated costs memory

	HCCS Line // each direction between two devices of a server; 56 GB/s, 2 us
	RoCE Line // each direction of a device's port to other servers; 25 GB/s, 5 us
	PCIe Line // each direction between the host and a device; 32 GB/s, 5 us

	// NoPeer leaves out peer access and ports: data goes between a device and the host only.
	NoPeer bool

	HBM         float64       // bytes per second that an engine reads and writes; 0 means 1200e9
	FLOPS       float64       // operations per second of the compute engine; 0 means 320e12
	Launch      time.Duration // what an engine needs before each task; 0 means 5 us, negative none
	CopyEngines int           // of each device; 0 means 2

	// Fast makes the cluster's clock jump from event to event, without waiting.
	Fast bool
	// Spans is the most spans that the timeline keeps; 0 means 262144, negative none.
	Spans int
}

// Line is the rate of a link in one direction.
type Line struct {
	Bandwidth float64       // bytes per second; 0 means the default
	Latency   time.Duration // 0 means the default, negative none
}

// limits of a Config.
const (
	maxServers = 1 << 12
	maxDevices = 1 << 8 // of a server: HCCS has a link for each pair
	maxMemory  = 1 << 44
	maxEngines = 64
)

// Validate says what cannot be simulated.
func (c Config) Validate() error {
	c = c.withDefaults()
	check := func(name string, n, most int64) error {
		if n < 1 || n > most {
			return fmt.Errorf("%w: sim: %s is %d, and may be 1 to %d", kolo.ErrArgument, name, n, most)
		}
		return nil
	}
	for _, err := range []error{
		check("Servers", int64(c.Servers), maxServers),
		check("Devices", int64(c.Devices), maxDevices),
		check("Memory", c.Memory, maxMemory),
		check("CopyEngines", int64(c.CopyEngines), maxEngines),
	} {
		if err != nil {
			return err
		}
	}
	for _, r := range []struct {
		name string
		rate float64
	}{{"HCCS", c.HCCS.Bandwidth}, {"RoCE", c.RoCE.Bandwidth}, {"PCIe", c.PCIe.Bandwidth}, {"HBM", c.HBM}, {"FLOPS", c.FLOPS}} {
		if !(r.rate >= 1 && r.rate <= 1e18) {
			return fmt.Errorf("%w: sim: the rate of %s is %v, and may be 1 to 1e18 per second", kolo.ErrArgument, r.name, r.rate)
		}
	}
	return nil
}

func (c Config) withDefaults() Config {
	or(&c.Servers, 1)
	or(&c.Devices, 8)
	or(&c.Memory, 64<<30)
	c.HCCS.or(kolo.LinkHCCS)
	c.RoCE.or(kolo.LinkRoCE)
	c.PCIe.or(kolo.LinkPCIe)
	or(&c.HBM, 1200e9)
	or(&c.FLOPS, 320e12)
	or(&c.Launch, 5*time.Microsecond)
	or(&c.CopyEngines, 2)
	or(&c.Spans, 1<<18)
	return c
}

// or sets x to a default if it is zero, and to zero if it is a negative time.
func or[T int | int64 | float64 | time.Duration](x *T, def T) {
	if *x == 0 {
		*x = def
	}
	if d, ok := any(*x).(time.Duration); ok && d < 0 {
		*x = 0
	}
}

func (l *Line) or(k kolo.Link) {
	e := npu.Nominal(k)
	or(&l.Bandwidth, e.Bandwidth)
	or(&l.Latency, e.Latency)
}

// open makes the registered driver. Its options are words as "servers=2",
// "devices=4", "memory=1073741824" and "fast".
func open(c npu.Config) (npu.Driver, error) {
	cfg, err := parse(c.Options)
	if err != nil {
		return nil, err
	}
	return New(cfg)
}

func parse(options string) (c Config, err error) {
	for _, word := range strings.Fields(options) {
		name, value, _ := strings.Cut(word, "=")
		n, numberErr := strconv.ParseInt(value, 10, 64)
		if name != "fast" && (numberErr != nil || n < 1 || n > math.MaxInt32 && name != "memory") {
			return c, fmt.Errorf("%w: sim: %q is no number in the option %q", kolo.ErrArgument, value, word)
		}
		switch name {
		case "servers":
			c.Servers = int(n)
		case "devices":
			c.Devices = int(n)
		case "memory":
			c.Memory = n
		case "fast":
			c.Fast = true
		default:
			return c, fmt.Errorf("%w: sim: no option %q; known: servers, devices, memory, fast", kolo.ErrArgument, name)
		}
	}
	return c, nil
}
