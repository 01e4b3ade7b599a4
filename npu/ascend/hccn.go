package ascend

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/kolo-ccl/kolo"
)

// Port is a device's network port, as hccn_tool shows it. Fields that were not read
// are zero.
type Port struct {
	Address netip.Addr
	Mask    int // bits of the network part
	MAC     string
	MTU     int
	Up      bool
	Speed   float64 // bytes per second, one way; 0 is unknown
	Switch  string  // the switch at the other end, by LLDP
	Outlet  string  // and its port
}

// Edge is the way from a port to another of the same network, without a latency; false
// where either is down or has no address.
func (p Port) Edge(q Port) (kolo.Edge, bool) {
	if !p.Up || !q.Up || !p.Address.IsValid() || !q.Address.IsValid() {
		return kolo.Edge{}, false
	}
	e := kolo.Edge{Link: kolo.LinkRoCE, Bandwidth: min(p.Speed, q.Speed)}
	return e, true
}

// The items of hccn_tool that ParsePort understands: hccn_tool -i N -ip -g and so on.
var portItems = []string{"-ip", "-link", "-speed", "-mtu", "-mac", "-lldp"}

// ParsePort reads what hccn_tool has printed for one of its items, which are -ip,
// -link, -speed, -mtu, -mac and -lldp, into a port. The output may be that of several
// items, with -lldp last: what is not known is passed over, what cannot be is an error.
func (p *Port) ParsePort(text string) error {
	section := "" // of LLDP's list, which tells of the other end
	for at, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		name, value, colon := strings.Cut(line, ":")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		switch {
		case strings.HasSuffix(line, "TLV"):
			section = line
		case section == "Port ID TLV" && colon && strings.EqualFold(name, "Ifname"):
			p.Outlet = value
		case section == "System Name TLV" && line != "":
			p.Switch, section = line, "done"
		case section == "" && colon && value != "":
			if err := p.field(strings.ToLower(name), value); err != nil {
				return fmt.Errorf("%w: line %d of hccn_tool's output: %w", kolo.ErrArgument, at+1, err)
			}
		}
	}
	return nil
}

func (p *Port) field(name, value string) (err error) {
	switch name {
	case "ipaddr":
		p.Address, err = netip.ParseAddr(value)
	case "netmask":
		p.Mask, err = mask(value)
	case "link status":
		p.Up = strings.EqualFold(value, "UP")
	case "speed":
		p.Speed, err = speed(value)
	case "mtu":
		p.MTU, err = number(strings.TrimPrefix(value, "mtu "))
	case "mac addr":
		var m net.HardwareAddr
		if m, err = net.ParseMAC(value); err == nil {
			p.MAC = m.String()
		}
	}
	return err
}

// mask is the number of bits of a netmask.
func mask(value string) (int, error) {
	a, err := netip.ParseAddr(value)
	if err != nil {
		return 0, err
	}
	ones, bits := net.IPMask(a.AsSlice()).Size()
	if bits == 0 {
		return 0, fmt.Errorf("%q is no netmask", value)
	}
	return ones, nil
}

// speed is bytes per second of "100000 Mb/s"; 0 of "Unknown!".
func speed(value string) (float64, error) {
	if strings.HasPrefix(value, "Unknown") {
		return 0, nil
	}
	digits, ok := strings.CutSuffix(value, "Mb/s")
	if !ok {
		return 0, fmt.Errorf("%q is no speed in Mb/s", value)
	}
	n, err := number(strings.TrimSpace(digits))
	return float64(n) * 1e6 / 8, err
}

// number is a count that fits any machine's int.
func number(digits string) (int, error) {
	n, err := strconv.ParseUint(digits, 10, 31)
	if err != nil {
		return 0, fmt.Errorf("%q is no number", digits)
	}
	return int(n), nil
}
