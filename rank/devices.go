package rank

import (
	"fmt"
	"slices"
	"sync"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel/pcie"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/plan"
)

// DeviceTopology is the topology of the ranks of one process of which rank i works on
// devices[i]: servers as the devices say, each pair by its edge, of both directions the
// worse. Figures that a driver does not declare are npu.Nominal's. Devices without access
// to each other go by the host, in and out over PCIe.
//
// The medium is the devices' engine. Every device folds a share and has a way of its own
// to each other of its server, but one port to all that are elsewhere: P ranks, whose
// slowest pair has B bytes per second, read and write P*P*B.
func DeviceTopology(devices []npu.Device) (*plan.Topology, error) {
	if len(devices) == 0 || slices.Contains(devices, nil) {
		return nil, fmt.Errorf("%w: a topology of %d devices, or of a nil one", kolo.ErrArgument, len(devices))
	}
	n := len(devices)
	servers, server := map[int]int{}, make([]int, n)
	for i, d := range devices {
		s := d.Info().Server
		if _, ok := servers[s]; !ok {
			servers[s] = len(servers)
		}
		server[i] = servers[s]
	}
	t, err := plan.Places(server, nil)
	if err != nil {
		return nil, err
	}
	self := deviceEdge(devices[0], devices[0])
	p := plan.Probe{Medium: true, Process: plan.Process{Cores: n, Memory: 2 * self.Bandwidth, Call: 2 * self.Latency}}
	slowest := 0.0
	for a := range n {
		elsewhere := 0
		for _, s := range server {
			if s != server[a] {
				elsewhere++
			}
		}
		for b := a + 1; b < n; b++ {
			e, back := deviceEdge(devices[a], devices[b]), deviceEdge(devices[b], devices[a])
			for _, e := range []kolo.Edge{e, back} {
				p.Pairs = append(p.Pairs, plan.Pair{A: kolo.Rank(a), B: kolo.Rank(b), Edge: e})
				p.Process.Call = max(p.Process.Call, 2*e.Latency)
			}
			own := min(e.Bandwidth, back.Bandwidth)
			if server[a] != server[b] {
				own /= float64(elsewhere)
			}
			if slowest == 0 || own < slowest {
				slowest = own
			}
		}
	}
	if slowest > 0 {
		p.Process.Memory = slowest * float64(n) * float64(n)
	}
	return t.With(p)
}

// deviceEdge is the way from a device to the memory of another, with figures.
func deviceEdge(from, to npu.Device) kolo.Edge {
	e, ok := from.Edge(to.Info().Space)
	known := npu.Nominal(e.Link)
	if !ok {
		e, _ = from.Edge(kolo.HostSpace)
		known = npu.NominalByHost()
		e.Link, e.Latency, e.Bandwidth = kolo.LinkPCIe, 2*e.Latency, e.Bandwidth/2
	}
	if e.Latency == 0 {
		e.Latency = known.Latency
	}
	if e.Bandwidth == 0 {
		e.Bandwidth = known.Bandwidth
	}
	return e
}

// stageApart puts the last resort around the engine where two of the devices have no way
// to each other: what goes between those is staged through the host, and Config.Warned
// hears of each such pair when it is first used. Where there is a better way it is taken.
func (p *process) stageApart() error {
	devices := map[kolo.Space]npu.Device{}
	for _, d := range p.cfg.Devices {
		devices[d.Info().Space] = d
	}
	reaches := func(a, b kolo.Space) bool {
		from, to := devices[a], devices[b]
		if from == nil || to == nil {
			return true // not the ranks': the engine says what it cannot do
		}
		_, ok := from.Edge(b)
		return ok
	}
	apart := false
	for a := range devices {
		for b := range devices {
			apart = apart || !reaches(a, b)
		}
	}
	if !apart {
		return nil
	}
	e, err := pcie.NewEngine(p.engine, pcie.Config{Peer: reaches, Warned: func(text string) {
		if p.cfg.Warned != nil {
			p.cfg.Warned(Warning{Text: text})
		}
	}})
	if err != nil {
		p.closeEngine()
		return err
	}
	p.beneath, p.engine = p.engine, e
	return nil
}

// losses are the devices of a process that were lost, by the rank that works on them.
type losses struct {
	mu     sync.Mutex
	by     map[kolo.Rank]error
	forget []func()
}

// checkDevices says what is wrong with Config.Devices, or nil.
func checkDevices(devices []npu.Device, ranks int) error {
	switch {
	case len(devices) == 0:
		return nil
	case len(devices) != ranks:
		return fmt.Errorf("%w: Config.Devices has %d devices, this process %d ranks", kolo.ErrArgument, len(devices), ranks)
	}
	if i := slices.Index(devices, nil); i >= 0 {
		return fmt.Errorf("%w: Config.Devices[%d] is nil", kolo.ErrArgument, i)
	}
	return nil
}

// watchDevices has the groups of a rank fail when its device is lost.
func (p *process) watchDevices(mine []kolo.Rank) {
	for i, d := range p.cfg.Devices {
		w, ok := d.(npu.Watched)
		if !ok {
			continue
		}
		forget := w.OnLost(func(cause error) { p.deviceLost(mine[i], cause) })
		p.losses.mu.Lock()
		p.losses.forget = append(p.losses.forget, forget)
		p.losses.mu.Unlock()
	}
}

// unwatchDevices ends watchDevices.
func (p *process) unwatchDevices() {
	p.losses.mu.Lock()
	list := p.losses.forget
	p.losses.forget = nil
	p.losses.mu.Unlock()
	for _, f := range list {
		f()
	}
}

// deviceLost fails the groups that there are; failLost those that are made later.
func (p *process) deviceLost(r kolo.Rank, cause error) {
	p.losses.mu.Lock()
	if p.losses.by == nil {
		p.losses.by = map[kolo.Rank]error{}
	}
	p.losses.by[r] = cause
	p.losses.mu.Unlock()
	for _, h := range p.allHubs() {
		p.failLost(h)
	}
}

// failLost fails a group if one of its ranks has lost its device.
func (p *process) failLost(h *hub) {
	var e *kolo.Error
	p.losses.mu.Lock()
	for i, r := range h.ranks {
		if cause := p.losses.by[r]; cause != nil {
			at := kolo.Rank(i)
			e = &kolo.Error{Group: h.key.name, Rank: kolo.NoRank, Peer: at, Ranks: []kolo.Rank{at},
				Err: fmt.Errorf("the device of rank %d is lost: %w", i, cause)}
			break
		}
	}
	p.losses.mu.Unlock()
	if e != nil {
		h.tell(nil, &failure{err: e})
	}
}
