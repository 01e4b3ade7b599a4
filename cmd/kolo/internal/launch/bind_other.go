//go:build !linux

package launch

import (
	"fmt"
	"os/exec"
	"runtime"

	"github.com/kolo-ccl/kolo"
)

func usable() ([]core, error) {
	return nil, fmt.Errorf("%w: processes are bound to processors on Linux only, this is %s", kolo.ErrUnsupported, runtime.GOOS)
}

// startOn starts a process; none is bound here.
func startOn(c *exec.Cmd, _ core) error { return c.Start() }
