package kernel

import (
	"math/rand/v2"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// page is a page of memory between two that cannot be touched.
func page(t *testing.T) []byte {
	size := syscall.Getpagesize()
	whole, err := syscall.Mmap(-1, 0, 3*size, syscall.PROT_NONE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, syscall.Munmap(whole)) })
	middle := whole[size : 2*size : 2*size]
	require.NoError(t, syscall.Mprotect(middle, syscall.PROT_READ|syscall.PROT_WRITE))
	return middle
}

func TestNothingOutsideOfTheSlicesIsTouched(t *testing.T) {
	rng := rand.New(rand.NewPCG(31, 32))
	pages := [][]byte{page(t), page(t), page(t), page(t)}
	for _, o := range mainOps() {
		size := o.DType.Size()
		for n := range 70 {
			for _, atEnd := range []bool{true, false} {
				slices := make([][]byte, len(pages))
				for i, p := range pages {
					slices[i] = p[:n*size]
					if atEnd {
						slices[i] = p[len(p)-n*size:]
					}
					fill(rng, o.DType, slices[i])
				}
				srcs := slices[1:]
				want := scalarFold(o, srcs)
				o.Fold(slices[0], srcs...)
				same(t, o, srcs, slices[0], want)
				o.Spread(slices, srcs)
				same(t, o, srcs, slices[3], want)
			}
		}
	}
}
