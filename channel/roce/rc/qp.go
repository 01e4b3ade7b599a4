package rc

import (
	"fmt"
	"time"
)

// Limits and defaults of a queue pair.
const (
	MinMTU, MaxMTU = 256, 4096
	// MaxMessage is the most bytes of one work request.
	MaxMessage = 1 << 31
	// maxWindow keeps all packets in flight within half of the PSN space.
	maxWindow     = 1 << 22
	defaultWindow = 256
	defaultReads  = 8
	// maxReplies is the most answers that wait to go out: reads, and what refuses.
	maxReplies = 256
)

// Config says how a queue pair works. QPN and Domain must be set.
type Config struct {
	QPN   uint32 // this end's number
	First uint32 // PSN of the first packet that this end sends
	MTU   int    // bytes of payload of a full packet: 256, 512, ... 4096; 0 means 1024
	// Timeout and Retries are what the InfiniBand specification calls Local ACK Timeout
	// and Retry Count: the connection is given up when for (Retries+1) Timeouts nothing
	// was acknowledged. 0 means 67.1 ms (4.096 us << 14), and 7.
	Timeout time.Duration
	Retries int
	// MinTimeout is the shortest time after which packets are sent again. What is waited
	// in fact follows the measured round trip and doubles each time, up to Timeout, as
	// adapters with adaptive retransmission do. 0 means Timeout: each wait is the same.
	MinTimeout time.Duration
	// RNRRetries is how often a message is sent again that its receiver is not ready
	// for; 0 means 7, and 7 without end, as the specification has it.
	RNRRetries int
	// RNRCode is the wait that this end asks for when it is not ready; 0 means 12: 640 us.
	RNRCode uint8
	// Window is the most packets in flight; 0 means 256.
	Window int
	// Reads is the most READs in flight; 0 means 8.
	Reads int
	// AckDelay is how long the acknowledgement of a SEND of one packet may wait for others
	// to go with it, eight at most. 0: it goes at once, as everything else does.
	AckDelay time.Duration
	// Domain has the regions that the peer may reach.
	Domain *Domain
}

func (c Config) withDefaults() Config {
	if c.MTU == 0 {
		c.MTU = 1024
	}
	if c.Timeout == 0 {
		c.Timeout = 4096 << 14
	}
	if c.MinTimeout == 0 || c.MinTimeout > c.Timeout {
		c.MinTimeout = c.Timeout
	}
	if c.Retries == 0 {
		c.Retries = 7
	}
	if c.RNRRetries == 0 {
		c.RNRRetries = 7
	}
	if c.RNRCode == 0 {
		c.RNRCode = 12
	}
	if c.Window == 0 {
		c.Window = defaultWindow
	}
	c.Window = min(c.Window, maxWindow)
	if c.Reads == 0 {
		c.Reads = defaultReads
	}
	return c
}

// Kind is what a work request does.
type Kind uint8

// The kinds of work requests, and of what a receive has taken.
const (
	Send     Kind = iota // into the peer's oldest posted receive
	SendImm              // with immediate data
	Write                // into a region of the peer
	WriteImm             // and with immediate data into its oldest receive
	Read                 // out of a region of the peer
	Receive              // a completion only: a message has come
)

// Work is one request. From Post to its completion the memory of Data belongs to the
// queue pair.
type Work struct {
	Kind      Kind
	ID        uint64 // the poster's own
	Data      Vector // what is sent or written; for Read, where it goes
	VA        uint64 // Write, Read: where in the peer's region
	Key       uint32 // and the region's key
	Imm       uint32
	Solicited bool
}

// Status is how a request has ended.
type Status uint8

// The ends of a request.
const (
	OK              Status = iota
	RetryExceeded          // nothing was acknowledged for too long
	RNRExceeded            // the peer was not ready too often
	RemoteAccess           // the peer refuses the region, the bounds or the right
	RemoteInvalid          // the peer calls it an invalid request
	RemoteOperation        // the peer could not do it
	ProtocolError          // the peer has broken the protocol
	LengthError            // the message was longer than the receive
	Flushed                // the queue pair has ended before
)

var statusNames = [...]string{"done", "no acknowledgement in time", "the peer was not ready too often", "remote access error",
	"remote invalid request", "remote operation error", "protocol error", "message longer than the receive", "flushed"}

// String says what has happened.
func (s Status) String() string {
	if int(s) < len(statusNames) {
		return statusNames[s]
	}
	return fmt.Sprintf("status %d", uint8(s))
}

// Completion is the end of one Work or of one receive.
type Completion struct {
	ID     uint64
	Kind   Kind // of the Work; Receive for a receive
	Status Status
	Bytes  int64 // of a receive: what has come; of a WRITE with immediate, what was written
	Imm    uint32
	HasImm bool
	Wrote  bool // the receive was taken by a WRITE with immediate: its own memory is untouched
}

// Stats counts what a queue pair has seen.
type Stats struct {
	Sent, Received   int64 // packets
	Retransmitted    int64
	Timeouts         int64
	NAKs, RNRs       int64 // received
	SentNAKs         int64
	Duplicates, Gaps int64 // request packets below and above what was expected
	Stray            int64 // packets that fit nothing
}

// QP is a queue pair. It is used by one goroutine at a time. The time that it is given
// is counted from any moment, and never goes back.
type QP struct {
	cfg    Config
	peer   uint32 // its QPN
	linked bool
	err    Status // why it has ended; OK while it lives
	done   queue[Completion]
	stats  Stats
	req    requester
	res    responder
}

// NewQP makes a queue pair that must be connected.
func NewQP(c Config) (*QP, error) {
	c = c.withDefaults()
	if c.MTU < MinMTU || c.MTU > MaxMTU || c.MTU&(c.MTU-1) != 0 {
		return nil, fmt.Errorf("rc: path MTU %d is none of 256, 512, 1024, 2048, 4096", c.MTU)
	}
	if c.Domain == nil || c.Timeout < 0 || c.Retries < 0 || c.Window < 1 || c.RNRCode > 31 {
		return nil, fmt.Errorf("rc: bad configuration of a queue pair: %+v", c)
	}
	q := &QP{cfg: c}
	q.req.init(&q.cfg)
	return q, nil
}

// Connect says who the peer is: its QPN and the PSN of the first packet that it sends.
func (q *QP) Connect(qpn, first uint32) {
	q.peer, q.linked = qpn&psnMask, true
	q.res.expected = origin + int64(first&psnMask)
}

// Err is why the queue pair has ended, OK while it has not.
func (q *QP) Err() Status { return q.err }

// Stats is what it has seen so far.
func (q *QP) Stats() Stats { return q.stats }

// Post queues a request; exactly one completion follows, requests completing in the
// order of posting. It may be called before Connect.
func (q *QP) Post(w Work) {
	if q.err != OK || w.Data.Len() > MaxMessage {
		s := Flushed
		if q.err == OK {
			s = LengthError
		}
		q.done.push(Completion{ID: w.ID, Kind: w.Kind, Status: s})
		return
	}
	r := &q.req
	next := work{Work: w, first: r.end, count: q.packets(w.Data.Len())}
	r.end += next.count
	r.works.push(next)
}

// PostReceive gives memory for one message; exactly one completion follows.
func (q *QP) PostReceive(id uint64, into Vector) {
	if q.err != OK {
		q.done.push(Completion{ID: id, Kind: Receive, Status: Flushed})
		return
	}
	q.res.receives.push(receive{id: id, into: into})
}

// Next takes the oldest completion.
func (q *QP) Next() (Completion, bool) {
	if q.done.len() == 0 {
		return Completion{}, false
	}
	return q.done.pop(), true
}

// Pending is the number of requests that have not completed.
func (q *QP) Pending() int { return q.req.works.len() }

// Input takes a packet that has come for this queue pair, with a valid CRC.
func (q *QP) Input(now time.Duration, p *Packet) {
	s := shapes[p.Op]
	if !q.linked || p.PKey&0x7fff != defaultPKey&0x7fff || s&known == 0 || s&hasDETH != 0 {
		q.stats.Stray++
		return
	}
	q.stats.Received++
	switch {
	case q.err != OK:
		if q.res.refused && s&response == 0 && q.res.replies.len() == 0 {
			q.res.replies.push(q.res.final) // the first one may be lost
		}
	case s&response != 0:
		q.response(now, p)
	default:
		q.request(now, p)
	}
}

// Output appends the next packet, without its CRC, to b and returns the result: b
// itself where there is nothing to send for the time being. A packet has at most MTU
// + MaxOverhead - ICRCSize bytes.
func (q *QP) Output(now time.Duration, b []byte) []byte {
	b, data := q.output(now, b)
	if data.n > 0 {
		b = data.of.appendTo(b, data.off, data.n)
	}
	return append(b, 0, 0, 0)[:len(b)+padding(int(data.n))]
}

// Gather is Output for who sends payloads from where they are: it appends the headers of
// the next packet to head, and the pieces of its payload to list. Padding and CRC are the
// caller's. Where there is nothing to send both are returned as they are.
func (q *QP) Gather(now time.Duration, head []byte, list [][]byte) ([]byte, [][]byte) {
	head, data := q.output(now, head)
	if data.n > 0 {
		list = data.of.appendPieces(list, data.off, data.n)
	}
	return head, list
}

// output appends the headers of the next packet and says what its payload is.
func (q *QP) output(now time.Duration, b []byte) ([]byte, part) {
	if !q.linked {
		return b, part{}
	}
	if q.res.held > 0 && now >= q.res.due {
		q.ack(q.res.expected - 1)
	}
	if q.res.replies.len() > 0 {
		q.stats.Sent++
		return q.reply(b)
	}
	if q.err != OK {
		return b, part{}
	}
	return q.transmit(now, b)
}

// Ready says whether Output has something to send, or may have.
func (q *QP) Ready(now time.Duration) bool {
	switch {
	case !q.linked:
		return false
	case q.res.replies.len() > 0 || q.res.held > 0 && now >= q.res.due:
		return true
	}
	return q.err == OK && q.mayTransmit(now)
}

// Deadline is when Tick and Output must be called next; ok is false where no time
// matters.
func (q *QP) Deadline() (at time.Duration, ok bool) {
	if q.err != OK || !q.linked {
		return 0, false
	}
	at, ok = q.req.timer, q.req.timed
	if q.res.held > 0 && (!ok || q.res.due < at) {
		at, ok = q.res.due, true
	}
	return at, ok
}

// Tick looks whether something is late.
func (q *QP) Tick(now time.Duration) {
	if q.err == OK && q.linked && q.req.timed && now >= q.req.timer {
		q.late(now)
	}
}

// Fail ends the queue pair: the oldest request that is left completes with s, all
// others and all receives with Flushed.
func (q *QP) Fail(s Status) { q.fail(s, s) }

// fail ends the queue pair because of why; the oldest request has status first.
func (q *QP) fail(why, first Status) {
	if q.err != OK {
		return
	}
	q.err = why
	for q.req.works.len() > 0 {
		w := q.req.works.pop()
		q.done.push(Completion{ID: w.ID, Kind: w.Kind, Status: first})
		first = Flushed
	}
	if q.res.in.has {
		q.done.push(Completion{ID: q.res.in.recv.id, Kind: Receive, Status: Flushed})
		q.res.in = incoming{}
	}
	for q.res.receives.len() > 0 {
		q.done.push(Completion{ID: q.res.receives.pop().id, Kind: Receive, Status: Flushed})
	}
}

// queue is a FIFO that keeps its memory.
type queue[T any] struct {
	list []T
	head int
}

func (q *queue[T]) len() int { return len(q.list) - q.head }

func (q *queue[T]) push(v T) {
	if len(q.list) == cap(q.list) && q.head > len(q.list)/2 {
		n := copy(q.list, q.list[q.head:])
		clear(q.list[n:])
		q.list, q.head = q.list[:n], 0
	}
	q.list = append(q.list, v)
}

// at is the i-th oldest.
func (q *queue[T]) at(i int) *T { return &q.list[q.head+i] }

// last is the youngest.
func (q *queue[T]) last() *T { return &q.list[len(q.list)-1] }

func (q *queue[T]) pop() T {
	v := q.list[q.head]
	var zero T
	q.list[q.head] = zero
	if q.head++; q.head == len(q.list) {
		q.list, q.head = q.list[:0], 0
	}
	return v
}
