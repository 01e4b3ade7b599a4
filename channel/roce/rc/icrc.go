package rc

import (
	"encoding/binary"
	"hash/crc32"
)

// Flow is the path of packets whose CRC is computed: what the CRC covers of the IP
// and UDP headers. It is made by NewFlow4 or NewFlow6 and used by one goroutine at a
// time.
type Flow struct {
	head [8 + 40 + 8 + bthSize]byte // fields that may change on the way are ones
	ip   int                        // length of the IP header
	cut  map[int]*[MostCut]uint32   // by size, what each identification changes of the CRC; nil: it is 0
}

// MostCut is the most packets that a system cuts from one that it was given.
const MostCut = 64

// maxCutSizes is the most sizes for which a Flow keeps what identifications change.
const maxCutSizes = 64

// NewFlow6 is the flow of IPv6 packets.
func NewFlow6(src, dst [16]byte, srcPort, dstPort uint16) *Flow {
	f := &Flow{ip: 40}
	ip := f.ones()
	ip[0] = 0x6f // version; traffic class and flow label are ones
	ip[1], ip[2], ip[3] = 0xff, 0xff, 0xff
	ip[6], ip[7] = 17, 0xff // UDP; hop limit
	copy(ip[8:], src[:])
	copy(ip[24:], dst[:])
	f.ports(srcPort, dstPort)
	return f
}

// NewFlow4 is the flow of IPv4 packets that must not be fragmented.
func NewFlow4(src, dst [4]byte, srcPort, dstPort uint16) *Flow {
	f := &Flow{ip: 20}
	ip := f.ones()
	ip[0], ip[1] = 0x45, 0xff // no options; type of service
	ip[6], ip[8], ip[9] = 0x40, 0xff, 17
	ip[10], ip[11] = 0xff, 0xff
	copy(ip[12:], src[:])
	copy(ip[16:], dst[:])
	f.ports(srcPort, dstPort)
	return f
}

// ones writes the eight bytes that stand for a link header and returns the IP header.
func (f *Flow) ones() []byte {
	for i := range 8 {
		f.head[i] = 0xff
	}
	return f.head[8 : 8+f.ip]
}

func (f *Flow) ports(src, dst uint16) {
	udp := f.head[8+f.ip:]
	binary.BigEndian.PutUint16(udp, src)
	binary.BigEndian.PutUint16(udp[2:], dst)
	udp[6], udp[7] = 0xff, 0xff
}

// ID4 sets the identification of the IPv4 packets that follow, which the CRC covers.
func (f *Flow) ID4(id uint16) { binary.BigEndian.PutUint16(f.head[12:], id) }

// MayBeCut says that the IPv4 packets may have been cut from a large one by the sender's
// system, which numbers them from 0: the identification, which a receiver does not see, is
// then any below MostCut. That a packet which was damaged passes has 64 times the
// probability, 2^-26.
func (f *Flow) MayBeCut() {
	if f.ip == 20 {
		f.cut = map[int]*[MostCut]uint32{}
	}
}

// Matches says whether crc is that of a packet, in pieces as for CRC.
func (f *Flow) Matches(crc uint32, packet []byte, rest ...[]byte) bool {
	x := crc ^ f.CRC(packet, rest...)
	if x == 0 || f.cut == nil {
		return x == 0
	}
	size := len(packet)
	for _, b := range rest {
		size += len(b)
	}
	changes := f.cut[size]
	if changes == nil {
		if len(f.cut) >= maxCutSizes {
			clear(f.cut)
		}
		changes = f.changes(crc^x, packet, rest...)
		f.cut[size] = changes
	}
	for _, c := range changes[1:] {
		if c == x {
			return true
		}
	}
	return false
}

// changes is what each identification changes of the CRC zero of a packet whose
// identification is 0: the same for all packets of a size, as a CRC is linear.
func (f *Flow) changes(zero uint32, packet []byte, rest ...[]byte) *[MostCut]uint32 {
	var list [MostCut]uint32
	for bit := 1; bit < MostCut; bit *= 2 {
		f.ID4(uint16(bit))
		change := zero ^ f.CRC(packet, rest...)
		for id := range bit {
			list[bit+id] = list[id] ^ change
		}
	}
	f.ID4(0)
	return &list
}

// CRC is the invariant CRC of a packet without it: of its first piece, which begins with
// the base transport header, and of the pieces behind that.
func (f *Flow) CRC(packet []byte, rest ...[]byte) uint32 {
	size := len(packet) + ICRCSize + 8
	for _, b := range rest {
		size += len(b)
	}
	if f.ip == 40 {
		binary.BigEndian.PutUint16(f.head[12:], uint16(size))
	} else {
		binary.BigEndian.PutUint16(f.head[10:], uint16(size+20))
	}
	udp := 8 + f.ip
	binary.BigEndian.PutUint16(f.head[udp+4:], uint16(size))
	bth := f.head[udp+8 : udp+8+bthSize]
	copy(bth, packet)
	bth[4] = 0xff // congestion marks
	crc := crc32.Update(0, crc32.IEEETable, f.head[:udp+8+bthSize])
	crc = crc32.Update(crc, crc32.IEEETable, packet[bthSize:])
	for _, b := range rest {
		crc = crc32.Update(crc, crc32.IEEETable, b)
	}
	return crc
}

// Seal appends the CRC to a packet.
func (f *Flow) Seal(packet []byte) []byte {
	return binary.LittleEndian.AppendUint32(packet, f.CRC(packet))
}

// Sealed says whether the last four bytes are the CRC of those before. It is false
// where the packet is too short to have one.
func (f *Flow) Sealed(packet []byte) bool {
	n := len(packet) - ICRCSize
	return n >= bthSize && f.Matches(binary.LittleEndian.Uint32(packet[n:]), packet[:n])
}
