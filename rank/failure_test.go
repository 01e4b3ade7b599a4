package rank

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kolo-ccl/kolo"

	"github.com/stretchr/testify/require"
)

var errBadInput = errors.New("the input file is bad")

// How a rank goes while others need it.
var goings = []struct {
	name  string
	leave func() error
	cause error
	text  string
}{
	{"Cleanly", func() error { return nil }, nil, "rank 2 has left the group"},
	{"WithAnError", func() error { return errBadInput }, errBadInput, "rank 2 has failed"},
	{"ByAPanic", func() error { panic(errBadInput) }, errBadInput, "rank 2 has failed"},
	{"ByAPanicWithoutAnError", func() error { panic("boom") }, nil, "panic: boom"},
	{"ByEndingItsGoroutine", func() error { runtime.Goexit(); return nil }, nil, "runtime.Goexit"},
}

// The others hear at once, without a moment of virtual time, in whatever they are or
// will be; the cause reaches them.
func TestRankThatGoesFailsTheOthersAtOnce(t *testing.T) {
	for _, going := range goings {
		for _, algorithm := range []string{"", "ring"} {
			for _, when := range []string{"BeforeTheCall", "DuringTheCall", "DuringAMessage", "BeforeAMessage"} {
				t.Run(fmt.Sprintf("%s/%s/%s", going.name, when, named(algorithm)), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						start := time.Now()
						gone := time.Duration(0)
						if when == "DuringTheCall" || when == "DuringAMessage" {
							gone = time.Second
						}
						errs := make([]error, 4)
						runErr := Config{Algorithm: algorithm}.Run(t.Context(), 4, func(ctx context.Context, w *World) error {
							g := w.Group()
							require.NoError(t, AllReduce(ctx, g, fill(w.Rank(), 5), kolo.Sum))
							if w.Rank() == 2 {
								time.Sleep(gone)
								return going.leave()
							}
							if gone == 0 {
								time.Sleep(time.Millisecond)
							}
							r := Request{Collective: kolo.Recv, Out: ints(w.Rank(), 9), Peer: 2, Tag: 1}
							if w.Rank() == 3 {
								r = Request{Collective: kolo.Send, In: ints(w.Rank(), 9), Peer: 2, Tag: 1}
							}
							if when == "DuringTheCall" || when == "BeforeTheCall" {
								r = reduced(ints(w.Rank(), 9), kolo.Max)
							}
							errs[w.Rank()] = unchanged(ctx, t, g, r)
							require.Equal(t, max(gone, time.Millisecond), time.Since(start))
							return nil
						})
						if going.name == "Cleanly" {
							require.NoError(t, runErr)
						} else {
							require.ErrorContains(t, runErr, "rank 2")
						}
						for r, err := range errs {
							if r == 2 {
								continue
							}
							e := want(t, err, kolo.Rank(r), []error{kolo.ErrLeft}, going.text, "after AllReduce(5 int32, sum) #0")
							if going.cause != nil {
								require.ErrorIs(t, err, going.cause)
							}
							require.Equal(t, kolo.Rank(2), e.Peer)
						}
					})
				})
			}
		}
	}
}

// Ranks with more data than others: the error counts the calls of who has none left.
func TestUnevenParticipation(t *testing.T) {
	batches := []int{35, 35, 16, 35, 26}
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		errs := each(t, Config{}, 5, func(ctx context.Context, w *World) error {
			for range batches[w.Rank()] {
				n := w.Size()
				if err := AllToAll(ctx, w.Group(), make([]int32, n), fill(w.Rank(), n)); err != nil {
					return err
				}
			}
			return nil
		})
		require.Zero(t, time.Since(start))
		for r, err := range errs {
			if r == 2 {
				require.NoError(t, err)
				continue
			}
			e := want(t, err, kolo.Rank(r), []error{kolo.ErrLeft}, "rank 2 has left the group after AllToAll(1 int32) #15")
			require.Equal(t, uint64(16), e.Seq)
			require.Equal(t, []kolo.Rank{2}, e.Ranks)
		}
	})
}

// Who needs nothing of a rank that has left goes on without it.
func TestRankThatLeavesDisturbsNobodyElse(t *testing.T) {
	errs := each(t, Config{}, 4, func(ctx context.Context, w *World) error {
		g := w.Group()
		first := w.Rank() &^ 1
		pair, err := w.NewGroup(GroupConfig{Ranks: []kolo.Rank{first, first + 1}})
		require.NoError(t, err)
		require.NoError(t, Barrier(ctx, g))
		if w.Rank() >= 2 {
			return nil
		}
		for range 20 {
			require.NoError(t, AllReduce(ctx, pair, fill(w.Rank(), 5), kolo.Sum))
			if w.Rank() == 0 {
				require.NoError(t, Send(ctx, g, fill(0, 5), 1, 0))
			} else {
				require.NoError(t, Recv(ctx, g, fill(1, 5), 0, 0))
			}
		}
		return g.Err()
	})
	require.NoError(t, errors.Join(errs...))
}

// What was called before the rank left, by itself included, is done.
func TestRankThatLeavesAfterItsCallsFinishesThem(t *testing.T) {
	for _, algorithm := range []string{"", "ring"} {
		synctest.Test(t, func(t *testing.T) {
			errs := each(t, Config{Algorithm: algorithm}, 3, func(ctx context.Context, w *World) error {
				b := fill(w.Rank(), 100)
				work := AllReduceAsync(w.Group(), b, kolo.Sum)
				send := DoAsync(w.Group(), Request{Collective: kolo.Send, In: ints(w.Rank(), 7), Peer: (w.Rank() + 1) % 3})
				if w.Rank() > 0 {
					time.Sleep(time.Second)
				}
				got := make([]int32, 7)
				require.NoError(t, Recv(ctx, w.Group(), got, (w.Rank()+2)%3, 0))
				require.Equal(t, fill((w.Rank()+2)%3, 7), got)
				require.NoError(t, errors.Join(work.Wait(ctx), send.Wait(ctx)))
				require.Equal(t, sums(3, 100), b)
				return nil
			})
			require.NoError(t, errors.Join(errs...))
		})
	}
}

// The first cause resolves every outstanding call, of all members; the next calls
// tell it too; other groups and their calls go on.
func TestGroupFailsAsAWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		errs := each(t, Config{}, 3, func(ctx context.Context, w *World) error {
			g := w.Group()
			other, err := w.NewGroup(GroupConfig{Name: "other", Ranks: []kolo.Rank{0, 1, 2}})
			require.NoError(t, err)
			waiting := AllReduceAsync(other, fill(w.Rank(), 100), kolo.Sum)
			if w.Rank() == 2 {
				time.Sleep(time.Second)
				g.Abort(errBadInput)
				time.Sleep(time.Second)
				require.NoError(t, AllReduceAsync(other, fill(2, 100), kolo.Sum).Wait(ctx))
				return waiting.Wait(ctx)
			}
			var works []Work
			for i := range 10 {
				works = append(works, AllReduceAsync(g, fill(w.Rank(), 10+i), kolo.Sum))
				works = append(works, DoAsync(g, Request{Collective: kolo.Recv, Out: ints(0, 3), Peer: 2, Tag: uint64(i)}))
			}
			for _, work := range works {
				want(t, work.Wait(ctx), w.Rank(), []error{kolo.ErrAborted, errBadInput}, "by rank 2")
			}
			want(t, Barrier(ctx, g), w.Rank(), []error{kolo.ErrAborted, errBadInput}, "by rank 2")
			want(t, Recv(ctx, g, fill(0, 1), 1, 0), w.Rank(), []error{kolo.ErrAborted, errBadInput}, "by rank 2")
			require.NoError(t, AllReduce(ctx, other, fill(w.Rank(), 100), kolo.Sum))
			return waiting.Wait(ctx)
		})
		require.NoError(t, errors.Join(errs...))
	})
}

// A world and a group of some, both with calls that wait for a rank that has gone
// silent: each is aborted by itself, in no time, in either order.
func TestAbortOfOneGroupDoesNotWaitForAnother(t *testing.T) {
	for _, inner := range []bool{true, false} {
		inBubble(t, Config{Timeout: time.Hour / 2}, 4, func(ctx context.Context, w *World, age func() time.Duration) error {
			if w.Rank() == 2 {
				return silent()
			}
			groups := []*Group{w.Group()}
			if w.Rank() == 3 {
				g, err := w.NewGroup(GroupConfig{Name: "inner", Ranks: []kolo.Rank{2, 3}})
				require.NoError(t, err)
				groups = append(groups, g)
			}
			var works []Work
			for _, g := range groups {
				works = append(works, AllReduceAsync(g, fill(w.Rank(), 4), kolo.Sum))
			}
			sleep(time.Second)
			if w.Rank() == 3 {
				first, second := 0, 1
				if inner {
					first, second = 1, 0
				}
				groups[first].Abort(errBadInput)
				want(t, works[first].Wait(ctx), groups[first].Rank(), []error{kolo.ErrAborted, errBadInput})
				require.NoError(t, groups[second].Err())
				groups[second].Abort(nil)
				want(t, works[second].Wait(ctx), groups[second].Rank(), []error{kolo.ErrAborted})
			} else {
				want(t, works[0].Wait(ctx), w.Rank(), []error{kolo.ErrAborted})
			}
			require.Equal(t, time.Second, age())
			return nil
		})
	}
}

// Abort may be called by anybody, often and at once; the first cause counts.
func TestAbortByAllAtOnce(t *testing.T) {
	var mu sync.Mutex
	causes := map[string]bool{}
	errs := each(t, Config{}, 4, func(ctx context.Context, w *World) error {
		require.NoError(t, Barrier(ctx, w.Group()))
		for range 3 {
			w.Group().Abort(fmt.Errorf("rank %d does not like it", int(w.Rank())))
		}
		want(t, Barrier(ctx, w.Group()), w.Rank(), []error{kolo.ErrAborted})
		mu.Lock()
		defer mu.Unlock()
		causes[w.Group().Err().Error()] = true
		return nil
	})
	require.NoError(t, errors.Join(errs...))
	require.Len(t, causes, 1)
}

// The error of Run names each rank that failed, and why, once.
func TestRunJoinsTheErrorsOfItsRanks(t *testing.T) {
	err := Run(t.Context(), 3, func(ctx context.Context, w *World) error {
		if w.Rank() == 1 {
			return errBadInput
		}
		return AllReduce(ctx, w.Group(), fill(w.Rank(), 5), kolo.Sum)
	})
	require.ErrorIs(t, err, errBadInput)
	require.ErrorIs(t, err, kolo.ErrLeft)
	for r := range 3 {
		require.ErrorContains(t, err, fmt.Sprintf("rank %d: ", r))
	}
}

func TestRunOfAPanicReportsItsPlace(t *testing.T) {
	err := Run(t.Context(), 2, func(context.Context, *World) error { panic(errBadInput) })
	require.ErrorIs(t, err, errBadInput)
	require.ErrorContains(t, err, "failure_test.go")
}

// Several goroutines of a rank call one group; what they call is alike, so that their
// order does not matter.
func TestManyGoroutinesOfARankUseOneGroup(t *testing.T) {
	const ranks, callers, each1 = 3, 8, 50
	for _, algorithm := range []string{"", "ring"} {
		errs := each(t, Config{Algorithm: algorithm}, ranks, func(ctx context.Context, w *World) error {
			errs := make([]error, callers)
			var wg sync.WaitGroup
			for k := range callers {
				wg.Go(func() {
					for range each1 {
						b := fill(w.Rank(), 33)
						if err := AllReduce(ctx, w.Group(), b, kolo.Sum); err != nil {
							errs[k] = err
							return
						}
						if b[32] != sums(ranks, 33)[32] {
							errs[k] = fmt.Errorf("%d", b[32])
						}
					}
				})
			}
			wg.Wait()
			return errors.Join(errs...)
		})
		require.NoError(t, errors.Join(errs...))
	}
}

// Items in several goroutines, in any order: one group for each item keeps them apart.
func TestOneGroupPerItemKeepsConcurrentItemsApart(t *testing.T) {
	const ranks, items, rounds = 3, 16, 20
	everyone := []kolo.Rank{0, 1, 2}
	errs := each(t, Config{}, ranks, func(ctx context.Context, w *World) error {
		errs := make([]error, items)
		var wg sync.WaitGroup
		for i := range items {
			wg.Go(func() {
				g, err := w.NewGroup(GroupConfig{Name: fmt.Sprint("item ", i), Ranks: everyone})
				for range rounds {
					b := []int32{int32(i * 10), int32(w.Rank())}
					err = errors.Join(err, AllReduce(ctx, g, b, kolo.Sum))
					if b[0] != int32(i*10*ranks) || b[1] != 3 {
						err = errors.Join(err, fmt.Errorf("item %d got %v", i, b))
					}
				}
				errs[i] = errors.Join(err, g.Close(ctx))
			})
		}
		wg.Wait()
		return errors.Join(errs...)
	})
	require.NoError(t, errors.Join(errs...))
}
