package rank

import (
	"syscall"

	"github.com/kolo-ccl/kolo"
)

// hugePages asks for huge pages in a piece of memory, of which the whole pages count.
// It is advice: where the system cannot follow it, nothing is lost.
func hugePages(b []byte) {
	const advHugePage = 14 // MADV_HUGEPAGE of madvise(2)
	page := uintptr(syscall.Getpagesize())
	at := spanOf(kolo.HostMemory(b))
	first := (at.lo+page-1)&^(page-1) - at.lo
	last := at.hi&^(page-1) - at.lo
	_ = syscall.Madvise(b[first:last], advHugePage) // advice
}
