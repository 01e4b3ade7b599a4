package roce

import (
	"encoding/binary"
	"fmt"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel/roce/rc"
)

// Links are made by datagrams between the drivers: each end tells its queue pairs, and
// that it has the other's, until both have both.
const (
	controlQP  = 2          // 0 and 1 are the subnet manager's and the connection manager's
	controlKey = 0x6b6f6c6f // QKey
)

type helloKind uint8

const (
	helloMine   helloKind = 1 + iota // my queue pairs
	helloWait                        // the process is here, the rank has no link yet
	helloReject                      // there is no link and there will be none: Reason
)

// hello is one datagram of the handshake.
type hello struct {
	kind     helloKind
	done     bool // the sender has all that it needs
	adapter  bool // data is for port 4791 of the sender's address, wherever this comes from
	job      uint64
	epoch    uint64
	from, to kolo.Rank
	nonce    uint64 // of the sender's link; 0 if it has none
	seen     uint64 // nonce of the receiver's link as the sender knows it
	window   uint32 // bytes in flight that the sender has room for
	mtu      uint32
	qps      []qpAddress
	reason   string
}

// qpAddress is what a peer must know of a queue pair.
type qpAddress struct{ qpn, first uint32 }

const helloSize = 68

var helloMagic = [4]byte{'K', 'R', 'o', 2} // with the version

// The flags of a hello.
const (
	flagDone = 1 << iota
	flagAdapter
)

func (h *hello) packet() rc.Packet {
	le := binary.LittleEndian
	b := append([]byte(nil), helloMagic[:]...)
	flags := byte(0)
	if h.done {
		flags |= flagDone
	}
	if h.adapter {
		flags |= flagAdapter
	}
	reason := h.reason[:min(len(h.reason), maxReason)]
	b = append(b, byte(h.kind), flags, byte(len(h.qps)), 0)
	b = le.AppendUint64(b, h.job)
	b = le.AppendUint64(b, h.epoch)
	b = le.AppendUint64(b, h.nonce)
	b = le.AppendUint64(b, h.seen)
	b = le.AppendUint64(b, uint64(h.from))
	b = le.AppendUint64(b, uint64(h.to))
	b = le.AppendUint32(b, h.window)
	b = le.AppendUint32(b, h.mtu)
	b = le.AppendUint32(b, uint32(len(reason)))
	for _, q := range h.qps {
		b = le.AppendUint32(b, q.qpn)
		b = le.AppendUint32(b, q.first)
	}
	b = append(b, reason...)
	return rc.Packet{Op: rc.Datagram, PKey: 0xffff, QPN: controlQP, QKey: controlKey, SrcQPN: controlQP, Payload: b}
}

func parseHello(p *rc.Packet) (h hello, err error) {
	b, le := p.Payload, binary.LittleEndian
	if p.Op != rc.Datagram || p.QKey != controlKey || len(b) < helloSize || [4]byte(b) != helloMagic {
		return h, fmt.Errorf("%w: not of this driver and version", errRecord)
	}
	h = hello{kind: helloKind(b[4]), done: b[5]&flagDone != 0, adapter: b[5]&flagAdapter != 0, job: le.Uint64(b[8:]), epoch: le.Uint64(b[16:]), nonce: le.Uint64(b[24:]), seen: le.Uint64(b[32:]),
		from: kolo.Rank(le.Uint64(b[40:])), to: kolo.Rank(le.Uint64(b[48:])), window: le.Uint32(b[56:]), mtu: le.Uint32(b[60:])}
	n, reason := int(b[6]), le.Uint32(b[64:])
	b = b[helloSize:]
	switch {
	case h.kind < helloMine || h.kind > helloReject || h.from < 0 || h.to < 0:
		return h, fmt.Errorf("%w: kind %d from %v to %v", errRecord, h.kind, h.from, h.to)
	case n > maxQPs || reason > maxReason || len(b) != 8*n+int(reason):
		return h, fmt.Errorf("%w: %d queue pairs and %d bytes of text in %d", errRecord, n, reason, len(b))
	case h.kind == helloMine && (n == 0 || h.mtu < rc.MinMTU || h.mtu > rc.MaxMTU || h.mtu&(h.mtu-1) != 0 || h.nonce == 0):
		return h, fmt.Errorf("%w: %d queue pairs with path MTU %d", errRecord, n, h.mtu)
	}
	for ; n > 0; n-- {
		h.qps = append(h.qps, qpAddress{le.Uint32(b) & 0xffffff, le.Uint32(b[4:]) & 0xffffff})
		b = b[8:]
	}
	h.reason = string(b)
	return h, nil
}
