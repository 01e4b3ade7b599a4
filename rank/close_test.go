package rank

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kolo-ccl/kolo"

	"github.com/stretchr/testify/require"
)

// closing opens a world in a bubble, lets f use it, and closes what f has left open.
func closing(t *testing.T, n int, c Config, f func(t *testing.T, worlds []*World)) {
	synctest.Test(t, func(t *testing.T) {
		worlds, err := Open(n, c)
		require.NoError(t, err)
		f(t, worlds)
		for _, w := range worlds {
			_ = w.Close(t.Context()) // most are closed
		}
	})
}

func TestCloseBeforeTheFirstCallAndAgain(t *testing.T) {
	closing(t, 3, Config{}, func(t *testing.T, worlds []*World) {
		for range 3 {
			for _, w := range worlds {
				require.NoError(t, w.Group().Close(t.Context()))
				require.NoError(t, w.Close(t.Context()))
			}
		}
	})
}

func TestCloseByManyAtOnce(t *testing.T) {
	closing(t, 3, Config{}, func(t *testing.T, worlds []*World) {
		var wg sync.WaitGroup
		for _, w := range worlds {
			for range 5 {
				wg.Go(func() { require.NoError(t, w.Close(t.Context())) })
				wg.Go(func() { require.NoError(t, w.Group().Close(t.Context())) })
			}
		}
		wg.Wait()
	})
}

// Close waits for what is in flight: a peer that comes in time finds it.
func TestCloseWaitsForCallsInFlight(t *testing.T) {
	for _, algorithm := range []string{"", "ring"} {
		closing(t, 2, Config{Algorithm: algorithm}, func(t *testing.T, worlds []*World) {
			start := time.Now()
			a, b := fill(0, 50), fill(1, 50)
			work := AllReduceAsync(worlds[0].Group(), a, kolo.Sum)
			send := DoAsync(worlds[0].Group(), Request{Collective: kolo.Send, In: ints(0, 4), Peer: 1})
			got := make([]int32, 4)
			var wg sync.WaitGroup
			wg.Go(func() {
				sleep(3 * time.Second)
				require.NoError(t, AllReduce(t.Context(), worlds[1].Group(), b, kolo.Sum))
				require.NoError(t, Recv(t.Context(), worlds[1].Group(), got, 0, 0))
			})
			err := worlds[0].Close(t.Context())
			require.Equal(t, 3*time.Second, time.Since(start))
			require.ErrorContains(t, err, "2 asynchronous calls were never waited for")
			require.NoError(t, errors.Join(work.Wait(t.Context()), send.Wait(t.Context())))
			wg.Wait()
			require.Equal(t, sums(2, 50), a)
			require.Equal(t, sums(2, 50), b)
			require.Equal(t, fill(0, 4), got)
		})
	}
}

// Close needs no peer: at its deadline, or that of the context, calls that wait for a
// silent one are aborted, and all of them end.
func TestCloseGivesUpAtItsDeadline(t *testing.T) {
	for _, byContext := range []bool{false, true} {
		for _, what := range []string{"collective", "receive", "send", "all"} {
			closing(t, 2, Config{CloseTimeout: 5 * time.Second, Timeout: -1}, func(t *testing.T, worlds []*World) {
				start := time.Now()
				g := worlds[0].Group()
				var works []Work
				if what == "collective" || what == "all" {
					works = append(works, AllReduceAsync(g, fill(0, 5), kolo.Sum), AllReduceAsync(g, fill(0, 5), kolo.Sum))
				}
				if what == "receive" || what == "all" {
					works = append(works, DoAsync(g, Request{Collective: kolo.Recv, Out: ints(0, 5), Peer: 1}))
				}
				if what == "send" || what == "all" {
					works = append(works, DoAsync(g, Request{Collective: kolo.Send, In: ints(0, 5), Peer: 1}))
				}
				ctx, least := t.Context(), 5*time.Second
				if byContext {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, time.Second)
					defer cancel()
					least = time.Second
				}
				err := worlds[0].Close(ctx)
				require.Equal(t, least, time.Since(start))
				require.ErrorIs(t, err, kolo.ErrDeadline)
				require.ErrorContains(t, err, "calls in flight")
				for _, work := range works {
					require.Error(t, work.Wait(t.Context()), what)
				}
				late := Barrier(t.Context(), worlds[1].Group())
				want(t, late, 1, []error{kolo.ErrLeft}, "rank 0 has failed")
				require.Equal(t, least, time.Since(start))
			})
		}
	}
}

// Closing a group gives up only that group.
func TestCloseOfOneGroupLeavesTheOthers(t *testing.T) {
	closing(t, 2, Config{CloseTimeout: time.Second}, func(t *testing.T, worlds []*World) {
		var sub [2]*Group
		for r, w := range worlds {
			g, err := w.NewGroup(GroupConfig{Name: "sub", Ranks: []kolo.Rank{0, 1}})
			require.NoError(t, err)
			sub[r] = g
		}
		stuck := AllReduceAsync(sub[0], fill(0, 3), kolo.Sum)
		works := []Work{AllReduceAsync(worlds[0].Group(), fill(0, 3), kolo.Sum)}
		require.ErrorIs(t, sub[0].Close(t.Context()), kolo.ErrDeadline)
		require.Error(t, stuck.Wait(t.Context()))
		works = append(works, AllReduceAsync(worlds[1].Group(), fill(1, 3), kolo.Sum))
		for _, work := range works {
			require.NoError(t, work.Wait(t.Context()))
		}
		require.Len(t, worlds[0].Groups(), 1)
		require.Len(t, worlds[1].Groups(), 2)
	})
}

// A group that was closed refuses every call, in a way that tells it from a failure.
func TestCallsAfterCloseAreRefused(t *testing.T) {
	closing(t, 2, Config{}, func(t *testing.T, worlds []*World) {
		w := worlds[0]
		g, err := w.NewGroup(GroupConfig{Name: "sub", Ranks: []kolo.Rank{0, 1}})
		require.NoError(t, err)
		require.NoError(t, g.Close(t.Context()))
		want(t, Barrier(t.Context(), g), 0, []error{kolo.ErrClosed})
		require.NoError(t, w.Close(t.Context()))
		for _, c := range calls(2) {
			want(t, Do(t.Context(), w.Group(), c.call(0)), 0, []error{kolo.ErrClosed})
			want(t, DoAsync(w.Group(), c.call(0)).Wait(t.Context()), 0, []error{kolo.ErrClosed})
		}
		want(t, Send(t.Context(), w.Group(), fill(0, 1), 1, 0), 0, []error{kolo.ErrClosed})
		want(t, Recv(t.Context(), w.Group(), fill(0, 1), 1, 0), 0, []error{kolo.ErrClosed})
		_, err = w.NewGroup(GroupConfig{Ranks: []kolo.Rank{0}})
		require.ErrorIs(t, err, kolo.ErrClosed)
		w.Group().Abort(nil)
		require.Empty(t, w.Groups())
	})
}

func TestCloseAfterAFailure(t *testing.T) {
	closing(t, 2, Config{Timeout: time.Second}, func(t *testing.T, worlds []*World) {
		want(t, Barrier(t.Context(), worlds[0].Group()), 0, []error{kolo.ErrDeadline})
		start := time.Now()
		require.NoError(t, worlds[0].Close(t.Context()))
		require.NoError(t, worlds[1].Close(t.Context()))
		require.Zero(t, time.Since(start))
	})
}

// A Work that was never waited for is counted, by Close and by Run.
func TestWorksNeverWaitedForAreReported(t *testing.T) {
	closing(t, 2, Config{}, func(t *testing.T, worlds []*World) {
		for _, w := range worlds {
			for range 3 {
				AllReduceAsync(w.Group(), fill(w.Rank(), 3), kolo.Sum)
			}
			work := AllReduceAsync(w.Group(), fill(w.Rank(), 3), kolo.Sum)
			if w.Rank() == 1 {
				require.NoError(t, work.Wait(t.Context()))
			}
		}
		err := worlds[0].Close(t.Context())
		require.ErrorIs(t, err, kolo.ErrArgument)
		require.ErrorContains(t, err, `in group "world" on rank 0: bad argument: 4 asynchronous calls were never waited for`)
		require.ErrorContains(t, worlds[1].Close(t.Context()), "3 asynchronous calls were never waited for")
	})
	err := Run(t.Context(), 2, func(ctx context.Context, w *World) error {
		AllReduceAsync(w.Group(), fill(w.Rank(), 3), kolo.Sum)
		return nil
	})
	require.ErrorContains(t, err, "rank 1: close: ")
	require.ErrorContains(t, err, "1 asynchronous calls were never waited for")
}

// A second Close waits for the first, or for its own context.
func TestSecondCloseWaitsForTheFirst(t *testing.T) {
	closing(t, 2, Config{CloseTimeout: time.Minute}, func(t *testing.T, worlds []*World) {
		start := time.Now()
		work := AllReduceAsync(worlds[0].Group(), fill(0, 5), kolo.Sum)
		var wg sync.WaitGroup
		wg.Go(func() { require.Error(t, worlds[0].Close(t.Context())) })
		wg.Go(func() {
			sleep(time.Second)
			require.NoError(t, worlds[0].Group().Close(t.Context()))
			require.Equal(t, time.Minute, time.Since(start))
		})
		wg.Go(func() {
			sleep(time.Second)
			short, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			require.ErrorIs(t, worlds[0].Close(short), kolo.ErrCanceled)
			require.ErrorIs(t, worlds[0].Group().Close(short), kolo.ErrCanceled)
			require.Equal(t, 2*time.Second, time.Since(start))
			require.NoError(t, worlds[0].Close(t.Context()))
			require.Equal(t, time.Minute, time.Since(start))
			require.NoError(t, worlds[0].Close(short), "it is closed")
		})
		wg.Wait()
		require.Error(t, work.Wait(t.Context()))
		_, err := worlds[0].Shrink(t.Context())
		require.ErrorIs(t, err, kolo.ErrClosed)
	})
}

// A function that fails while its own calls are in flight does not wait for those who
// never come.
func TestRankThatFailsWithCallsInFlightLeavesAtOnce(t *testing.T) {
	for _, algorithm := range []string{"", "ring"} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			err := Config{Algorithm: algorithm, Timeout: -1}.Run(t.Context(), 3, func(ctx context.Context, w *World) error {
				if w.Rank() > 0 {
					sleep(time.Hour)
					return nil
				}
				AllReduceAsync(w.Group(), fill(0, 5), kolo.Sum)
				DoAsync(w.Group(), Request{Collective: kolo.Recv, Out: ints(0, 5), Peer: 1})
				DoAsync(w.Group(), Request{Collective: kolo.Send, In: ints(0, 5), Peer: 2})
				defer func() {
					go func() { // ends when rank 0 has left
						<-w.left
						require.Zero(t, time.Since(start))
					}()
				}()
				return errBadInput
			})
			require.ErrorIs(t, err, errBadInput)
		})
	}
}

// A group that not all members have made is closed without them.
func TestCloseOfAGroupThatOthersNeverMade(t *testing.T) {
	closing(t, 3, Config{}, func(t *testing.T, worlds []*World) {
		start := time.Now()
		g, err := worlds[0].NewGroup(GroupConfig{Name: "lonely", Ranks: []kolo.Rank{0, 1, 2}})
		require.NoError(t, err)
		require.NoError(t, g.Close(t.Context()))
		late, err := worlds[1].NewGroup(GroupConfig{Name: "lonely", Ranks: []kolo.Rank{0, 1, 2}})
		require.NoError(t, err)
		want(t, Barrier(t.Context(), late), 1, []error{kolo.ErrLeft}, "rank 0 has left the group before its first call")
		require.NoError(t, worlds[2].Close(t.Context()))
		never, err := worlds[1].NewGroup(GroupConfig{Name: "never", Ranks: []kolo.Rank{1, 2}})
		require.NoError(t, err)
		want(t, Barrier(t.Context(), never), 0, []error{kolo.ErrLeft}, "rank 1 has left the group")
		require.Zero(t, time.Since(start))
	})
}
