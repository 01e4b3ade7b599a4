package launch

import "syscall"

// attributes also ends the process when the launcher ends, however it does.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
