package shm

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
)

// frame is the head of an entry of a ring, a cache line. Up to inlineBytes of
// payload are in it; more follow, filled up to whole lines.
//
//	0 kind, class, lane, type | 4 payload bytes | 8 from | 12 to | 16 group | 24 call
//	32 digest | 40 number | 44 offer | 48 length | 56 payload of up to 8 bytes
type frame struct {
	kind     frameKind
	dtype    kolo.DType
	size     uint32 // bytes of payload
	from, to kolo.Rank
	key      channel.Key
	digest   uint64
	offer    uint32 // number of an offer: a slot and how often it was used
	length   uint64 // bytes of the message; of a chunk, its offset
	inline   [inlineBytes]byte
}

const (
	line        = 64
	inlineBytes = 8
	eagerBytes  = 16 << 10 // the largest message that travels in the ring
	chunkBytes  = 32 << 10 // what is written at once of a message that goes in chunks
)

type frameKind uint8

// The kinds of frame.
const (
	noFrame    frameKind = iota
	message              // a whole message; the payload is its bytes
	offer                // a message to be fetched; the payload is a list of spans
	wanted               // the receiver has claimed an offer and asks for it in chunks
	chunk                // bytes of a wanted offer
	fetched              // the receiver is done with an offer
	refused              // the receiver disagrees with an offer; size, type and digest are its own
	failed               // the receiver could not fetch an offer
	abandoned            // the sender has aborted a group
	hungUp               // a rank has closed its link to another
	gone                 // a rank has closed all its links
	frameKinds           // their number
)

// put writes the head to a line.
func (f *frame) put(b []byte) {
	_ = b[line-1]
	b[0], b[1], b[2], b[3] = byte(f.kind), byte(f.key.Class), f.key.Lane, byte(f.dtype)
	le := binary.LittleEndian
	le.PutUint32(b[4:], f.size)
	le.PutUint32(b[8:], uint32(f.from))
	le.PutUint32(b[12:], uint32(f.to))
	le.PutUint64(b[16:], f.key.Group)
	le.PutUint64(b[24:], f.key.Call)
	le.PutUint64(b[32:], f.digest)
	le.PutUint32(b[40:], f.key.Number)
	le.PutUint32(b[44:], f.offer)
	le.PutUint64(b[48:], f.length)
	copy(b[56:line], f.inline[:])
}

// parse reads the head from a line, which is the caller's own copy, and says what is
// wrong with it.
func (f *frame) parse(b *[line]byte) error {
	le := binary.LittleEndian
	*f = frame{
		kind: frameKind(b[0]), dtype: kolo.DType(b[3]), size: le.Uint32(b[4:]),
		from: kolo.Rank(le.Uint32(b[8:])), to: kolo.Rank(le.Uint32(b[12:])),
		key: channel.Key{Class: channel.Class(b[1]), Lane: b[2], Group: le.Uint64(b[16:]),
			Call: le.Uint64(b[24:]), Number: le.Uint32(b[40:])},
		digest: le.Uint64(b[32:]), offer: le.Uint32(b[44:]), length: le.Uint64(b[48:]),
	}
	copy(f.inline[:], b[56:])
	switch {
	case f.kind == noFrame || f.kind >= frameKinds:
		return fmt.Errorf("%w: a frame of kind %d", errCorrupt, f.kind)
	case f.from > maxRank || f.to > maxRank:
		return fmt.Errorf("%w: a frame from rank %d to rank %d", errCorrupt, f.from, f.to)
	case f.length > 1<<62:
		return fmt.Errorf("%w: a message of %d bytes", errCorrupt, f.length)
	case f.kind == message && (f.length != uint64(f.size) || f.size > eagerBytes):
		return fmt.Errorf("%w: a message of %d bytes in a frame of %d", errCorrupt, f.length, f.size)
	case f.kind == offer && (f.size > maxSpans*spanBytes || f.size%spanBytes != 0):
		return fmt.Errorf("%w: a list of spans of %d bytes", errCorrupt, f.size)
	case f.kind == chunk && (f.size > chunkBytes || f.size == 0):
		return fmt.Errorf("%w: a chunk of %d bytes", errCorrupt, f.size)
	case f.kind > offer && f.kind != chunk && f.size != 0:
		return fmt.Errorf("%w: %d bytes behind a frame of kind %d", errCorrupt, f.size, f.kind)
	}
	return nil
}

// entry is how many bytes of the ring the frame takes.
func (f *frame) entry() uint64 {
	if f.size <= inlineBytes {
		return line
	}
	return line + (uint64(f.size)+line-1)/line*line
}

// maxRank is the largest world rank that a frame may name.
const maxRank = 1<<24 - 1

// span is a piece of a message that is offered: in the sender's address space, and
// if region is not 0 also at an offset of memory that its Alloc made.
type span struct {
	addr, size, offset uint64
	region             uint32
}

const (
	spanBytes = 32
	maxSpans  = 128 // a message in more pieces goes in chunks
)

func (s *span) put(b []byte) {
	le := binary.LittleEndian
	le.PutUint64(b, s.addr)
	le.PutUint64(b[8:], s.size)
	le.PutUint64(b[16:], s.offset)
	le.PutUint64(b[24:], uint64(s.region))
}

// parseSpans reads the list of spans of an offer of length bytes.
func parseSpans(to []span, b []byte, length uint64) ([]span, error) {
	le, sum := binary.LittleEndian, uint64(0)
	for ; len(b) >= spanBytes; b = b[spanBytes:] {
		s := span{addr: le.Uint64(b), size: le.Uint64(b[8:]), offset: le.Uint64(b[16:]), region: uint32(le.Uint64(b[24:]))}
		if s.size == 0 || s.size > length-sum || s.addr+s.size < s.addr {
			return nil, fmt.Errorf("%w: a span of %d bytes at %#x in a message of %d", errCorrupt, s.size, s.addr, length)
		}
		sum += s.size
		to = append(to, s)
	}
	if len(to) > 0 && sum != length {
		return nil, fmt.Errorf("%w: spans of %d bytes in a message of %d", errCorrupt, sum, length)
	}
	return to, nil
}

// errCorrupt says that what a peer left in shared memory makes no sense.
var errCorrupt = errors.New("corrupt shared memory")
