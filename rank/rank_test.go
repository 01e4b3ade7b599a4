package rank

import (
	"context"
	"fmt"
	"testing"

	"github.com/kolo-ccl/kolo"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// value is what rank r holds at index i: different for every pair.
func value(r kolo.Rank, i int) int32 { return int32(int(r)*1000003 + i*7 + 1) }

func fill(r kolo.Rank, n int) []int32 {
	b := make([]int32, n)
	for i := range b {
		b[i] = value(r, i)
	}
	return b
}

func sums(p, n int) []int32 {
	b := make([]int32, n)
	for r := range p {
		for i := range b {
			b[i] += value(kolo.Rank(r), i)
		}
	}
	return b
}

func TestAllReduceByRingAndFabric(t *testing.T) {
	for _, algorithm := range []string{"", "ring"} {
		for _, p := range []int{1, 2, 3, 8} {
			for _, n := range []int{0, 1, 5, 1000, 100003} {
				err := Config{Algorithm: algorithm}.Run(t.Context(), p, func(ctx context.Context, w *World) error {
					for range 3 {
						b := fill(w.Rank(), n)
						if err := AllReduce(ctx, w.Group(), b, kolo.Sum); err != nil {
							return err
						}
						require.Equal(t, sums(p, n), b)
						in, out := fill(w.Rank(), n), make([]int32, n)
						if err := AllReduceTo(ctx, w.Group(), out, in, kolo.Sum); err != nil {
							return err
						}
						require.Equal(t, sums(p, n), out)
						require.Equal(t, fill(w.Rank(), n), in)
					}
					return nil
				})
				require.NoError(t, err, "%s p=%d n=%d", algorithm, p, n)
			}
		}
	}
}

func BenchmarkAllReduce(b *testing.B) {
	for _, algorithm := range []string{"fabric", "ring"} {
		for _, p := range []int{2, 4, 8} {
			for _, bytes := range []int{8, 65536, 1 << 20} {
				b.Run(name(algorithm, p, bytes), func(b *testing.B) {
					b.SetBytes(int64(bytes))
					b.ReportAllocs()
					err := Config{Algorithm: algorithm}.Run(b.Context(), p, func(ctx context.Context, w *World) error {
						buf := make([]float32, bytes/4)
						if err := Barrier(ctx, w.Group()); err != nil {
							return err
						}
						if w.Rank() == 0 {
							b.ResetTimer()
						}
						for range b.N {
							if err := AllReduce(ctx, w.Group(), buf, kolo.Sum); err != nil {
								return err
							}
						}
						return nil
					})
					require.NoError(b, err)
				})
			}
		}
	}
}

func name(algorithm string, p, bytes int) string {
	return fmt.Sprintf("n=%d/bytes=%d/%s", p, bytes, algorithm)
}
