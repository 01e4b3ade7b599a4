package verbs

import (
	"fmt"
	"net/netip"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/kolo-ccl/kolo"
)

// Port is a port of an RDMA device as the system describes it.
type Port struct {
	Device string // such as mlx5_0
	Number int    // from 1
	State  string // such as ACTIVE
	Layer  string // Ethernet or InfiniBand
	Rate   string // such as "100 Gb/sec (4X EDR)"
	Netdev string // the interface of its first GID
	GIDs   []GID
}

// GID is an address of a port.
type GID struct {
	Index  int
	Addr   netip.Addr
	Type   string // such as "RoCE v2"
	Netdev string // the interface that has the address
}

// String is the GID with its index and type.
func (g GID) String() string { return fmt.Sprintf("[%d] %v %s", g.Index, g.Addr, g.Type) }

// typeV2 is the type of a GID that packets over UDP come from.
const typeV2 = "RoCE v2"

// maxGIDs is the most entries that are read of a table; most are empty.
const maxGIDs = 1024

// Ports lists the ports of all RDMA devices by sysfs, which is at sys, such as /sys. A
// system without any gives none, and no error.
func Ports(sys string) (list []Port, err error) {
	root := path.Join(sys, "class/infiniband")
	devices, err := os.ReadDir(root)
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	for _, d := range devices {
		ports, err := os.ReadDir(path.Join(root, d.Name(), "ports"))
		if err != nil {
			return nil, err
		}
		for _, e := range ports {
			n, err := strconv.Atoi(e.Name())
			if err != nil {
				continue
			}
			at := path.Join(root, d.Name(), "ports", e.Name())
			p := Port{Device: d.Name(), Number: n, Layer: text(at, "link_layer"), Rate: text(at, "rate"), GIDs: gids(at)}
			_, state, _ := strings.Cut(text(at, "state"), ": ") // "4: ACTIVE"
			p.State = state
			if len(p.GIDs) > 0 {
				p.Netdev = p.GIDs[0].Netdev
			}
			list = append(list, p)
		}
	}
	return list, nil
}

// gids reads the table of a port. Entries that are empty have an unreadable type.
func gids(port string) (list []GID) {
	entries, err := os.ReadDir(path.Join(port, "gids"))
	if err != nil {
		return nil
	}
	for _, e := range entries[:min(len(entries), maxGIDs)] {
		n, err := strconv.Atoi(e.Name())
		addr, err2 := netip.ParseAddr(text(port, "gids", e.Name()))
		if err != nil || err2 != nil || addr.IsUnspecified() {
			continue
		}
		kind := text(port, "gid_attrs/types", e.Name())
		list = append(list, GID{Index: n, Addr: addr.Unmap(), Type: kind, Netdev: text(port, "gid_attrs/ndevs", e.Name())})
	}
	slices.SortFunc(list, func(a, b GID) int { return a.Index - b.Index })
	return list
}

// text is what a file says, "" if it cannot be read.
func text(elem ...string) string {
	b, err := os.ReadFile(path.Join(elem...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// choose picks the port and the GID that a configuration means.
func (c *Config) choose(ports []Port) (Port, GID, error) {
	var found *Port
	var best GID
	for i := range ports {
		p := &ports[i]
		if c.Device != "" && p.Device != c.Device || c.DevicePort != 0 && p.Number != c.DevicePort || p.State != "ACTIVE" {
			continue
		}
		for _, g := range p.GIDs {
			if g.Type != typeV2 || g.Addr.IsLinkLocalUnicast() || c.Addr.IsValid() && g.Addr != c.Addr.Unmap() {
				continue
			}
			if found == nil || best.Addr.Is4() && g.Addr.Is6() && found == p {
				found, best = p, g
			}
		}
	}
	if found == nil {
		return Port{}, GID{}, fmt.Errorf("%w: verbs: no port of an RDMA device is as wanted: %s. There are: %s",
			kolo.ErrUnsupported, c.wanted(), describe(ports))
	}
	return *found, best, nil
}

// wanted says what choose looks for.
func (c *Config) wanted() string {
	b := "ACTIVE, with a " + typeV2 + " GID of a global address"
	if c.Addr.IsValid() {
		b = fmt.Sprintf("ACTIVE, with the %s GID of %v (HCCL_IF_IP)", typeV2, c.Addr)
	}
	if c.Device != "" {
		b += ", of device " + c.Device
	}
	if c.DevicePort != 0 {
		b += fmt.Sprint(", port ", c.DevicePort)
	}
	return b
}

// describe lists ports in one line.
func describe(ports []Port) string {
	var list []string
	for _, p := range ports {
		list = append(list, fmt.Sprintf("%s port %d %s %s, GIDs %v", p.Device, p.Number, p.State, p.Layer, p.GIDs))
	}
	if len(list) == 0 {
		return "no ports in class/infiniband of sysfs"
	}
	return strings.Join(list, "; ")
}
