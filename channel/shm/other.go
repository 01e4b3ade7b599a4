//go:build !linux || !(amd64 || arm64)

package shm

import (
	"fmt"
	"runtime"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
)

// New says that there is no such driver on this system: kolo.ErrUnsupported.
func New(channel.Config) (channel.Driver, error) {
	return nil, fmt.Errorf("%w: the shm driver is for linux on amd64 and arm64, not for %s/%s",
		kolo.ErrUnsupported, runtime.GOOS, runtime.GOARCH)
}
