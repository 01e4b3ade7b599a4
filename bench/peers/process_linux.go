package main

import "syscall"

// ownGroup makes a process the leader of a group; the system ends it if this one dies.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
