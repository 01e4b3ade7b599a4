package rank

import (
	"context"
	"math"
	"testing"

	"github.com/kolo-ccl/kolo"

	"github.com/stretchr/testify/require"
)

// With Overflow, a sum or product that would wrap is refused, with its element; one
// that just fits is not.
func TestOverflowIsRefusedWhereItIsAskedFor(t *testing.T) {
	overflows(t, int8(120), 100, kolo.Sum, "element 3: the sum of 2 ranks is 220, which int8 does not hold")
	overflows(t, int8(-28), -100, kolo.Sum, "")
	overflows(t, int8(-29), -100, kolo.Sum, "the sum of 2 ranks is -129")
	overflows(t, uint8(255), 0, kolo.Sum, "")
	overflows(t, uint8(255), 1, kolo.Sum, "is 256, which uint8")
	overflows(t, int16(-181), 181, kolo.Prod, "")
	overflows(t, int16(182), 181, kolo.Prod, "element 3: the product of 2 ranks is 32942, which int16")
	overflows(t, int32(math.MinInt32), -1, kolo.Sum, "is -2147483649")
	overflows(t, int64(math.MaxInt64), 1, kolo.Sum, "is 9223372036854775808")
	overflows(t, uint64(1<<63), 2, kolo.Prod, "is 18446744073709551616")
	overflows(t, uint64(math.MaxUint64), 0, kolo.Max, "")
	overflows(t, float32(math.MaxFloat32), math.MaxFloat32, kolo.Sum, "")
}

// overflows reduces a and b of two ranks at element 3, and says what error is expected.
func overflows[T Number](t *testing.T, a, b T, op kolo.ReduceOp, text string) {
	t.Helper()
	errs := each(t, Config{Diagnose: Overflow}, 2, func(ctx context.Context, w *World) error {
		buf := []T{1, 0, 2, a, 1}
		if w.Rank() == 1 {
			buf = []T{0, 1, 1, b, 3}
		}
		return AllReduce(ctx, w.Group(), buf, op)
	})
	for r, err := range errs {
		if text == "" {
			require.NoError(t, err)
		} else {
			want(t, err, kolo.Rank(r), []error{kolo.ErrLimit}, text)
		}
	}
}
