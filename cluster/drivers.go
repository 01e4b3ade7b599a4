package cluster

import (
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	_ "github.com/kolo-ccl/kolo/channel/shm" // linked in
	"github.com/kolo-ccl/kolo/channel/tcp"
)

// channelMap is the driver of a World of several processes: it leaves each pair of ranks
// to the driver that joins them best.
type channelMap struct {
	names   []string // of drivers
	drivers []channel.Driver
	by      []int // the driver of each process's ranks, by process number
	process []int // of each world rank

	auto bool       // nobody has said which drivers
	has  [][]string // the drivers that each process has opened
}

// inside is the driver between the ranks of one process.
const inside = "hccs"

// preferred are the drivers between processes, best first: memory, RoCE by an adapter (what
// channel/roce does in user space has to be asked for), sockets. Devices without peer
// access (pcie) are a matter within a process.
func preferred() []string { return []string{"shm", "verbs", "tcp"} }

// unfit says whether a driver is not even opened where nobody has asked for it: RoCE without
// a port that speaks it, or where its data would have to be encrypted.
func unfit(name string, here *Host, secret *tls.Config) bool {
	return name == "verbs" && (len(here.RDMA) == 0 || secret != nil)
}

// Link is the kind of the slowest link.
func (m *channelMap) Link() kolo.Link {
	link := kolo.LinkSelf
	for _, i := range m.by {
		link = max(link, m.drivers[i].Link())
	}
	return link
}

// Direct says whether both ranks are in one process, where the driver inside joins them.
func (m *channelMap) Direct(a, b kolo.Rank) bool { return m.process[a] == m.process[b] }

// Open opens an endpoint of each driver.
func (m *channelMap) Open(rank kolo.Rank) (channel.Endpoint, error) {
	e := &mapEndpoint{m: m, ends: make([]channel.Endpoint, len(m.drivers))}
	for i, d := range m.drivers {
		if !slices.Contains(m.by, i) {
			continue
		}
		end, err := d.Open(rank)
		if err != nil {
			e.Close()
			return nil, fmt.Errorf("%s: %w", m.names[i], err)
		}
		e.ends[i] = end
	}
	return e, nil
}

// Close closes the drivers.
func (m *channelMap) Close() error {
	var errs []error
	for i := len(m.drivers) - 1; i >= 0; i-- {
		errs = append(errs, m.drivers[i].Close())
	}
	return errors.Join(errs...)
}

// mapEndpoint is a rank's end by all drivers.
type mapEndpoint struct {
	m    *channelMap
	ends []channel.Endpoint
}

// Connect connects by the driver of the peer's process.
func (e *mapEndpoint) Connect(peer kolo.Rank) (channel.Conn, error) {
	return e.ends[e.m.by[e.m.process[peer]]].Connect(peer)
}

// Close closes the ends.
func (e *mapEndpoint) Close() {
	for _, end := range e.ends {
		if end != nil {
			end.Close()
		}
	}
}

// poller is a channelMap of which a driver can be polled by a rank that waits.
type poller struct {
	*channelMap
	by channel.Poller
}

// Spans says whether the driver that is polled is a medium which joins all the ranks.
func (p *poller) Spans(ranks []kolo.Rank) bool {
	m, ok := p.by.(channel.Medium)
	if !ok {
		return false
	}
	for _, r := range ranks {
		if i := p.channelMap.by[p.process[r]]; i != 0 && p.drivers[i] != channel.Driver(p.by) {
			return false
		}
	}
	return m.Spans(ranks)
}

// Board makes this process's part of the medium of a group which it spans.
func (p *poller) Board(group uint64, ranks []kolo.Rank) (channel.Board, error) {
	return p.by.(channel.Medium).Board(group, ranks)
}

// Alloc makes memory that the processes which that driver joins read in place.
func (p *poller) Alloc(n int64) (kolo.Memory, error) {
	a, ok := p.by.(channel.Allocator)
	if !ok {
		return kolo.Memory{}, fmt.Errorf("%w: a %v driver has no memory that peers read in place", kolo.ErrUnsupported, p.by.Link())
	}
	return a.Alloc(n)
}

// Free gives back what Alloc made.
func (p *poller) Free(m kolo.Memory) error {
	a, ok := p.by.(channel.Allocator)
	if !ok {
		return fmt.Errorf("%w: this memory is not of Alloc", kolo.ErrArgument)
	}
	return a.Free(m)
}

// Poll polls the driver that can be.
func (p *poller) Poll(done *atomic.Uint32) { p.by.Poll(done) }

// openDrivers opens the driver inside the process and those between processes that are
// linked in, or those that are asked for.
func openDrivers(c channel.Config, transport string, here *Host, secret *tls.Config) (m *channelMap, err error) {
	m = &channelMap{auto: transport == ""}
	want := preferred()
	if transport != "" {
		want = strings.Split(transport, ",")
	}
	var why []error
	for _, name := range append([]string{inside}, want...) {
		if m.auto && unfit(name, here, secret) {
			continue
		}
		d, err := openDriver(name, c, secret)
		if err != nil {
			if why = append(why, err); m.auto && (name == "verbs" || errors.Is(err, kolo.ErrUnsupported)) {
				continue // not linked in, or not for this system; Explain says so where an adapter is left unused
			}
			return nil, errors.Join(err, m.Close())
		}
		if _, ok := d.(channel.Remote); !ok && name != inside {
			return nil, errors.Join(fmt.Errorf("%w: the driver %s does not join processes", kolo.ErrArgument, name), d.Close(), m.Close())
		}
		m.names, m.drivers = append(m.names, name), append(m.drivers, d)
	}
	if len(m.drivers) < 2 {
		return nil, errors.Join(append(why, fmt.Errorf("%w: no driver between processes", kolo.ErrUnsupported), m.Close())...)
	}
	return m, nil
}

// openDriver opens a driver by name. Where secret is set, what can leave the host goes
// under it, or the driver is refused.
func openDriver(name string, c channel.Config, secret *tls.Config) (channel.Driver, error) {
	if secret != nil && name == "tcp" {
		t, err := tcp.ConfigFromEnv(c.Getenv)
		if err != nil {
			return nil, err
		}
		t.TLS = secret
		return t.New(c)
	}
	d, err := channel.Open(name, c)
	if err != nil || secret == nil || d.Link() <= kolo.LinkSHM {
		return d, err
	}
	return nil, errors.Join(fmt.Errorf("%w: Config.TLS is set, and the driver %s would send data as it is: use tcp", kolo.ErrArgument, name), d.Close())
}

// addresses are what the drivers between processes tell the others.
func (m *channelMap) addresses() (map[string][]byte, error) {
	out := map[string][]byte{}
	for i, d := range m.drivers[1:] {
		a, err := d.(channel.Remote).Address()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.names[i+1], err)
		}
		out[m.names[i+1]] = a
	}
	return out, nil
}

// choose decides which driver joins this process to each other one, and tells the
// drivers of their peers.
func (m *channelMap) choose(r *roster, self int, told []intro) error {
	m.process = r.processes()
	m.by = make([]int, len(r.Members))
	m.has = make([][]string, len(r.Members))
	m.has[self] = m.names[1:]
	me := m.profile(r, self)
	peers := make([][]channel.Peer, len(m.drivers))
	for q := range r.Members {
		if q == self {
			continue
		}
		m.has[q] = slices.Sorted(maps.Keys(told[q].Drivers))
		it, at := m.profile(r, q), nearnessOf(&r.Members[self].Host, &r.Members[q].Host)
		i := 1 + slices.IndexFunc(m.names[1:], func(name string) bool { return m.obstacle(name, &me, &it, at) == "" })
		if i == 0 {
			return fmt.Errorf("%w: rank %s and rank %s have no driver in common; here: %s", kolo.ErrUnsupported,
				kolo.RankList(r.Members[self].Ranks), kolo.RankList(r.Members[q].Ranks), strings.Join(m.names[1:], ", "))
		}
		m.by[q] = i
		for _, k := range r.Members[q].Ranks {
			peers[i] = append(peers[i], channel.Peer{Rank: k, Address: told[q].Drivers[m.names[i]]})
		}
	}
	for i, list := range peers {
		if len(list) == 0 {
			continue
		}
		if err := m.drivers[i].(channel.Remote).Meet(list); err != nil {
			return fmt.Errorf("%s: %w", m.names[i], err)
		}
	}
	return nil
}
