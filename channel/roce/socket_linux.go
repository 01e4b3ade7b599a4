//go:build amd64 || arm64

package roce

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// socket is a UDP socket outside of the runtime's poller, so that a packet wakes nobody
// while a rank looks for it itself. The runtime watches bell instead, an epoll set with
// the socket in it that rings once each time it is armed.
type socket struct {
	use    sync.RWMutex // held for reading around system calls; closed is set under it
	closed bool
	fd     int
	v4     bool
	bell   int
	file   *os.File // of bell, nil where nobody waits
	raw    syscall.RawConn
}

// wantBuffer is the receive buffer that is asked for; the kernel gives twice as much
// for its own use, or what net.core.rmem_max allows.
const wantBuffer = 4 << 20

// openSocket makes a socket at an address, with a traffic class. It forbids fragments,
// and the kernel then writes the identification 0 into IPv4 headers. Over IPv6 packets
// without a UDP checksum are taken: adapters and the kernel's own RoCE send none.
func openSocket(at netip.AddrPort, class int) (s *socket, err error) {
	s = &socket{v4: at.Addr().Is4(), bell: -1}
	family, level := unix.AF_INET6, unix.IPPROTO_IPV6
	if s.v4 {
		family, level = unix.AF_INET, unix.IPPROTO_IP
	}
	if s.fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	options := [][3]int{{level, unix.IPV6_TCLASS, class}, {level, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO},
		{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1}, {unix.SOL_UDP, unix.UDP_NO_CHECK6_RX, 1}}
	if s.v4 {
		options = [][3]int{{level, unix.IP_TOS, class}, {level, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO}}
	}
	for _, o := range options {
		if err := unix.SetsockoptInt(s.fd, o[0], o[1], o[2]); err != nil {
			_ = unix.Close(s.fd) // the first error counts
			return nil, os.NewSyscallError("set an option of a socket", err)
		}
	}
	if err := unix.Bind(s.fd, sockaddr(at)); err != nil {
		_ = unix.Close(s.fd) // the first error counts
		return nil, os.NewSyscallError("bind", err)
	}
	return s, nil
}

func sockaddr(at netip.AddrPort) unix.Sockaddr {
	if at.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
	}
	zone := 0
	if i, err := net.InterfaceByName(at.Addr().Zone()); err == nil {
		zone = i.Index
	}
	return &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16(), ZoneId: uint32(zone)}
}

// number is the socket's port.
func (s *socket) number() uint16 {
	a, err := unix.Getsockname(s.fd)
	if err != nil {
		return 0
	}
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return uint16(a.Port)
	case *unix.SockaddrInet6:
		return uint16(a.Port)
	}
	return 0
}

// grow asks for a larger receive buffer and says how much data it holds.
func (s *socket) grow() (room int) {
	if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, wantBuffer) != nil { // needs a right
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, wantBuffer) // what there is is asked for next
	}
	n, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
	if err != nil {
		return 64 << 10
	}
	return n / 2
}

// offload says whether the kernel cuts and joins packets.
func (s *socket) offload() bool {
	if _, err := unix.GetsockoptInt(s.fd, unix.SOL_UDP, unix.UDP_SEGMENT); err != nil {
		return false
	}
	return unix.SetsockoptInt(s.fd, unix.SOL_UDP, unix.UDP_GRO, 1) == nil
}

// listens makes the bell.
func (s *socket) listens() (err error) {
	if s.bell, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return os.NewSyscallError("epoll", err)
	}
	if err := unix.SetNonblock(s.bell, true); err != nil { // so that the runtime watches it
		return os.NewSyscallError("epoll", err)
	}
	s.file = os.NewFile(uintptr(s.bell), "epoll")
	if s.raw, err = s.file.SyscallConn(); err != nil {
		return err
	}
	return os.NewSyscallError("epoll", unix.EpollCtl(s.bell, unix.EPOLL_CTL_ADD, s.fd, &unix.EpollEvent{Events: unix.EPOLLONESHOT}))
}

// close closes the socket and ends a wait.
func (s *socket) close() error {
	s.use.Lock()
	defer s.use.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	err := unix.Close(s.fd)
	if s.file != nil {
		if e := s.file.Close(); err == nil {
			err = e
		}
	}
	return err
}

// wait waits until there is something to receive, or the socket is closed. One
// goroutine at a time may wait.
func (s *socket) wait() error {
	s.use.RLock()
	if s.closed {
		s.use.RUnlock()
		return net.ErrClosed
	}
	err := unix.EpollCtl(s.bell, unix.EPOLL_CTL_MOD, s.fd, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT})
	s.use.RUnlock()
	if err != nil {
		return os.NewSyscallError("epoll", err)
	}
	var rang [1]unix.EpollEvent
	return s.raw.Read(func(fd uintptr) bool {
		n, err := unix.EpollWait(int(fd), rang[:], 0)
		return n > 0 || err != nil && err != unix.EINTR
	})
}

// recv receives into a list of memory without waiting; n is negative if there is nothing.
func (s *socket) recv(list [][]byte, oob []byte) (n, oobn int, from netip.AddrPort, err error) {
	var name unix.RawSockaddrInet6 // the larger of the two
	var vectors [mostVectors]unix.Iovec
	count := fill(&vectors, list)
	msg := unix.Msghdr{Name: (*byte)(unsafe.Pointer(&name)), Namelen: unix.SizeofSockaddrInet6, Iov: &vectors[0], Iovlen: uint64(count), Control: &oob[0], Controllen: uint64(len(oob))}
	s.use.RLock()
	defer s.use.RUnlock()
	if s.closed {
		return -1, 0, from, net.ErrClosed
	}
	r, _, e := syscall.Syscall(syscall.SYS_RECVMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&msg)), syscall.MSG_DONTWAIT)
	switch e {
	case 0:
	case syscall.EAGAIN, syscall.EINTR:
		return -1, 0, from, nil
	default:
		return -1, 0, from, os.NewSyscallError("recvmsg", e)
	}
	port := uint16(name.Port)
	port = port<<8 | port>>8
	if name.Family == unix.AF_INET {
		four := (*unix.RawSockaddrInet4)(unsafe.Pointer(&name))
		return int(r), int(msg.Controllen), netip.AddrPortFrom(netip.AddrFrom4(four.Addr), port), nil
	}
	return int(r), int(msg.Controllen), netip.AddrPortFrom(netip.AddrFrom16(name.Addr), port), nil
}

// sendWait is how long a full queue of an interface may hold a packet up, in
// milliseconds; then the packet is lost.
const sendWait = 100

// mostVectors is the most pieces of one call:
const mostVectors = 256 // of 65,000 bytes in pieces of 512 at least, and a header for each of 64 packets

// send sends a packet, or with oob several, whose bytes are those of a list.
func (s *socket) send(list [][]byte, oob []byte, to netip.AddrPort) error {
	var name unix.RawSockaddrInet6
	size := uint32(unix.SizeofSockaddrInet6)
	port := to.Port()<<8 | to.Port()>>8
	if s.v4 {
		four := (*unix.RawSockaddrInet4)(unsafe.Pointer(&name))
		four.Family, four.Port, four.Addr, size = unix.AF_INET, port, to.Addr().As4(), unix.SizeofSockaddrInet4
	} else {
		name.Family, name.Port, name.Addr = unix.AF_INET6, port, to.Addr().As16()
	}
	var vectors [mostVectors]unix.Iovec
	n := fill(&vectors, list)
	msg := unix.Msghdr{Name: (*byte)(unsafe.Pointer(&name)), Namelen: size, Iov: &vectors[0], Iovlen: uint64(n)}
	if len(oob) > 0 {
		msg.Control, msg.Controllen = &oob[0], uint64(len(oob))
	}
	s.use.RLock()
	defer s.use.RUnlock()
	if s.closed {
		return net.ErrClosed
	}
	for range 2 {
		_, _, e := syscall.Syscall(syscall.SYS_SENDMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&msg)), syscall.MSG_DONTWAIT)
		switch e {
		case 0:
			return nil
		case syscall.EAGAIN:
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLOUT}}, sendWait) // then again, or lost
		case syscall.EINTR:
		default:
			return os.NewSyscallError("sendmsg", e)
		}
	}
	return os.NewSyscallError("sendmsg", syscall.EAGAIN)
}

// fill makes vectors of the pieces of a list, one for neighbours in memory, and says how
// many.
func fill(vectors *[mostVectors]unix.Iovec, list [][]byte) (n int) {
	var last []byte
	for _, b := range list {
		switch {
		case len(b) == 0:
			continue
		case n > 0 && follows(last, b):
			vectors[n-1].Len += uint64(len(b))
			last = last[:len(last)+len(b)]
			continue
		}
		vectors[n].Base, vectors[n].Len = &b[0], uint64(len(b))
		last = b
		n++
	}
	return n
}

// segmentation appends the control message that cuts what is sent into packets.
func segmentation(b []byte, size int) []byte {
	b = b[:unix.CmsgSpace(2)]
	clear(b)
	binary.NativeEndian.PutUint64(b, uint64(unix.CmsgLen(2)))
	binary.NativeEndian.PutUint32(b[8:], unix.SOL_UDP)
	binary.NativeEndian.PutUint32(b[12:], unix.UDP_SEGMENT)
	binary.NativeEndian.PutUint16(b[unix.CmsgLen(0):], uint16(size))
	return b
}

// segmentOf is the size of the packets that were joined, 0 if none were.
func segmentOf(oob []byte) int {
	for len(oob) >= unix.CmsgLen(0) {
		n := int(binary.NativeEndian.Uint64(oob))
		if n < unix.CmsgLen(0) || n > len(oob) {
			return 0
		}
		if binary.NativeEndian.Uint32(oob[8:]) == unix.SOL_UDP && binary.NativeEndian.Uint32(oob[12:]) == unix.UDP_GRO && n >= unix.CmsgLen(4) {
			return int(binary.NativeEndian.Uint32(oob[unix.CmsgLen(0):]))
		}
		n = (n + 7) &^ 7
		if n >= len(oob) {
			return 0
		}
		oob = oob[n:]
	}
	return 0
}
