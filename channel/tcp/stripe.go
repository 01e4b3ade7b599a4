package tcp

import (
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/kolo-ccl/kolo"
)

// stripe is a data connection: parts of large messages, from the end that has dialled
// it to the other.
type stripe struct {
	l    *link
	conn net.Conn
	p    parser
	in   *incoming // the message whose part is coming
}

// cleared sends the bytes of an offer whose receive is there. mu is held.
func (l *link) cleared(id uint64) {
	op := l.offers[id]
	if op == nil {
		l.tell(header{kind: gone, id: id})
		return
	}
	delete(l.offers, id)
	o := &outgoing{op: op, id: id}
	if l.inline(op.Size) {
		l.pieces = append(l.pieces, o)
		return
	}
	l.parts = append(l.parts, o)
	l.data.more.Broadcast()
	if l.data.started {
		return
	}
	l.data.started = true
	for i := range l.d.cfg.Stripes {
		// ended by the end of the link
		l.d.calls.Go(func() { l.carry(uint8(i)) })
	}
}

// inline says whether a message goes, once it is cleared, on the control connection: where
// that is polled, so that a rank which waits moves the bytes itself. Else, and from where a
// second thread is worth its wake-up, they go on data connections. Between processes that have
// a processor each, or less, it never is: it would be the other's. mu is held.
func (l *link) inline(size int64) bool {
	return l.wire != nil && l.wire.sock.polled() && (size <= int64(l.d.cfg.Inline) || l.near && l.d.poller.lone.Load())
}

// carry opens a data connection and sends parts on it, until the link ends.
func (l *link) carry(i uint8) {
	c, _, err := l.d.reach(l, &hello{role: data, stripe: i})
	if err != nil {
		l.fail(fmt.Errorf("data connection %d: %w", i, err))
		return
	}
	defer hangUp(c)
	s := &stripe{l: l, conn: c}
	if !l.join(s) {
		return
	}
	var head [headerSize]byte
	var list net.Buffers
	for {
		o, off, n := l.nextPart()
		if o == nil {
			return
		}
		h := header{kind: part, dtype: o.op.DType, id: o.id, offset: off, size: n}
		h.encode(head[:])
		list = spread(append(list[:0], head[:]), o.op.Mem, off, n)
		rest := list
		k, err := rest.WriteTo(c)
		l.carried.Add(k)
		clear(list)
		if l.sentPart(o, err); err != nil {
			return
		}
	}
}

// join makes the link close the connection when it ends, or says that it has.
func (l *link) join(s *stripe) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.data.conns = append(l.data.conns, s)
	}
	return l.err == nil
}

// cutData ends the data connections. What the kernel has taken, it still delivers. mu
// is held.
func (l *link) cutData() {
	for _, s := range l.data.conns {
		hangUp(s.conn)
	}
	l.data.conns = nil
}

// nextPart waits for bytes to send; nil: the link has ended.
func (l *link) nextPart() (o *outgoing, off, n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.parts) == 0 && l.err == nil {
		l.data.more.Wait()
	}
	if l.err != nil {
		return nil, 0, 0
	}
	o = l.parts[0]
	if off, n = o.take(maxPart); o.next == o.op.Size {
		l.parts[0] = nil
		l.parts = l.parts[1:]
	}
	return o, off, n
}

// sentPart ends a part, and with the last one its message.
func (l *link) sentPart(o *outgoing, err error) {
	var done endings
	l.mu.Lock()
	if err != nil {
		o.bad = true
		l.lose(fmt.Errorf("write data: %w", err), &done)
	}
	l.letGo(o, &done)
	l.mu.Unlock()
	done.complete(nil)
}

// letGo takes note that a connection has done with a part of a message. mu is held.
func (l *link) letGo(o *outgoing, done *endings) {
	if o.users--; o.users > 0 {
		return
	}
	switch {
	case o.next == o.op.Size && !o.bad:
		done.add(o.op, nil)
	case l.err != nil:
		done.add(o.op, l.cause)
	}
}

// receive reads parts until the connection ends.
func (s *stripe) receive() {
	l := s.l
	s.p.to = s
	err := error(nil)
	for err == nil {
		var n int
		space := s.p.space()
		n, err = s.conn.Read(first(space))
		l.carried.Add(int64(n))
		if n > 0 {
			if e := s.p.filled(n); e != nil {
				err = e
			}
		}
	}
	hangUp(s.conn)
	var done endings
	l.mu.Lock()
	over := err == io.EOF || err == io.ErrUnexpectedEOF // TLS has another word for it
	if over {
		err = errors.New("read data: the peer's process has ended or cut a data connection")
	} else {
		err = fmt.Errorf("read data: %w", err)
	}
	switch between := over && s.in == nil && s.p.r == s.p.w; {
	case l.err != nil || between && len(l.coming) == 0: // the peer closes
	case between:
		time.AfterFunc(l.d.cutFor, func() { l.missed(err) })
	default:
		l.lose(err, &done)
	}
	if in := s.in; in != nil {
		s.in = nil
		if in.users--; in.users == 0 && l.coming[in.id] == in {
			delete(l.coming, in.id)
			l.undo(in, l.cause, &done)
		}
	}
	if l.data.readers--; l.data.readers == 0 && l.err != nil {
		l.dropComing(l.cause, &done)
	}
	l.mu.Unlock()
	done.complete(nil)
}

// cutTime is how long the control connection has to tell the rest after a data connection has
// ended between two messages: what is coming may be on it, and so may the peer's goodbye.
const cutTime = 500 * time.Millisecond

// missed ends the link if it has not ended meanwhile: a data connection is gone.
func (l *link) missed(err error) {
	var done endings
	l.mu.Lock()
	if l.err == nil {
		l.lose(err, &done)
	}
	l.mu.Unlock()
	done.complete(nil)
}

// first is the first piece that is not empty.
func first(space [][]byte) []byte {
	for _, b := range space {
		if len(b) > 0 {
			return b
		}
	}
	return nil
}

// begin finds the memory of a part.
func (s *stripe) begin(h *header, dst [][]byte) ([][]byte, error) {
	if h.kind != part {
		return nil, malformed("kind %d on a data connection", h.kind)
	}
	l := s.l
	l.mu.Lock()
	defer l.mu.Unlock()
	in, err := l.beginPart(h)
	if err != nil {
		return nil, err
	}
	s.in = in
	return l.place(in, h, dst, false)
}

// beginPart is the message whose part is coming. mu is held.
func (l *link) beginPart(h *header) (*incoming, error) {
	in := l.coming[h.id]
	if in == nil {
		return nil, malformed("a part of a message that nobody has asked for")
	}
	if h.offset > in.op.Size || h.size > in.op.Size-h.offset || h.size > in.left {
		return nil, malformed("a part at %d, %d bytes long, of a message of %d bytes of which %d are missing", h.offset, h.size, in.op.Size, in.left)
	}
	in.users++
	in.left -= h.size
	return in, nil
}

// endPart takes note that a part is there, with the last one of the message. mu is held.
func (l *link) endPart(in *incoming, done *endings) {
	in.users--
	if in.users == 0 && in.left == 0 {
		delete(l.coming, in.id)
		done.add(in.op, nil)
	}
}

// end ends a part, and with the last one its message.
func (s *stripe) end(*header) error {
	l, in := s.l, s.in
	var done endings
	l.mu.Lock()
	s.in = nil
	l.endPart(in, &done)
	l.mu.Unlock()
	done.complete(nil)
	return nil
}

// spread appends the n bytes of mem from off on to list.
func spread(list [][]byte, mem []kolo.Memory, off, n int64) [][]byte {
	for i := range mem {
		b := mem[i].Host
		if off >= int64(len(b)) {
			off -= int64(len(b))
			continue
		}
		b = b[off:]
		off = 0
		if int64(len(b)) > n {
			b = b[:n]
		}
		if list, n = append(list, b), n-int64(len(b)); n == 0 {
			break
		}
	}
	return list
}
