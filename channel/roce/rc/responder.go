package rc

import "time"

// responder is the half of a queue pair that does what the peer's requests say.
type responder struct {
	expected int64 // count of the next request packet
	msn      uint32
	receives queue[receive]
	in       incoming
	nakked   bool  // a gap or a wait was reported, and expected has not come since
	beyond   int64 // the packet that last came beyond the gap
	replies  queue[reply]
	held     int           // SENDs whose acknowledgement waits
	due      time.Duration // and until when
	refused  bool          // the queue pair has ended with the NAK final
	final    reply
}

// receive is memory posted for one message.
type receive struct {
	id   uint64
	into Vector
}

// incoming is the message that has begun and not ended.
type incoming struct {
	of     shape // isSend or isWrite; 0 if there is none
	has    bool  // recv is taken
	recv   receive
	region *Region
	at     int64 // offset of the next byte, in the receive or the region
	left   int64 // bytes to come, of a WRITE
	size   int64 // bytes that have come
}

// reply is an acknowledgement, or a READ response that goes out packet by packet.
type reply struct {
	seq      int64
	syndrome Syndrome
	msn      uint32
	region   *Region // READ: where from
	off      int64   // of the next packet
	left     int64
	begun    bool
}

// request takes a request packet.
func (q *QP) request(now time.Duration, p *Packet) {
	r := &q.res
	seq := near(r.expected, p.PSN)
	switch {
	case seq > r.expected:
		q.stats.Gaps++
		// One NAK per gap; again if the peer has gone back and the packet was lost again.
		if !r.nakked || seq <= r.beyond {
			q.nak(NAKSequence)
		}
		r.beyond = seq
	case seq < r.expected:
		q.stats.Duplicates++
		q.duplicate(seq, p)
	default:
		r.nakked = false
		q.execute(now, p)
	}
}

// duplicate answers a request that was done before.
func (q *QP) duplicate(seq int64, p *Packet) {
	r := &q.res
	if p.Op != ReadRequest {
		q.ack(r.expected - 1)
		return
	}
	if packets := q.packets(int64(p.Length)); seq+packets > r.expected {
		q.refuse(NAKInvalid, RemoteInvalid) // it is none that was done
		return
	}
	q.answerRead(seq, p, r.msn)
}

// execute does the expected request packet.
func (q *QP) execute(now time.Duration, p *Packet) {
	r, s := &q.res, shapes[p.Op]
	if !q.fits(p, s) {
		q.refuse(NAKInvalid, RemoteInvalid)
		return
	}
	switch {
	case p.Op == ReadRequest:
		if msn := (r.msn + 1) & psnMask; q.answerRead(r.expected, p, msn) {
			r.expected += q.packets(int64(p.Length))
			r.msn = msn
		}
		return
	case s&isSend != 0:
		if !q.takeSend(p, s) {
			return
		}
	default:
		if !q.takeWrite(p, s) {
			return
		}
	}
	if s&ends != 0 {
		q.finish(p, s)
	}
	r.expected++
	switch {
	case !p.AckReq:
	case p.Op == SendOnly && q.cfg.AckDelay > 0 && r.held < mostHeld:
		if r.held++; r.held == 1 {
			r.due = now + q.cfg.AckDelay
		}
	default:
		q.ack(r.expected - 1)
	}
}

// mostHeld is the most SENDs whose acknowledgement waits for another.
const mostHeld = 7

// fits says whether the packet may come now, and has as many bytes as it should.
func (q *QP) fits(p *Packet, s shape) bool {
	r, mtu, n := &q.res, q.cfg.MTU, len(p.Payload)
	if (s&begins != 0) != (r.in.of == 0) {
		return false
	}
	if s&begins == 0 && s&r.in.of == 0 {
		return false
	}
	switch {
	case p.Op == ReadRequest:
		return p.Length <= MaxMessage
	case s&ends == 0:
		if n != mtu {
			return false
		}
	case n > mtu || n == 0 && s&begins == 0:
		return false
	}
	if s&isSend != 0 {
		return true
	}
	left := r.in.left
	if s&begins != 0 {
		left = int64(p.Length)
	}
	return int64(n) <= left && (s&ends == 0) == (int64(n) < left)
}

// takeSend takes the data of a SEND packet.
func (q *QP) takeSend(p *Packet, s shape) bool {
	r := &q.res
	in := &r.in
	if s&begins != 0 {
		if r.receives.len() == 0 {
			q.nak(RNR | Syndrome(q.cfg.RNRCode))
			return false
		}
		*in = incoming{of: isSend, has: true, recv: r.receives.pop()}
	}
	if in.at+int64(len(p.Payload)) > in.recv.into.Len() {
		in.has = false
		q.done.push(Completion{ID: in.recv.id, Kind: Receive, Status: LengthError})
		q.refuse(NAKInvalid, LengthError)
		return false
	}
	in.recv.into.write(in.at, p.Payload)
	in.at += int64(len(p.Payload))
	in.size += int64(len(p.Payload))
	return true
}

// takeWrite takes the data of a WRITE packet.
func (q *QP) takeWrite(p *Packet, s shape) bool {
	r := &q.res
	in := &r.in
	next := *in
	if s&begins != 0 {
		next = incoming{of: isWrite, left: int64(p.Length)}
		if p.Length > 0 {
			if next.region = q.cfg.Domain.find(p.Key, p.VA, int64(p.Length), RemoteWrite); next.region == nil {
				q.refuse(NAKAccess, RemoteAccess)
				return false
			}
			next.at = int64(p.VA - next.region.VA)
		}
	} else if next.region.gone {
		q.refuse(NAKAccess, RemoteAccess)
		return false
	}
	if s&hasImm != 0 {
		if r.receives.len() == 0 {
			q.nak(RNR | Syndrome(q.cfg.RNRCode))
			return false
		}
		next.has, next.recv = true, r.receives.pop()
	}
	*in = next
	if n := int64(len(p.Payload)); n > 0 {
		if !in.region.bytes.holds(in.at, p.Payload) {
			in.region.bytes.write(in.at, p.Payload)
		}
		in.at, in.left, in.size = in.at+n, in.left-n, in.size+n
	}
	return true
}

// finish ends the message that has come.
func (q *QP) finish(p *Packet, s shape) {
	r := &q.res
	if r.in.has {
		q.done.push(Completion{ID: r.in.recv.id, Kind: Receive, Bytes: r.in.size, Imm: p.Imm,
			HasImm: s&hasImm != 0, Wrote: s&isWrite != 0})
	}
	r.in = incoming{}
	r.msn = (r.msn + 1) & psnMask
}

// answerRead queues the response to a READ request.
func (q *QP) answerRead(seq int64, p *Packet, msn uint32) bool {
	r := &q.res
	a := reply{seq: seq, syndrome: readReply, msn: msn, left: int64(p.Length)}
	if p.Length > 0 {
		if a.region = q.cfg.Domain.find(p.Key, p.VA, int64(p.Length), RemoteRead); a.region == nil {
			q.refuse(NAKAccess, RemoteAccess)
			return false
		}
		a.off = int64(p.VA - a.region.VA)
	}
	if r.replies.len() >= maxReplies {
		return false // as if it had been lost
	}
	r.replies.push(a)
	return true
}

// readReply marks a reply as a READ response; as a syndrome it is reserved.
const readReply Syndrome = 0xe0

// ack acknowledges all up to seq.
func (q *QP) ack(seq int64) {
	r := &q.res
	r.held = 0
	if n := r.replies.len(); n > 0 {
		if last := r.replies.last(); last.syndrome == ACK && !last.begun {
			last.seq, last.msn = max(last.seq, seq), r.msn
			return
		}
	}
	if r.replies.len() < maxReplies {
		r.replies.push(reply{seq: seq, syndrome: ACK, msn: r.msn})
	}
}

// nak says that the expected packet was not taken.
func (q *QP) nak(s Syndrome) {
	r := &q.res
	r.nakked, r.beyond = true, r.expected
	if r.replies.len() < maxReplies {
		q.stats.SentNAKs++
		r.replies.push(reply{seq: r.expected, syndrome: s, msn: r.msn})
	}
}

// refuse says why the expected packet was not done, and ends the queue pair.
func (q *QP) refuse(s Syndrome, end Status) {
	r := &q.res
	r.refused, r.final = true, reply{seq: r.expected, syndrome: s, msn: r.msn}
	q.stats.SentNAKs++
	r.held = 0 // a NAK acknowledges what is before it
	r.replies.push(r.final)
	q.fail(end, Flushed)
}

// reply appends the headers of the oldest answer, or of the next packet of it, and says
// what its payload is.
func (q *QP) reply(b []byte) ([]byte, part) {
	r := &q.res
	a := r.replies.at(0)
	p := Packet{PKey: defaultPKey, QPN: q.peer, PSN: psnOf(a.seq), Syndrome: a.syndrome, MSN: a.msn, Op: Acknowledge}
	if a.syndrome != readReply {
		r.replies.pop()
		return p.appendHeader(b, 0), part{}
	}
	if a.region != nil && a.region.gone {
		r.replies.pop()
		p.Syndrome = NAKAccess
		q.stats.SentNAKs++
		q.fail(RemoteAccess, Flushed)
		return p.appendHeader(b, 0), part{}
	}
	n := min(a.left, int64(q.cfg.MTU))
	switch {
	case !a.begun && n == a.left:
		p.Op = ReadOnly
	case !a.begun:
		p.Op = ReadFirst
	case n == a.left:
		p.Op = ReadLast
	default:
		p.Op = ReadMiddle
	}
	p.Syndrome = ACK
	data := part{}
	if n > 0 {
		data = part{&a.region.bytes, a.off, n}
	}
	a.seq, a.off, a.left, a.begun = a.seq+1, a.off+n, a.left-n, true
	if a.left == 0 {
		r.replies.pop()
	}
	return p.appendHeader(b, int(n)), data
}

// Landing is where the WRITE that is coming in on a queue pair goes: whoever receives
// packets may let their payloads go there at once.
type Landing struct {
	PSN   uint32 // of the next packet
	MTU   int
	Left  int64 // bytes that are to come of the WRITE, the last packet's among them
	bytes Vector
	at    int64
}

// Landing says where the next packets of a WRITE in progress go. There is none where
// fewer than two packets are to come.
func (q *QP) Landing() (l Landing, ok bool) {
	in := &q.res.in
	if q.err != OK || in.of != isWrite || in.left <= int64(q.cfg.MTU) || in.region.gone {
		return l, false
	}
	return Landing{PSN: psnOf(q.res.expected), MTU: q.cfg.MTU, Left: in.left, bytes: in.region.bytes, at: in.at}, true
}

// Place is the memory for the payload of the i-th next packet. It is nil for the last
// packet of the WRITE, which may be shorter, and where the memory is in several pieces.
func (l *Landing) Place(i int) []byte {
	off, mtu := int64(i)*int64(l.MTU), int64(l.MTU)
	if l.Left-off <= mtu {
		return nil
	}
	if b := l.bytes.piece(l.at+off, mtu); int64(len(b)) == mtu {
		return b[:mtu:mtu]
	}
	return nil
}

// Fits says whether the packet with this transport header is the i-th next of the
// WRITE.
func (l *Landing) Fits(i int, head []byte) bool {
	p := apart(head)
	return Opcode(head[0]) == WriteMiddle && head[1]&0x3f == 0 && p.PSN == (l.PSN+uint32(i))&psnMask
}

// Advance notes that n packets have come.
func (l *Landing) Advance(n int) {
	l.PSN = (l.PSN + uint32(n)) & psnMask
	l.at += int64(n) * int64(l.MTU)
	l.Left -= int64(n) * int64(l.MTU)
}
