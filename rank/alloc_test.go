package rank

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAlloc(t *testing.T) {
	for _, n := range []int{0, 1, 1023, 1 << 20, 5<<20 + 3} {
		s := Alloc[float32](n)
		require.Len(t, s, n)
		for i := range s {
			if s[i] != 0 {
				t.Fatalf("%d elements: element %d is %v", n, i, s[i])
			}
			s[i] = float32(i)
		}
	}
}
