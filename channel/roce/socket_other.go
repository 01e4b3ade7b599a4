//go:build !linux || !(amd64 || arm64)

package roce

import (
	"fmt"
	"net/netip"
	"runtime"

	"github.com/kolo-ccl/kolo"
)

// socket is not there on this system.
type socket struct{}

func openSocket(netip.AddrPort, int) (*socket, error) {
	return nil, fmt.Errorf("%w: roce on %s/%s", kolo.ErrUnsupported, runtime.GOOS, runtime.GOARCH)
}

func (*socket) number() uint16                              { return 0 }
func (*socket) grow() int                                   { return 0 }
func (*socket) offload() bool                               { return false }
func (*socket) listens() error                              { return nil }
func (*socket) close() error                                { return nil }
func (*socket) wait() error                                 { return nil }
func (*socket) send([][]byte, []byte, netip.AddrPort) error { return nil }
func (*socket) recv([][]byte, []byte) (int, int, netip.AddrPort, error) {
	return -1, 0, netip.AddrPort{}, nil
}

func segmentation([]byte, int) []byte { return nil }

func segmentOf([]byte) int { return 0 }
