package rc

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/kolo-ccl/kolo/internal/golden"
)

// TestFixtures compares the packets of testdata/packets.txt with what is made of
// examples.
func TestFixtures(t *testing.T) {
	var b strings.Builder
	b.WriteString("# One packet of each opcode, from the IP header on; see README.md.\n")
	for i, p := range examples() {
		fmt.Fprintf(&b, "ipv6, %v: %s\n", p.Op, hex.EncodeToString(ipv6(p.Append(nil), 0xc000+uint16(i))))
	}
	for i, p := range examples() {
		fmt.Fprintf(&b, "ipv4, %v: %s\n", p.Op, hex.EncodeToString(ipv4(p.Append(nil), 0xc000+uint16(i), uint16(i*i))))
	}
	golden.Equal(t, "packets.txt", b.String())
}

// ipv6 puts a packet into a UDP datagram over IPv6, with the CRC.
func ipv6(packet []byte, port uint16) []byte {
	src, dst := [16]byte{0xfd, 9, 15: 1}, [16]byte{0xfd, 9, 15: 2}
	ip := []byte{0x68, 0x40, 0, 0, 0, 0, 17, 64} // traffic class 132
	binary.BigEndian.PutUint16(ip[4:], uint16(len(packet)+12))
	ip = append(append(ip, src[:]...), dst[:]...)
	return udp(ip, NewFlow6(src, dst, port, 4791).Seal(packet), port)
}

// ipv4 is the same over IPv4, with an identification.
func ipv4(packet []byte, port, id uint16) []byte {
	src, dst := [4]byte{10, 9, 0, 1}, [4]byte{10, 9, 0, 2}
	ip := []byte{0x45, 132, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0}
	binary.BigEndian.PutUint16(ip[2:], uint16(len(packet)+32))
	binary.BigEndian.PutUint16(ip[4:], id)
	ip = append(append(ip, src[:]...), dst[:]...)
	binary.BigEndian.PutUint16(ip[10:], ^fold(sum(0, ip)))
	f := NewFlow4(src, dst, port, 4791)
	f.ID4(id)
	return udp(ip, f.Seal(packet), port)
}

// udp appends the UDP header and its payload to an IP header.
func udp(ip, payload []byte, port uint16) []byte {
	h := binary.BigEndian.AppendUint16(nil, port)
	h = binary.BigEndian.AppendUint16(h, 4791)
	h = binary.BigEndian.AppendUint16(h, uint16(len(payload)+8))
	h = append(h, 0, 0)
	addresses := ip[8:]
	if ip[0]>>4 == 4 {
		addresses = ip[12:]
	}
	s := sum(uint32(17+len(payload)+8), addresses)
	s = sum(sum(s, h), payload)
	c := ^fold(s)
	if c == 0 {
		c = 0xffff
	}
	binary.BigEndian.PutUint16(h[6:], c)
	return append(append(ip, h...), payload...)
}

// sum adds b to an internet checksum; b has an even length.
func sum(s uint32, b []byte) uint32 {
	for ; len(b) > 1; b = b[2:] {
		s += uint32(binary.BigEndian.Uint16(b))
	}
	return s
}

func fold(s uint32) uint16 {
	for s>>16 != 0 {
		s = s&0xffff + s>>16
	}
	return uint16(s)
}
