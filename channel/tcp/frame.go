package tcp

import (
	"encoding/binary"
	"fmt"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
)

// kind is what a frame is.
type kind uint8

// The frames. Only those with a body say so.
const (
	eager  kind = iota + 1 // a message with its bytes: the body
	offer                  // a message whose bytes wait for the receiver's clear
	ready                  // the receive of an offer is there: the bytes may come
	part                   // bytes of a message that was cleared: the body, on a data socket
	refuse                 // an offer does not fit its receive, whose size, type and digest this has
	gone                   // what was cleared had been withdrawn before
	abort                  // the sender's group has ended: forget what came for it
	bye                    // the sender closes the link: the body is the reason
	credit                 // nothing but credit
	kinds
)

// The limits of what a peer may claim.
const (
	headerSize = 64
	maxEager   = 1 << 20 // of Config.Eager
	maxPart    = 1 << 20 // body of a part
	maxSize    = 1 << 46 // of a message
	maxReason  = 512     // body of a bye
	maxEarly   = 1 << 20 // messages of a link that wait for their receive
)

// header is the fixed part of a frame. Integers travel little-endian:
//
//	 0 kind   1 class  2 lane  3 dtype  4 number (4)
//	 8 credit (8)   bytes of earlier eager messages that the sender of this has consumed
//	16 group (8)   24 call (8)   32 digest (8)
//	40 size (8)    bytes of the message; of a part and of a bye: of the body
//	48 id (8)      of an offer and of what follows it
//	56 offset (8)  of a part in its message
type header struct {
	kind   kind
	dtype  kolo.DType
	key    channel.Key
	credit int64
	digest uint64
	size   int64
	id     uint64
	offset int64
}

func (h *header) encode(b []byte) {
	_ = b[headerSize-1]
	b[0], b[1], b[2], b[3] = byte(h.kind), byte(h.key.Class), h.key.Lane, byte(h.dtype)
	e := binary.LittleEndian
	e.PutUint32(b[4:], h.key.Number)
	e.PutUint64(b[8:], uint64(h.credit))
	e.PutUint64(b[16:], h.key.Group)
	e.PutUint64(b[24:], h.key.Call)
	e.PutUint64(b[32:], h.digest)
	e.PutUint64(b[40:], uint64(h.size))
	e.PutUint64(b[48:], h.id)
	e.PutUint64(b[56:], uint64(h.offset))
}

// decode reads a header and checks each field by itself. The error is a
// kolo.ErrLost, since nothing behind it can be understood.
func (h *header) decode(b []byte) error {
	_ = b[headerSize-1]
	e := binary.LittleEndian
	*h = header{
		kind: kind(b[0]), dtype: kolo.DType(b[3]),
		key: channel.Key{Group: e.Uint64(b[16:]), Call: e.Uint64(b[24:]), Class: channel.Class(b[1]), Lane: b[2], Number: e.Uint32(b[4:])},
		// a value that does not fit becomes negative
		credit: int64(e.Uint64(b[8:])), digest: e.Uint64(b[32:]), size: int64(e.Uint64(b[40:])),
		id: e.Uint64(b[48:]), offset: int64(e.Uint64(b[56:])),
	}
	switch {
	case h.kind == 0 || h.kind >= kinds:
		return malformed("kind %d", b[0])
	case h.key.Class > channel.OneSided:
		return malformed("class %d", b[1])
	case !h.dtype.Valid():
		return malformed("element type %d", b[3])
	case h.credit < 0 || h.credit > maxSize:
		return malformed("credit of %d bytes", uint64(h.credit))
	case h.size < 0 || h.size > maxSize:
		return malformed("size of %d bytes", uint64(h.size))
	case h.offset < 0 || h.offset > maxSize:
		return malformed("offset %d", uint64(h.offset))
	case h.kind == eager && h.size > maxEager, h.kind == part && h.size > maxPart, h.kind == bye && h.size > maxReason:
		return malformed("body of %d bytes in kind %d", h.size, h.kind)
	}
	return nil
}

func malformed(format string, a ...any) error {
	return fmt.Errorf("%w: a malformed frame: "+format, append([]any{kolo.ErrLost}, a...)...)
}

// body is the number of bytes behind the header.
func (h *header) body() int64 {
	switch h.kind {
	case eager, part, bye:
		return h.size
	}
	return 0
}

// asOp has what Agree compares.
func (h *header) asOp() *channel.Op {
	return &channel.Op{Size: h.size, DType: h.dtype, Digest: h.digest}
}

// sink is told of the frames that a parser finds.
type sink interface {
	// begin is called with each header. Where the frame has a body it appends to dst the
	// memory that takes it, of that length in all; or returns nil to have it dropped.
	begin(h *header, dst [][]byte) ([][]byte, error)
	// end is called when the body is there; at once if there is none.
	end(h *header) error
}

// bufferSize is the size of a parser's buffer: what one look at a socket may bring
// besides a body that goes to its memory directly.
const bufferSize = 32 << 10

// parser cuts a stream of bytes into frames. It knows no socket: who has one reads
// into the memory that space names and tells how much it was. Its own memory does not
// grow with what comes.
type parser struct {
	to   sink
	buf  []byte
	r, w int // buf[r:w] has come and was not looked at
	h    header
	in   bool     // in the body of h
	lean bool     // a large body may follow: nothing of it shall go by way of buf
	left int64    // bytes of the body to come
	body [][]byte // the memory that takes them; empty: they are dropped
	at   [][]byte // the beginning of body's list, to be used again
	open [][]byte // what space returned
}

// space is where the next bytes go: the rest of a body, then the buffer. It is
// valid until filled.
func (p *parser) space() [][]byte {
	if p.buf == nil {
		p.buf = make([]byte, bufferSize)
	}
	if p.r == p.w {
		p.r, p.w = 0, 0
	} else if p.r > 0 && len(p.buf)-p.w < headerSize {
		p.w = copy(p.buf, p.buf[p.r:p.w])
		p.r = 0
	}
	p.open = p.open[:0]
	if p.in { // then the buffer is empty
		p.open = append(p.open, p.body...)
	}
	end := len(p.buf)
	if p.lean {
		end = p.r + headerSize // parse has left less than that
	}
	p.open = append(p.open, p.buf[p.w:end])
	return p.open
}

// filled takes note of n bytes that were put, in order, into the space.
func (p *parser) filled(n int) error {
	if p.in && len(p.body) > 0 {
		k := int(min(int64(n), p.left))
		p.body = skip(p.body, k)
		p.left -= int64(k)
		n -= k
	}
	p.w += n
	return p.parse()
}

// parse goes through the buffer.
func (p *parser) parse() error {
	for {
		if p.in {
			p.takeBody()
			if p.left > 0 {
				return nil
			}
			p.in, p.body = false, nil
			clear(p.at)
			if err := p.to.end(&p.h); err != nil {
				return err
			}
		}
		if p.w-p.r < headerSize {
			return nil
		}
		if err := p.h.decode(p.buf[p.r:p.w]); err != nil {
			return err
		}
		p.r += headerSize
		dst, err := p.to.begin(&p.h, p.at[:0])
		if err != nil {
			return err
		}
		if dst != nil {
			p.at = dst
		}
		p.in, p.left, p.body = true, p.h.body(), skip(dst, 0)
	}
}

// takeBody moves bytes of the body from the buffer to their place.
func (p *parser) takeBody() {
	drop := len(p.body) == 0
	for p.left > 0 && p.r < p.w {
		n := int(min(p.left, int64(p.w-p.r)))
		if !drop {
			n = min(n, len(p.body[0]))
			copy(p.body[0], p.buf[p.r:p.r+n])
			p.body = skip(p.body, n)
		}
		p.r += n
		p.left -= int64(n)
	}
}

// skip is list without its first n bytes, and without empty pieces in front.
func skip(list [][]byte, n int) [][]byte {
	for len(list) > 0 && n >= len(list[0]) {
		n -= len(list[0])
		list = list[1:]
	}
	if n > 0 {
		list[0] = list[0][n:]
	}
	return list
}
