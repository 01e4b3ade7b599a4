package rank

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kolo-ccl/kolo"

	"github.com/stretchr/testify/require"
)

func TestWorkIsNotDoneBeforeTheOthersHaveCalled(t *testing.T) {
	for _, algorithm := range []string{"", "ring"} {
		inBubble(t, Config{Algorithm: algorithm}, 2, func(ctx context.Context, w *World, age func() time.Duration) error {
			if w.Rank() == 1 {
				sleep(time.Second)
			}
			b := fill(w.Rank(), 1000)
			work := AllReduceAsync(w.Group(), b, kolo.Sum)
			if w.Rank() == 0 {
				synctest.Wait()
				select {
				case <-work.Done():
					t.Error("done before rank 1 has called")
				default:
				}
			}
			require.NoError(t, work.Wait(ctx))
			require.Equal(t, time.Second, age())
			require.Equal(t, sums(2, 1000), b)
			return nil
		})
	}
}

// Done may be asked before, while and after the call ends, and before and after Wait;
// Wait may be called again. All say the same, and the Works of later calls have
// nothing to do with it.
func TestDoneAndWaitInEveryOrder(t *testing.T) {
	orders := [][]string{{"wait", "wait"}, {"done", "wait"}, {"wait", "done"}, {"done", "wait", "wait", "wait", "done"},
		{"done", "done", "wait"}, {"wait", "done", "wait"}, {"wait"}, {"done", "wait", "done", "wait"}}
	for _, algorithm := range []string{"", "ring"} {
		errs := each(t, Config{Algorithm: algorithm}, 3, func(ctx context.Context, w *World) error {
			for i := range 200 {
				b := fill(w.Rank(), 10)
				work := AllReduceAsync(w.Group(), b, kolo.Sum)
				for _, what := range orders[(i+int(w.Rank()))%len(orders)] {
					if what == "done" {
						<-work.Done()
					} else if err := work.Wait(ctx); err != nil {
						return err
					}
					if b[9] != sums(3, 10)[9] {
						return fmt.Errorf("%s has returned before the call has ended", what)
					}
				}
			}
			return nil
		})
		require.NoError(t, errors.Join(errs...))
	}
}

// A Work that was watched, and waited for twice, does not give its ticket to two later
// calls.
func TestWaitingTwiceForAWatchedWorkFreesItOnce(t *testing.T) {
	inBubble(t, Config{}, 2, func(ctx context.Context, w *World, _ func() time.Duration) error {
		for range 3 {
			first := AllReduceAsync(w.Group(), fill(w.Rank(), 4), kolo.Sum)
			<-first.Done()
			for range 3 {
				require.NoError(t, first.Wait(ctx))
			}
			if w.Rank() == 1 {
				sleep(time.Second)
			}
			second := AllReduceAsync(w.Group(), fill(w.Rank(), 4), kolo.Sum)
			third := AllReduceAsync(w.Group(), fill(w.Rank(), 4), kolo.Sum)
			if w.Rank() == 0 {
				for _, work := range []Work{second, third} {
					select {
					case <-work.Done():
						t.Error("a new Work is done before its call has ended")
					default:
					}
				}
			}
			require.NoError(t, errors.Join(second.Wait(ctx), third.Wait(ctx)))
		}
		return nil
	})
}

// A failed Work keeps its error for every later Wait.
func TestFailedWorkKeepsItsError(t *testing.T) {
	for _, watched := range []bool{false, true} {
		inBubble(t, Config{Timeout: time.Second}, 2, func(ctx context.Context, w *World, _ func() time.Duration) error {
			if w.Rank() == 1 {
				return silent()
			}
			work := AllReduceAsync(w.Group(), fill(0, 4), kolo.Sum)
			if watched {
				<-work.Done()
			}
			err := work.Wait(ctx)
			want(t, err, 0, []error{kolo.ErrDeadline})
			for range 3 {
				<-work.Done()
				require.Equal(t, err, work.Wait(ctx))
			}
			return nil
		})
	}
}

// One goroutine waits while many watch.
func TestManyWatchersOfOneWork(t *testing.T) {
	for _, algorithm := range []string{"", "ring"} {
		errs := each(t, Config{Algorithm: algorithm}, 2, func(ctx context.Context, w *World) error {
			for i := range 100 {
				work := AllReduceAsync(w.Group(), fill(w.Rank(), 1+i), kolo.Sum)
				var watchers sync.WaitGroup
				for range 4 {
					watchers.Go(func() { <-work.Done() })
				}
				if err := work.Wait(ctx); err != nil {
					return err
				}
				watchers.Wait()
			}
			return nil
		})
		require.NoError(t, errors.Join(errs...))
	}
}

// Hundreds of calls of all kinds are outstanding; they are done in their order, with
// the right results, whatever the order of waiting.
func TestManyOutstandingCallsKeepTheirOrder(t *testing.T) {
	const ranks, many = 3, 300
	for _, algorithm := range []string{"", "ring"} {
		errs := each(t, Config{Algorithm: algorithm}, ranks, func(ctx context.Context, w *World) error {
			acc := fill(w.Rank(), 5) // every call works on what the one before has left
			want := acc
			works := make([]Work, 0, many)
			for i := range many {
				switch i % 3 {
				case 0:
					works = append(works, AllReduceAsync(w.Group(), acc, kolo.Sum))
				case 1:
					works = append(works, BroadcastAsync(w.Group(), acc, kolo.Rank(i%ranks)))
				case 2:
					works = append(works, AllReduceAsync(w.Group(), acc, kolo.Max))
				}
			}
			for i := range works {
				if err := works[(i*7)%many].Wait(ctx); err != nil {
					return err
				}
			}
			want = sums(ranks, 5)
			for i := 1; i < many; i++ {
				if i%3 == 0 {
					for k := range want {
						want[k] *= ranks
					}
				}
			}
			require.Equal(t, want, acc)
			return nil
		})
		require.NoError(t, errors.Join(errs...))
	}
}

// A call that is too many ahead of the others is refused, and the group goes on: when
// calls have ended it can be made again.
func TestCallThatIsTooFarAheadIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		errs := each(t, Config{}, 2, func(ctx context.Context, w *World) error {
			g := w.Group()
			one := make([]int32, 1)
			if w.Rank() == 1 {
				time.Sleep(time.Second)
				for range maxAhead + 2 {
					one[0]++
					require.NoError(t, AllReduce(ctx, g, one, kolo.Max))
				}
				return nil
			}
			bufs, works := make([]int32, maxAhead), make([]Work, maxAhead)
			for i := range works {
				bufs[i] = int32(i)
				works[i] = AllReduceAsync(g, bufs[i:i+1], kolo.Max)
				require.NoError(t, works[i].Refused())
			}
			for range 3 {
				work := AllReduceAsync(g, one, kolo.Max)
				require.ErrorIs(t, work.Refused(), kolo.ErrLimit)
				want(t, work.Wait(ctx), 0, []error{kolo.ErrLimit}, "4096 calls of this rank have not ended")
			}
			require.NoError(t, g.Err())
			require.Equal(t, uint64(maxAhead), g.Calls())
			require.NoError(t, AllReduce(ctx, g, one, kolo.Max), "which waits anyway")
			for i, work := range works {
				require.NoError(t, work.Wait(ctx))
				require.Equal(t, int32(i)+1, bufs[i])
			}
			require.Equal(t, int32(maxAhead+1), one[0])
			return AllReduceAsync(g, one, kolo.Max).Wait(ctx)
		})
		require.NoError(t, errors.Join(errs...))
	})
}

// The runtime keeps the buffers of a call alive that nobody else refers to.
func TestCallKeepsItsBufferAlive(t *testing.T) {
	for _, algorithm := range []string{"", "ring"} {
		inBubble(t, Config{Algorithm: algorithm}, 2, func(ctx context.Context, w *World, _ func() time.Duration) error {
			var freed atomic.Int64
			var works []Work
			for i := range 10 {
				b := make([]int32, 10000)
				b[0], b[9999] = int32(i), int32(w.Rank())+1
				runtime.AddCleanup(&b[0], func(int) { freed.Add(1) }, 0)
				works = append(works, AllReduceAsync(w.Group(), b, kolo.Sum))
				works = append(works, DoAsync(w.Group(), Request{Collective: kolo.Send, In: Of(b[:1]), Peer: 1 - w.Rank(), Tag: uint64(i)}))
			}
			if w.Rank() == 0 {
				for range 3 {
					runtime.GC()
				}
				if freed.Load() > 0 {
					t.Error("a buffer of a call in flight was collected")
				}
				sleep(time.Second)
			} else {
				sleep(time.Second / 2)
			}
			for i := range 10 {
				got := make([]int32, 1)
				require.NoError(t, Recv(ctx, w.Group(), got, 1-w.Rank(), uint64(i)))
			}
			for _, work := range works {
				require.NoError(t, work.Wait(ctx))
			}
			return nil
		})
	}
}

// A context that has ended does not matter to a call that has ended.
func TestWaitForAnEndedCallWithAnEndedContext(t *testing.T) {
	errs := each(t, Config{}, 2, func(ctx context.Context, w *World) error {
		work := AllReduceAsync(w.Group(), fill(w.Rank(), 4), kolo.Sum)
		<-work.Done()
		ended, cancel := context.WithCancel(ctx)
		cancel()
		require.NoError(t, work.Wait(ended))
		return Barrier(ctx, w.Group())
	})
	require.NoError(t, errors.Join(errs...))
}

// An asynchronous call returns while others run.
func TestAsyncReturnsAtOnceWhateverIsUnderWay(t *testing.T) {
	inBubble(t, Config{Algorithm: "ring"}, 3, func(ctx context.Context, w *World, age func() time.Duration) error {
		if w.Rank() == 2 {
			sleep(time.Second)
		}
		var works []Work
		for range 20 {
			works = append(works, AllReduceAsync(w.Group(), fill(w.Rank(), 50000), kolo.Sum))
		}
		if w.Rank() < 2 {
			require.Zero(t, age())
		}
		for _, work := range works {
			require.NoError(t, work.Wait(ctx))
		}
		return nil
	})
}
