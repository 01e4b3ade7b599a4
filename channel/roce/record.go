package roce

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
)

// A SEND between two drivers is a list of records. All numbers are little-endian.
//
//	eager   a small message, its data behind the record
//	offer   a large message: its data comes by WRITE when the receiver says where to
//	take    where the data of an offer goes to: a list of places
//	taken   an eager message has met its receive; for classes whose sends wait for that
//	refuse  an offer or an eager message does not fit its receive, whose description is sent back
//	cancel  an offer or an eager message is withdrawn
//	credit  so many bytes of eager messages were taken
//	fin     this end is closed
type recordKind uint8

const (
	recordEager recordKind = 1 + iota
	recordOffer
	recordTake
	recordTaken
	recordRefuse
	recordCancel
	recordCredit
	recordFin
)

// The lengths of the records.
const (
	messageSize = 48 // eager and offer
	takeSize    = 16 // of a take without its places
	placeSize   = 24
	refuseSize  = 24
	shortSize   = 8 // taken, cancel, credit, fin
)

// record is one record, as a union of all kinds.
type record struct {
	kind    recordKind
	id      uint32 // the message's number at its sender; of a credit the bytes
	key     channel.Key
	dtype   kolo.DType
	size    int64
	digest  uint64
	stripes uint32 // offer: WRITEs with immediate data that it takes
	slot    uint32 // take: the immediate data of these WRITEs
	places  []place
	data    []byte // eager: the message; fin: why. Part of what was parsed.
}

// maxReason is the most bytes of what a fin says.
const maxReason = 256

var errRecord = errors.New("bad record")

// append appends the record; the data of an eager message is appended by the caller.
func (r *record) append(b []byte) []byte {
	le := binary.LittleEndian
	switch r.kind {
	case recordEager, recordOffer:
		b = append(b, byte(r.kind), byte(r.key.Class), r.key.Lane, byte(r.dtype))
		b = le.AppendUint32(b, r.id)
		b = le.AppendUint64(b, r.key.Group)
		b = le.AppendUint64(b, r.key.Call)
		b = le.AppendUint32(b, r.key.Number)
		b = le.AppendUint32(b, r.stripes)
		b = le.AppendUint64(b, uint64(r.size))
		b = le.AppendUint64(b, r.digest)
	case recordTake:
		b = append(b, byte(r.kind), byte(len(r.places)), 0, 0)
		b = le.AppendUint32(b, r.id)
		b = le.AppendUint32(b, r.slot)
		b = le.AppendUint32(b, 0)
		for _, p := range r.places {
			b = le.AppendUint64(b, p.va)
			b = le.AppendUint64(b, uint64(p.size))
			b = le.AppendUint32(b, p.key)
			b = le.AppendUint32(b, 0)
		}
	case recordRefuse:
		b = append(b, byte(r.kind), byte(r.dtype), 0, 0)
		b = le.AppendUint32(b, r.id)
		b = le.AppendUint64(b, uint64(r.size))
		b = le.AppendUint64(b, r.digest)
	case recordFin:
		n := min(len(r.data), maxReason)
		b = append(b, byte(r.kind), 0, 0, 0)
		b = le.AppendUint32(b, uint32(n))
		b = append(b, r.data[:n]...)
	default:
		b = append(b, byte(r.kind), 0, 0, 0)
		b = le.AppendUint32(b, r.id)
	}
	return b
}

// parseRecord reads the first record of b and returns what is behind it.
func parseRecord(b []byte) (r record, rest []byte, err error) {
	size, le := shortSize, binary.LittleEndian
	if len(b) > 0 {
		switch recordKind(b[0]) {
		case recordEager, recordOffer:
			size = messageSize
		case recordTake:
			if size = takeSize; len(b) > 1 {
				size += int(b[1]) * placeSize
			}
		case recordRefuse:
			size = refuseSize
		case recordTaken, recordCancel, recordCredit, recordFin:
		default:
			return r, nil, fmt.Errorf("%w: kind %d", errRecord, b[0])
		}
	}
	if len(b) < size {
		return r, nil, fmt.Errorf("%w: %d bytes, want %d", errRecord, len(b), size)
	}
	r = record{kind: recordKind(b[0]), id: le.Uint32(b[4:])}
	data := uint64(0)
	switch r.kind {
	case recordEager, recordOffer:
		r.key = channel.Key{Class: channel.Class(b[1]), Lane: b[2], Group: le.Uint64(b[8:]), Call: le.Uint64(b[16:]), Number: le.Uint32(b[24:])}
		r.dtype, r.stripes, r.size, r.digest = kolo.DType(b[3]), le.Uint32(b[28:]), int64(le.Uint64(b[32:])), le.Uint64(b[40:])
		if r.kind == recordEager {
			data = uint64(r.size)
		} else if r.stripes < 1 || r.stripes > maxStripes {
			return r, nil, fmt.Errorf("%w: an offer in %d stripes", errRecord, r.stripes)
		}
	case recordTake:
		r.slot = le.Uint32(b[8:])
		for p := b[takeSize:size]; len(p) > 0; p = p[placeSize:] {
			r.places = append(r.places, place{va: le.Uint64(p), size: int64(le.Uint64(p[8:])), key: le.Uint32(p[16:])})
		}
		if len(r.places) > maxPlaces || slices.ContainsFunc(r.places, func(p place) bool { return p.size <= 0 && len(r.places) > 1 || p.size < 0 }) {
			return r, nil, fmt.Errorf("%w: %d places", errRecord, len(r.places))
		}
	case recordRefuse:
		r.dtype, r.size, r.digest = kolo.DType(b[1]), int64(le.Uint64(b[8:])), le.Uint64(b[16:])
	case recordFin:
		if data = uint64(r.id); data > maxReason {
			return r, nil, fmt.Errorf("%w: a reason of %d bytes", errRecord, data)
		}
	}
	if r.size < 0 || data > uint64(len(b)-size) {
		return r, nil, fmt.Errorf("%w: %d bytes of data, %d are there", errRecord, data, len(b)-size)
	}
	r.data = b[size : size+int(data)]
	return r, b[size+int(data):], nil
}
