package tcp

import (
	"crypto/tls"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
)

// Defaults and limits of a Config.
const (
	DefaultTimeout        = 5 * time.Second
	DefaultConnectTimeout = 10 * time.Second
	DefaultLinger         = time.Second
	DefaultStripes        = 1
	DefaultEager          = 512 << 10
	DefaultWindow         = 2 << 20
	DefaultInline         = 512 << 10

	maxStripes = 16
	maxWindow  = 64 << 20
)

// Config says how the driver does its work. The zero value works and is what "tcp"
// stands for; to use another one by name:
//
//	channel.Register("tcp-tls", tcp.Config{TLS: c}.New)
//
// All processes of a world need the same TLS; everything else may differ.
type Config struct {
	// Interfaces chooses the interfaces whose addresses are told to the other hosts, as
	// HCCL_SOCKET_IFNAME does: prefixes of names, separated by commas; "=eth0,eth1" means
	// exactly these, "^docker,br-" all but those. Empty: all that are up, the likeliest first.
	Interfaces string
	// IP is the one address that is told to the others and listened on.
	IP netip.Addr
	// Advertise is what is told to the others in place of what the host has: addresses
	// behind a translation, for instance. The driver listens on IP, or on all.
	Advertise []netip.Addr
	// Port is what to listen on; 0 is any free one, and what works with several ranks on
	// a host.
	Port uint16
	// TLS, if set, is what all connections use. It needs a certificate, and the roots of a
	// client; without a ServerName the peer's certificate must name the address that is
	// dialled. With ClientAuth and ClientCAs both ends know each other. A waiting rank cannot poll such a connection.
	TLS *tls.Config
	// Timeout is how long a peer may leave bytes unacknowledged, or a silent one the
	// kernel's questions, until the link is lost; of a silent one, where nothing is on its
	// way, at least 2 s. 0 means DefaultTimeout.
	Timeout time.Duration
	// ConnectTimeout is the longest that it takes to connect and greet a peer. 0 means
	// DefaultConnectTimeout.
	ConnectTimeout time.Duration
	// Linger is how long a closed link waits for its peer to take what is on its way.
	// Close of the driver waits for that. 0 means DefaultLinger.
	Linger time.Duration
	// Stripes is the number of connections, 1 to 16, that carry large messages to a peer.
	// They are opened with the first. 0 means DefaultStripes.
	Stripes int
	// Eager is the size up to which a message is sent before the receiver asks for it,
	// on the connection of the small ones; at most 1 MiB. 0 means DefaultEager.
	Eager int
	// Window bounds the bytes of such messages that a peer may have sent and no receive
	// has taken; 64 KiB to 64 MiB. 0 means DefaultWindow.
	Window int
	// Inline is the size up to which a message that the receiver has asked for goes on the
	// connection of the small ones, which a rank that waits reads and writes itself; at most
	// 1 MiB. Larger ones have connections and goroutines of their own, but for those between
	// processes of a host that have less than two processors each. Where the connections
	// cannot be polled all of them have. 0 means DefaultInline; less than Eager: none does.
	Inline int
	// Buffer sets the kernel's send and receive buffers of a connection in bytes. 0 leaves
	// them to the kernel, which on loopback is faster than any fixed size.
	Buffer int
}

// ConfigFromEnv reads HCCL_IF_IP, HCCL_SOCKET_IFNAME and HCCL_CONNECT_TIMEOUT (seconds)
// by getenv, such as os.Getenv.
func ConfigFromEnv(getenv func(string) string) (Config, error) {
	var c Config
	if v := getenv("HCCL_IF_IP"); v != "" {
		ip, err := netip.ParseAddr(v)
		if err != nil {
			return Config{}, fmt.Errorf("%w: HCCL_IF_IP=%q is no address", kolo.ErrArgument, v)
		}
		c.IP = ip
	}
	c.Interfaces = getenv("HCCL_SOCKET_IFNAME")
	if v := getenv("HCCL_CONNECT_TIMEOUT"); v != "" {
		n, err := strconv.ParseUint(v, 10, 31)
		if err != nil || n == 0 {
			return Config{}, fmt.Errorf("%w: HCCL_CONNECT_TIMEOUT=%q is no number of seconds", kolo.ErrArgument, v)
		}
		c.ConnectTimeout = time.Duration(n) * time.Second
	}
	return c, c.Validate()
}

// Validate says what is wrong with the configuration, or nil.
func (c Config) Validate() error {
	bad := func(format string, a ...any) error {
		return fmt.Errorf("%w: tcp: Config."+format, append([]any{kolo.ErrArgument}, a...)...)
	}
	switch {
	case c.Timeout < 0 || c.ConnectTimeout < 0 || c.Linger < 0:
		return bad("Timeout, ConnectTimeout or Linger is negative")
	case c.Timeout > 0 && c.Timeout < 10*time.Millisecond:
		return bad("Timeout %v is less than 10 ms", c.Timeout)
	case c.Stripes < 0 || c.Stripes > maxStripes:
		return bad("Stripes %d: want 1 to %d", c.Stripes, maxStripes)
	case c.Eager < 0 || c.Eager > maxEager:
		return bad("Eager %d: want at most %d", c.Eager, maxEager)
	case c.Window != 0 && (c.Window < 64<<10 || c.Window > maxWindow):
		return bad("Window %d: want %d to %d", c.Window, 64<<10, maxWindow)
	case c.Inline < 0 || c.Inline > maxPart:
		return bad("Inline %d: want at most %d", c.Inline, maxPart)
	case c.Buffer < 0:
		return bad("Buffer %d is negative", c.Buffer)
	case len(c.Advertise) > maxAddresses:
		return bad("Advertise has %d addresses; want at most %d", len(c.Advertise), maxAddresses)
	case c.IP.IsValid() && c.Interfaces != "":
		return bad("IP and Interfaces are both set (HCCL_IF_IP and HCCL_SOCKET_IFNAME); choose one")
	case strings.ContainsAny(c.Interfaces, " \t"):
		return bad("Interfaces %q has blanks", c.Interfaces)
	}
	for _, a := range c.Advertise {
		if !a.IsValid() || a.IsUnspecified() || a.IsMulticast() {
			return bad("Advertise: %v is no address of a host", a)
		}
	}
	if c.IP.IsValid() && (c.IP.IsUnspecified() || c.IP.IsMulticast()) {
		return bad("IP %v is no address of a host", c.IP)
	}
	if c.TLS != nil && len(c.TLS.Certificates) == 0 && c.TLS.GetCertificate == nil && c.TLS.GetConfigForClient == nil {
		return bad("TLS has no certificate; every process answers calls")
	}
	return nil
}

func (c Config) withDefaults() Config {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	number := func(n *int, v int) {
		if *n == 0 {
			*n = v
		}
	}
	set(&c.Timeout, DefaultTimeout)
	set(&c.ConnectTimeout, DefaultConnectTimeout)
	set(&c.Linger, DefaultLinger)
	number(&c.Stripes, DefaultStripes)
	number(&c.Eager, DefaultEager)
	number(&c.Window, DefaultWindow)
	number(&c.Inline, DefaultInline)
	return c
}

// New makes the driver of one world. Config{}.New is registered as "tcp".
func (c Config) New(w channel.Config) (channel.Driver, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if len(w.Job) > maxJob {
		return nil, fmt.Errorf("%w: tcp: a job's name of %d bytes; want at most %d", kolo.ErrArgument, len(w.Job), maxJob)
	}
	return newDriver(c.withDefaults(), w)
}
