package roce

import (
	"encoding/binary"
	"time"

	"github.com/kolo-ccl/kolo/channel/roce/rc"
)

// burst is packets of one size that go out with one call, the last one perhaps shorter.
// Headers, CRCs and small payloads are written to its space; large payloads stay where
// they are until the kernel takes them.
type burst struct {
	space   []byte
	list    [][]byte // the packets, one piece behind the other
	size    int
	segment int // size of the packets: the first one's
	count   int
	numbers bool // the CRC of a packet covers its number in the burst
}

// The limits of what is sent without a copy of ours.
const (
	mostPieces = 4   // of a packet's payload
	leastPiece = 512 // bytes, below which a copy costs less than another piece
)

// reset makes the burst empty, with memory for what is written.
func (b *burst) reset(space []byte) {
	clear(b.list)
	*b = burst{space: space[:0], list: b.list[:0]}
}

// add appends the next packet of a queue pair, with its CRC, and says how long it is; 0
// where there is none.
func (b *burst) add(now time.Duration, p *pair) (size int) {
	first, start := len(b.list), len(b.space)
	space, list := p.qp.Gather(now, b.space, append(b.list, nil))
	if len(space) == start {
		return 0
	}
	payload, n := list[first+1:], 0
	for _, m := range payload {
		n += len(m)
	}
	if len(payload) > mostPieces || n < leastPiece*len(payload) {
		for _, m := range payload {
			space = append(space, m...)
		}
		list = list[:first+1]
	}
	head := len(space)
	space = append(space, 0, 0, 0)[:head+(-n&3)]
	list[first] = space[start:head]
	list = append(list, space[head:])
	crc := b.crc(p.flow, b.count, list[first:])
	space = binary.LittleEndian.AppendUint32(space, crc)
	list[len(list)-1] = space[head:]
	b.space, b.list = space, list
	for _, m := range list[first:] {
		size += len(m)
	}
	return size
}

// crc is the CRC of packet i, of whose pieces the last has no CRC yet.
func (b *burst) crc(f *rc.Flow, i int, list [][]byte) uint32 {
	if b.numbers {
		f.ID4(uint16(i))
	}
	return f.CRC(list[0], list[1:]...)
}

// drop forgets the first n pieces, which are sent, of a burst whose last packet did not
// go with those before it.
func (b *burst) drop(f *rc.Flow, n, size int) {
	rest := copy(b.list, b.list[n:])
	clear(b.list[rest:])
	b.list = b.list[:rest]
	b.size, b.segment, b.count = size, size, 1
	if b.numbers {
		tail := b.list[rest-1]
		end := len(tail) - rc.ICRCSize
		b.list[rest-1] = tail[:end]
		binary.LittleEndian.PutUint32(tail[end:], b.crc(f, 0, b.list))
		b.list[rest-1] = tail
	}
}

// transmit sends the packets of one queue pair: those of equal size with one call, of
// which the last may be shorter.
func (l *link) transmit(p *pair, space []byte, now time.Duration, bursts *int) (more bool) {
	b := &l.burst
	for ; *bursts > 0; *bursts-- {
		b.reset(space)
		b.numbers = l.port.numbers()
		for b.count < burstMost && b.size+rc.MaxMTU+rc.MaxOverhead <= burstBytes {
			before := len(b.list)
			size := b.add(now, p)
			if size == 0 {
				break
			}
			if b.count > 0 && size > b.segment {
				l.port.send(p.conn, b.list[:before], b.size, b.segment, l.data)
				b.drop(p.flow, before, size)
				continue
			}
			b.size, b.count = b.size+size, b.count+1
			if b.count == 1 {
				b.segment = size
			} else if size < b.segment {
				break
			}
		}
		if b.count == 0 {
			return false
		}
		l.port.send(p.conn, b.list, b.size, b.segment, l.data)
	}
	b.reset(nil)
	return p.qp.Ready(now)
}

// joined appends the pieces to b as one.
func joined(b []byte, list [][]byte) []byte {
	for _, m := range list {
		b = append(b, m...)
	}
	return b
}

// follows says whether b lies behind a in the same array.
func follows(a, b []byte) bool {
	return len(b) > 0 && cap(a) > len(a) && &a[:len(a)+1][len(a)] == &b[0]
}
