package verbs

import (
	"fmt"
	"strings"
)

// Report is what there is of RDMA adapters on this host.
type Report struct {
	Library string // the file that libibverbs was loaded from
	Version string // of rdma-core, where the file's name tells; or ""
	Err     error  // why there is no library, or why its devices cannot be listed
	Devices []Device
	Ports   []Port // by sysfs
	// Use is what the driver would use, and UseErr why there is nothing.
	Use    string
	UseErr error
}

// Device is a device that libibverbs has opened.
type Device struct {
	Name     string
	Firmware string
	Vendor   uint32 // by PCI
	Part     uint32
	MTU      []int // active path MTU of each port, 0 where a port is down
	Err      error // why it cannot be opened or read
}

// Inspect looks for the library and for devices. It sends nothing.
func Inspect(c Config) Report {
	c = c.withDefaults()
	var r Report
	var err error
	if r.Ports, err = Ports(c.Sys); err != nil {
		r.UseErr = err
	} else if p, g, err := c.choose(r.Ports); err != nil {
		r.UseErr = err
	} else {
		r.Use = fmt.Sprintf("%s port %d, GID %v", p.Device, p.Number, g)
	}
	r.bound(c)
	return r
}

// String is the report for people, of some lines.
func (r Report) String() string {
	var b strings.Builder
	version := ""
	if r.Version != "" {
		version = " (rdma-core " + r.Version + ")"
	}
	switch {
	case r.Err != nil && r.Library == "":
		fmt.Fprintf(&b, "libibverbs: missing: %v\n", r.Err)
	case r.Err != nil:
		fmt.Fprintf(&b, "libibverbs: %s%s: %v\n", r.Library, version, r.Err)
	default:
		fmt.Fprintf(&b, "libibverbs: %s%s, %d devices\n", r.Library, version, len(r.Devices))
	}
	for _, d := range r.Devices {
		if d.Err != nil {
			fmt.Fprintf(&b, "  %s: %v\n", d.Name, d.Err)
			continue
		}
		fmt.Fprintf(&b, "  %s: firmware %s, vendor %#x part %#x, path MTU by port %v\n", d.Name, d.Firmware, d.Vendor, d.Part, d.MTU)
	}
	for _, p := range r.Ports {
		fmt.Fprintf(&b, "  %s port %d: %s, %s, %s, interface %s\n", p.Device, p.Number, p.State, p.Layer, p.Rate, p.Netdev)
		for _, g := range p.GIDs {
			fmt.Fprintf(&b, "    GID %v\n", g)
		}
	}
	if r.UseErr != nil {
		fmt.Fprintf(&b, "  missing: %v\n", r.UseErr)
	} else {
		fmt.Fprintf(&b, "  the verbs driver takes %s\n", r.Use)
	}
	return b.String()
}
