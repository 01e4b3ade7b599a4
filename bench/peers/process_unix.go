//go:build unix

package main

import (
	"os"
	"syscall"
)

// askGroup asks a process's group to end.
func askGroup(p *os.Process) error { return syscall.Kill(-p.Pid, syscall.SIGTERM) }

// endGroup ends what is left of a process's group.
func endGroup(p *os.Process) {
	_ = syscall.Kill(-p.Pid, syscall.SIGKILL) // fails if nobody is left, as it should be
}
