package cluster

import (
	"io/fs"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// Self is this process as a Member without ranks, as a join would tell of it.
func Self() Member {
	return Member{Host: thisHost(""), PID: os.Getpid(), Addresses: hostAddresses(nil, "")}
}

// thisHost is where this process runs.
func thisHost(rack string) Host {
	h := Host{Rack: rack, User: os.Getuid(), Cores: runtime.NumCPU(), Processors: allowed(), Load: load(), RDMA: rocePorts(os.DirFS("/sys/class/infiniband"))}
	h.Name, _ = os.Hostname() // without a name it is known by its machine
	read := func(path string) string {
		b, err := os.ReadFile(path)
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(b))
	}
	if h.Machine = read("/proc/sys/kernel/random/boot_id"); h.Machine == "" {
		h.Machine = h.Name
	}
	h.Network = h.Machine
	if ns, err := os.Readlink("/proc/self/ns/net"); err == nil {
		h.Network += " " + ns
	}
	return h
}

// rocePorts lists the devices of /sys/class/infiniband of which a port is active and has
// Ethernet below it.
func rocePorts(class fs.FS) (list []string) {
	read := func(path string) string {
		b, err := fs.ReadFile(class, path)
		if err != nil {
			return "" // no such device, or one that does not say
		}
		return strings.TrimSpace(string(b))
	}
	ports, err := fs.Glob(class, "*/ports/*")
	if err != nil {
		return nil // a bad pattern, which it is not
	}
	for _, port := range ports {
		device, _, _ := strings.Cut(port, "/")
		if strings.HasSuffix(read(port+"/state"), "ACTIVE") && read(port+"/link_layer") == "Ethernet" && !slices.Contains(list, device) && len(list) < maxHosts {
			list = append(list, device)
		}
	}
	return list
}

// networkOf is an address of this host and how likely others reach it.
type networkOf struct {
	ip    netip.Addr
	order int
}

// hostAddresses lists the addresses of this host that others may reach, the likeliest
// first: those that chosen names, else the one that the way to the rendezvous starts
// from, then those of other interfaces, bridges of containers last. Loopback is never
// among them: a process of the same host tries it by itself.
func hostAddresses(chosen []string, toward string) []string {
	if len(chosen) > 0 {
		return chosen
	}
	var list []networkOf
	if ip, ok := wayTo(toward); ok {
		list = append(list, networkOf{ip, 0})
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		interfaces = nil // the way to the rendezvous is all there is
	}
	for _, i := range interfaces {
		if i.Flags&net.FlagUp == 0 || i.Flags&net.FlagLoopback != 0 {
			continue
		}
		order := 1
		for _, p := range []string{"docker", "veth", "br-", "virbr", "cni", "flannel"} {
			if strings.HasPrefix(i.Name, p) {
				order = 3
			}
		}
		addrs, err := i.Addrs()
		if err != nil {
			continue // it went down meanwhile
		}
		for _, a := range addrs {
			p, err := netip.ParsePrefix(a.String())
			if err != nil || p.Addr().IsLoopback() || p.Addr().IsLinkLocalUnicast() {
				continue
			}
			o := order
			if p.Addr().Is6() {
				o++
			}
			list = append(list, networkOf{p.Addr().Unmap(), o})
		}
	}
	slices.SortStableFunc(list, func(a, b networkOf) int { return a.order - b.order })
	var out []string
	for _, n := range list {
		if s := n.ip.String(); !slices.Contains(out, s) && len(out) < maxHosts {
			out = append(out, s)
		}
	}
	return out
}

// wayTo is the address of this host from which packets to another address leave. No
// packet is sent.
func wayTo(address string) (netip.Addr, bool) {
	c, err := net.Dial("udp", address)
	if err != nil {
		return netip.Addr{}, false
	}
	defer func() { _ = c.Close() }() // nothing was sent
	a, err := netip.ParseAddrPort(c.LocalAddr().String())
	if err != nil || a.Addr().IsLoopback() {
		return netip.Addr{}, false
	}
	return a.Addr().Unmap(), true
}

// candidates lists where to dial a member, the likeliest first: loopback if it shares
// this process's network, then what it has told.
func candidates(me, it *Member) []string {
	var list []string
	port := strconv.Itoa(it.Port)
	if me.Host.Network == it.Host.Network {
		list = append(list, net.JoinHostPort("127.0.0.1", port), net.JoinHostPort("::1", port))
	}
	for _, a := range it.Addresses {
		if c := net.JoinHostPort(a, port); !slices.Contains(list, c) {
			list = append(list, c)
		}
	}
	return list
}
