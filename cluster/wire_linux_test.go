package cluster

import (
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// eavesdrop returns what crosses the loopback interface while f runs, packet after packet.
func eavesdrop(t *testing.T, f func()) []byte {
	const (
		everything = 0x0300   // ETH_P_ALL in network order
		ahead      = 64 << 20 // bytes that wait in the socket
	)
	fd, err := syscall.Socket(syscall.AF_PACKET, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Skipf("only root may listen to an interface: %v", err)
	}
	defer func() { require.NoError(t, syscall.Close(fd)) }()
	lo, err := net.InterfaceByName("lo")
	require.NoError(t, err)
	require.NoError(t, syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_RCVBUFFORCE, ahead))
	require.NoError(t, syscall.Bind(fd, &syscall.SockaddrLinklayer{Protocol: everything, Ifindex: lo.Index}))
	f()
	var wire []byte
	for packet := make([]byte, 1<<17); ; {
		n, _, err := syscall.Recvfrom(fd, packet, 0)
		if err == syscall.EAGAIN { // all that came is read
			return wire
		}
		require.NoError(t, err)
		wire = append(wire, packet[:n]...)
	}
}
