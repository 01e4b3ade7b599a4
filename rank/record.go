package rank

import (
	"encoding/binary"
	"fmt"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
)

// A connection between two windows that goes by a channel is made of ordinary sends and
// receives of class channel.OneSided, so it works over every driver. Records of one size go
// both ways, each by the lane and the number that its receiver waits for:
//
//	put      the places and the notice; the data follows as a send that the target's rank
//	         actor receives straight into the registered memory, and answers done
//	get      the places; the target answers granted and sends the data straight out of the
//	         registered memory, which the origin receives then
//	notify   a notice; answered done
//	refused  the target has found the places outside of its memory; it has looked away from
//	         the data of a put, without a copy where the driver has views
//
// What does not fit into a record follows as a message of its own.
const (
	recordVersion = 1
	recordSize    = 256 // bytes
	recordHead    = 24
	maxBody       = maxLetter
)

// The kinds of record.
const (
	recordPut byte = iota + 1
	recordGet
	recordNotify
	recordDone
	recordGranted
	recordRefused
)

// The lanes of a connection. A record's body is two lanes up.
const (
	laneToTarget uint8 = iota
	laneToOrigin
	_
	_
	laneData // Call is the transfer's number
)

const laneBody = 2

// record is one record and what it says.
type record struct {
	kind byte
	id   uint64 // of the transfer
	size int64  // bytes of data
	body []byte
}

// request is the body of a put, a get and a notify.
type request struct {
	places []place
	notice *Notice
}

func (q *request) pack() []byte {
	e := &encoder{}
	e.uint(uint64(len(q.places)))
	for _, p := range q.places {
		e.uint(p.key).int(p.offset).int(p.len)
	}
	if e.bool(q.notice != nil); q.notice != nil {
		e.text(q.notice.Name).text(string(q.notice.Message))
	}
	return e.b
}

// unpackRequest reads a body. Lengths are checked against size, bounds by the window.
func unpackRequest(b []byte, size int64) (*request, error) {
	d := &decoder{b: b}
	q := &request{}
	left := size
	for range d.count(3) {
		p := place{key: d.uint(), offset: d.int(), len: d.int()}
		if p.len < 0 || p.len > left {
			return nil, d.fail("a piece of %d bytes where %d are left", p.len, left)
		}
		left -= p.len
		q.places = append(q.places, p)
	}
	if d.bool() {
		q.notice = &Notice{Name: d.text(), Message: []byte(d.text())}
	}
	switch {
	case d.err != nil:
	case left != 0:
		_ = d.fail("pieces of %d bytes for data of %d", size-left, size) // noted in d
	case len(d.b) > 0:
		_ = d.fail("%d bytes too many", len(d.b)) // noted in d
	}
	return q, d.err
}

// put writes all but a body that is too long.
func (r *record) put(b []byte) {
	clear(b)
	b[0], b[1] = recordVersion, r.kind
	binary.LittleEndian.PutUint32(b[4:], uint32(len(r.body)))
	binary.LittleEndian.PutUint64(b[8:], r.id)
	binary.LittleEndian.PutUint64(b[16:], uint64(r.size))
	if len(r.body) <= recordSize-recordHead {
		copy(b[recordHead:], r.body)
	}
}

// readRecord reads a record. A body that follows is made and is empty.
func readRecord(b []byte) (r record, follows bool, err error) {
	n := int(binary.LittleEndian.Uint32(b[4:]))
	r = record{kind: b[1], id: binary.LittleEndian.Uint64(b[8:]), size: int64(binary.LittleEndian.Uint64(b[16:]))}
	if b[0] != recordVersion || r.kind < recordPut || r.kind > recordRefused || r.size < 0 || n > maxBody {
		return r, false, fmt.Errorf("%w: record of version %d, kind %d, %d bytes, body of %d", kolo.ErrArgument, b[0], b[1], r.size, n)
	}
	if follows = n > recordSize-recordHead; follows {
		r.body = make([]byte, n)
	} else {
		r.body = append([]byte(nil), b[recordHead:recordHead+n]...)
	}
	return r, follows, nil
}

// line is one end of a connection by a channel. It belongs to the rank actor.
type line struct {
	channel *channel.Channel
	conn    uint64
	out, in uint8
	said    uint32
	taken   uint32
	hear    func(r record) error
	broke   func(err error)
	over    bool
	heard   record // whose body is on its way
	ear     slip
	free    []*slip
}

// slip is an op of a line with its memory.
type slip struct {
	line   *line
	op     channel.Op
	bytes  [recordSize]byte
	coming bool
	body   bool
}

func newLine(c *channel.Channel, conn uint64, out, in uint8) *line {
	l := &line{channel: c, conn: conn, out: out, in: in}
	l.ear = slip{line: l, coming: true}
	return l
}

// key names a message of the connection.
func (l *line) key(lane uint8, number uint32, call uint64) channel.Key {
	return channel.Key{Group: l.conn, Class: channel.OneSided, Lane: lane, Number: number, Call: call}
}

// post starts an op that has its Kind.
func (l *line) post(op *channel.Op, k channel.Key, sink channel.Sink, mem ...kolo.Memory) {
	op.Key, op.DType, op.Sink, op.Size = k, kolo.Uint8, sink, 0
	op.Mem = append(op.Mem[:0], mem...)
	for _, m := range mem {
		op.Size += m.Len()
	}
	l.channel.Post(op)
}

// say sends a record.
func (l *line) say(r record) {
	if l.over {
		return
	}
	s := l.slip()
	r.put(s.bytes[:])
	n := l.said
	l.said++
	l.post(&s.op, l.key(l.out, n, 0), s, kolo.HostMemory(s.bytes[:]))
	if len(r.body) > recordSize-recordHead {
		b := l.slip()
		l.post(&b.op, l.key(l.out+laneBody, n, 0), b, kolo.HostMemory(r.body))
	}
}

func (l *line) slip() *slip {
	n := len(l.free)
	if n == 0 {
		return &slip{line: l}
	}
	s := l.free[n-1]
	l.free = l.free[:n-1]
	return s
}

// listen receives the next record.
func (l *line) listen() {
	l.ear.op.Kind, l.ear.body = channel.Recv, false
	l.post(&l.ear.op, l.key(l.in, l.taken, 0), &l.ear, kolo.HostMemory(l.ear.bytes[:]))
}

// Complete hears that a record, or the body of one, was sent or has come.
func (s *slip) Complete(op *channel.Op) {
	l := s.line
	switch {
	case l.over:
	case op.Err != nil:
		l.broke(op.Err)
	case s.coming:
		l.come()
	default:
		op.Mem = op.Mem[:0]
		l.free = append(l.free, s)
	}
}

// come takes what has come.
func (l *line) come() {
	if !l.ear.body {
		r, follows, err := readRecord(l.ear.bytes[:])
		if err != nil {
			l.broke(err)
			return
		}
		if l.heard = r; follows {
			l.ear.body = true
			l.post(&l.ear.op, l.key(l.in+laneBody, l.taken, 0), &l.ear, kolo.HostMemory(r.body))
			return
		}
	}
	r := l.heard
	l.heard = record{}
	l.taken++
	if err := l.hear(r); err != nil {
		l.broke(err)
	}
	if !l.over {
		l.listen()
	}
}

// hangUp ends the line: what has not met its other end comes back.
func (l *line) hangUp(cause error) {
	if !l.over {
		l.over = true
		l.channel.Abort(l.conn, cause)
	}
}

// notices keeps the order of a connection: a notice is given when all that was started
// before it has ended.
type notices struct{ list []*turn }

// turn is a transfer's place in the order.
type turn struct {
	done bool
	give func() // when it and all before it are done; nil: nothing
}

func (o *notices) join(give func()) *turn {
	t := &turn{give: give}
	o.list = append(o.list, t)
	return t
}

// settle notes that a transfer has ended.
func (o *notices) settle(t *turn) {
	t.done = true
	for len(o.list) > 0 && o.list[0].done {
		first := o.list[0]
		o.list[0] = nil
		o.list = o.list[1:]
		if first.give != nil {
			first.give()
		}
	}
}
