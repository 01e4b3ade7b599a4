package cluster

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/plan"
)

// processes is the number of the process of each world rank.
func (r *roster) processes() []int {
	of := make([]int, r.Size)
	for q := range r.Members {
		for _, k := range r.Members[q].Ranks {
			of[k] = q
		}
	}
	return of
}

// Figures of the links where nothing was measured: what messages between processes of one
// host take by shared memory, and by sockets. Of hosts, plan has figures.
var (
	byMemory = kolo.Edge{Link: kolo.LinkSHM, Latency: 2 * time.Microsecond, Bandwidth: 8e9}
	bySocket = kolo.Edge{Link: kolo.LinkTCP, Latency: 6 * time.Microsecond, Bandwidth: 5e9}
)

// Near is what a driver's messages between processes of one host are taken to be like where
// nothing was measured. A driver that is not known counts as tcp.
func Near(driver string) kolo.Edge {
	switch driver {
	case "shm":
		return byMemory
	case "verbs":
		return kolo.Edge{Link: kolo.LinkRoCE, Latency: 5 * time.Microsecond, Bandwidth: 10e9}
	case "roce":
		return kolo.Edge{Link: kolo.LinkRoCE, Latency: 20 * time.Microsecond, Bandwidth: 2e9}
	}
	return bySocket
}

// topology is where the ranks are, which all processes derive alike from the roster. The
// servers of the plan are processes where some hold several ranks, and its racks are hosts
// then; where each rank has a process of its own, servers are hosts and racks are racks.
func (r *roster) topology(transport string) (*plan.Topology, error) {
	host, rack := make([]string, len(r.Members)), make([]string, len(r.Members))
	for q := range r.Members {
		m := &r.Members[q]
		host[q], rack[q] = m.place(), m.Host.Rack
	}
	several := r.several()
	server, racks := make([]int, r.Size), make([]int, r.Size)
	servers, rackNumbers := numbering{}, numbering{}
	for k, q := range r.processes() {
		if several {
			server[k], racks[k] = servers.of(fmt.Sprint(q)), rackNumbers.of(host[q])
		} else {
			server[k], racks[k] = servers.of(host[q]), rackNumbers.of(rack[q])
		}
	}
	t, err := plan.Places(server, racks)
	if err != nil {
		return nil, err
	}
	near := byMemory
	if transport != "" && !strings.HasPrefix(transport, "shm") {
		near = bySocket // of each other transport, so that processes with different ones hear of that
	}
	if t.Processes = several; several {
		t.Levels[1] = near
	} else {
		t.Levels[0] = near
	}
	cores := map[string]int{}
	for q := range r.Members {
		m := r.Members[q].Host.Machine
		if _, ok := cores[m]; !ok {
			cores[m] = max(r.cores(q), 0)
		}
	}
	t.Cores = slices.Min(slices.Collect(maps.Values(cores)))
	return t, nil
}

// several says whether some process holds more than one rank.
func (r *roster) several() bool {
	return slices.ContainsFunc(r.Members, func(m Member) bool { return len(m.Ranks) > 1 })
}

// place tells the hosts of a world apart. No memory is shared between the networks of a
// machine: see channelMap.obstacle.
func (m *Member) place() string { return m.Host.Machine + " " + m.Host.Network }

// workers is how many of its procs processors a process has for itself, at least one,
// where the processes of its host share them.
func (r *roster) workers(self, procs int) int {
	here, cores := 0, max(procs, r.cores(self))
	for q := range r.Members {
		if r.Members[q].Host.Machine == r.Members[self].Host.Machine {
			here++
		}
	}
	return max(1, min(procs, cores/max(here, 1)))
}

// numbering gives values numbers in the order in which they come.
type numbering map[string]int

func (n numbering) of(s string) int {
	if _, ok := n[s]; !ok {
		n[s] = len(n)
	}
	return n[s]
}

// Route is one line of the channel map: how this process reaches another.
type Route struct {
	Process int
	Ranks   []kolo.Rank
	Host    string
	Driver  string
	Link    kolo.Link
}

// Map is the channel map of this process, by process number.
func (p *Process) Map() []Route {
	var out []Route
	for q := range p.roster.Members {
		m := &p.roster.Members[q]
		i := p.drivers.by[q]
		out = append(out, Route{Process: q, Ranks: slices.Clone(m.Ranks), Host: m.Host.Name, Driver: p.drivers.names[i], Link: p.drivers.drivers[i].Link()})
	}
	return out
}

// Topology is what the calls of the world are chosen by: the one of Config.Rank, or defaults
// by what is known of the processes, with what the join has measured in their place. It is
// the same on all processes, and not to be changed.
func (p *Process) Topology() *plan.Topology { return p.topology }

// Explain says for all pairs of processes which driver joins them and why not a better
// one, and warns where something looks wrong, with what to check. Pairs of a kind share a line.
// Then it says what the join has measured, and what was made of it.
func (p *Process) Explain() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s within each process\n", inside)
	for _, g := range p.drivers.pairings(p.roster) {
		fmt.Fprintf(&b, "%s: %s\n", g.between(), g.why)
		if g.check != "" {
			fmt.Fprintf(&b, "  warning: %s\n", g.check)
		}
	}
	if p.figures != nil {
		b.WriteString(p.figures.explain())
		for _, w := range p.figures.warnings(p.roster) {
			fmt.Fprintf(&b, "%s: measured at the join\n  warning: %s\n", w.Pairs, w.Check)
		}
		for _, text := range p.roster.crowds() {
			fmt.Fprintf(&b, "%s: what was measured there is its scheduler's time, too\n", text)
		}
	}
	return b.String()
}

// Warning is pairs of processes that seem to be joined by less than their hosts have, or
// whose links the join has found to be slow.
type Warning struct {
	Pairs string // which, and by what
	Check string // what looks wrong, and what to do about it
}

// Warnings are those of Explain, at most maxNotes kinds of them. All processes have the same.
func (p *Process) Warnings() (list []Warning) {
	for _, g := range p.drivers.pairings(p.roster) {
		if g.check != "" && len(list) < maxNotes {
			list = append(list, Warning{Pairs: g.between(), Check: g.check})
		}
	}
	if p.figures != nil {
		list = append(list, p.figures.warnings(p.roster)...)
	}
	return list[:min(len(list), maxNotes)]
}

// warn logs the warnings. That a host is crowded is what its user wants, or knows: whoever asks for
// that level of the log hears it.
func (p *Process) warn() {
	if !p.cfg.serves() {
		return
	}
	for _, w := range p.Warnings() {
		p.cfg.Log.Warn("kolo: "+w.Check, "job", p.roster.Job, "pairs", w.Pairs)
	}
	for _, text := range p.roster.crowds() {
		p.cfg.Log.Debug("kolo: "+text, "job", p.roster.Job)
	}
}

// String is the route in a line.
func (r Route) String() string {
	return fmt.Sprintf("rank %s on %s by %s", kolo.RankList(r.Ranks), cmp.Or(r.Host, "an unnamed host"), r.Driver)
}
