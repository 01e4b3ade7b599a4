//go:build amd64 || arm64

package roce

import (
	"encoding/binary"
	"net"
	"os"
	"syscall"
)

// What package syscall lacks (linux/udp.h, linux/in.h).
const (
	solUDP         = 17
	udpSegment     = 103
	udpGRO         = 104
	udpNoCheck6Rx  = 102
	ipPMTUDiscDo   = 2
	ipv6PMTUDiscDo = 2
	ipv6MTUDiscov  = 23
)

// wantBuffer is the receive buffer that is asked for; the kernel gives twice as much
// for its own use, or what net.core.rmem_max allows.
const wantBuffer = 4 << 20

// control runs f on the socket's descriptor.
func control(c *net.UDPConn, f func(fd int) error) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := raw.Control(func(fd uintptr) { inner = f(int(fd)) }); err != nil {
		return err
	}
	return inner
}

// mark sets the traffic class of a socket, and forbids fragments: the kernel then writes
// the identification 0 into IPv4 headers.
func mark(c *net.UDPConn, v4 bool, class int) error {
	return control(c, func(fd int) error {
		level, tos, discover, do := syscall.IPPROTO_IPV6, syscall.IPV6_TCLASS, ipv6MTUDiscov, ipv6PMTUDiscDo
		if v4 {
			level, tos, discover, do = syscall.IPPROTO_IP, syscall.IP_TOS, syscall.IP_MTU_DISCOVER, ipPMTUDiscDo
		}
		if err := syscall.SetsockoptInt(fd, level, tos, class); err != nil {
			return os.NewSyscallError("set the traffic class", err)
		}
		if !v4 { // adapters, and the kernel's own RoCE, send no UDP checksum over IPv6: the CRC is stronger
			if err := syscall.SetsockoptInt(fd, solUDP, udpNoCheck6Rx, 1); err != nil {
				return os.NewSyscallError("take packets without UDP checksum", err)
			}
		}
		return os.NewSyscallError("forbid fragments", syscall.SetsockoptInt(fd, level, discover, do))
	})
}

// growBuffers asks for a larger receive buffer and says how much data it holds.
func growBuffers(c *net.UDPConn) (room int) {
	err := control(c, func(fd int) error {
		if syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_RCVBUFFORCE, wantBuffer) != nil { // needs a right
			if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_RCVBUF, wantBuffer); err != nil {
				return err
			}
		}
		n, err := syscall.GetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_RCVBUF)
		room = n / 2
		return err
	})
	if err != nil {
		return 64 << 10
	}
	return room
}

// offload says whether the kernel cuts and joins packets (UDP_SEGMENT, UDP_GRO).
func offload(c *net.UDPConn) bool {
	return control(c, func(fd int) error {
		if _, err := syscall.GetsockoptInt(fd, solUDP, udpSegment); err != nil {
			return err
		}
		return syscall.SetsockoptInt(fd, solUDP, udpGRO, 1)
	}) == nil
}

// segmentation appends the control message that cuts what is sent into packets.
func segmentation(b []byte, size int) []byte {
	b = b[:syscall.CmsgSpace(2)]
	clear(b)
	binary.NativeEndian.PutUint64(b, uint64(syscall.CmsgLen(2)))
	binary.NativeEndian.PutUint32(b[8:], solUDP)
	binary.NativeEndian.PutUint32(b[12:], udpSegment)
	binary.NativeEndian.PutUint16(b[syscall.CmsgLen(0):], uint16(size))
	return b
}

// segmentOf is the size of the packets that were joined, 0 if none were.
func segmentOf(oob []byte) int {
	for len(oob) >= syscall.CmsgLen(0) {
		n := int(binary.NativeEndian.Uint64(oob))
		if n < syscall.CmsgLen(0) || n > len(oob) {
			return 0
		}
		if binary.NativeEndian.Uint32(oob[8:]) == solUDP && binary.NativeEndian.Uint32(oob[12:]) == udpGRO && n >= syscall.CmsgLen(4) {
			return int(binary.NativeEndian.Uint32(oob[syscall.CmsgLen(0):]))
		}
		n = (n + 7) &^ 7
		if n >= len(oob) {
			return 0
		}
		oob = oob[n:]
	}
	return 0
}
