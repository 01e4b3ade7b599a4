//go:build !linux

package main

import (
	"fmt"
	"net"

	"github.com/kolo-ccl/kolo"
)

// forbidFragments cannot be done on this system.
func forbidFragments(*net.UDPConn) error {
	return fmt.Errorf("%w: frames that must not be fragmented, on this system", kolo.ErrUnsupported)
}
