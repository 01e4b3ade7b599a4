package roce

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/channel/roce/rc"
)

// Driver is the driver of one process in one world. It is a channel.Remote.
type Driver struct {
	cfg     Config
	job     uint64
	epoch   uint64
	host    [16]byte // what only processes that share a loopback have in common
	start   time.Time
	readers sync.WaitGroup
	buffers sync.Pool // of *buffer
	pump    pump
	adapter Adapter // nil: the queue pairs are of package rc
	watch   *reader // of the adapter
	counts  counts
	pollers atomic.Int32 // ranks in Poll
	polls   atomic.Int64 // calls of Poll so far
	moving  atomic.Int32 // large messages under way

	mu      sync.RWMutex
	ports   []*port   // the first is the loopback's; over an adapter there is one, at its address
	sources []*reader // of the adapter, and of ports
	peers   map[kolo.Rank]address
	met     bool
	here    map[kolo.Rank]bool // ranks whose endpoint is open
	gone    map[kolo.Rank]bool // and was closed
	links   map[way]*link
	queues  map[uint32]*link // by QPN
	nextQP  uint32
	knocks  map[way]knock
	closed  bool
}

// way is a link of a rank of this process.
type way struct{ me, peer kolo.Rank }

// knock is a hello for a link that is not made yet.
type knock struct {
	p    *port
	from netip.AddrPort
	h    hello
}

// Stats counts what a driver has seen.
type Stats struct {
	rc.Stats
	BadCRC, Unknown         int64 // packets that were dropped: their CRC is wrong; for nobody here
	ReadErrors, WriteErrors int64 // calls of the socket
	Placed                  int64 // packets whose payloads the kernel has put into the receive's memory
}

// counts is Stats as it is kept; of queue pairs those that have ended.
type counts struct {
	badCRC, unknown, readErrors, writeErrors, placed atomic.Int64

	mu  sync.Mutex
	rcs rc.Stats
}

// New makes the driver of one process. The name "roce" opens it with what ConfigFromEnv
// makes of channel.Config.Getenv, or an empty Config.
func New(c channel.Config, cfg Config) (*Driver, error) { return newDriver(c, cfg, nil) }

func newDriver(c channel.Config, cfg Config, a Adapter) (*Driver, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(c.Job)) // never fails
	d := &Driver{cfg: cfg.withDefaults(), adapter: a, job: h.Sum64(), epoch: c.Epoch, start: time.Now(), host: hostOf(),
		peers: map[kolo.Rank]address{}, here: map[kolo.Rank]bool{}, gone: map[kolo.Rank]bool{}, links: map[way]*link{},
		queues: map[uint32]*link{}, nextQP: rand.Uint32N(1 << 24), knocks: map[way]knock{}}
	d.buffers.New = func() any { return &buffer{b: make([]byte, bufferSize)} }
	d.pump.init(d)
	if err := d.open(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// open opens the port of the loopback, over IPv6 where there is one; over an adapter
// that of its address.
func (d *Driver) open() error {
	if d.adapter != nil {
		at := d.adapter.Addr()
		p, err := d.listen(at, d.cfg.Port, mtuOf(at))
		if err != nil {
			return err
		}
		d.watch = newReader(d, adapterSource{d.adapter})
		d.ports, d.sources = []*port{p}, []*reader{d.watch, p.reader}
		// ended by Close
		d.readers.Go(d.watch.run)
		return nil
	}
	var errs []error
	for _, a := range []netip.Addr{netip.IPv6Loopback(), netip.AddrFrom4([4]byte{127, 0, 0, 1})} {
		if d.cfg.Addr.IsLoopback() && d.cfg.Addr != a {
			continue
		}
		p, err := d.listen(a, d.cfg.Port, mtuOf(a))
		if err == nil {
			d.ports, d.sources = append(d.ports, p), append(d.sources, p.reader)
			return nil
		}
		errs = append(errs, err)
	}
	if d.cfg.Addr.IsLoopback() && len(errs) == 0 { // another address of the loopback, as 127.0.0.2
		p, err := d.listen(d.cfg.Addr, d.cfg.Port, mtuOf(d.cfg.Addr))
		if err == nil {
			d.ports, d.sources = append(d.ports, p), append(d.sources, p.reader)
		}
		return err
	}
	return errors.Join(errs...)
}

// Config is how the driver works: what it was made with, and the defaults.
func (d *Driver) Config() Config { return d.cfg }

// Link is kolo.LinkRoCE.
func (d *Driver) Link() kolo.Link { return kolo.LinkRoCE }

// Stats is what the driver has seen so far; of links that are open only the drops.
func (d *Driver) Stats() Stats {
	s := Stats{BadCRC: d.counts.badCRC.Load(), Unknown: d.counts.unknown.Load(), ReadErrors: d.counts.readErrors.Load(), WriteErrors: d.counts.writeErrors.Load(), Placed: d.counts.placed.Load()}
	d.counts.mu.Lock()
	defer d.counts.mu.Unlock()
	s.Stats = d.counts.rcs
	return s
}

// now is the time since the driver was made, as package rc has it.
func (d *Driver) now() time.Duration { return time.Since(d.start) }

// address is where a process is reached.
type address struct {
	host  [16]byte
	ports []netip.AddrPort // the first is the loopback's, if there is no adapter
}

// addressVersion begins an address.
const addressVersion = 1

// Address opens the port towards other hosts, and says how this process is reached.
func (d *Driver) Address() ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.openOutside(); err != nil {
		return nil, err
	}
	b := append([]byte{addressVersion, byte(len(d.ports))}, d.host[:]...)
	for _, p := range d.ports {
		a := p.addr.Addr().As16()
		b = append(b, a[:]...)
		b = binary.BigEndian.AppendUint16(b, p.addr.Port())
	}
	return b, nil
}

// openOutside opens the second port, where this host has an address for it.
func (d *Driver) openOutside() error {
	if len(d.ports) > 1 || d.closed || d.cfg.Addr.IsLoopback() || d.adapter != nil {
		return nil
	}
	at := d.cfg.Addr
	if !at.IsValid() {
		if at = outside(); !at.IsValid() {
			return nil // a host without a network
		}
	}
	p, err := d.listen(at.Unmap(), d.cfg.Port, mtuOf(at))
	if err != nil {
		return err
	}
	d.ports, d.sources = append(d.ports, p), append(d.sources, p.reader)
	return nil
}

// parseAddress reads what Address gave.
func parseAddress(b []byte) (a address, err error) {
	const head, one = 18, 18
	if len(b) < head || b[0] != addressVersion || len(b) != head+int(b[1])*one || b[1] == 0 {
		return a, fmt.Errorf("%w: %d bytes are no address of this driver and version", kolo.ErrArgument, len(b))
	}
	a.host = [16]byte(b[2:])
	for b = b[head:]; len(b) > 0; b = b[one:] {
		at := netip.AddrPortFrom(netip.AddrFrom16([16]byte(b)).Unmap(), binary.BigEndian.Uint16(b[16:]))
		if at.Port() == 0 || at.Addr().IsUnspecified() {
			return a, fmt.Errorf("%w: %v is no address of a process", kolo.ErrArgument, at)
		}
		a.ports = append(a.ports, at)
	}
	return a, nil
}

// Meet notes where the ranks of other processes are.
func (d *Driver) Meet(peers []channel.Peer) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range peers {
		a, err := parseAddress(p.Address)
		if err != nil {
			return fmt.Errorf("roce: %v: %w", p.Rank, err)
		}
		d.peers[p.Rank] = a
	}
	d.met = true
	return nil
}

// route is the port for a peer and where the peer's is. d.mu is held.
func (d *Driver) route(peer kolo.Rank) (*port, netip.AddrPort, error) {
	a, known := d.peers[peer]
	if !known {
		if d.met && !d.here[peer] {
			return nil, netip.AddrPort{}, fmt.Errorf("%w: nobody has said where %v is reached", kolo.ErrLost, peer)
		}
		return d.ports[0], d.ports[0].addr, nil
	}
	for _, to := range a.ports {
		for _, p := range d.ports {
			local := to.Addr().IsLoopback()
			if p.addr.Addr().Is4() == to.Addr().Is4() && p.addr.Addr().IsLoopback() == local && (!local || a.host == d.host) {
				return p, to, nil
			}
		}
	}
	return nil, netip.AddrPort{}, fmt.Errorf("%w: %v is at %v, to which no address of this host leads (%d ports); set Config.Addr or HCCL_IF_IP on both",
		kolo.ErrLost, peer, a.ports, len(d.ports))
}

// Open makes the endpoint of a rank of this process.
func (d *Driver) Open(rank kolo.Rank) (channel.Endpoint, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, fmt.Errorf("%w: the roce driver", kolo.ErrClosed)
	}
	if d.here[rank] || d.gone[rank] {
		return nil, fmt.Errorf("%w: %v has an endpoint already", kolo.ErrArgument, rank)
	}
	d.here[rank] = true
	return &endpoint{d, rank}, nil
}

type endpoint struct {
	d    *Driver
	rank kolo.Rank
}

// Connect makes the link to a peer and begins the handshake.
func (e *endpoint) Connect(peer kolo.Rank) (channel.Conn, error) {
	d, w := e.d, way{e.rank, peer}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.links[w] != nil {
		return nil, fmt.Errorf("%w: %v is connected to %v already", kolo.ErrArgument, e.rank, peer)
	}
	l := newLink(d, w)
	d.links[w] = l
	if d.closed || !d.here[e.rank] {
		l.refuse(fmt.Errorf("%w: %v has closed all its links", kolo.ErrLost, e.rank))
		return l, nil
	}
	if err := l.prepare(); err != nil {
		l.refuse(err)
		return l, nil
	}
	for i := range l.mine.qps {
		d.queues[l.mine.qps[i].qpn] = l
	}
	k, knocked := d.knocks[w]
	delete(d.knocks, w)
	if knocked {
		l.post(event{kind: eventHello, from: k.from, hello: &k.h})
	}
	l.post(event{kind: eventTick})
	d.pump.add(l)
	return l, nil
}

// maxKnocks is the most hellos for links that are not made yet.
const maxKnocks = 1 << 20

// newQPN is a number that no queue pair has. d.mu is held.
func (d *Driver) newQPN() uint32 {
	for {
		d.nextQP = (d.nextQP + 1) & 0xffffff
		if d.nextQP > 15 && d.queues[d.nextQP] == nil && d.nextQP != 0xffffff {
			return d.nextQP
		}
	}
}

// linkOf is the link that has a queue pair.
func (d *Driver) linkOf(qpn uint32) *link {
	d.mu.RLock()
	l := d.queues[qpn]
	d.mu.RUnlock()
	if l == nil {
		d.counts.unknown.Add(1)
	}
	return l
}

// control handles a datagram of the handshake.
func (d *Driver) control(p *port, from netip.AddrPort, b []byte) {
	packet, err := rc.Parse(b)
	if err != nil {
		d.counts.unknown.Add(1)
		return
	}
	h, err := parseHello(&packet)
	if err != nil {
		d.counts.unknown.Add(1)
		return
	}
	answer := hello{kind: helloReject, job: h.job, epoch: h.epoch, from: h.to, to: h.from, seen: h.nonce}
	if h.job != d.job || h.epoch != d.epoch {
		if h.kind == helloMine {
			answer.reason = "here is another job or another epoch"
			p.hello(&answer, from)
		}
		return
	}
	w := way{me: h.to, peer: h.from}
	d.mu.Lock()
	l := d.links[w]
	switch {
	case l != nil:
	case h.kind != helloMine:
		d.mu.Unlock()
		return
	case d.gone[w.me] || d.closed:
		answer.reason = fmt.Sprintf("%v has closed all its links", w.me)
	case len(d.knocks) < maxKnocks:
		d.knocks[w] = knock{p, from, h}
		answer.kind = helloWait
	default:
		answer.kind = helloWait // it knocks again
	}
	d.mu.Unlock()
	if l != nil {
		l.tell(nil, event{kind: eventHello, from: from, hello: &h})
		return
	}
	p.hello(&answer, from)
}

// hello sends a datagram of the handshake.
func (p *port) hello(h *hello, to netip.AddrPort) {
	packet := h.packet()
	b := packet.Append(make([]byte, 0, 512))
	b = flow(p.addr, to).Seal(b)
	p.send(p.conn, [][]byte{b}, len(b), len(b), to)
}

// Close ends the endpoint's links. It may be called in a turn: the pump does it.
func (e *endpoint) Close() {
	d := e.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.here[e.rank] {
		return
	}
	delete(d.here, e.rank)
	d.gone[e.rank] = true
	for w, l := range d.links {
		if w.me == e.rank && l.post(event{kind: eventClose, err: fmt.Errorf("%w: %v has closed all its links", kolo.ErrLost, e.rank)}) {
			d.pump.add(l)
		}
	}
	for w, k := range d.knocks {
		if w.me == e.rank {
			delete(d.knocks, w)
			d.pump.reject(k, fmt.Sprintf("%v has closed all its links", e.rank))
		}
	}
}

// lingerTime is how long Close waits for peers to take what was sent to them.
const lingerTime = 2 * time.Second

// Close waits until the links have ended, two seconds at most, and closes the sockets.
func (d *Driver) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	d.closed = true
	links := slices.Collect(maps.Values(d.links))
	d.mu.Unlock()
	end := time.NewTimer(lingerTime + time.Second)
	defer end.Stop()
	for _, l := range links {
		l.tell(nil, event{kind: eventClose, err: fmt.Errorf("%w: the roce driver", kolo.ErrClosed)})
		select {
		case <-l.over:
		case <-end.C:
			end.Reset(0)
			l.tell(nil, event{kind: eventFail, err: fmt.Errorf("%w: the roce driver is closed", kolo.ErrClosed)})
			<-l.over
		}
	}
	var errs []error
	d.mu.Lock()
	ports := d.ports
	d.mu.Unlock()
	for _, p := range ports {
		errs = append(errs, p.close())
	}
	if d.watch != nil {
		close(d.watch.closed)
		d.adapter.Interrupt()
	}
	d.readers.Wait()
	d.pump.close()
	if d.adapter != nil {
		errs = append(errs, d.adapter.Close())
	}
	return errors.Join(errs...)
}

// hostOf is equal for processes that share a loopback: of one kernel and one network
// namespace. Where it is not known it is random.
func hostOf() (id [16]byte) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	space, err2 := os.Readlink("/proc/self/ns/net")
	h := fnv.New128a()
	if err != nil || err2 != nil {
		boot = binary.LittleEndian.AppendUint64(nil, rand.Uint64())
	}
	_, _ = h.Write(append(boot, space...)) // never fails
	return [16]byte(h.Sum(nil))
}

// outside is an address of this host for other hosts: the first global one of an
// interface that is up, IPv6 before IPv4. It is invalid if there is none.
func outside() (best netip.Addr) {
	all, err := net.Interfaces()
	if err != nil {
		return best
	}
	for _, i := range all {
		if i.Flags&net.FlagUp == 0 || i.Flags&net.FlagLoopback != 0 {
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, a := range addrs {
			p, err := netip.ParsePrefix(a.String())
			if err != nil || !p.Addr().IsGlobalUnicast() {
				continue
			}
			if at := p.Addr().Unmap(); !best.IsValid() || best.Is4() && at.Is6() {
				best = at
			}
		}
	}
	return best
}

// mtuOf is the MTU of the interface that has an address, 1280 where it is not known:
// what IPv6 asks for at least.
func mtuOf(at netip.Addr) int {
	all, err := net.Interfaces()
	if err != nil {
		return 1280
	}
	for _, i := range all {
		addrs, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && (p.Addr().Unmap() == at || at.IsLoopback() && i.Flags&net.FlagLoopback != 0) {
				return i.MTU
			}
		}
	}
	return 1280
}

// pathMTU is the largest payload of a packet over an interface.
func pathMTU(link, configured int) int {
	if configured != 0 {
		return configured
	}
	mtu := rc.MaxMTU
	for mtu > rc.MinMTU && mtu+rc.MaxOverhead+overIP > link {
		mtu /= 2
	}
	return mtu
}
