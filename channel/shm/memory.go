//go:build linux && (amd64 || arm64)

package shm

import (
	"fmt"
	"math"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// seals keep a file at its size: memory that is mapped never goes away under a reader.
const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// makeShared makes memory that other processes can map by the file, which the caller
// closes. It is in no file system and ends with its last user.
func makeShared(name string, n int64) (mem []byte, file *os.File, err error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, nil, fmt.Errorf("memfd_create: %w", err)
	}
	file = os.NewFile(uintptr(fd), name)
	if err = unix.Ftruncate(fd, n); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	}
	if err == nil {
		mem, err = unix.Mmap(fd, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		_ = file.Close() // the first error counts
		return nil, nil, fmt.Errorf("%d bytes of shared memory: %w", n, err)
	}
	return mem, file, nil
}

// mapShared maps memory that a peer has made, and closes the file. It refuses what the
// peer could still make smaller.
func mapShared(fd int, n int64, prot int) ([]byte, error) {
	defer unix.Close(fd)
	got, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, fmt.Errorf("seals of a peer's memory: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("size of a peer's memory: %w", err)
	}
	if got&unix.F_SEAL_SHRINK == 0 || st.Size != n {
		return nil, fmt.Errorf("%w: memory of %d bytes with seals %#x where %d bytes were announced", errCorrupt, st.Size, got, n)
	}
	mem, err := unix.Mmap(fd, 0, int(n), prot, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes of a peer: %w", n, err)
	}
	return mem, nil
}

// bell wakes one process, all who sleep in it, whichever peer rings. Its two words are in memory that the
// peers map: how often it was rung, and whether somebody would hear.
type bell struct {
	rung, asleep *atomic.Uint32
}

const bellBytes = 4096

func newBell(mem []byte) bell {
	_ = mem[bellBytes-1]
	return bell{rung: (*atomic.Uint32)(unsafe.Pointer(&mem[0])), asleep: (*atomic.Uint32)(unsafe.Pointer(&mem[64]))}
}

// The operations of the futex system call, between processes.
const (
	futexWait = 0
	futexWake = 1
)

// ring wakes the owner if it sleeps.
func (b bell) ring() {
	if b.asleep.Load() != 0 {
		b.wake()
	}
}

func (b bell) wake() {
	b.rung.Add(1)
	// it fails only for a bad address, which this is not
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(b.rung)), futexWake, math.MaxInt32, 0, 0, 0)
}

// wait sleeps until the bell is rung or was since it had been rung seen times, at
// most ns nanoseconds. The runtime knows that the goroutine is in a system call.
func (b bell) wait(seen uint32, ns int64) {
	ts := unix.NsecToTimespec(ns)
	// woken, rung already, timed out, interrupted: the caller looks anyway
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(b.rung)), futexWait, uintptr(seen), uintptr(unsafe.Pointer(&ts)), 0, 0)
}

// yield gives the core to another process or thread that wants it. The runtime is not
// told: it would take a longer yield for a reason to start a thread.
func yield() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) } // it cannot fail
