//go:build race

package kernel

import (
	"runtime"
	"unsafe"
)

// racing says that this is a build for the race detector.
const racing = true

// announce tells the race detector what an assembly call is about to read and
// write: it cannot see that itself.
func announce(dsts, srcs [][]byte, from, to int) {
	for _, s := range srcs {
		runtime.RaceReadRange(unsafe.Pointer(&s[from]), to-from)
	}
	for _, d := range dsts {
		runtime.RaceWriteRange(unsafe.Pointer(&d[from]), to-from)
	}
}
