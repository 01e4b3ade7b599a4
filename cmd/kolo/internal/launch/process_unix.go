//go:build unix

package launch

import (
	"os"
	"os/exec"
	"syscall"
)

// alone puts a process in a group of its own, so that a signal reaches what it has
// started too.
func alone(c *exec.Cmd) { c.SysProcAttr = attributes() }

// interrupt asks a process and what it has started to end.
func interrupt(p *os.Process) error { return syscall.Kill(-p.Pid, syscall.SIGTERM) }

// kill ends what is left of a process's group. Where nothing is left, that is no error.
func kill(pid int) { _ = syscall.Kill(-pid, syscall.SIGKILL) }

// codeOf is the exit code as a shell gives it.
func codeOf(s *os.ProcessState) int {
	if w, ok := s.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return 128 + int(w.Signal())
	}
	return s.ExitCode()
}
