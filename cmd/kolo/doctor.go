package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/channel/hccs"
	"github.com/kolo-ccl/kolo/channel/verbs"
	"github.com/kolo-ccl/kolo/cluster"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/npu/ascend"
	"github.com/kolo-ccl/kolo/plan/survey"
	"github.com/kolo-ccl/kolo/rank"
)

const doctorLong = `Doctor looks at this host and, under kolo run, srun or mpirun, at all processes of the
world: which drivers are linked in and what each needs, NPUs and what is missing for HCCS,
RoCE and PCIe, RDMA adapters, interfaces and which address others are told; then who answers on each
link and by which address, latency and bandwidth from rank to rank, large frames between hosts, and how far the
clocks are apart. It ends with 1 if a link is lost or answers as another rank, or if
something is not as in the file of --expect.`

// doctorCommand is kolo doctor.
func (a *app) doctorCommand() *cobra.Command {
	f, expect := &topoFlags{}, ""
	cmd := &cobra.Command{Use: "doctor", Short: "Say what is there, what is missing, and what is wrong with it", Long: doctorLong, Args: usageArgs(cobra.NoArgs),
		Example: "  kolo doctor\n  kolo run -n 4 -- kolo doctor --expect expected.json"}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return a.doctor(cmd.Context(), f, expect) }
	f.register(cmd.Flags())
	cmd.Flags().StringVar(&expect, "expect", "", "`file` with the topology that is expected, as kolo topo export writes it")
	return cmd
}

// doctor writes everything, in the process of rank 0.
func (a *app) doctor(ctx context.Context, f *topoFlags, expect string) error {
	var expected *survey.Survey
	if expect != "" {
		var err error
		if expected, err = readTopology(expect); err != nil {
			return err
		}
	}
	f.everything = true
	err := a.measure(ctx, f, func(m *measured) error {
		var b strings.Builder
		a.host(&b, m)
		drivers(&b, a.getenv)
		fmt.Fprintf(&b, "\nNPUs\n  drivers linked in: %s\n", strings.Join(npu.Drivers(), ", "))
		b.WriteString(indent(ascend.Inspect(ctx, ascend.Config{Getenv: a.getenv}).String()))
		b.WriteString("\nRDMA adapters\n")
		b.WriteString(indent(a.adapters()))
		interfaces(&b, m.members[0].Addresses)
		list := m.links(&b)
		if expected != nil {
			list = append(list, m.Survey.Diff(expected, f.tolerance)...)
		}
		b.WriteString("\nfindings\n")
		for _, f := range list {
			b.WriteString(indent(f.String() + "\n"))
		}
		if len(list) == 0 {
			b.WriteString("  none\n")
		}
		if _, err := fmt.Fprint(a.out, b.String()); err != nil {
			return err
		}
		bad := func(f survey.Finding) bool {
			return slices.Contains([]string{"lost", "one-way"}, f.Kind) || expected != nil
		}
		if slices.ContainsFunc(list, bad) {
			return errors.New("something is wrong: see the findings")
		}
		return nil
	})
	if e := (*cluster.ConnectError)(nil); errors.As(err, &e) {
		return a.unconnected(e)
	}
	return err
}

func indent(s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		b.WriteString("  " + line)
	}
	return b.String()
}

// host says what this process is.
func (a *app) host(b *strings.Builder, m *measured) {
	self := cluster.Self()
	fmt.Fprintf(b, "this host\n  %s, %s/%s, %d cores, kolo %s\n", hostName(&self), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), version())
	if free, ok := availableMemory(); ok {
		fmt.Fprintf(b, "  memory to be had: %s\n", mebibytes(free))
	}
	by := "no launcher: this process is alone"
	for _, v := range launcher {
		if !m.config.alone() && a.getenv(v.process) != "" {
			by = fmt.Sprintf("process %d of %d, by %s and %s", m.config.process, m.config.processes, v.process, v.processes)
			break
		}
	}
	fmt.Fprintf(b, "  %s; ranks in each: %d\n", by, m.config.each)
}

// needs are the drivers and what each needs.
var needs = []struct{ name, what string }{
	{"hccs", "ranks of one process, or NPUs with peer access"},
	{"shm", "processes of one host, user and network name space; Linux with memfd; process_vm_readv (kernel.yama.ptrace_scope 0, or CAP_SYS_PTRACE) to read private memory in place"},
	{"verbs", "an RDMA adapter with RoCE v2 (libibverbs, ib_uverbs, a port that is up and has an address); see below"},
	{"roce", "UDP between the hosts, MTU 9000 for full speed; the protocol is in user space, so no adapter with RDMA is used"},
	{"pcie", "ranks of one process; devices without peer access, whose memory it stages through the host"},
	{"tcp", "a TCP route in both directions, to any port or those of Config.Listen"},
}

// drivers says which are linked in and work here.
func drivers(b *strings.Builder, getenv func(string) string) {
	b.WriteString("\ndrivers, best first\n")
	engine := hccs.NewEngine(0)
	defer engine.Close()
	for _, n := range needs {
		state := "ready"
		if d, err := channel.Open(n.name, channel.Config{Job: "doctor", Engine: engine, Getenv: getenv}); err != nil {
			state = "missing: " + firstLine(err.Error())
		} else if err := d.Close(); err != nil {
			state = "cannot be closed: " + err.Error()
		}
		fmt.Fprintf(b, "  %-5s %s; needs %s\n", n.name, state, n.what)
	}
}

// firstLine is a text without what is below its first line.
func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	return s
}

// adapters is what there is for the driver verbs.
func (a *app) adapters() string {
	c, err := verbs.ConfigFromEnv(a.getenv)
	if err != nil {
		return err.Error() + "\n"
	}
	return verbs.Inspect(c).String()
}

// interfaces lists them, and says which address others are told and why.
func interfaces(b *strings.Builder, told []string) {
	b.WriteString("\ninterfaces\n")
	list, err := net.Interfaces()
	if err != nil {
		fmt.Fprintf(b, "  cannot be listed: %v\n", err)
	}
	for _, i := range list {
		addrs, err := i.Addrs()
		if i.Flags&net.FlagUp == 0 || err != nil || len(addrs) == 0 {
			continue
		}
		fmt.Fprintf(b, "  %s: MTU %d%s", i.Name, i.MTU, speedText(i.Name))
		for _, addr := range addrs {
			p, err := netip.ParsePrefix(addr.String())
			if err != nil {
				continue
			}
			fmt.Fprintf(b, ", %v", p.Addr())
			if at := slices.Index(told, p.Addr().Unmap().String()); at >= 0 {
				fmt.Fprintf(b, " (told to others, choice %d)", at+1)
			}
		}
		b.WriteString("\n")
	}
	switch {
	case len(told) == 0:
		b.WriteString("  no address can be told to other hosts: only processes of this host can join\n")
	default:
		b.WriteString("  first comes the address from which the way to the rendezvous starts, then those of other interfaces, of containers' bridges last, loopback never; HCCL_IF_IP overrides\n")
	}
}

// speed is what the system says of an interface, in bytes per second; 0 if nothing.
func speed(name string) float64 {
	text, err := os.ReadFile("/sys/class/net/" + name + "/speed")
	if err != nil {
		return 0
	}
	mbit, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || mbit <= 0 {
		return 0
	}
	return float64(mbit) * 1e6 / 8
}

func speedText(name string) string {
	if s := speed(name); s > 0 {
		return fmt.Sprintf(", %.3g Gbit/s", s*8/1e9)
	}
	return ""
}

// links says what was measured, and gives what is wrong with it.
func (m *measured) links(b *strings.Builder) []survey.Finding {
	fmt.Fprintf(b, "\nlinks\n")
	b.WriteString(indent(m.connections))
	met := 0
	for _, w := range m.Survey.Ways {
		if w.Lost == "" {
			met++
		}
	}
	fmt.Fprintf(b, "  identity handshake: %d of %d answered as who was expected\n", met, len(m.Survey.Ways))
	b.WriteString(indent(m.Survey.String()))
	b.WriteString(indent(m.channels()))
	memory := rank.Probe().Levels[0].Bandwidth
	for _, c := range m.Survey.Classes() {
		want, of := memory, "of what one core copies"
		if c.Link == kolo.LinkTCP || c.Link == kolo.LinkRoCE {
			if want, of = fastest(), "of the fastest interface"; c.Distance == "host" {
				want, of = memory, "of what one core copies, as both are on one host"
			}
		}
		if c.Count > 0 && want > 0 {
			fmt.Fprintf(b, "  %v in a %s: the slowest has %.0f %% %s\n", c.Link, c.Distance, 100*c.Bandwidth[0]/want, of)
		}
	}
	b.WriteString(indent(m.frames))
	for _, c := range m.Clocks {
		fmt.Fprintf(b, "  clock of rank %d: %v from rank 0's, give or take %v\n", c.Rank, c.Ahead.Round(time.Microsecond), c.Give.Round(time.Microsecond))
	}
	list := m.Survey.Lint()
	for _, c := range m.Clocks {
		if skew := max(c.Ahead, -c.Ahead) - c.Give; skew > maxSkew {
			list = append(list, survey.Finding{Kind: "clock", Ranks: []kolo.Rank{c.Rank}, What: fmt.Sprintf("the clock of rank %d is %v from rank 0's", c.Rank, c.Ahead),
				Check: []string{"NTP or PTP on both hosts: logs and traces of them cannot be compared"}})
		}
	}
	return list
}

// maxSkew is how far clocks may be apart for logs to be compared.
const maxSkew = 10 * time.Millisecond

// fastest is the speed of the fastest interface, 0 if none tells.
func fastest() float64 {
	list, err := net.Interfaces()
	best := 0.0
	for i := 0; err == nil && i < len(list); i++ {
		best = max(best, speed(list[i].Name))
	}
	return best
}

// framesBetween asks from this process each other host for large frames; what it gives is
// for people. All processes call it.
func (p *party) framesBetween(ctx context.Context) (string, error) {
	e, err := newEcho()
	if err != nil {
		return fmt.Sprintf("large frames: not probed: %v\n", err), nil
	}
	defer e.close()
	ports, err := p.tellAll(ctx, int64(e.port()))
	if err != nil {
		return "", err
	}
	var b strings.Builder
	members := p.members()
	mine := 0
	for i := range members {
		if slices.Contains(members[i].Ranks, p.worlds[0].Rank()) {
			mine = i
		}
	}
	self := &members[mine].Host
	for i := range members {
		m := &members[i]
		if m.Host.Machine+m.Host.Network == self.Machine+self.Network || len(m.Addresses) == 0 {
			continue
		}
		at, err := netip.ParseAddr(m.Addresses[0])
		if err != nil {
			continue
		}
		largest, err := e.ask(ctx, netip.AddrPortFrom(at, uint16(ports[m.Ranks[0]])))
		fmt.Fprintf(&b, "large frames to %s (%v): %s\n", cmp.Or(m.Host.Name, "a host"), at, frameText(largest, err))
	}
	if b.Len() == 0 {
		b.WriteString("large frames: there is no other host\n")
	}
	_, err = p.tellAll(ctx, 0) // nobody is asked any more
	return b.String(), err
}

// tellAll tells all ranks a number of this process, and gives those of all ranks.
func (p *party) tellAll(ctx context.Context, v int64) ([]int64, error) {
	got := make([]int64, p.worlds[0].Size())
	err := p.together(func(w *rank.World) error {
		to := got
		if w != p.worlds[0] {
			to = make([]int64, len(got))
		}
		return rank.AllGather(ctx, w.Group(), to, []int64{v})
	})
	return got, err
}

// together calls f for all ranks of this process at once.
func (p *party) together(f func(w *rank.World) error) error {
	errs := make(chan error, len(p.worlds))
	for _, w := range p.worlds {
		// ends with the call
		go func() { errs <- f(w) }()
	}
	var all []error
	for range p.worlds {
		all = append(all, <-errs)
	}
	return errors.Join(all...)
}
