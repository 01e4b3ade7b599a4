package rank

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"

	"github.com/stretchr/testify/require"
)

// gauge is what a process holds.
type gauge struct {
	goroutines, files int
	heap              uint64 // bytes in use after a collection
}

func measure(t testing.TB) gauge {
	var m runtime.MemStats
	for range 3 { // cleanups and finalizers free in turns
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	g := gauge{goroutines: runtime.NumGoroutine(), heap: m.HeapAlloc}
	files, err := os.ReadDir("/proc/self/fd")
	if err == nil {
		g.files = len(files)
	}
	return g
}

// flat runs f, in rounds, and says that they leave nothing behind but some noise: in
// bytes of a round, and 64 KiB.
func flat(t *testing.T, rounds int, noise int64, f func()) {
	t.Helper()
	for range warmUp(rounds) { // what is made once
		f()
	}
	before := measure(t)
	for range rounds {
		f()
	}
	after := measure(t)
	require.LessOrEqual(t, goroutines(before.goroutines), before.goroutines)
	require.LessOrEqual(t, after.files, before.files)
	grown := int64(after.heap) - int64(before.heap)
	require.LessOrEqual(t, grown, noise*int64(rounds)+64<<10, "bytes that %d rounds leave behind", rounds)
}

// goroutines is how many there are, when those that have done their work have gone: until
// there are no more than few, or for a time in which a thread that the system has set aside
// runs again.
func goroutines(few int) int {
	n := runtime.NumGoroutine()
	for end := time.Now().Add(20 * time.Second); n > few && time.Now().Before(end); n = runtime.NumGoroutine() {
		runtime.Gosched()
	}
	return n
}

func warmUp(rounds int) int { return rounds/10 + 1 }

// cycles is n, or less where time is short: a world takes some milliseconds, and
// with the race detector many.
func cycles(n int) int {
	if testing.Short() || raceEnabled {
		return n / 25
	}
	return n
}

func TestWorldsLeaveNothingBehind(t *testing.T) {
	flat(t, cycles(1000), 100, func() {
		require.NoError(t, Config{Algorithm: "ring"}.Run(t.Context(), 2, func(ctx context.Context, w *World) error {
			return AllReduce(ctx, w.Group(), fill(w.Rank(), 10), kolo.Sum)
		}))
	})
}

// Worlds that fail leave no more than those that end well.
func TestFailedWorldsLeaveNothingBehind(t *testing.T) {
	round := 0
	flat(t, cycles(300), 400, func() {
		round++
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		err := Config{Algorithm: []string{"ring", ""}[round/5%2]}.Run(ctx, 3, func(ctx context.Context, w *World) error {
			if err := Barrier(ctx, w.Group()); err != nil {
				return err
			}
			if w.Rank() == 2 {
				switch round % 5 {
				case 0:
					return errBadInput
				case 1:
					panic("no")
				case 2:
					cancel()
				case 3:
					w.Group().Abort(errBadInput)
				case 4:
					runtime.Goexit()
				}
			}
			first := AllReduceAsync(w.Group(), fill(w.Rank(), 10), kolo.Sum)
			return errors.Join(Recv(ctx, w.Group(), fill(w.Rank(), 10), 2, 0), first.Wait(ctx))
		})
		require.Error(t, err)
	})
}

// Groups made and closed in one world, of one name or of none, used and unused, by
// all members or by one of them only.
func TestGroupsLeaveNothingBehind(t *testing.T) {
	require.NoError(t, Run(t.Context(), 2, func(ctx context.Context, w *World) error {
		both := []kolo.Rank{0, 1}
		cycle := func() {
			g, err := w.NewGroup(GroupConfig{Ranks: both, Algorithm: "ring"})
			require.NoError(t, err)
			require.NoError(t, AllReduce(ctx, g, fill(w.Rank(), 10), kolo.Sum))
			idle, err := w.NewGroup(GroupConfig{Name: "idle", Ranks: both})
			require.NoError(t, err)
			require.NoError(t, g.Close(ctx))
			require.NoError(t, idle.Close(ctx))
			if len(w.Groups()) != 1 {
				t.Error("a closed group is listed")
			}
		}
		rounds := cycles(1000)
		if w.Rank() == 1 {
			for range rounds + warmUp(rounds) {
				cycle()
			}
			return nil
		}
		actors := w.p.sys.Actors()
		// The registry of protoactor is made of 32,768 maps, of which each takes some
		// memory when it is first used: that of a group, for the first groups.
		flat(t, rounds, 1000, cycle)
		require.LessOrEqual(t, w.p.sys.Actors(), actors+2) // and a channel to the peer for each rank
		require.Len(t, w.p.allHubs(), 1)
		return nil
	}))
}

// A hundred thousand calls of each kind leave nothing behind.
func TestCallsLeaveNothingBehind(t *testing.T) {
	n := cycles(100_000)
	for _, algorithm := range []string{"", "ring"} {
		t.Run(named(algorithm), func(t *testing.T) {
			require.NoError(t, Config{Algorithm: algorithm}.Run(t.Context(), 2, func(ctx context.Context, w *World) error {
				b := fill(w.Rank(), 10)
				cycle := func() {
					require.NoError(t, AllReduce(ctx, w.Group(), b, kolo.Max))
				}
				if w.Rank() == 1 {
					for range n + warmUp(n) {
						cycle()
					}
					return nil
				}
				flat(t, n, 1, cycle)
				return nil
			}))
		})
	}
}

// In the steady state a call allocates nothing, on none of the ranks.
func TestCallsDoNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	const runs = 300
	for _, algorithm := range []string{"", "ring"} {
		for _, c := range []struct {
			name string
			call func(ctx context.Context, w *World, small, large []int32) error
		}{
			{"AllReduce", func(ctx context.Context, w *World, small, _ []int32) error {
				return AllReduce(ctx, w.Group(), small, kolo.Max)
			}},
			{"LargeAllReduce", func(ctx context.Context, w *World, _, large []int32) error {
				return AllReduce(ctx, w.Group(), large, kolo.Max)
			}},
			{"Async", func(ctx context.Context, w *World, small, _ []int32) error {
				return AllReduceAsync(w.Group(), small, kolo.Max).Wait(ctx)
			}},
			{"Broadcast", func(ctx context.Context, w *World, small, _ []int32) error {
				return Broadcast(ctx, w.Group(), small, 1)
			}},
			{"AllGather", func(ctx context.Context, w *World, small, large []int32) error {
				return AllGather(ctx, w.Group(), large[:2*len(small)], small)
			}},
			{"Barrier", func(ctx context.Context, w *World, _, _ []int32) error {
				err := Barrier(ctx, w.Group())
				if errors.Is(err, kolo.ErrUnsupported) {
					return nil
				}
				return err
			}},
			{"SendAndRecv", func(ctx context.Context, w *World, small, _ []int32) error {
				if w.Rank() == 0 {
					return Send(ctx, w.Group(), small, 1, 3)
				}
				return Recv(ctx, w.Group(), small, 0, 3)
			}},
		} {
			t.Run(fmt.Sprintf("%s/%s", c.name, named(algorithm)), func(t *testing.T) {
				require.NoError(t, Config{Algorithm: algorithm}.Run(context.Background(), 2, func(_ context.Context, w *World) error {
					small, large := fill(w.Rank(), 16), fill(w.Rank(), 300_000)
					ctx := context.Background()
					if err := c.call(ctx, w, small, large); errors.Is(err, kolo.ErrUnsupported) {
						return nil
					}
					var err error
					cycle := func() { err = errors.Join(err, c.call(ctx, w, small, large)) }
					for range 100 {
						cycle()
					}
					if w.Rank() == 1 {
						for range runs + 1 {
							cycle()
						}
						return err
					}
					// What other goroutines allocate counts too, rank 1 among them; the runtime
					// itself may need a goroutine's memory once.
					if got := testing.AllocsPerRun(runs, cycle); got > 0 {
						t.Errorf("%v allocations per call", got)
					}
					return err
				}))
			})
		}
	}
}

// Channels are opened when a message first needs them: none by the medium, those of
// its two neighbours by each rank of a ring, one for a pair, in any number of groups.
func TestChannelsAreOpenedWhenTheyAreNeeded(t *testing.T) {
	for _, c := range []struct {
		algorithm string
		want      int
	}{{"fabric", 0}, {"ring", 2}} {
		worlds, err := Open(16, Config{Algorithm: c.algorithm})
		require.NoError(t, err)
		var wg sync.WaitGroup
		for _, w := range worlds {
			wg.Go(func() {
				require.NoError(t, AllReduce(t.Context(), w.Group(), fill(w.Rank(), 100), kolo.Sum))
				for range 3 {
					g, err := w.NewGroup(GroupConfig{Ranks: []kolo.Rank{3, 4, 5}})
					if err != nil {
						break
					}
					require.NoError(t, AllReduce(t.Context(), g, fill(w.Rank(), 100), kolo.Sum))
					require.NoError(t, g.Close(t.Context()))
				}
			})
		}
		wg.Wait()
		for _, w := range worlds {
			require.NoError(t, w.Close(t.Context()))
		}
		for _, w := range worlds {
			n := c.want
			if n > 0 && (w.rank == 3 || w.rank == 5) {
				n++ // the ring of three
			}
			require.Len(t, w.actor.channels, n, "rank %d", w.rank)
		}
	}
}
