//go:build !unix

package launch

import (
	"os"
	"os/exec"
)

// alone does nothing: there are no groups of processes.
func alone(*exec.Cmd) {}

// interrupt ends a process.
func interrupt(p *os.Process) error { return p.Kill() }

// kill does nothing: there are no groups of processes.
func kill(int) {}

// codeOf is the exit code.
func codeOf(s *os.ProcessState) int { return s.ExitCode() }

// keeper does nothing: there are no groups of processes.
type keeper struct{}

func newKeeper() *keeper  { return nil }
func (*keeper) begun(int) {}
func (*keeper) ended(int) {}
func (*keeper) close()    {}
