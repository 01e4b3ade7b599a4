package roce

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/kolo-ccl/kolo/channel/roce/rc"
)

// Sizes of the rim.
const (
	bufferSize = 64 << 10
	burstBytes = 65_000     // of packets that one call sends
	burstMost  = rc.MostCut // packets of one call: the kernel's limit
	maxFlows   = 4096       // senders whose CRC is prepared
	overIP     = 40 + 8     // headers of IPv6 and UDP
)

// port is a UDP socket of the driver and the goroutine that reads it while no rank
// polls.
type port struct {
	d    *Driver
	conn *socket
	addr netip.AddrPort // where peers send to
	link int            // MTU of the interface
	room int            // bytes of the receive buffer
	gso  atomic.Bool
	*reader
	mu     sync.Mutex
	others []*socket // further source ports, made at need; they only send

	landing landing

	busy  atomic.Bool // somebody reads; what is below is his
	buf   *buffer
	list  [][]byte // what is read into
	oob   [128]byte
	flows map[netip.AddrPort]*rc.Flow
}

// buffer is memory for what one read gives. It is used again when the reader and every
// link that has a part of it have released it.
type buffer struct {
	b      []byte
	places [][]byte // of a landing: payloads that are elsewhere
	refs   atomic.Int32
}

func (d *Driver) takeBuffer() *buffer {
	b := d.buffers.Get().(*buffer)
	b.refs.Store(1)
	return b
}

func (d *Driver) release(b *buffer) {
	if b.refs.Add(-1) == 0 {
		clear(b.places[:cap(b.places)])
		b.places = b.places[:0]
		d.buffers.Put(b)
	}
}

// listen opens a port at an address.
func (d *Driver) listen(at netip.Addr, number uint16, linkMTU int) (*port, error) {
	p := &port{d: d, link: linkMTU, flows: map[netip.AddrPort]*rc.Flow{}, buf: d.takeBuffer()}
	p.reader = newReader(d, p)
	c, err := openSocket(netip.AddrPortFrom(at, number), d.cfg.TrafficClass)
	if err == nil {
		if err = c.listens(); err != nil {
			err = errors.Join(err, c.close())
		}
	}
	if err != nil {
		return nil, fmt.Errorf("roce: listen at %v: %w", netip.AddrPortFrom(at, number), err)
	}
	p.conn, p.addr, p.room = c, netip.AddrPortFrom(at, c.number()), c.grow()
	p.gso.Store(c.offload())
	// ended by Driver.Close, which closes the socket
	d.readers.Go(p.run)
	return p, nil
}

// source is the socket that queue pair i of a link sends from.
func (p *port) source(i int) (*socket, uint16, error) {
	if i == 0 {
		return p.conn, p.addr.Port(), nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.others) < i {
		c, err := openSocket(netip.AddrPortFrom(p.addr.Addr(), 0), p.d.cfg.TrafficClass)
		if err != nil {
			return nil, 0, fmt.Errorf("roce: a further source port at %v: %w", p.addr.Addr(), err)
		}
		p.others = append(p.others, c)
	}
	c := p.others[i-1]
	return c, c.number(), nil
}

// close closes the sockets, which ends the reader.
func (p *port) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.closed)
	err := p.conn.close()
	for _, c := range p.others {
		err = errors.Join(err, c.close())
	}
	return err
}

// flow is the CRC's view of packets from one address to another.
func flow(from, to netip.AddrPort) *rc.Flow {
	if from.Addr().Is4() {
		return rc.NewFlow4(from.Addr().As4(), to.Addr().As4(), from.Port(), to.Port())
	}
	return rc.NewFlow6(from.Addr().As16(), to.Addr().As16(), from.Port(), to.Port())
}

// wait waits for packets.
func (p *port) wait() error { return p.conn.wait() }

// look reads once, if nobody else does. It says whether there was anything.
func (p *port) look() bool {
	if !p.busy.CompareAndSwap(false, true) {
		return false
	}
	defer p.busy.Store(false)
	n, ahead := p.lookAhead()
	if !ahead {
		n = p.lookOnce()
	}
	if p.buf.refs.Load() > 1 { // a link keeps a part of it
		p.d.release(p.buf)
		p.buf = p.d.takeBuffer()
	}
	return n >= 0
}

// lookOnce reads once into the buffer. n is as that of socket.recv.
func (p *port) lookOnce() (n int) {
	p.list = append(p.list[:0], p.buf.b)
	n, oobn, from, err := p.conn.recv(p.list, p.oob[:])
	if err != nil {
		p.d.counts.readErrors.Add(1)
	}
	if n < 0 {
		return n
	}
	segment := segmentOf(p.oob[:oobn])
	if segment <= 0 {
		segment = max(n, 1)
	}
	p.sort(p.buf, 0, n, segment, from)
	return n
}

// flow is the CRC's view of what an address sends.
func (p *port) flow(from netip.AddrPort) *rc.Flow {
	f := p.flows[from]
	if f == nil {
		if len(p.flows) >= maxFlows {
			clear(p.flows)
		}
		f = flow(from, p.addr)
		f.MayBeCut()
		p.flows[from] = f
	}
	return f
}

// sort gives the packets in a part of a buffer to their links: neighbours for the same
// link together.
func (p *port) sort(buf *buffer, begin, end, segment int, from netip.AddrPort) {
	f := p.flow(from)
	var to *link
	requests := false
	give := func(before int) {
		if to != nil && before > begin {
			if requests {
				to.handed++
			}
			to.packets(event{kind: eventPackets, buf: buf, begin: begin, end: before, segment: segment, from: from, seq: to.handed})
		}
		to, requests = nil, false
	}
	for at := begin; at < end; at += segment {
		b := buf.b[at:min(at+segment, end)]
		if !f.Sealed(b) {
			p.d.counts.badCRC.Add(1)
			give(at)
			continue
		}
		qpn := binary.BigEndian.Uint32(b[4:]) & 0xffffff
		if qpn == controlQP {
			give(at)
			p.d.control(p, from, b)
			continue
		}
		l := p.d.linkOf(qpn)
		if l != nil && l.port != p {
			p.d.counts.unknown.Add(1)
			l = nil
		}
		if l != to {
			give(at)
			to, begin = l, at
		}
		requests = requests || rc.Opcode(b[0]) != rc.Acknowledge
	}
	give(end)
}

// send sends packets of segment bytes each, the last one perhaps less, from a socket.
// They come in pieces, of size bytes in all. What the kernel does not take is lost, as on
// the way.
func (p *port) send(c *socket, list [][]byte, size, segment int, to netip.AddrPort) {
	wire := p.d.cfg.wire
	if wire == nil && (size <= segment || p.gso.Load()) {
		var space [64]byte
		oob := space[:0]
		if size > segment {
			oob = segmentation(oob, segment)
		}
		if p.write(c, list, oob, to) {
			return
		}
		p.gso.Store(false) // a device without it; one by one from here on
	}
	buf := p.d.takeBuffer()
	defer p.d.release(buf)
	for b := joined(buf.b[:0], list); len(b) > 0; {
		n := min(segment, len(b))
		if wire != nil {
			wire(b[:n], func(packet []byte) { p.write(c, [][]byte{packet}, nil, to) })
		} else {
			p.write(c, [][]byte{b[:n]}, nil, to)
		}
		b = b[n:]
	}
}

// numbers says whether the kernel numbers the packets of one call, over IPv4: it writes 0,
// 1, 2 ... as identifications, which their CRCs cover.
func (p *port) numbers() bool { return p.addr.Addr().Is4() && p.gso.Load() && p.d.cfg.wire == nil }

// write is false where packets must be sent one by one.
func (p *port) write(c *socket, list [][]byte, oob []byte, to netip.AddrPort) bool {
	err := c.send(list, oob, to)
	if err != nil {
		p.d.counts.writeErrors.Add(1)
	}
	return err == nil || len(oob) == 0 || errors.Is(err, net.ErrClosed)
}
