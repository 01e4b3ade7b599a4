package tcp

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/kolo-ccl/kolo"
)

// maxAddresses is the most that a process tells of itself: they fit the 4 KiB of
// channel.Remote.
const maxAddresses = 64

// address is how a process is reached, as its peers are told.
type address struct {
	host  uint64 // differs for each network stack: host, or network namespace of one
	port  uint16
	known []netip.Addr // the likeliest first; loopback is last, and only for the same host
}

// encode writes version (1), host (8), port (2) and the addresses: length (1), bytes.
func (a *address) encode() []byte {
	b := []byte{1}
	b = binary.LittleEndian.AppendUint64(b, a.host)
	b = binary.LittleEndian.AppendUint16(b, a.port)
	for _, ip := range a.known {
		s := ip.AsSlice()
		b = append(append(b, byte(len(s))), s...)
	}
	return b
}

func decodeAddress(b []byte) (*address, error) {
	bad := func() (*address, error) {
		return nil, fmt.Errorf("%w: %d bytes are no address of the tcp driver", kolo.ErrArgument, len(b))
	}
	if len(b) < 11 || b[0] != 1 {
		return bad()
	}
	a := &address{host: binary.LittleEndian.Uint64(b[1:]), port: binary.LittleEndian.Uint16(b[9:])}
	for rest := b[11:]; len(rest) > 0; {
		n := int(rest[0])
		if len(rest) < 1+n || len(a.known) == maxAddresses {
			return bad()
		}
		ip, ok := netip.AddrFromSlice(rest[1 : 1+n])
		if !ok {
			return bad()
		}
		a.known, rest = append(a.known, ip), rest[1+n:]
	}
	return a, nil
}

// candidates is where to dial a peer, the likeliest first: on the same host its
// loopback; else what is in a network of ours, then the rest, never loopback.
func (a *address) candidates(mine uint64, nets []netip.Prefix) []netip.AddrPort {
	var list []netip.AddrPort
	take := func(which func(netip.Addr) bool) {
		for _, ip := range a.known {
			if at := netip.AddrPortFrom(ip, a.port); which(ip) && !slices.Contains(list, at) {
				list = append(list, at)
			}
		}
	}
	same := a.host == mine
	near := func(ip netip.Addr) bool {
		return slices.ContainsFunc(nets, func(p netip.Prefix) bool { return p.Contains(ip.Unmap()) })
	}
	if same {
		take(netip.Addr.IsLoopback)
	}
	take(func(ip netip.Addr) bool { return !ip.IsLoopback() && near(ip) })
	take(func(ip netip.Addr) bool { return !ip.IsLoopback() })
	return list
}

// nic is what there is to know of a network interface.
type nic struct {
	name         string
	up, loopback bool
	nets         []netip.Prefix // its addresses, with the length of their network
}

func nics() ([]nic, error) {
	list, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var all []nic
	for _, i := range list {
		n := nic{name: i.Name, up: i.Flags&net.FlagUp != 0, loopback: i.Flags&net.FlagLoopback != 0}
		addrs, err := i.Addrs()
		if err != nil {
			return nil, fmt.Errorf("addresses of %s: %w", i.Name, err)
		}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				n.nets = append(n.nets, p)
			}
		}
		all = append(all, n)
	}
	return all, nil
}

// bridges are names of interfaces that lead to containers and virtual machines of the
// host itself, and have the same addresses on many hosts.
var bridges = []string{"docker", "br-", "virbr", "veth", "cni", "flannel", "cali", "podman", "lxc", "lxd", "tun", "tap"}

// Addresses are those of this host that a driver of this Config tells others, but for
// loopback, as text. An error says that there is none which it chooses.
func (c Config) Addresses() ([]string, error) {
	all, err := nics()
	if err != nil {
		return nil, err
	}
	known, _, err := choose(&c, all)
	var list []string
	for _, a := range known {
		if !a.IsLoopback() {
			list = append(list, a.String())
		}
	}
	return list, err
}

// choose takes the addresses to tell from what the host has, and says why. Interfaces
// that usually are no way to another host come last, where they were not asked for.
func choose(c *Config, all []nic) (known []netip.Addr, why string, err error) {
	switch {
	case len(c.Advertise) > 0:
		return c.Advertise, "Config.Advertise", nil
	case c.IP.IsValid():
		return []netip.Addr{c.IP}, "Config.IP (HCCL_IF_IP)", nil
	}
	var first, last, local []netip.Addr
	var names []string
	for _, n := range all {
		for _, p := range n.nets {
			ip := p.Addr().Unmap()
			switch {
			case n.loopback || ip.IsLoopback():
				local = append(local, ip)
			case !n.up || ip.IsLinkLocalUnicast() || !picks(c.Interfaces, n.name):
			case c.Interfaces == "" && slices.ContainsFunc(bridges, func(b string) bool { return strings.HasPrefix(n.name, b) }):
				last = append(last, ip)
			default:
				first = append(first, ip)
				if !slices.Contains(names, n.name) {
					names = append(names, n.name)
				}
			}
		}
	}
	if c.Interfaces != "" && len(first) == 0 {
		var have []string
		for _, n := range all {
			have = append(have, n.name)
		}
		return nil, "", fmt.Errorf("%w: tcp: Config.Interfaces (HCCL_SOCKET_IFNAME) %q chooses no interface that is up and has an address; there are %v",
			kolo.ErrArgument, c.Interfaces, have)
	}
	slices.SortStableFunc(first, func(a, b netip.Addr) int { return a.BitLen() - b.BitLen() }) // IPv4 first
	why = "the interfaces that are up: " + strings.Join(names, ", ")
	if c.Interfaces != "" {
		why = fmt.Sprintf("Config.Interfaces (HCCL_SOCKET_IFNAME) %q: %s", c.Interfaces, strings.Join(names, ", "))
	} else if len(first) == 0 {
		why = "no interface but loopback is up: this host only"
	}
	known = append(first, last...)
	known = known[:min(len(known), maxAddresses-min(len(local), 2))]
	return append(known, local[:min(len(local), 2)]...), why, nil
}

// picks says whether a choice of interfaces, as of HCCL_SOCKET_IFNAME, takes a name.
func picks(choice, name string) bool {
	if choice == "" {
		return true
	}
	exact, not := strings.HasPrefix(choice, "="), strings.HasPrefix(choice, "^")
	if not && strings.HasPrefix(choice, "^=") {
		exact, choice = true, choice[1:]
	}
	if exact || not {
		choice = choice[1:]
	}
	hit := slices.ContainsFunc(strings.Split(choice, ","), func(s string) bool {
		return s != "" && (s == name || !exact && strings.HasPrefix(name, s))
	})
	return hit != not
}

// hostID is a number of this network stack: the boot of the host and its network
// namespace. Where neither can be read it is that of the host's name.
func hostID() uint64 {
	h := fnv.New64a()
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		name, _ := os.Hostname() // without a name, all such hosts seem one, and loopback fails by the greeting
		boot = []byte(name)
	}
	h.Write(boot)
	ns, _ := os.Readlink("/proc/self/ns/net") // without namespaces there is one
	h.Write([]byte(ns))
	return h.Sum64()
}
