package rank

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kolo-ccl/kolo"

	"github.com/stretchr/testify/require"
)

// inBubble runs a world under virtual time, in which only deadlines pass: f is given
// how long the world has lasted.
func inBubble(t *testing.T, c Config, n int, f func(ctx context.Context, w *World, age func() time.Duration) error) (errs []error) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		age := func() time.Duration { return time.Since(start) }
		errs = each(t, c, n, func(ctx context.Context, w *World) error { return f(ctx, w, age) })
	})
	return errs
}

// sleep lets virtual time pass, in inBubble.
func sleep(d time.Duration) {
	time.Sleep(d) // in a bubble
}

// silent is a rank that is alive and does nothing, longer than any deadline here.
func silent() error {
	sleep(time.Hour)
	return nil
}

// calls makes one valid call of each collective for rank r of n.
func calls(n int) []struct {
	name string
	call func(r kolo.Rank) Request
} {
	type row = struct {
		name string
		call func(r kolo.Rank) Request
	}
	ones := make([]int64, n)
	matrix := make([]int64, n*n)
	for i := range matrix {
		ones[i%n], matrix[i] = 1, 1
	}
	v := Vector{Counts: ones}
	var rows []row
	for _, c := range kolo.Collectives() {
		rows = append(rows, row{c.String(), func(r kolo.Rank) Request {
			q := Request{Collective: c, In: ints(r, n), Out: ints(r+100, n), Op: kolo.Sum}
			switch c {
			case kolo.AllGather, kolo.Gather:
				q.In = ints(r, 1)
			case kolo.ReduceScatter, kolo.Scatter:
				q.Out = ints(r+100, 1)
			case kolo.AllGatherV, kolo.GatherV:
				q.In, q.Recv = ints(r, 1), v
			case kolo.ReduceScatterV, kolo.ScatterV:
				q.Out, q.Send = ints(r+100, 1), v
			case kolo.AllToAllV:
				q.Send, q.Recv = v, v
			case kolo.AllToAllVC:
				q.Send = Vector{Counts: matrix}
			}
			return q
		}})
	}
	return rows
}

// All ranks that are missing are named at once, with what each did last, exactly at
// the deadline: in every collective, at the first call (which opens everything) and
// at a later one.
func TestMissingRanksAreAllNamedAtTheDeadline(t *testing.T) {
	for _, first := range []bool{true, false} {
		for _, c := range calls(5) {
			t.Run(fmt.Sprintf("%s/first=%v", c.name, first), func(t *testing.T) {
				errs := inBubble(t, Config{Timeout: 3 * time.Second}, 5, func(ctx context.Context, w *World, age func() time.Duration) error {
					texts := []string{"deadline exceeded: 3s after the first call, rank 1 and 3 have not arrived", "3 of 5 ranks wait in " + c.name}
					if first {
						texts = append(texts, "rank 1 last called nothing", "rank 3 last called nothing")
					} else {
						require.NoError(t, Broadcast(ctx, w.Group(), fill(w.Rank(), 7), 4))
						texts = append(texts, "rank 1 last called Broadcast(7 int32, root 4) #0", "rank 3 last called Broadcast(7 int32, root 4) #0")
					}
					if w.Rank() == 1 || w.Rank() == 3 {
						return silent()
					}
					sleep(time.Duration(w.Rank()) * time.Second / 4) // rank 0 is the first
					err := unchanged(ctx, t, w.Group(), c.call(w.Rank()))
					require.Equal(t, 3*time.Second, age())
					e := want(t, err, w.Rank(), []error{kolo.ErrDeadline}, texts...)
					require.Equal(t, []kolo.Rank{1, 3}, e.Ranks)
					return err
				})
				require.NoError(t, errors.Join(errs[1], errs[3]))
			})
		}
	}
}

func TestOneMissingRankIsThePeer(t *testing.T) {
	inBubble(t, Config{Timeout: time.Second}, 3, func(ctx context.Context, w *World, _ func() time.Duration) error {
		if w.Rank() == 2 {
			return silent()
		}
		e := want(t, Barrier(ctx, w.Group()), w.Rank(), []error{kolo.ErrDeadline})
		require.Equal(t, kolo.Rank(2), e.Peer)
		return nil
	})
}

// Thirty ranks behind are told, not the two ahead.
func TestThoseBehindAreNamedAlsoWhenTheyAreMost(t *testing.T) {
	const n = 32
	inBubble(t, Config{Timeout: time.Second}, n, func(ctx context.Context, w *World, _ func() time.Duration) error {
		for range 6 {
			require.NoError(t, AllReduce(ctx, w.Group(), fill(w.Rank(), 3), kolo.Sum))
		}
		if w.Rank() >= 2 {
			return silent()
		}
		e := want(t, AllReduce(ctx, w.Group(), fill(w.Rank(), 3), kolo.Sum), w.Rank(), []error{kolo.ErrDeadline},
			"rank 2, 3, 4", "and 14 more", "rank 2 last called AllReduce(3 int32, sum) #5", "2 of 32 ranks wait")
		require.Len(t, e.Ranks, n-2)
		require.Equal(t, uint64(6), e.Seq)
		return nil
	})
}

func TestContextDeadlineThatIsShorterCountsAndNamesTheMissing(t *testing.T) {
	inBubble(t, Config{Timeout: time.Minute}, 3, func(ctx context.Context, w *World, age func() time.Duration) error {
		if w.Rank() == 1 {
			return silent()
		}
		if w.Rank() == 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, 250*time.Millisecond)
			defer cancel()
		}
		e := want(t, AllReduce(ctx, w.Group(), fill(w.Rank(), 3), kolo.Sum), w.Rank(),
			[]error{kolo.ErrCanceled, kolo.ErrDeadline, context.DeadlineExceeded}, "rank 1 has not arrived", "rank 1 last called nothing")
		require.Equal(t, []kolo.Rank{1}, e.Ranks)
		require.Equal(t, 250*time.Millisecond, age())
		return nil
	})
}

func TestCanceledContextNamesTheMissingAndItsCause(t *testing.T) {
	stop := errors.New("the user pressed a key")
	inBubble(t, Config{}, 3, func(ctx context.Context, w *World, age func() time.Duration) error {
		if w.Rank() == 1 {
			return silent()
		}
		if w.Rank() == 0 {
			var cancel context.CancelCauseFunc
			ctx, cancel = context.WithCancelCause(ctx)
			time.AfterFunc(time.Second, func() { cancel(stop) })
		}
		err := AllReduceAsync(w.Group(), fill(w.Rank(), 3), kolo.Sum).Wait(ctx)
		want(t, err, w.Rank(), []error{kolo.ErrCanceled, stop}, "rank 1 has not arrived")
		require.NotErrorIs(t, err, kolo.ErrDeadline)
		require.Equal(t, time.Second, age())
		return nil
	})
}

// A context that ends before the call starts nothing, and the group goes on.
func TestContextThatHasEndedStartsNothing(t *testing.T) {
	errs := each(t, Config{}, 2, func(ctx context.Context, w *World) error {
		ended, cancel := context.WithCancel(ctx)
		cancel()
		want(t, unchanged(ended, t, w.Group(), reduced(ints(w.Rank(), 5), kolo.Sum)), w.Rank(), []error{kolo.ErrCanceled})
		return AllReduce(ctx, w.Group(), fill(w.Rank(), 5), kolo.Sum)
	})
	require.NoError(t, errors.Join(errs...))
}

// The whole run is canceled: every call of every group ends, also one whose Work is
// first waited for after that, in a group that did not exist then.
func TestCanceledRunEndsEverything(t *testing.T) {
	for _, late := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			start := time.Now()
			err := Config{Timeout: -1}.Run(ctx, 4, func(ctx context.Context, w *World) error {
				if w.Rank() == 3 {
					sleep(time.Second)
					cancel()
					return silent()
				}
				g := w.Group()
				if late {
					<-ctx.Done()
					sleep(time.Second)
					var err error
					g, err = w.NewGroup(GroupConfig{Name: "late", Ranks: []kolo.Rank{0, 1, 2, 3}})
					require.NoError(t, err)
				}
				err := AllReduceAsync(g, fill(w.Rank(), 3), kolo.Sum).Wait(ctx)
				want(t, err, w.Rank(), []error{kolo.ErrCanceled})
				require.Less(t, time.Since(start), 3*time.Second)
				return nil
			})
			require.NoError(t, err)
		})
	}
}

// A message whose other end does nothing.
func TestMessageWithoutItsOtherEndAtTheDeadline(t *testing.T) {
	for _, c := range []struct {
		request Request
		text    string
	}{
		{Request{Collective: kolo.Send, In: ints(0, 4), Peer: 1, Tag: 77}, "rank 1 has not received from rank 0 (Send(4 int32), tag 77)"},
		{Request{Collective: kolo.Recv, Out: ints(0, 4), Peer: 1, Tag: 77}, "rank 1 has not sent to rank 0 (Recv(4 int32), tag 77)"},
	} {
		inBubble(t, Config{Timeout: time.Second}, 2, func(ctx context.Context, w *World, age func() time.Duration) error {
			if w.Rank() == 1 {
				return silent()
			}
			e := want(t, Do(ctx, w.Group(), c.request), 0, []error{kolo.ErrDeadline}, c.text)
			require.Equal(t, time.Second, age())
			require.Equal(t, kolo.Rank(1), e.Peer)
			return nil
		})
		inBubble(t, Config{Timeout: time.Hour}, 2, func(ctx context.Context, w *World, age func() time.Duration) error {
			if w.Rank() == 1 {
				return silent()
			}
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			want(t, Do(ctx, w.Group(), c.request), 0, []error{kolo.ErrCanceled, kolo.ErrDeadline}, c.text)
			require.Equal(t, time.Second, age())
			return nil
		})
	}
}

// Two ranks that send to each other before they receive wait for each other: the
// error of both says so.
func TestSendSendCycleSaysWhoWaitsForWhom(t *testing.T) {
	inBubble(t, Config{Timeout: time.Second}, 2, func(ctx context.Context, w *World, age func() time.Duration) error {
		other := 1 - w.Rank()
		err := Send(ctx, w.Group(), fill(w.Rank(), 4+int(w.Rank())), other, 0)
		want(t, err, w.Rank(), []error{kolo.ErrDeadline})
		require.Equal(t, time.Second, age())
		text := err.Error()
		a := "rank 0 waits in Send(4 int32) to rank 1"
		b := "rank 1 waits in Send(5 int32) to rank 0"
		require.True(t, strings.Contains(text, a) || strings.Contains(text, "rank 1 has not received from rank 0 (Send(4 int32)"), text)
		require.True(t, strings.Contains(text, b) || strings.Contains(text, "rank 0 has not received from rank 1 (Send(5 int32)"), text)
		return nil
	})
}

// Two groups in opposite order on two ranks: harmless when one of the calls does not
// block, and else an error that names both groups.
func TestGroupsInOppositeOrder(t *testing.T) {
	pair := func(w *World) (a, b *Group) {
		a, err := w.NewGroup(GroupConfig{Name: "a", Ranks: []kolo.Rank{0, 1}})
		require.NoError(t, err)
		b, err = w.NewGroup(GroupConfig{Name: "b", Ranks: []kolo.Rank{0, 1}})
		require.NoError(t, err)
		if w.Rank() == 1 {
			return b, a
		}
		return a, b
	}
	t.Run("Async", func(t *testing.T) {
		inBubble(t, Config{Timeout: time.Second}, 2, func(ctx context.Context, w *World, age func() time.Duration) error {
			one, two := pair(w)
			first := AllReduceAsync(one, fill(w.Rank(), 9), kolo.Sum)
			require.NoError(t, AllReduce(ctx, two, fill(w.Rank(), 9), kolo.Sum))
			require.NoError(t, first.Wait(ctx))
			require.Zero(t, age())
			return nil
		})
	})
	t.Run("Blocking", func(t *testing.T) {
		inBubble(t, Config{Timeout: time.Second}, 2, func(ctx context.Context, w *World, age func() time.Duration) error {
			one, _ := pair(w)
			err := AllReduce(ctx, one, fill(w.Rank(), 9), kolo.Sum)
			want(t, err, w.Rank(), []error{kolo.ErrDeadline},
				fmt.Sprintf("rank %d has not arrived", 1-w.Rank()), fmt.Sprintf(`in group %q`, one.Name()))
			require.Equal(t, time.Second, age())
			sleep(time.Second) // both fail at one time; neither by the other's leaving
			return nil
		})
	})
	t.Run("BlockingWithOneDeadline", func(t *testing.T) {
		inBubble(t, Config{Timeout: time.Hour / 2}, 2, func(ctx context.Context, w *World, age func() time.Duration) error {
			one, _ := pair(w)
			if w.Rank() == 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, time.Second)
				defer cancel()
			}
			err := AllReduce(ctx, one, fill(w.Rank(), 9), kolo.Sum)
			if w.Rank() == 0 {
				want(t, err, 0, []error{kolo.ErrDeadline}, `in group "a"`, "rank 1 has not arrived",
					`world rank 1 waits in AllReduce(9 int32, sum) #0 of group "b", where rank 0 has not arrived`)
			}
			return nil
		})
	})
}

// A rank that waits for a message while the others are in a collective.
func TestDeadlineOfACollectiveTellsTheMessageThatAMissingRankWaitsFor(t *testing.T) {
	inBubble(t, Config{Timeout: time.Second}, 3, func(ctx context.Context, w *World, age func() time.Duration) error {
		g, err := w.NewGroup(GroupConfig{Name: "slow", Ranks: []kolo.Rank{0, 1, 2}, Timeout: time.Minute})
		require.NoError(t, err)
		if w.Rank() == 2 {
			return Recv(ctx, g, fill(2, 5), 0, 9)
		}
		want(t, Barrier(ctx, w.Group()), w.Rank(), []error{kolo.ErrDeadline}, "rank 2 has not arrived",
			`world rank 2 waits in Recv(5 int32) from rank 0 of group "slow" (tag 9)`)
		return nil
	})
}

// A member that never makes the group is found at the first call.
func TestMemberThatHasNotMadeTheGroup(t *testing.T) {
	inBubble(t, Config{Timeout: time.Second}, 3, func(ctx context.Context, w *World, age func() time.Duration) error {
		if w.Rank() < 2 {
			return silent()
		}
		g, err := w.NewGroup(GroupConfig{Name: "late", Ranks: []kolo.Rank{0, 1, 2}})
		require.NoError(t, err)
		e := want(t, Barrier(ctx, g), 2, []error{kolo.ErrDeadline}, "rank 0 and 1 have not arrived",
			"rank 0 last called nothing: it has not made the group", "rank 1 last called nothing: it has not made the group")
		require.Equal(t, []kolo.Rank{0, 1}, e.Ranks)
		require.Equal(t, time.Second, age())
		return nil
	})
}

// Each group has its own deadline, and none with a negative one.
func TestDeadlinePerGroup(t *testing.T) {
	inBubble(t, Config{Timeout: time.Minute}, 2, func(ctx context.Context, w *World, age func() time.Duration) error {
		if w.Rank() == 1 {
			return silent()
		}
		both := []kolo.Rank{0, 1}
		quick, err := w.NewGroup(GroupConfig{Name: "quick", Ranks: both, Timeout: time.Second})
		require.NoError(t, err)
		never, err := w.NewGroup(GroupConfig{Name: "never", Ranks: both, Timeout: -1})
		require.NoError(t, err)
		last := AllReduceAsync(never, fill(0, 1), kolo.Sum)
		middle := AllReduceAsync(w.Group(), fill(0, 1), kolo.Sum)
		want(t, Barrier(ctx, quick), 0, []error{kolo.ErrDeadline}, `"quick"`)
		require.Equal(t, time.Second, age())
		want(t, middle.Wait(ctx), 0, []error{kolo.ErrDeadline}, `"world"`)
		require.Equal(t, time.Minute, age())
		want(t, last.Wait(ctx), 0, []error{kolo.ErrLeft})
		require.Equal(t, time.Hour, age())
		return nil
	})
}

// Deadlines one after the other, of calls that all came in time but the last.
func TestDeadlineCountsFromTheCallItself(t *testing.T) {
	inBubble(t, Config{Timeout: time.Second}, 2, func(ctx context.Context, w *World, age func() time.Duration) error {
		for range 5 {
			if w.Rank() == 1 {
				sleep(900 * time.Millisecond)
			}
			require.NoError(t, Barrier(ctx, w.Group()))
		}
		require.Equal(t, 4500*time.Millisecond, age())
		if w.Rank() == 1 {
			return silent()
		}
		want(t, Barrier(ctx, w.Group()), 0, []error{kolo.ErrDeadline})
		require.Equal(t, 5500*time.Millisecond, age())
		return nil
	})
}

// Calls that wait behind the late one end with it, and say which it was.
func TestDeadlineEndsAllOutstandingCalls(t *testing.T) {
	inBubble(t, Config{Timeout: time.Second}, 2, func(ctx context.Context, w *World, age func() time.Duration) error {
		if w.Rank() == 1 {
			return silent()
		}
		var works []Work
		for i := range 5 {
			works = append(works, AllReduceAsync(w.Group(), fill(0, 10+i), kolo.Sum))
		}
		works = append(works, DoAsync(w.Group(), Request{Collective: kolo.Recv, Out: ints(0, 3), Peer: 1}))
		for i, work := range works {
			<-work.Done()
			err := work.Wait(ctx)
			want(t, err, 0, []error{kolo.ErrDeadline}, "rank 1 has not arrived")
			if i > 0 {
				want(t, err, 0, []error{kolo.ErrAborted}, "the group failed in AllReduce #0")
			}
			require.Equal(t, time.Second, age())
		}
		return nil
	})
}
