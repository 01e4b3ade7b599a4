package verbs

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel/roce"
)

// Defaults, HCCL's where it has them.
const (
	DefaultServiceLevel = 4
	DefaultCache        = 1 << 30
)

// Config says which adapter is used, and how. The zero value takes the first device with
// a port that is up and has an address.
type Config struct {
	// Config is that of channel/roce. Addr says which address of an adapter is used: zero
	// means the first, IPv6 before IPv4. Timeout is what an adapter waits for each
	// acknowledgement, rounded up to 4.096 us times a power of two.
	roce.Config
	// Device is the name of the device, such as mlx5_0. "": any.
	Device string
	// DevicePort is the device's port, from 1. 0: any.
	DevicePort int
	// ServiceLevel is the service level, 0 to 7, which switches may map to a queue. 0
	// means 4; negative means 0.
	ServiceLevel int
	// Cache is the most bytes of the Go heap that stay registered, and alive, between
	// messages. 0 means 1 GiB; negative means that none do.
	Cache int64
	// Library is the path of libibverbs.so.1. "": the loader's places.
	Library string
	// Sys is where sysfs is. "" means /sys.
	Sys string
}

// ConfigFromEnv reads what roce.ConfigFromEnv reads, HCCL_RDMA_SL (0 to 7), and
// KOLO_VERBS_DEVICE (a device, or a device and its port as mlx5_0:1), by getenv, such as
// os.Getenv.
func ConfigFromEnv(getenv func(string) string) (Config, error) {
	base, err := roce.ConfigFromEnv(getenv)
	if err != nil {
		return Config{}, err
	}
	c := Config{Config: base}
	if v := getenv("HCCL_RDMA_SL"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 0 || n > 7 {
			return Config{}, fmt.Errorf("%w: HCCL_RDMA_SL=%q: want 0 to 7", kolo.ErrArgument, v)
		}
		if c.ServiceLevel = n; n == 0 {
			c.ServiceLevel = -1
		}
	}
	if v := getenv("KOLO_VERBS_DEVICE"); v != "" {
		port := ""
		if c.Device, port, _ = strings.Cut(v, ":"); port != "" {
			if c.DevicePort, err = strconv.Atoi(port); err != nil || c.DevicePort < 1 || c.DevicePort > 255 {
				return Config{}, fmt.Errorf("%w: KOLO_VERBS_DEVICE=%q: want a device, or device:port", kolo.ErrArgument, v)
			}
		}
	}
	return c, nil
}

// Validate says what is wrong with the configuration, or nil.
func (c *Config) Validate() error {
	switch {
	case c.ServiceLevel > 7:
		return fmt.Errorf("%w: verbs: service level %d, want 0 to 7", kolo.ErrArgument, c.ServiceLevel)
	case c.DevicePort < 0 || c.DevicePort > 255:
		return fmt.Errorf("%w: verbs: port %d of a device, want 1 to 255", kolo.ErrArgument, c.DevicePort)
	}
	return c.Config.Validate()
}

func (c Config) withDefaults() Config {
	if c.ServiceLevel == 0 {
		c.ServiceLevel = DefaultServiceLevel
	}
	c.ServiceLevel = max(0, c.ServiceLevel)
	if c.Cache == 0 {
		c.Cache = DefaultCache
	}
	if c.Timeout == 0 {
		c.Timeout = roce.DefaultTimeout
	}
	if c.Retries == 0 {
		c.Retries = roce.DefaultRetries
	}
	if c.TrafficClass == 0 {
		c.TrafficClass = roce.DefaultTrafficClass
	}
	if c.Sys == "" {
		c.Sys = "/sys"
	}
	return c
}

// exponent is the timeout as adapters have it: 4.096 us times two to the power of it.
func (c *Config) exponent() uint8 {
	n := uint8(0)
	for n < 31 && 4096<<n < int64(c.Timeout) {
		n++
	}
	return n
}

// libraryName is what libibverbs is called.
const libraryName = "libibverbs.so.1"

// places are where the library may be, in order.
func (c *Config) places() []string {
	if c.Library != "" {
		return []string{c.Library}
	}
	return []string{libraryName, "libibverbs.so"} // LD_LIBRARY_PATH and ld.so.cache
}

// gidAddr is the address of a RoCE v2 GID.
func gidAddr(gid [16]byte) netip.Addr { return netip.AddrFrom16(gid).Unmap() }
