//go:build linux && (amd64 || arm64)

package shm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/kolo-ccl/kolo"
)

// address says how the ranks of a process are reached. It is what Address gives, as
// JSON.
type address struct {
	Host    string `json:"host"`    // boot id of the kernel and its network namespace, where the socket's name is known
	User    int    `json:"user"`    // both ends must be the same user
	Process int    `json:"process"` // as this process sees itself
	Started uint64 `json:"started"` // in clock ticks after boot: with Process it names a process once and for all
	Socket  string `json:"socket"`  // an abstract name; random, so it is the process's key as well
}

// here is the address of this process but for the socket.
func here() (address, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return address{}, fmt.Errorf("which host this is: %w", err)
	}
	net, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return address{}, fmt.Errorf("which network namespace this is: %w", err)
	}
	started, err := startOf(os.Getpid())
	if err != nil {
		return address{}, err
	}
	return address{Host: string(bytes.TrimSpace(boot)) + " " + net, User: os.Getuid(), Process: os.Getpid(), Started: started}, nil
}

// parseAddress reads what Address gave in another process.
func parseAddress(b []byte) (address, error) {
	var a address
	if len(b) > maxText {
		return a, fmt.Errorf("%w: a shm address of %d bytes", kolo.ErrArgument, len(b))
	}
	if err := json.Unmarshal(b, &a); err != nil {
		return a, fmt.Errorf("%w: shm address %.80q: %w", kolo.ErrArgument, b, err)
	}
	if len(a.Socket) < 2 || len(a.Socket) > maxSocketName || a.Socket[0] != '@' {
		return a, fmt.Errorf("%w: shm address %.80q", kolo.ErrArgument, b)
	}
	return a, nil
}

const (
	maxText       = 4 << 10 // bytes of an address and of what is said at the socket
	maxSocketName = 100
)

// reaches says whether the processes with two addresses are on one host, of one user and in
// one network namespace: then shm joins them.
func (a address) reaches(b address) bool { return a.Host == b.Host && a.User == b.User }

// startOf is when a process was started, in clock ticks after boot.
func startOf(pid int) (uint64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("start of process %d: %w", pid, err)
	}
	// the name, in parentheses, may hold anything; the start is the 20th field behind it
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	const start = 19
	if len(fields) <= start {
		return 0, fmt.Errorf("start of process %d: %q", pid, b)
	}
	at, err := strconv.ParseUint(string(fields[start]), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("start of process %d: %w", pid, err)
	}
	return at, nil
}

// process is a peer's process, held so that its number cannot become another's
// unnoticed. The zero value holds none.
type process struct {
	pid int // in this process's view, or 0 where the peer is not visible
	fd  int // a pidfd
}

func (p process) held() bool { return p.pid > 0 }

// seize takes hold of the process at the other end of a socket, if it is the one that
// was started then.
func seize(pid int, started uint64) (process, error) {
	if pid <= 0 {
		return process{}, errUnseen
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return process{}, fmt.Errorf("pidfd_open: %w", err)
	}
	at, err := startOf(pid)
	if err == nil && at != started {
		err = errUnseen
	}
	if err != nil {
		_ = unix.Close(fd) // it was only looked at
		return process{}, err
	}
	return process{pid: pid, fd: fd}, nil
}

// errUnseen is of a process that has no number here, or whose number is another's.
var errUnseen = errors.New("it is not seen from here: give both one process-id name space")

// refusalOf is why a peer's memory cannot be read, with what to do about it. It names no
// process, so that peers can be told together.
func refusalOf(err error) error {
	todo := ""
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		todo = ": set kernel.yama.ptrace_scope to 0, or give CAP_SYS_PTRACE; run both as one user; in a container let its seccomp profile permit process_vm_readv and pidfd_open"
		if scope, e := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope"); e == nil {
			todo += fmt.Sprintf(" (kernel.yama.ptrace_scope is %s here)", bytes.TrimSpace(scope))
		}
	case errors.Is(err, unix.ENOSYS):
		todo = ": the kernel (CONFIG_CROSS_MEMORY_ATTACH), or a container's seccomp profile, has no such call"
	}
	if n := unix.Errno(0); errors.As(err, &n) {
		err = n
	}
	return fmt.Errorf("%w%s", err, todo)
}

// alive says whether the process has its number still.
func (p process) alive() bool { return p.held() && unix.PidfdSendSignal(p.fd, 0, nil, 0) == nil }

func (p process) close() {
	if p.held() {
		_ = unix.Close(p.fd) // it was only looked at
	}
}

// read copies a list of the process's memory to one of ours, and says whether the
// kernel has done all of it.
func (p process) read(to []unix.Iovec, from []unix.RemoteIovec) error {
	left := 0
	for i := range to {
		left += int(to[i].Len)
	}
	for left > 0 {
		n, err := unix.ProcessVMReadv(p.pid, to, from, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("read %d bytes of process %d: %w", left, p.pid, err)
		}
		if n <= 0 {
			return fmt.Errorf("read %d bytes of process %d: none came", left, p.pid)
		}
		left -= n
		to, from = cutLocal(to, n), cutRemote(from, n)
	}
	return nil
}

func cutLocal(v []unix.Iovec, n int) []unix.Iovec {
	for len(v) > 0 && uint64(n) >= v[0].Len {
		n -= int(v[0].Len)
		v = v[1:]
	}
	if n > 0 {
		b := bytesOf(v[0])[n:]
		v[0].Base, v[0].Len = &b[0], uint64(len(b))
	}
	return v
}

func cutRemote(v []unix.RemoteIovec, n int) []unix.RemoteIovec {
	for len(v) > 0 && n >= v[0].Len {
		n -= v[0].Len
		v = v[1:]
	}
	if n > 0 {
		v[0].Base += uintptr(n)
		v[0].Len -= n
	}
	return v
}
