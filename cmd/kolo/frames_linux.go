package main

import (
	"errors"
	"net"
	"syscall"
)

// ipv6MTUDiscover is IPV6_MTU_DISCOVER of linux/in6.h, which package syscall lacks on some
// processors.
const ipv6MTUDiscover = 23

// forbidFragments makes the kernel send datagrams whole or not at all.
func forbidFragments(conn *net.UDPConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		set = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IP, syscall.IP_MTU_DISCOVER, syscall.IP_PMTUDISC_PROBE)
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IPV6, ipv6MTUDiscover, syscall.IP_PMTUDISC_PROBE) // an IPv4 socket has none
	})
	return errors.Join(err, set)
}
