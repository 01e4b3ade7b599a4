package rank

import (
	"errors"
	"fmt"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
)

// maxShared is the most bytes of a piece of shared memory.
const maxShared = 1 << 46

// AllocShared makes a slice of n zeros for use as a buffer, in memory that the other
// processes of the host read in place where the world's driver has such (channel/shm):
// a large AllReduce then copies nothing of it to where the others see it, and a message
// is copied once. Elsewhere it is Alloc.
//
// The memory is not of the Go heap. It lives until free, which is called once, when no
// call uses it, and at the latest until the last World of this process is closed: to touch
// it afterwards ends the process, as with any memory that is unmapped. Each piece costs
// the processes that share it a mapping, so a few large ones are better than many
// small ones.
func AllocShared[T Number](w *World, n int) (s []T, free func() error, err error) {
	size := int64(dtypeOf[T]().Size())
	if n < 0 {
		return nil, nil, fmt.Errorf("%w: shared memory for %d elements", kolo.ErrArgument, n)
	}
	if int64(n) > maxShared/size {
		return nil, nil, fmt.Errorf("%w: shared memory for %d elements", kolo.ErrLimit, n)
	}
	a, ok := w.p.driver.(channel.Allocator)
	if !ok || n == 0 {
		return Alloc[T](n), func() error { return nil }, nil
	}
	m, err := a.Alloc(int64(n) * size)
	if errors.Is(err, kolo.ErrUnsupported) {
		return Alloc[T](n), func() error { return nil }, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("shared memory for %d elements: %w", n, err)
	}
	return elementsOf[T](m.Host), func() error { return a.Free(m) }, nil
}
