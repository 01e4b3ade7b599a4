package rank_test

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/rank"

	"github.com/stretchr/testify/require"
)

// manyRanks is more than any machine has processors.
const manyRanks = 1024

// memory is what the Go runtime holds, and the most that the process has ever held.
func memory() string {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	text := fmt.Sprintf("%d MiB on the heap, %d MiB of stacks, %d MiB in all", m.HeapInuse>>20, m.StackInuse>>20, m.Sys>>20)
	if status, err := os.ReadFile("/proc/self/status"); err == nil {
		if peak := regexp.MustCompile(`VmHWM:\s*(\d+) kB`).FindSubmatch(status); peak != nil {
			text += fmt.Sprintf(", at most %s kB resident", peak[1])
		}
	}
	return text
}

// allReduceOnManyRanks adds vectors of count elements on p ranks and says how long each of some
// calls has taken, and in what memory.
func allReduceOnManyRanks(t *testing.T, p int, algorithm string, count int) {
	cfg := rank.Config{Algorithm: algorithm, Timeout: 2 * time.Minute}
	start := time.Now()
	var opened, done atomic.Int64 // since start; of the last call
	var wrong atomic.Int64
	err := cfg.Run(t.Context(), p, func(ctx context.Context, w *rank.World) error {
		b := make([]float32, count)
		for k := range 3 {
			fillMany(b, int(w.Rank())+k)
			if err := rank.Barrier(ctx, w.Group()); err != nil {
				return err
			}
			if w.Rank() == 0 {
				opened.Store(int64(time.Since(start)))
			}
			if err := rank.AllReduce(ctx, w.Group(), b, kolo.Sum); err != nil {
				return err
			}
			if !filledMany(b, p, k) {
				wrong.Add(1)
			}
			if err := rank.Barrier(ctx, w.Group()); err != nil {
				return err
			}
			if w.Rank() == 0 {
				done.Store(int64(time.Since(start)))
				took := time.Duration(done.Load() - opened.Load())
				t.Logf("call %d: AllReduce of %d bytes on %d ranks by %s: %v with its check; %s", k, 4*count, p, algorithm, took.Round(time.Microsecond), memory())
			}
		}
		return nil
	})
	require.NoError(t, err)
	require.Zero(t, wrong.Load(), "ranks with a wrong sum")
	took := time.Since(start)
	t.Logf("%d ranks by %s: %v from nothing to closed, %v of it to close; then %s", p, algorithm,
		took.Round(time.Millisecond), (took - time.Duration(done.Load())).Round(time.Millisecond), memory())
}

// fillMany fills b with elements of a rank; sums over all ranks are exact.
func fillMany(b []float32, r int) {
	for i := range b {
		b[i] = float32(r%97 + i%1009)
	}
}

// filledMany says whether b is the sum of fillMany for p ranks from first on.
func filledMany(b []float32, p, first int) bool {
	base := 0
	for r := range p {
		base += (r + first) % 97
	}
	for i, v := range b {
		if v != float32(base+p*(i%1009)) {
			return false
		}
	}
	return true
}

func TestThousandRanksAddVectors(t *testing.T) {
	allReduceOnManyRanks(t, manyRanks, "fabric", 16<<10/4)
}

// Choreographies on a thousand ranks are in the long tests.
func TestManyRanksAddVectors(t *testing.T) {
	for _, algorithm := range []string{"nhr", "ring", "recursive-doubling"} {
		t.Run(algorithm, func(t *testing.T) { allReduceOnManyRanks(t, 64, algorithm, 16<<10/4) })
	}
}

// The time of the smallest calls is the cost of a rank rather than of bytes.
func TestThousandRanksMeet(t *testing.T) { meet(t, "") }

// meet times barriers and 8-byte AllReduces of many ranks.
func meet(t *testing.T, algorithms ...string) {
	const calls = 10
	for _, algorithm := range algorithms {
		err := rank.Config{Algorithm: algorithm}.Run(t.Context(), manyRanks, func(ctx context.Context, w *rank.World) error {
			g, b := w.Group(), []int64{0}
			for _, c := range []struct {
				name string
				call func() error
			}{
				{"barrier", func() error { return rank.Barrier(ctx, g) }},
				{"AllReduce of 8 bytes", func() error { b[0] = int64(w.Rank()); return rank.AllReduce(ctx, g, b, kolo.Sum) }},
			} {
				if err := c.call(); err != nil { // plans, channels
					return err
				}
				start := time.Now()
				for range calls {
					if err := c.call(); err != nil {
						return err
					}
				}
				if took := time.Since(start) / calls; w.Rank() == 0 {
					t.Logf("%s on %d ranks by %q: %v, %v a rank", c.name, manyRanks, algorithm, took.Round(time.Microsecond), took/manyRanks)
				}
			}
			if want := int64(manyRanks * (manyRanks - 1) / 2); b[0] != want {
				return fmt.Errorf("the sum is %d, not %d", b[0], want)
			}
			return nil
		})
		require.NoError(t, err)
	}
}
