package tcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
)

// driver is the ranks of one process: where they listen, whom they know, their links.
type driver struct {
	cfg    Config
	job    string
	epoch  uint64
	host   uint64
	nets   []netip.Prefix // networks of this host
	why    string         // how the advertised addresses were chosen
	mine   address
	listen net.Listener
	system string  // the listener's congestion control, if it is not that; "" otherwise
	cores  int     // that the processes of this host share
	poller *poller // nil: every connection has goroutines of its own
	pool   pool
	ctx    context.Context
	cancel context.CancelFunc
	calls  sync.WaitGroup // goroutines, and control connections
	greet  chan struct{}  // a place for each greeting of a stranger
	cutFor time.Duration  // cutTime

	mu      sync.Mutex
	peers   map[kolo.Rank]*address
	ranks   map[kolo.Rank]error // endpoints; the error is why one is closed
	links   map[side]*link
	changed chan struct{} // closed, and made anew, when peers or ranks change
	closed  bool
}

// side is one end of a link. A rank's link to itself has two in one process.
type side struct {
	me, peer kolo.Rank
	half     uint8 // 1: the end that is dialled, of a rank's link to itself
}

// maxGreetings is how many connections may be in their greeting at a time; further
// ones wait in the kernel.
const maxGreetings = 256

func newDriver(c Config, w channel.Config) (*driver, error) {
	all, err := nics()
	if err != nil {
		return nil, fmt.Errorf("tcp: interfaces of this host: %w", err)
	}
	known, why, err := choose(&c, all)
	if err != nil {
		return nil, err
	}
	at := ":" + strconv.Itoa(int(c.Port))
	if c.IP.IsValid() {
		at = netip.AddrPortFrom(c.IP, c.Port).String()
	}
	l, err := net.Listen("tcp", at)
	if err != nil {
		return nil, fmt.Errorf("tcp: listen on %s (%s): %w", at, why, err)
	}
	d := &driver{cfg: c, job: w.Job, epoch: w.Epoch, host: hostID(), cores: w.Cores, why: why, listen: l, cutFor: cutTime,
		greet: make(chan struct{}, maxGreetings), peers: map[kolo.Rank]*address{}, ranks: map[kolo.Rank]error{},
		links: map[side]*link{}, changed: make(chan struct{})}
	for _, n := range all {
		if n.up && !n.loopback {
			for _, p := range n.nets {
				d.nets = append(d.nets, p.Masked())
			}
		}
	}
	d.mine = address{host: d.host, port: l.Addr().(*net.TCPAddr).AddrPort().Port(), known: known}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	if c.TLS == nil {
		if d.poller, err = newPoller(); err != nil {
			return nil, errors.Join(fmt.Errorf("tcp: %w", err), l.Close())
		}
	}
	// ended by Close
	d.calls.Go(d.accept)
	return d, nil
}

func (d *driver) Link() kolo.Link { return kolo.LinkTCP }

// String says where the driver listens and why there.
func (d *driver) String() string {
	return fmt.Sprintf("tcp on port %d, told to the others: %v (%s)", d.mine.port, d.mine.known, d.why)
}

// Address has all addresses that were chosen, and which host this is.
func (d *driver) Address() ([]byte, error) { return d.mine.encode(), nil }

func (d *driver) Meet(peers []channel.Peer) error {
	met := map[kolo.Rank]*address{}
	for _, p := range peers {
		a, err := decodeAddress(p.Address)
		if err != nil {
			return fmt.Errorf("meet %v: %w", p.Rank, err)
		}
		if len(a.candidates(d.host, d.nets)) == 0 {
			return fmt.Errorf("%w: meet %v: it is on another host and has told loopback addresses only (%v); set HCCL_IF_IP or HCCL_SOCKET_IFNAME there",
				kolo.ErrUnsupported, p.Rank, a.known)
		}
		met[p.Rank] = a
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for r, a := range met {
		d.peers[r] = a
	}
	d.receiveNear()
	if d.poller != nil {
		here := map[uint16]bool{d.mine.port: true} // processes of this host
		for _, a := range d.peers {
			if a.host == d.host {
				here[a.port] = true
			}
		}
		d.poller.crowd(len(here), d.cores)
	}
	d.change()
	return nil
}

// receiveNear sets the congestion control of connections that others dial: what is right within
// a host if all are of this one, else the system's. d.mu is held.
func (d *driver) receiveNear() {
	l, ok := d.listen.(*net.TCPListener)
	if !ok {
		return
	}
	near := len(d.peers) > 0
	for r := range d.peers {
		near = near && d.isNear(r)
	}
	raw, err := l.SyscallConn()
	switch {
	case err != nil: // it is closed
	case near && d.system == "":
		d.system = local(raw, gentle)
	case !near && d.system != "":
		local(raw, d.system)
		d.system = ""
	}
}

// change wakes the greetings that wait for a rank. d.mu is held.
func (d *driver) change() {
	close(d.changed)
	d.changed = make(chan struct{})
}

func (d *driver) Open(rank kolo.Rank) (channel.Endpoint, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, fmt.Errorf("%w: the tcp driver", kolo.ErrClosed)
	}
	if _, ok := d.ranks[rank]; ok {
		return nil, fmt.Errorf("%w: %v has an endpoint already", kolo.ErrArgument, rank)
	}
	d.ranks[rank] = nil
	d.change()
	return &endpoint{d, rank}, nil
}

// Close closes what is left, waits until the peers have taken what is on its way,
// but not longer than Config.Linger, and ends the goroutines.
func (d *driver) Close() error {
	d.mu.Lock()
	d.closed = true
	links := d.list(func(side) bool { return true })
	d.mu.Unlock()
	cause := fmt.Errorf("%w: its process has closed the tcp driver", kolo.ErrLost)
	for _, l := range links {
		l.close(nil, cause)
	}
	err := d.listen.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil // closed before
	}
	d.cancel()
	d.calls.Wait() // each closed link has a limit of its own
	if d.poller != nil {
		d.poller.close()
	}
	return err
}

// list is the links whose end which picks. d.mu is held.
func (d *driver) list(which func(side) bool) (links []*link) {
	for e, l := range d.links {
		if which(e) {
			links = append(links, l)
		}
	}
	return links
}

// link is the end of a link, made at its first use. d.mu is held.
func (d *driver) link(e side) *link {
	l := d.links[e]
	if l == nil {
		l = newLink(d, e)
		l.err = d.ranks[e.me]
		l.cause = l.err
		l.near = d.isNear(e.peer)
		d.links[e] = l
	}
	return l
}

// isNear says whether a rank is of a process on this host. d.mu is held.
func (d *driver) isNear(peer kolo.Rank) bool {
	a := d.peers[peer]
	return a != nil && a.host == d.host
}

// Poll lets a waiting rank read the control connections itself, where TLS or the
// operating system does not forbid it.
func (d *driver) Poll(done *atomic.Uint32) {
	if d.poller != nil {
		d.poller.poll(done)
	}
}

type endpoint struct {
	d    *driver
	rank kolo.Rank
}

func (e *endpoint) Connect(peer kolo.Rank) (channel.Conn, error) {
	d := e.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.peers[peer] == nil {
		return nil, fmt.Errorf("%w: %v was never met by the tcp driver", kolo.ErrArgument, peer)
	}
	c := &conn{out: d.link(side{e.rank, peer, 0})}
	if c.in = c.out; peer == e.rank {
		c.in = d.link(side{e.rank, peer, 1})
		c.in.dialler = c.out
	}
	return c, nil
}

// Close breaks the links of the rank, also those that a peer makes later.
func (e *endpoint) Close() {
	d, gone := e.d, fmt.Errorf("%w: %v has closed all its links", kolo.ErrLost, e.rank)
	d.mu.Lock()
	if d.ranks[e.rank] != nil {
		d.mu.Unlock()
		return
	}
	d.ranks[e.rank] = gone
	links := d.list(func(x side) bool { return x.me == e.rank })
	d.change()
	d.mu.Unlock()
	// ends by itself; this Close has no turn and may be called in one
	d.calls.Go(func() {
		for _, l := range links {
			l.close(nil, gone)
		}
	})
}

// conn is one rank's end of the link to a peer, or both ends of that to itself.
type conn struct{ out, in *link }

func (c *conn) Post(t channel.Turn, op *channel.Op) {
	if op.Kind == channel.Send {
		c.out.post(t, op)
	} else {
		c.in.post(t, op)
	}
}

func (c *conn) Release(_ channel.Turn, op *channel.Op) {
	if len(op.Mem) > 0 {
		c.in.d.pool.put(op.Mem[0].Host)
	}
	clear(op.Mem)
	op.Mem = op.Mem[:0]
}

// Carried counts what the kernel has taken and given.
func (c *conn) Carried() int64 {
	n := c.out.carried.Load()
	if c.in != c.out {
		n += c.in.carried.Load()
	}
	return n
}

func (c *conn) Abort(t channel.Turn, group uint64, cause error) {
	c.out.abort(t, group, cause)
	if c.in != c.out {
		c.in.abort(t, group, cause)
	}
}

func (c *conn) Close(t channel.Turn, cause error) {
	if c.in != c.out { // else it would hear of the first close as a loss
		c.in.mu.Lock()
		c.in.own = cause
		c.in.mu.Unlock()
	}
	c.out.close(t, cause)
	if c.in != c.out {
		c.in.close(t, cause)
	}
}
