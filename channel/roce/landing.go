package roce

import (
	"encoding/binary"
	"net/netip"
	"sync"

	"github.com/kolo-ccl/kolo/channel/roce/rc"
)

// landing is where the packets that come next to a port most likely belong: they are of
// the middle of a WRITE, one after the other, so the kernel is told to put each payload
// into its place at once, and no copy of ours is needed. What comes otherwise is put
// together in a buffer and goes the usual way; until the WRITE is through, nobody cares
// what was in the places meanwhile.
//
// It holds as long as the link has handled all requests that the reader has handed to it,
// or the reader knows them to be those that were expected: then no place has its data yet.
type landing struct {
	mu   sync.Mutex // also held while the kernel writes to the places
	link *link      // nil if there is none
	qpn  uint32
	seq  uint64 // the requests handed to link with which at is right
	at   rc.Landing
}

// splitSize is what a packet of the middle of a WRITE has besides its payload: transport
// header and CRC.
const splitSize = headSize + rc.ICRCSize

// headSize is the length of a base transport header.
const headSize = 12

// offer says where the next packets for queue pair i go, if the requests up to seq make
// it known.
func (l *link) offer(i int, seq uint64) {
	at, ok := l.pairs[i].qp.Landing()
	if !ok {
		return
	}
	n := &l.port.landing
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.link == l && n.seq >= seq {
		return
	}
	n.link, n.qpn, n.seq, n.at = l, l.mine.qps[i].qpn, seq, at
	l.lands = true
}

// revoke makes sure that nothing is written to the link's memory any more but by the link.
func (l *link) revoke() {
	if !l.lands {
		return
	}
	l.lands = false
	n := &l.port.landing
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.link == l {
		n.link, n.at = nil, rc.Landing{}
	}
}

// lookAhead reads once into the places of a landing, if there is one. n is as that of
// socket.recv; ok is false if nothing was tried. Packets that were not expected are put
// together in a buffer.
func (p *port) lookAhead() (n int, ok bool) {
	x := &p.landing
	x.mu.Lock()
	l := x.link
	if l == nil || x.seq != l.handed || !p.places(x) {
		x.mu.Unlock()
		return 0, false
	}
	n, oobn, from, err := p.conn.recv(p.list, p.oob[:])
	if err != nil {
		p.d.counts.readErrors.Add(1)
	}
	if n < 0 {
		x.mu.Unlock()
		return n, true
	}
	segment := segmentOf(p.oob[:oobn])
	if segment <= 0 {
		segment = max(n, 1)
	}
	buf, k := p.buf, 0
	if segment == x.at.MTU+splitSize && from.Addr() == l.to.Addr() {
		k = p.landed(x, n/segment, from)
	}
	all := len(buf.places) // packets that there were places for
	buf.places = buf.places[:k]
	if k > 0 {
		x.at.Advance(k)
		l.handed++
		x.seq = l.handed
	}
	seq := l.handed
	x.mu.Unlock()
	done := k * segment
	rest, begin := buf, k*splitSize
	if n > done && k < all {
		rest, begin = p.d.takeBuffer(), 0
		together(rest.b[:n-done], p.list, done)
		defer p.d.release(rest)
	}
	if k > 0 {
		p.d.counts.placed.Add(int64(k))
		l.packets(event{kind: eventLanded, buf: buf, end: k, from: from, seq: seq})
	}
	if n > done {
		p.sort(rest, begin, begin+n-done, segment, from)
	}
	return n, true
}

// places makes the list of memory for what is read next: for each packet that is expected
// its header, its place, and its CRC, and then the rest of the buffer. In the buffer they
// lie as if the packets had no payload.
func (p *port) places(x *landing) bool {
	b := p.buf
	b.places, p.list = b.places[:0], p.list[:0]
	start := 0
	for i := 0; i < burstMost && (i+1)*(x.at.MTU+splitSize) <= bufferSize; i++ {
		place := x.at.Place(i)
		if place == nil {
			break
		}
		at := i*splitSize + headSize
		b.places = append(b.places, place)
		p.list = append(p.list, b.b[start:at], place)
		start = at
	}
	p.list = append(p.list, b.b[start:])
	return len(b.places) > 0
}

// landed is the number of packets, of count, that are what was expected.
func (p *port) landed(x *landing, count int, from netip.AddrPort) (k int) {
	f, b := p.flow(from), p.buf
	for ; k < min(count, len(b.places)); k++ {
		head := b.b[k*splitSize:][:headSize]
		crc := b.b[k*splitSize+headSize:]
		if binary.BigEndian.Uint32(head[4:])&0xffffff != x.qpn || !x.at.Fits(k, head) || !f.Matches(binary.LittleEndian.Uint32(crc), head, b.places[k]) {
			break
		}
	}
	return k
}

// together fills b with the bytes of a list from off on.
func together(b []byte, list [][]byte, off int) {
	for _, m := range list {
		if off >= len(m) {
			off -= len(m)
			continue
		}
		b = b[copy(b, m[off:]):]
		off = 0
	}
}

// arrived handles packets whose payloads are in their places.
func (l *link) arrived(e *event) {
	i := l.pairOf(e.buf.b)
	if i < 0 {
		return
	}
	now := l.d.now()
	l.timing.heard = now
	l.input += e.end * len(e.buf.places[0])
	l.carried.Add(int64(e.end * len(e.buf.places[0])))
	for k := range e.end {
		if i >= len(l.pairs) {
			return // the link has ended
		}
		packet := rc.ParseMiddle(e.buf.b[k*splitSize:][:headSize], e.buf.places[k])
		l.pairs[i].qp.Input(now, &packet)
		l.collect(i)
	}
	if l.state == open {
		l.offer(i, e.seq)
	}
}

// pairOf is the queue pair that a packet is for; it is negative where the peer has no use
// for that, or the link has ended.
func (l *link) pairOf(packet []byte) int {
	qpn := binary.BigEndian.Uint32(packet[4:]) & 0xffffff
	for i := range l.pairs {
		if l.mine.qps[i].qpn == qpn {
			return i
		}
	}
	return -1
}
