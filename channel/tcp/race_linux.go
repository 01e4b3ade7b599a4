//go:build race

package tcp

import (
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// toWrite tells the race detector of a write that is about to be tried. That what is done
// before a write comes before what is done after a read it learns from package syscall: by
// a write that fails, as one of no bytes would take the error that a socket has, and by a
// read of no bytes, which does not.
func toWrite(v []unix.Iovec) {
	for i := range v {
		runtime.RaceReadRange(unsafe.Pointer(v[i].Base), int(v[i].Len))
	}
	_, _ = syscall.Write(-1, nil)
}

// haveRead tells the race detector of a read of n bytes.
func haveRead(fd int, v []unix.Iovec, n int) {
	_, _ = syscall.Read(fd, nil)
	for i := range v {
		k := min(n, int(v[i].Len))
		runtime.RaceWriteRange(unsafe.Pointer(v[i].Base), k)
		n -= k
	}
}
