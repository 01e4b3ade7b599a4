package rc

import "time"

// requester is the half of a queue pair that sends requests:
//
//	una        next            sent           end
//	 |          |               |              |
//	 | in flight | to send again | not yet sent |
//
// All are counts of packets; a READ takes as many as its response has. una..next is
// waited for. Going back is next = una.
type requester struct {
	works          queue[work] // not completed, oldest first
	at             int         // the work that next is in
	una, next      int64
	sent, end      int64
	reads          queue[int64] // where the READs in flight end
	timed          bool         // timer is set
	timer          time.Duration
	since          time.Duration // of the last progress, or of the first packet in flight
	wait           time.Duration // until packets are sent again
	base           time.Duration // what wait begins with, from the measured round trip
	srtt, rttvar   time.Duration
	sample         int64 // a packet whose round trip is measured, 0 if none
	sampled        time.Duration
	quiet          time.Duration // the peer is not ready until then
	silent         bool          // quiet holds
	rnrs           int           // not ready in a row
	window, thresh int           // packets that may be in flight, and up to which they grow fast
	recover        int64         // what was sent when packets were last known to be lost
	asked          int64         // where an acknowledgement was last asked for
}

// work is a request and the packets that it takes.
type work struct {
	Work
	first, count int64
}

// The least window after a loss, and the one to begin with.
const (
	leastWindow = 4
	firstWindow = 64
)

func (r *requester) init(c *Config) {
	r.una = origin + int64(c.First&psnMask)
	r.next, r.sent, r.end = r.una, r.una, r.una
	r.window, r.thresh = min(firstWindow, c.Window), c.Window
	r.base = max(c.MinTimeout, min(c.Timeout, 50*time.Millisecond))
	r.wait = r.base
}

// packets is the number of packets of a message.
func (q *QP) packets(size int64) int64 {
	mtu := int64(q.cfg.MTU)
	return max(1, (size+mtu-1)/mtu)
}

// limit is up to where packets may go.
func (q *QP) limit() int64 { return q.req.una + int64(min(q.req.window, q.cfg.Window)) }

// mayTransmit says whether a request packet may go, but for the limit of READs.
func (q *QP) mayTransmit(now time.Duration) bool {
	r := &q.req
	return r.next < min(r.end, q.limit()) && !(r.silent && now < r.quiet)
}

// transmit appends the headers of the next request packet, if one may go, and says what
// its payload is.
func (q *QP) transmit(now time.Duration, b []byte) ([]byte, part) {
	r, data := &q.req, part{}
	if !q.mayTransmit(now) {
		return b, data
	}
	limit := q.limit()
	r.silent = false
	for w := r.works.at(r.at); r.next >= w.first+w.count; w = r.works.at(r.at) {
		r.at++
	}
	w := r.works.at(r.at)
	if w.Kind == Read && r.reads.len() >= q.cfg.Reads {
		return b, data
	}
	if r.next == r.una && !r.timed {
		r.since = now
	}
	again := r.next < r.sent
	first := r.next
	if w.Kind == Read {
		b = q.readRequest(b, w)
	} else {
		b, data = q.dataPacket(b, w, limit)
	}
	q.stats.Sent++
	if again {
		q.stats.Retransmitted++
	} else if r.sample == 0 && r.asked == r.next {
		r.sample, r.sampled = first, now
	}
	r.sent = max(r.sent, r.next)
	if !r.timed {
		r.arm(now, &q.cfg)
	}
	return b, data
}

// dataPacket appends the headers of packet next of a SEND or WRITE.
func (q *QP) dataPacket(b []byte, w *work, limit int64) ([]byte, part) {
	r, mtu := &q.req, int64(q.cfg.MTU)
	i := r.next - w.first
	size := min(mtu, w.Data.Len()-i*mtu)
	p := Packet{Op: opcodeOf(w, i), PKey: defaultPKey, QPN: q.peer, PSN: psnOf(r.next)}
	r.next++
	last := i == w.count-1
	p.Solicited = last && w.Solicited
	if last || r.next == limit || r.next-r.asked >= int64(q.cfg.Window)/4 {
		p.AckReq, r.asked = true, r.next
	}
	if shapes[p.Op]&hasRETH != 0 {
		p.VA, p.Key, p.Length = w.VA, w.Key, uint32(w.Data.Len())
	}
	if last {
		p.Imm = w.Imm
	}
	return p.appendHeader(b, int(size)), part{&w.Data, i * mtu, size}
}

// readRequest appends the request of a READ's next chunk. Chunks lie at fixed places of
// the message: what is asked for again is never more than what was asked for before.
func (q *QP) readRequest(b []byte, w *work) []byte {
	r, mtu := &q.req, int64(q.cfg.MTU)
	i, chunk := r.next-w.first, max(1, int64(q.cfg.Window)/8)
	n := min(w.count-i, chunk-i%chunk)
	size := min(n*mtu, w.Data.Len()-i*mtu)
	p := Packet{Op: ReadRequest, PKey: defaultPKey, QPN: q.peer, PSN: psnOf(r.next), AckReq: true,
		VA: w.VA + uint64(i*mtu), Key: w.Key, Length: uint32(size), Solicited: w.Solicited}
	r.next += n
	r.asked = r.next
	r.reads.push(r.next)
	return p.appendHeader(b, 0)
}

// opcodeOf is the opcode of packet i of a SEND or WRITE.
func opcodeOf(w *work, i int64) Opcode {
	op := SendFirst
	if w.Kind == Write || w.Kind == WriteImm {
		op = WriteFirst
	}
	imm := Opcode(0)
	if w.Kind == SendImm || w.Kind == WriteImm {
		imm = 1
	}
	switch {
	case w.count == 1:
		return op + SendOnly + imm
	case i == 0:
		return op
	case i < w.count-1:
		return op + SendMiddle
	}
	return op + SendLast + imm
}

// arm sets the timer anew.
func (r *requester) arm(now time.Duration, c *Config) {
	r.timed = true
	r.timer = min(now+r.wait, r.since+c.patience())
}

// patience is how long nothing may be acknowledged before the connection is given up.
func (c *Config) patience() time.Duration { return time.Duration(c.Retries+1) * c.Timeout }

// advance takes the packets below to as acknowledged. It stops at a READ whose
// response has not come, and then says false.
func (q *QP) advance(now time.Duration, to int64) bool {
	r := &q.req
	before := r.una
	for r.una < to {
		w := r.works.at(0)
		if w.Kind == Read {
			break
		}
		q.acked(min(w.first+w.count, to))
	}
	if r.una > before {
		q.progress(now, r.una-before)
	}
	return r.una >= to
}

// acked moves una on, to the end of the oldest work at most, and completes it there.
func (q *QP) acked(to int64) {
	r := &q.req
	r.una = to
	w := r.works.at(0)
	if to < w.first+w.count {
		return
	}
	q.done.push(Completion{ID: w.ID, Kind: w.Kind, Bytes: w.Data.Len()})
	r.works.pop()
	r.at = max(0, r.at-1)
}

// progress notes that n packets were acknowledged.
func (q *QP) progress(now time.Duration, n int64) {
	r := &q.req
	r.next = max(r.next, r.una)
	if r.una == r.next { // the work that next is in may have been completed
		r.at = 0
	}
	for r.reads.len() > 0 && *r.reads.at(0) <= r.una {
		r.reads.pop()
	}
	r.rnrs, r.silent, r.since = 0, false, now
	if r.sample != 0 && r.una > r.sample {
		r.measured(now-r.sampled, &q.cfg)
		r.sample = 0
	}
	r.wait = r.base
	if r.window < r.thresh {
		r.window = min(r.window+int(n), q.cfg.Window)
	} else if r.una >= r.recover+int64(r.window) { // a window later
		r.window = min(r.window+max(1, r.window/16), q.cfg.Window)
		r.recover = r.una
	}
	r.timed = false
	if r.next > r.una {
		r.arm(now, &q.cfg)
	}
}

// measured takes a round trip into account (RFC 6298).
func (r *requester) measured(rtt time.Duration, c *Config) {
	if r.srtt == 0 {
		r.srtt, r.rttvar = rtt, rtt/2
	} else {
		r.rttvar += (max(r.srtt-rtt, rtt-r.srtt) - r.rttvar) / 4
		r.srtt += (rtt - r.srtt) / 8
	}
	r.base = min(max(r.srtt+4*r.rttvar, c.MinTimeout), c.Timeout)
}

// goBack sends again what is in flight.
func (r *requester) goBack() {
	r.next, r.at, r.sample, r.asked = r.una, 0, 0, r.una
	for r.reads.len() > 0 {
		r.reads.pop()
	}
}

// lost goes back because packets from una on are known to be lost.
func (q *QP) lost(now time.Duration) {
	r := &q.req
	if r.una >= r.recover { // not a loss of the same flight
		r.thresh = max(r.window/2, min(leastWindow, q.cfg.Window))
		r.window, r.recover = r.thresh, r.sent
	}
	r.goBack()
	r.timed = false
	if r.sent > r.una {
		r.arm(now, &q.cfg)
	}
}

// late is called when the timer has come.
func (q *QP) late(now time.Duration) {
	r := &q.req
	r.timed = false
	if r.silent {
		r.silent = false // the peer's wait is over: Output goes on
		if r.sent > r.una {
			r.arm(now, &q.cfg)
		}
		return
	}
	if r.sent == r.una {
		return
	}
	if now-r.since >= q.cfg.patience() {
		q.Fail(RetryExceeded)
		return
	}
	q.stats.Timeouts++
	r.thresh = max(r.window/2, min(leastWindow, q.cfg.Window))
	r.window, r.recover = min(leastWindow, q.cfg.Window), r.sent
	r.goBack()
	r.wait = min(2*r.wait, q.cfg.Timeout)
	r.arm(now, &q.cfg)
}

// response takes an acknowledgement or a part of a READ.
func (q *QP) response(now time.Duration, p *Packet) {
	r := &q.req
	seq := near(r.una, p.PSN)
	if p.Op != Acknowledge {
		q.readResponse(now, seq, p)
		return
	}
	if seq >= r.sent || seq < r.una-1 {
		q.stats.Stray++
		return
	}
	switch p.Syndrome.kind() {
	case 0:
		if !q.advance(now, seq+1) {
			q.lost(now) // a later request was acknowledged, so the response is lost
		}
	case RNR:
		q.stats.RNRs++
		q.notReady(now, seq, p.Syndrome)
	case NAKSequence:
		q.refused(now, seq, p.Syndrome)
	default:
		q.stats.Stray++
	}
}

// notReady handles an RNR NAK of packet seq.
func (q *QP) notReady(now time.Duration, seq int64, s Syndrome) {
	r := &q.req
	q.advance(now, seq)
	if r.una != seq {
		return // of a packet that was acknowledged meanwhile
	}
	r.goBack()
	if r.rnrs++; r.rnrs > q.cfg.RNRRetries && q.cfg.RNRRetries < 7 {
		q.Fail(RNRExceeded)
		return
	}
	r.quiet, r.silent = now+rnrWait(s), true
	r.since = now // it lives
	r.timed, r.timer = true, r.quiet
}

// refused handles a NAK of packet seq.
func (q *QP) refused(now time.Duration, seq int64, s Syndrome) {
	q.stats.NAKs++
	q.advance(now, seq)
	if q.req.una != seq {
		return // of a packet that was acknowledged meanwhile
	}
	switch s {
	case NAKSequence:
		q.lost(now)
	case NAKInvalid:
		q.Fail(RemoteInvalid)
	case NAKAccess:
		q.Fail(RemoteAccess)
	case NAKOperation:
		q.Fail(RemoteOperation)
	default:
		q.Fail(ProtocolError)
	}
}

// readResponse takes packet seq of the response to a READ.
func (q *QP) readResponse(now time.Duration, seq int64, p *Packet) {
	r := &q.req
	if seq < r.una || seq >= r.sent {
		q.stats.Stray++
		return
	}
	// everything before a response was done, unless an earlier response is lost
	if q.advance(now, seq); r.una != seq {
		if r.next > seq { // not going back already
			q.lost(now)
		}
		return
	}
	w := r.works.at(0)
	mtu := int64(q.cfg.MTU)
	off := (seq - w.first) * mtu
	if w.Kind != Read {
		q.stats.Stray++
		return
	}
	if int64(len(p.Payload)) != min(mtu, w.Data.Len()-off) {
		q.Fail(ProtocolError)
		return
	}
	w.Data.write(off, p.Payload)
	q.acked(seq + 1)
	q.progress(now, 1)
}

// rnrWait is the wait that an RNR NAK asks for (table 45 of the specification).
func rnrWait(s Syndrome) time.Duration { return rnrWaits[s&0x1f] * 10 * time.Microsecond }

var rnrWaits = [32]time.Duration{65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
	3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152}
