package netlab

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// Config says what a Lab is like. The zero value is IPv4 on Ethernet of 1500 bytes.
type Config struct {
	MTU   int           // of the hosts' interfaces and of the switch, in bytes; 0 means 1500
	IPv6  bool          // in place of IPv4
	Dead  bool          // a first interface besides, dead0, whose network swallows what it is given
	Delay time.Duration // one way between any two hosts; such a lab has no switch but a forwarder, and no Loss, Cut and Rate
}

// Lab is hosts with one network between them. Its methods end the test if they fail. They
// are for the goroutine of the test.
type Lab struct {
	t      testing.TB
	cfg    Config
	name   string
	n      int
	tables int
}

// labs numbers those of this process.
var labs atomic.Int64

// New makes a network of n hosts, at most 200, whose processes Command starts. The test's
// cleanup removes it.
func New(t testing.TB, n int, c Config) *Lab {
	t.Helper()
	Need(t, "ip")
	if c.MTU == 0 {
		c.MTU = 1500
	}
	l := &Lab{t: t, cfg: c, n: n, name: fmt.Sprintf("kolo-%d-%d", os.Getpid(), labs.Add(1))}
	if c.Delay == 0 {
		l.addNamespace(l.name)
		l.run("ip", "-n", l.name, "link", "add", "br0", "mtu", strconv.Itoa(c.MTU), "type", "bridge", "mcast_snooping", "0")
		l.run("ip", "-n", l.name, "link", "set", "br0", "up")
	}
	for i := range n {
		l.addNamespace(l.host(i))
		l.IP(i, "link", "set", "lo", "up")
		if c.Dead {
			l.addDead(i)
		}
		if c.Delay == 0 {
			l.addPort(i)
		}
	}
	if c.Delay > 0 {
		l.forward()
	}
	return l
}

// Need skips the test unless it is root and has the programs.
func Need(t testing.TB, programs ...string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("it makes network namespaces, which needs root")
	}
	packages := map[string]string{"ip": "iproute2", "tc": "iproute2", "nft": "nftables"}
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("no %s (package %s)", p, packages[p])
		}
	}
}

// Alone runs the test again in a process of its own, whose network namespace has nothing
// but a loopback, and is true there. Where it is false the test has run, and returns.
func Alone(t testing.TB) bool {
	t.Helper()
	const variable = "KOLO_NETLAB_ALONE"
	if os.Getenv(variable) == t.Name() {
		return true
	}
	Need(t, "ip")
	var parts []string
	for _, p := range strings.Split(t.Name(), "/") {
		parts = append(parts, "^"+p+"$")
	}
	c := exec.CommandContext(t.Context(), os.Args[0], "-test.run="+strings.Join(parts, "/"), "-test.v", "-test.timeout=60s")
	c.Env = append(os.Environ(), variable+"="+t.Name())
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if b, err := c.CombinedOutput(); err != nil {
		if _, ran := err.(*exec.ExitError); !ran {
			t.Skipf("a process in a network namespace of its own: %v", err)
		}
		t.Fatalf("in a network namespace of its own: %v\n%s", err, b)
	} else {
		t.Logf("%s", b)
	}
	return false
}

// Command is a program to run on a host.
func (l *Lab) Command(host int, name string, args ...string) *exec.Cmd {
	list := append(l.Prefix(host), append([]string{name}, args...)...)
	return exec.CommandContext(context.Background(), list[0], list[1:]...)
}

// Prefix is what to put before a command to run it on a host, in the place of which the
// command then runs.
func (l *Lab) Prefix(host int) []string { return []string{"ip", "netns", "exec", l.host(host)} }

// Address is the address of a host.
func (l *Lab) Address(host int) string {
	if l.cfg.IPv6 {
		return fmt.Sprintf("fd0a::%x", host+1)
	}
	return fmt.Sprintf("10.77.0.%d", host+1)
}

// Join is host:port of a host.
func (l *Lab) Join(host, port int) string {
	return net.JoinHostPort(l.Address(host), strconv.Itoa(port))
}

// IP runs ip on a host.
func (l *Lab) IP(host int, args ...string) {
	l.t.Helper()
	l.run("ip", append([]string{"-n", l.host(host)}, args...)...)
}

// Loss makes the switch drop packets: so many of a thousand, at random.
func (l *Lab) Loss(permille int) {
	l.t.Helper()
	l.drop(fmt.Sprintf("numgen random mod 1000 < %d", permille))
}

// Cut makes the switch drop all packets from a host and to it, without a word to anybody.
func (l *Lab) Cut(host int) {
	l.t.Helper()
	l.drop(fmt.Sprintf(`iifname "p%d"`, host), fmt.Sprintf(`oifname "p%d"`, host))
}

// Part makes the switch drop all packets between two hosts, which both still reach the others.
func (l *Lab) Part(a, b int) {
	l.t.Helper()
	l.drop(fmt.Sprintf(`iifname "p%d" oifname "p%d"`, a, b), fmt.Sprintf(`iifname "p%d" oifname "p%d"`, b, a))
}

// PartBut makes the switch drop what goes by TCP between two hosts, but for what goes from
// or to some ports: connections of some purpose pass, and all others are cut.
func (l *Lab) PartBut(a, b int, ports ...string) {
	l.t.Helper()
	but := fmt.Sprintf("tcp sport != { %s } tcp dport != { %[1]s }", strings.Join(ports, ", "))
	l.drop(fmt.Sprintf(`iifname "p%d" oifname "p%d" %s`, a, b, but), fmt.Sprintf(`iifname "p%d" oifname "p%d" %s`, b, a, but))
}

// drop adds rules to the switch.
func (l *Lab) drop(which ...string) {
	l.t.Helper()
	Need(l.t, "nft")
	l.tables++
	rules := strings.Join(which, " drop; ")
	l.run("ip", "netns", "exec", l.name, "nft", fmt.Sprintf("table bridge t%d { chain f { type filter hook forward priority 0; %s drop; }; }", l.tables, rules))
}

// Unplug takes the link of a host away: of the processes on it nothing gets out, not even
// that they end.
func (l *Lab) Unplug(host int) {
	l.t.Helper()
	l.IP(host, "link", "set", "eth0", "down")
}

// Rate bounds what a host sends, such as 100mbit.
func (l *Lab) Rate(host int, rate string) {
	l.t.Helper()
	Need(l.t, "tc")
	l.run("tc", "-n", l.host(host), "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", rate, "burst", "64k", "latency", "50ms")
}

// MTU sets that of a host's interface.
func (l *Lab) MTU(host, bytes int) {
	l.t.Helper()
	l.IP(host, "link", "set", "eth0", "mtu", strconv.Itoa(bytes))
}

// Narrow makes the switch's port to a host drop packets larger than so many bytes, while
// the host may send and be sent more: the jumbo frame that one switch does not know.
func (l *Lab) Narrow(host, bytes int) {
	l.t.Helper()
	for i := range l.n { // packets go as they are on a wire, not many in one
		l.IP(i, "link", "set", "eth0", "gso_max_segs", "1")
	}
	Need(l.t, "nft")
	l.drop(fmt.Sprintf(`iifname "p%d" meta length > %d`, host, bytes), fmt.Sprintf(`oifname "p%d" meta length > %d`, host, bytes))
}

func (l *Lab) host(i int) string { return fmt.Sprintf("%s-%d", l.name, i) }

func (l *Lab) addNamespace(name string) {
	l.t.Helper()
	l.run("ip", "netns", "add", name)
	l.t.Cleanup(func() {
		if b, err := exec.Command("ip", "netns", "del", name).CombinedOutput(); err != nil { // with its interfaces
			l.t.Errorf("network namespace %s: %v: %s", name, err, b)
		}
	})
}

// addPort joins a host to the switch.
func (l *Lab) addPort(i int) {
	l.t.Helper()
	port, mtu := fmt.Sprintf("p%d", i), strconv.Itoa(l.cfg.MTU)
	l.run("ip", "-n", l.name, "link", "add", port, "mtu", mtu, "type", "veth", "peer", "name", "eth0", "mtu", mtu, "netns", l.host(i))
	l.run("ip", "-n", l.name, "link", "set", port, "master", "br0", "up")
	l.setAddress(i, "eth0")
}

func (l *Lab) setAddress(i int, device string) {
	l.t.Helper()
	if l.cfg.IPv6 {
		l.IP(i, "addr", "add", l.Address(i)+"/64", "dev", device, "nodad")
	} else {
		l.IP(i, "addr", "add", l.Address(i)+"/24", "dev", device)
	}
	l.IP(i, "link", "set", device, "up")
}

// addDead gives a host an interface that leads nowhere, in a network that all hosts have,
// where the hardware addresses of the others are known.
func (l *Lab) addDead(i int) {
	l.t.Helper()
	l.IP(i, "link", "add", "dead0", "type", "veth", "peer", "name", "dead1")
	l.IP(i, "addr", "add", fmt.Sprintf("10.66.0.%d/24", i+1), "dev", "dead0")
	l.IP(i, "link", "set", "dead0", "up")
	l.IP(i, "link", "set", "dead1", "up")
	for k := range l.n {
		if k != i {
			l.IP(i, "neigh", "add", fmt.Sprintf("10.66.0.%d", k+1), "lladdr", fmt.Sprintf("02:00:00:00:66:%02x", k+1), "nud", "permanent", "dev", "dead0")
		}
	}
}

// run runs a program that must not fail. The first that is not allowed to skips the test:
// there are containers whose root may not make a namespace.
func (l *Lab) run(name string, args ...string) {
	l.t.Helper()
	b, err := exec.CommandContext(l.t.Context(), name, args...).CombinedOutput()
	switch {
	case err == nil:
	case strings.Contains(string(b), "not permitted") || strings.Contains(string(b), "not supported") || strings.Contains(string(b), "Unknown device type"):
		l.t.Skipf("%s %s: %s", name, strings.Join(args, " "), b)
	default:
		l.t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, b)
	}
}
