package roce

import (
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel/roce/rc"
)

// Port is the UDP port of RoCE v2.
const Port = 4791

// Defaults, HCCL's where it has them.
const (
	DefaultTimeout        = 4096 << 20 // 4.3 s: HCCL_RDMA_TIMEOUT=20
	DefaultRetries        = 7
	DefaultTrafficClass   = 132 // DSCP 33
	DefaultMultiQP        = 512 << 10
	DefaultConnectTimeout = 10 * time.Second
	defaultWindow         = 1 << 20
	maxQPs                = 32
)

// Config says how links are made. The zero value works.
type Config struct {
	// Addr is the address of this host towards other hosts. Zero: the first global IPv6
	// address of an interface that is up, or else IPv4. Processes of one host use the
	// loopback whatever it is.
	Addr netip.Addr
	// Port is the UDP port; 0 means any that is free, since several processes share a
	// host. Adapters use 4791.
	Port uint16
	// Timeout and Retries: a link is lost when for (Retries+1) Timeouts nothing was
	// acknowledged. 0 means 4.3 s and 7. Packets are sent again much earlier, as the
	// round trips have it.
	Timeout time.Duration
	Retries int
	// ConnectTimeout is how long a peer's process may not answer while a link to it is
	// made. 0 means 10 s.
	ConnectTimeout time.Duration
	// MTU is the path MTU, of payload: 256, 512, 1024, 2048 or 4096. 0 means the largest
	// that the interface carries.
	MTU int
	// QPs is the number of queue pairs of a link, 1 to 32, each with a source port of its
	// own, so that the paths of a network share large messages; 0 means 1. Messages of less
	// than MultiQP bytes stay on one; 0 means 512 KiB.
	QPs     int
	MultiQP int64
	// TrafficClass is the traffic class of IPv6 or the type of service of IPv4, a multiple
	// of 4: DSCP x 4. 0 means 132; negative means 0.
	TrafficClass int
	// Window is the most bytes of a link in flight; 0 means 1 MiB. A peer with a smaller
	// receive buffer gets less.
	Window int

	wire func(packet []byte, deliver func([]byte)) // what tests do to packets
}

// ConfigFromEnv reads HCCL_IF_IP, HCCL_RDMA_TC, HCCL_RDMA_TIMEOUT (n for 4.096 us * 2^n,
// 5 to 20), HCCL_RDMA_RETRY_CNT (1 to 7), HCCL_RDMA_QPS_PER_CONNECTION (1 to 32) and
// HCCL_MULTI_QP_THRESHOLD (KB) by getenv, such as os.Getenv. HCCL_RDMA_SL, the service
// level, has no meaning without an adapter.
func ConfigFromEnv(getenv func(string) string) (Config, error) {
	var c Config
	if v := getenv("HCCL_IF_IP"); v != "" {
		a, err := netip.ParseAddr(v)
		if err != nil {
			return Config{}, fmt.Errorf("%w: HCCL_IF_IP=%q: %w", kolo.ErrArgument, v, err)
		}
		c.Addr = a
	}
	var exponent, kib int
	for _, f := range []struct {
		name      string
		low, high int
		to        *int
	}{
		{"HCCL_RDMA_TC", 0, 255, &c.TrafficClass},
		{"HCCL_RDMA_TIMEOUT", 5, 20, &exponent},
		{"HCCL_RDMA_RETRY_CNT", 1, 7, &c.Retries},
		{"HCCL_RDMA_QPS_PER_CONNECTION", 1, maxQPs, &c.QPs},
		{"HCCL_MULTI_QP_THRESHOLD", 1, 8192, &kib},
	} {
		v := getenv(f.name)
		if v == "" {
			continue
		}
		n, err := strconv.Atoi(v)
		if err != nil || n < f.low || n > f.high {
			return Config{}, fmt.Errorf("%w: %s=%q: want %d to %d", kolo.ErrArgument, f.name, v, f.low, f.high)
		}
		if *f.to = n; f.to == &c.TrafficClass && n == 0 {
			c.TrafficClass = -1
		}
	}
	if exponent > 0 {
		c.Timeout = 4096 << exponent
	}
	c.MultiQP = int64(kib) << 10
	return c, c.Validate()
}

// Validate says what is wrong with the configuration, or nil.
func (c *Config) Validate() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: roce: %s", kolo.ErrArgument, fmt.Sprintf(format, args...))
	}
	switch {
	case c.MTU != 0 && (c.MTU < rc.MinMTU || c.MTU > rc.MaxMTU || c.MTU&(c.MTU-1) != 0):
		return bad("path MTU %d is none of 256, 512, 1024, 2048, 4096", c.MTU)
	case c.QPs < 0 || c.QPs > maxQPs:
		return bad("%d queue pairs per link, want 1 to %d", c.QPs, maxQPs)
	case c.TrafficClass > 255 || c.TrafficClass > 0 && c.TrafficClass%4 != 0:
		return bad("traffic class %d is no multiple of 4 below 256", c.TrafficClass)
	case c.Timeout < 0 || c.Retries < 0 || c.ConnectTimeout < 0 || c.Window < 0 || c.MultiQP < 0:
		return bad("a negative time, number or size: %+v", *c)
	}
	return nil
}

func (c Config) withDefaults() Config {
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	if c.Retries == 0 {
		c.Retries = DefaultRetries
	}
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = DefaultConnectTimeout
	}
	if c.QPs == 0 {
		c.QPs = 1
	}
	if c.MultiQP == 0 {
		c.MultiQP = DefaultMultiQP
	}
	if c.TrafficClass == 0 {
		c.TrafficClass = DefaultTrafficClass
	}
	c.TrafficClass = max(0, c.TrafficClass)
	if c.Window == 0 {
		c.Window = defaultWindow
	}
	return c
}
