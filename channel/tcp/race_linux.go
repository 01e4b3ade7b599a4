//go:build race

package tcp

import (
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// toWrite tells the race detector of a write that is about to be tried. That what is done
// before a write comes before what is done after a read it learns from package syscall,
// by a call of no bytes.
func toWrite(fd int, v []unix.Iovec) {
	for i := range v {
		runtime.RaceReadRange(unsafe.Pointer(v[i].Base), int(v[i].Len))
	}
	_, _ = syscall.Write(fd, nil) // what is wrong with the socket, the write finds
}

// haveRead tells the race detector of a read of n bytes.
func haveRead(fd int, v []unix.Iovec, n int) {
	_, _ = syscall.Read(fd, nil) // as above
	for i := range v {
		k := min(n, int(v[i].Len))
		runtime.RaceWriteRange(unsafe.Pointer(v[i].Base), k)
		n -= k
	}
}
