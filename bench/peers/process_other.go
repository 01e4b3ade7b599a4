//go:build !unix

package main

import (
	"os"
	"syscall"
)

// ownGroup does nothing: there are no groups of processes.
func ownGroup() *syscall.SysProcAttr { return nil }

// askGroup ends a process.
func askGroup(p *os.Process) error { return p.Kill() }

// endGroup ends a process.
func endGroup(p *os.Process) { _ = p.Kill() } // it may have ended
