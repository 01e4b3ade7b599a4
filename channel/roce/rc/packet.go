package rc

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Opcode is what a packet is for: the first byte of its base transport header.
type Opcode uint8

// The opcodes that this package speaks.
const (
	SendFirst Opcode = iota
	SendMiddle
	SendLast
	SendLastImm
	SendOnly
	SendOnlyImm
	WriteFirst
	WriteMiddle
	WriteLast
	WriteLastImm
	WriteOnly
	WriteOnlyImm
	ReadRequest
	ReadFirst
	ReadMiddle
	ReadLast
	ReadOnly
	Acknowledge
	// Datagram is SEND Only of the unreliable datagram service.
	Datagram Opcode = 0x64
)

var opcodeNames = map[Opcode]string{
	SendFirst: "SEND First", SendMiddle: "SEND Middle", SendLast: "SEND Last", SendLastImm: "SEND Last with Immediate",
	SendOnly: "SEND Only", SendOnlyImm: "SEND Only with Immediate",
	WriteFirst: "RDMA WRITE First", WriteMiddle: "RDMA WRITE Middle", WriteLast: "RDMA WRITE Last",
	WriteLastImm: "RDMA WRITE Last with Immediate", WriteOnly: "RDMA WRITE Only", WriteOnlyImm: "RDMA WRITE Only with Immediate",
	ReadRequest: "RDMA READ Request", ReadFirst: "RDMA READ response First", ReadMiddle: "RDMA READ response Middle",
	ReadLast: "RDMA READ response Last", ReadOnly: "RDMA READ response Only", Acknowledge: "Acknowledge",
	Datagram: "UD SEND Only",
}

// String is the specification's name of the opcode.
func (o Opcode) String() string {
	if s := opcodeNames[o]; s != "" {
		return s
	}
	return fmt.Sprintf("opcode %#02x", uint8(o))
}

// The shapes of packets: which extended headers they have, and their place in a message.
type shape uint16

const (
	known    shape = 1 << iota
	hasRETH        // RDMA extended transport header
	hasAETH        // acknowledge extended transport header
	hasImm         // immediate data
	hasDETH        // datagram extended transport header
	begins         // first packet of a message
	ends           // last packet of a message
	isSend         // of a SEND
	isWrite        // of an RDMA WRITE
	response       // goes from responder to requester
	noData         // has no payload
)

var shapes = [256]shape{
	SendFirst: known | isSend | begins, SendMiddle: known | isSend, SendLast: known | isSend | ends,
	SendLastImm: known | isSend | ends | hasImm, SendOnly: known | isSend | begins | ends, SendOnlyImm: known | isSend | begins | ends | hasImm,
	WriteFirst: known | isWrite | begins | hasRETH, WriteMiddle: known | isWrite, WriteLast: known | isWrite | ends,
	WriteLastImm: known | isWrite | ends | hasImm, WriteOnly: known | isWrite | begins | ends | hasRETH,
	WriteOnlyImm: known | isWrite | begins | ends | hasRETH | hasImm,
	ReadRequest:  known | begins | ends | hasRETH | noData,
	ReadFirst:    known | response | begins | hasAETH, ReadMiddle: known | response, ReadLast: known | response | ends | hasAETH,
	ReadOnly: known | response | begins | ends | hasAETH, Acknowledge: known | response | begins | ends | hasAETH | noData,
	Datagram: known | begins | ends | hasDETH,
}

// Lengths of headers in bytes, and of the CRC behind the payload.
const (
	bthSize  = 12
	rethSize = 16
	aethSize = 4
	immSize  = 4
	dethSize = 8
	// ICRCSize is the length of the invariant CRC, the last bytes of a packet.
	ICRCSize = 4
	// MaxOverhead is the most bytes of a packet besides its payload, padding and CRC
	// included.
	MaxOverhead = bthSize + rethSize + immSize + 3 + ICRCSize
)

// headerSize is the length of all headers of a packet.
func (s shape) headerSize() int {
	n := bthSize
	if s&hasRETH != 0 {
		n += rethSize
	}
	if s&hasAETH != 0 {
		n += aethSize
	}
	if s&hasDETH != 0 {
		n += dethSize
	}
	if s&hasImm != 0 {
		n += immSize
	}
	return n
}

// defaultPKey is the partition that every port is a full member of.
const defaultPKey = 0xffff

// Packet is one packet: what follows the UDP header, without the CRC. Fields of
// headers that the opcode does not have are 0.
type Packet struct {
	Op        Opcode
	Solicited bool
	AckReq    bool   // the requester asks for an acknowledgement
	PKey      uint16 // partition
	QPN       uint32 // destination queue pair, 24 bits
	PSN       uint32 // packet sequence number, 24 bits

	VA     uint64 // RETH: address in the peer's region
	Key    uint32 // RETH: key of the region
	Length uint32 // RETH: bytes of the whole message

	Syndrome Syndrome // AETH
	MSN      uint32   // AETH: messages that the responder has completed, 24 bits

	Imm    uint32 // immediate data
	QKey   uint32 // DETH
	SrcQPN uint32 // DETH

	Payload []byte // of Parse: a part of the packet's own bytes
}

// ErrPacket is wrapped by the errors of Parse.
var ErrPacket = errors.New("bad RoCE packet")

// Parse reads the payload of a UDP datagram, whose last four bytes are the CRC, which
// it does not look at. The payload of the result is a part of b.
func Parse(b []byte) (Packet, error) {
	if len(b) < bthSize+ICRCSize {
		return Packet{}, fmt.Errorf("%w: %d bytes", ErrPacket, len(b))
	}
	p := apart(b)
	s := shapes[p.Op]
	pad, size := int(b[1]>>4&3), s.headerSize()
	switch {
	case s&known == 0:
		return Packet{}, fmt.Errorf("%w: %v", ErrPacket, p.Op)
	case b[1]&0x0f != 0:
		return Packet{}, fmt.Errorf("%w: transport version %d", ErrPacket, b[1]&0x0f)
	case len(b) < size+pad+ICRCSize:
		return Packet{}, fmt.Errorf("%w: %d bytes of %v, want at least %d", ErrPacket, len(b), p.Op, size+pad+ICRCSize)
	case len(b)%4 != 0:
		return Packet{}, fmt.Errorf("%w: %d bytes, not a multiple of 4", ErrPacket, len(b))
	}
	at := b[bthSize:]
	if s&hasRETH != 0 {
		p.VA, p.Key, p.Length = binary.BigEndian.Uint64(at), binary.BigEndian.Uint32(at[8:]), binary.BigEndian.Uint32(at[12:])
		at = at[rethSize:]
	}
	if s&hasAETH != 0 {
		p.Syndrome, p.MSN = Syndrome(at[0]), binary.BigEndian.Uint32(at)&psnMask
		at = at[aethSize:]
	}
	if s&hasDETH != 0 {
		p.QKey, p.SrcQPN = binary.BigEndian.Uint32(at), binary.BigEndian.Uint32(at[4:])&psnMask
		at = at[dethSize:]
	}
	if s&hasImm != 0 {
		p.Imm = binary.BigEndian.Uint32(at)
		at = at[immSize:]
	}
	p.Payload = at[:len(at)-pad-ICRCSize]
	if s&noData != 0 && len(p.Payload)+pad > 0 {
		return Packet{}, fmt.Errorf("%w: %v with %d bytes of data", ErrPacket, p.Op, len(p.Payload))
	}
	return p, nil
}

// apart reads the base transport header only.
func apart(head []byte) Packet {
	return Packet{Op: Opcode(head[0]), Solicited: head[1]&0x80 != 0, PKey: binary.BigEndian.Uint16(head[2:]),
		QPN: binary.BigEndian.Uint32(head[4:]) & psnMask, AckReq: head[8]&0x80 != 0, PSN: binary.BigEndian.Uint32(head[8:]) & psnMask}
}

// ParseMiddle reads a packet of the middle of a WRITE, whose payload lies elsewhere than
// its transport header. Landing.Fits has looked at the header.
func ParseMiddle(head, payload []byte) Packet {
	p := apart(head)
	p.Payload = payload
	return p
}

// Append appends the packet, padded, without the CRC.
func (p *Packet) Append(b []byte) []byte {
	b = p.appendHeader(b, len(p.Payload))
	b = append(b, p.Payload...)
	return append(b, 0, 0, 0)[:len(b)+padding(len(p.Payload))]
}

// padding is the number of bytes that make a multiple of 4 of n.
func padding(n int) int { return -n & 3 }

// appendHeader appends the headers of a packet whose payload has size bytes.
func (p *Packet) appendHeader(b []byte, size int) []byte {
	s := shapes[p.Op]
	flags := byte(0x40) | byte(padding(size))<<4 // migrated, as between ports without path migration
	if p.Solicited {
		flags |= 0x80
	}
	b = append(b, byte(p.Op), flags)
	b = binary.BigEndian.AppendUint16(b, p.PKey)
	b = binary.BigEndian.AppendUint32(b, p.QPN&psnMask)
	psn := p.PSN & psnMask
	if p.AckReq {
		psn |= 1 << 31
	}
	b = binary.BigEndian.AppendUint32(b, psn)
	if s&hasRETH != 0 {
		b = binary.BigEndian.AppendUint64(b, p.VA)
		b = binary.BigEndian.AppendUint32(b, p.Key)
		b = binary.BigEndian.AppendUint32(b, p.Length)
	}
	if s&hasAETH != 0 {
		b = binary.BigEndian.AppendUint32(b, uint32(p.Syndrome)<<24|p.MSN&psnMask)
	}
	if s&hasDETH != 0 {
		b = binary.BigEndian.AppendUint32(b, p.QKey)
		b = binary.BigEndian.AppendUint32(b, p.SrcQPN&psnMask)
	}
	if s&hasImm != 0 {
		b = binary.BigEndian.AppendUint32(b, p.Imm)
	}
	return b
}

// Syndrome is the first byte of an AETH: acknowledged, receiver not ready with a wait,
// or refused with a reason.
type Syndrome uint8

// The syndromes. An RNR NAK is RNR plus the code of a wait.
const (
	ACK          Syndrome = 0x1f // no credits are counted
	RNR          Syndrome = 0x20
	NAKSequence  Syndrome = 0x60
	NAKInvalid   Syndrome = 0x61
	NAKAccess    Syndrome = 0x62
	NAKOperation Syndrome = 0x63
)

// kind is the syndrome without its value.
func (s Syndrome) kind() Syndrome { return s &^ 0x1f }
