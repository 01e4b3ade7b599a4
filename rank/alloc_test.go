package rank

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAlloc(t *testing.T) {
	for _, n := range []int{0, 1, 1023, 1 << 19, 1 << 20, 5<<20 + 3} {
		s := Alloc[float32](n)
		require.Len(t, s, n)
		require.Equal(t, n, cap(s))
		if at := spanOf(Of(s).Memory).lo; 4*n >= hugePage && at%hugePage != 0 {
			t.Errorf("%d elements begin at %#x", n, at)
		}
		for i := range s {
			if s[i] != 0 {
				t.Fatalf("%d elements: element %d is %v", n, i, s[i])
			}
			s[i] = float32(i)
		}
	}
}
