package ascend

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/plan"
)

// Report is what there is of an NPU's software and links on this host, and what is
// missing. It is made for people, and for the map of channels.
type Report struct {
	Library  Part        // AscendCL
	Devices  int         // that AscendCL shows to this process
	DCMI     Part        // health and topology
	NPUSMI   Part        // topology, where DCMI is absent
	HCCNTool Part        // the devices' network ports
	Health   []Condition // by device, as DCMI says; nil where it is not known
	Network  []error     // what is wrong with the devices' network ports, as DCMI says
	Topology *Matrix     // nil where it is not known
	Ports    []Port      // by device; nil where they are not known
}

// Part is a library or a tool.
type Part struct {
	Name, Path, Version string
	Err                 error // why it is of no use; nil where it works
}

// LinkReport is what there is of a kind of link that devices may have.
type LinkReport struct {
	Link    kolo.Link
	Has     string   // what there is of it, "" if nothing
	Missing []string // what it lacks; none where it can be used
}

// toolPatience is how long a tool may take.
const toolPatience = 10 * time.Second

// The places of the tools: that of npu-smi is searched for by name.
const (
	npuSMI   = "npu-smi"
	hccnTool = "/usr/local/Ascend/driver/tools/hccn_tool"
)

// Inspect looks at this host. It opens no device, and runs npu-smi and hccn_tool where
// they are. It never fails: what is missing is in the report.
func Inspect(ctx context.Context, c Config) *Report {
	r := &Report{}
	r.bound(c)
	run := c.Run
	if run == nil {
		run = runTool
	}
	tool := func(p *Part, arg ...string) string {
		ctx, cancel := context.WithTimeout(ctx, toolPatience)
		defer cancel()
		out, err := run(ctx, p.Path, arg...)
		if err != nil {
			p.Err = fmt.Errorf("%s %s: %w", p.Path, strings.Join(arg, " "), err)
		}
		return string(out)
	}
	r.NPUSMI = Part{Name: npuSMI, Path: npuSMI}
	if text := tool(&r.NPUSMI, "info", "-t", "topo"); r.NPUSMI.Err == nil {
		m, err := ParseTopo(text)
		if r.NPUSMI.Err = err; err == nil {
			r.Topology = m
		}
	}
	r.HCCNTool = Part{Name: "hccn_tool", Path: hccnTool}
	devices := r.Devices
	if r.Topology != nil {
		devices = max(devices, len(r.Topology.Devices))
	}
	var ports []Port
	for i := range devices {
		var p Port
		for _, item := range portItems {
			text := tool(&r.HCCNTool, "-i", strconv.Itoa(i), item, "-g")
			if errors.Is(r.HCCNTool.Err, exec.ErrNotFound) || ctx.Err() != nil {
				return r
			}
			if err := p.ParsePort(text); err != nil {
				r.HCCNTool.Err = fmt.Errorf("port of device %d, %s: %w", i, item, err)
			}
		}
		ports = append(ports, p)
	}
	if devices == 0 {
		if _, r.HCCNTool.Err = exec.LookPath(hccnTool); r.HCCNTool.Err == nil {
			r.HCCNTool.Err = fmt.Errorf("%w: there is no device to ask it about", kolo.ErrUnsupported)
		}
	}
	r.Ports = ports
	return r
}

// runTool runs a program.
func runTool(ctx context.Context, name string, arg ...string) ([]byte, error) {
	if strings.HasPrefix(name, "/") {
		if _, err := exec.LookPath(name); err != nil {
			return nil, fmt.Errorf("%w: there is none", exec.ErrNotFound)
		}
	}
	return exec.CommandContext(ctx, name, arg...).Output()
}

// Links says for HCCS, RoCE and PCIe what there is and what is missing.
func (r *Report) Links() []LinkReport {
	base := LinkReport{}
	if r.Library.Err != nil {
		base.Missing = append(base.Missing, "AscendCL")
	}
	if r.Devices == 0 {
		base.Missing = append(base.Missing, "a device")
	}
	hccs, roce, pcie := base, base, base
	hccs.Link, roce.Link, pcie.Link = kolo.LinkHCCS, kolo.LinkRoCE, kolo.LinkPCIe
	pcie.Has = fmt.Sprintf("%d devices, by way of the host", r.Devices)

	links := 0
	if r.Topology != nil {
		for _, p := range r.Topology.Pairs() {
			if p.Edge.Link == kolo.LinkHCCS {
				links++
			}
		}
		hccs.Has = fmt.Sprintf("between %d pairs of devices", links)
	}
	switch {
	case r.Topology == nil:
		hccs.Missing = append(hccs.Missing, "a topology, from npu-smi or DCMI")
	case links == 0:
		hccs.Missing = append(hccs.Missing, "a pair of devices that it joins")
	}

	up, mtu := 0, 0
	for _, p := range r.Ports {
		if p.Up && p.Address.IsValid() {
			up++
			if mtu == 0 || p.MTU > 0 && p.MTU < mtu {
				mtu = p.MTU
			}
		}
	}
	switch {
	case r.Ports == nil:
		roce.Missing = append(roce.Missing, "what hccn_tool says of the ports")
	case up == 0:
		roce.Missing = append(roce.Missing, "a port that is up and has an address")
	default:
		roce.Has = fmt.Sprintf("%d of %d ports up with an address, MTU %d", up, len(r.Ports), mtu)
	}
	return []LinkReport{hccs, roce, pcie}
}

// Plan is the topology of one server with a rank for each of its devices: what npu-smi or
// DCMI say lies between two, else their network ports, else the host. It is for looking
// at plans where no device is opened; a World takes its devices (rank.Config.Devices).
func (r *Report) Plan() (*plan.Topology, error) {
	n := max(r.Devices, len(r.Ports))
	if r.Topology != nil {
		n = len(r.Topology.Devices)
	}
	if n == 0 {
		return nil, fmt.Errorf("%w: there is no device to make a topology of", kolo.ErrUnsupported)
	}
	known := map[[2]kolo.Rank]bool{}
	var pairs []plan.Pair
	if r.Topology != nil {
		pairs = r.Topology.Pairs()
	}
	for _, p := range pairs {
		known[[2]kolo.Rank{p.A, p.B}] = true
	}
	for a := range n {
		for b := a + 1; b < n; b++ {
			pair := plan.Pair{A: kolo.Rank(a), B: kolo.Rank(b), Edge: npu.NominalByHost()}
			if e, ok := r.byPorts(a, b); ok {
				pair.Edge = e
			}
			if !known[[2]kolo.Rank{pair.A, pair.B}] {
				pairs = append(pairs, pair)
			}
		}
	}
	return plan.OneServer(n).WithEdges(pairs)
}

// byPorts is the way between two devices over their network ports.
func (r *Report) byPorts(a, b int) (kolo.Edge, bool) {
	if max(a, b) >= len(r.Ports) {
		return kolo.Edge{}, false
	}
	e, ok := r.Ports[a].Edge(r.Ports[b])
	nominal := npu.Nominal(e.Link)
	if e.Latency = nominal.Latency; e.Bandwidth == 0 {
		e.Bandwidth = nominal.Bandwidth
	}
	return e, ok
}

// String is the report in lines.
func (r *Report) String() string {
	var b strings.Builder
	line := func(name, format string, arg ...any) {
		text := strings.ReplaceAll(fmt.Sprintf(format, arg...), "\n", "\n                  ")
		fmt.Fprintf(&b, "%-18s%s\n", name, text)
	}
	line("driver", "ascend")
	for _, p := range []Part{r.Library, r.DCMI, r.NPUSMI, r.HCCNTool} {
		switch {
		case p.Err != nil:
			line(p.Name, "missing: %v", p.Err)
		case p.Version != "":
			line(p.Name, "%s, version %s", p.Path, p.Version)
		default:
			line(p.Name, "%s", p.Path)
		}
	}
	line("devices", "%d", r.Devices)
	for i, h := range r.Health {
		if h != Normal {
			line("health", "device %d: %v", i, h)
		}
	}
	for i, err := range r.Network {
		if err != nil {
			line("health", "network port of device %d: %v", i, err)
		}
	}
	for _, l := range r.Links() {
		if len(l.Missing) == 0 {
			line(l.Link.String(), "%s", l.Has)
		} else {
			line(l.Link.String(), "missing: %s", strings.Join(l.Missing, ", "))
		}
	}
	if t, err := r.Plan(); err == nil {
		line("topology", "%v", t)
	}
	return b.String()
}
