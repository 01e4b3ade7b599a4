package rank

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/channel/faulty"

	"github.com/stretchr/testify/require"
)

// faults is a configuration whose messages have the faults of a script.
func faults(algorithm, script string, seed uint64) Config {
	return Config{Algorithm: algorithm, Timeout: 2 * time.Second, Wrap: func(inner channel.Driver) (channel.Driver, error) {
		return faulty.New(inner, script, seed)
	}}
}

// choreographies are algorithms of different shape that do an AllReduce.
var choreographies = []string{"ring", "nhr", "tree", "star", "mesh", "halving-doubling"}

// some is a list, or its first n entries with the race detector, under which a world
// takes many milliseconds.
func some[T any](list []T, n int) []T {
	if raceEnabled {
		return list[:n]
	}
	return list
}

// outcome is how a call ended on one rank.
type outcome struct {
	age   time.Duration
	err   error
	right bool // the result
}

// reduceAll makes calls of AllReduce by 4 ranks in a bubble, and gives how each ended
// on each rank, and what the driver did.
func reduceAll(t *testing.T, c Config, calls, count int) (ends [][4]outcome, report faulty.Report) {
	var d *faulty.Driver
	wrap := c.Wrap
	c.Wrap = func(inner channel.Driver) (channel.Driver, error) {
		outer, err := wrap(inner)
		d, _ = outer.(*faulty.Driver)
		return outer, err
	}
	ends = make([][4]outcome, calls)
	expect := sums(4, count)
	inBubble(t, c, 4, func(ctx context.Context, w *World, age func() time.Duration) error {
		for k := range ends {
			b := fill(w.Rank(), count)
			err := AllReduce(ctx, w.Group(), b, kolo.Sum)
			ends[k][w.Rank()] = outcome{age(), err, slices.Equal(b, expect)}
		}
		return nil
	})
	return ends, d.Report()
}

// everyMessage makes an AllReduce for message k of each way between 4 ranks, for as
// many as it sends there, with a rule for that message; f judges those that had a
// fault. The others must have ended well.
func everyMessage(t *testing.T, algorithms []string, rule string, count int, f func(t *testing.T, algorithm string, from, to kolo.Rank, r kolo.Rank, end outcome)) {
	const n = 4
	for _, algorithm := range algorithms {
		t.Run(algorithm, func(t *testing.T) {
			hits := 0
			for way := range n * n {
				from, to := kolo.Rank(way/n), kolo.Rank(way%n)
				for k := 0; from != to; k++ {
					ends, report := reduceAll(t, faults(algorithm, fmt.Sprintf(rule, int(from), int(to), k), 0), 1, count)
					for r, end := range ends[0] {
						if len(report.Faults) > 0 {
							f(t, algorithm, from, to, kolo.Rank(r), end)
						} else if end.err != nil || !end.right {
							t.Errorf("%d -> %d, rank %d: %v", from, to, r, end.err)
						}
					}
					if len(report.Faults) == 0 {
						break
					}
					hits++
				}
			}
			require.Greater(t, hits, n, "faults")
		})
	}
}

var waitsInStep = regexp.MustCompile(`rank \d waits in step \d+ of \d+ \([a-z-]+ of [1-9]\d* bytes, [a-z-]+\) for rank \d`)

// A message of a plan is lost, each in its turn: at the deadline, to the nanosecond,
// every rank hears which ranks wait, in which step of which algorithm, and for whom.
// The message behind the lost one, of the same size or not, does not take its place.
func TestLostMessageOfAPlanIsADeadlineThatNamesTheSteps(t *testing.T) {
	for _, count := range []int{1024, 1003} {
		lostMessages(t, count)
	}
}

func lostMessages(t *testing.T, count int) {
	everyMessage(t, some(choreographies[:3], 2), "lose %d -> %d send %d", count, func(t *testing.T, algorithm string, _, to kolo.Rank, r kolo.Rank, end outcome) {
		want(t, end.err, r, []error{kolo.ErrDeadline}, "the data has not come through", fmt.Sprintf("rank %d waits in step", int(to)), algorithm)
		require.Regexp(t, waitsInStep, end.err.Error())
		require.Equal(t, 2*time.Second, end.age)
	})
}

// The link breaks in front of a message, each in its turn: every rank hears at once,
// and between whom.
func TestCutLinkIsHeardAtOnceByAllRanks(t *testing.T) {
	everyMessage(t, some([]string{"tree", "nhr", "ring"}, 2), "cut %d -> %d after %d", 1003, func(t *testing.T, _ string, from, to kolo.Rank, r kolo.Rank, end outcome) {
		want(t, end.err, r, []error{kolo.ErrLost}, fmt.Sprintf("rank %d", int(from)), fmt.Sprintf("rank %d", int(to)))
		require.Zero(t, end.age)
	})
}

// Delays change nothing but the time, also where they turn the order of arrival
// around.
func TestDelaysChangeNoResult(t *testing.T) {
	for _, algorithm := range choreographies {
		for seed := range uint64(3) {
			c := faults(algorithm, "delay * -> * 40% 7ms\ndelay 2 -> * 30% 50ms\ndelay * -> 1 20% 90ms", seed)
			c.Timeout = time.Minute
			ends, report := reduceAll(t, c, 3, 1003)
			for _, call := range ends {
				for r, end := range call {
					require.NoError(t, end.err, "%s, seed %d, rank %d", algorithm, seed, r)
					require.True(t, end.right, "%s, seed %d, rank %d", algorithm, seed, r)
				}
			}
			require.NotZero(t, report.Delayed)
		}
	}
}

// Delays, losses and cuts at random: a call ends right on all ranks or fails on all of
// them with one of the errors that a caller can expect, and nothing hangs.
func TestRandomFaultsEndWellOrInAnError(t *testing.T) {
	kinds := []error{kolo.ErrDeadline, kolo.ErrLost, kolo.ErrAborted, kolo.ErrLeft}
	for seed := range uint64(24) {
		rng := rand.New(rand.NewPCG(seed, 84))
		script := fmt.Sprintf("lose * -> * %d%%\ndelay * -> * 30%% %dms\n", rng.IntN(4), 1+rng.IntN(900))
		if rng.IntN(3) == 0 {
			script += fmt.Sprintf("cut %d -> %d after %d\n", rng.IntN(2), 2+rng.IntN(2), rng.IntN(6))
		}
		ends, _ := reduceAll(t, faults(choreographies[rng.IntN(len(choreographies))], script, seed), 4, 1003)
		for _, call := range ends {
			for r, end := range call {
				if (end.err == nil) != (call[0].err == nil) {
					t.Errorf("seed %d: rank 0: %v; rank %d: %v", seed, call[0].err, r, end.err)
				}
				expected := slices.ContainsFunc(kinds, func(k error) bool { return errors.Is(end.err, k) })
				if end.err == nil && !end.right || end.err != nil && !expected {
					t.Errorf("seed %d: rank %d: right %v, %v", seed, r, end.right, end.err)
				}
			}
		}
	}
}

// A link that loses a message of one group disturbs no other group on the same link.
func TestLostMessageFailsItsGroupOnly(t *testing.T) {
	c := faults("ring", "lose 0 -> 1 send 0", 0)
	errs := inBubble(t, c, 3, func(ctx context.Context, w *World, age func() time.Duration) error {
		other, err := w.NewGroup(GroupConfig{Name: "other", Ranks: []kolo.Rank{0, 1, 2}})
		require.NoError(t, err)
		first := AllReduceAsync(w.Group(), fill(w.Rank(), 9), kolo.Sum)
		sleep(time.Second) // the messages of the plan are the first
		require.NoError(t, Batch(ctx, other, []Request{
			{Collective: kolo.Send, In: ints(w.Rank(), 5), Peer: (w.Rank() + 1) % 3},
			{Collective: kolo.Recv, Out: ints(w.Rank(), 5), Peer: (w.Rank() + 2) % 3},
		}))
		want(t, first.Wait(ctx), w.Rank(), []error{kolo.ErrDeadline}, `in group "world"`)
		require.Equal(t, 2*time.Second, age())
		return AllReduce(ctx, other, fill(w.Rank(), 10), kolo.Sum)
	})
	require.NoError(t, errors.Join(errs...))
}

// A link that stands still in the middle of a plan, for a context, an abort and a
// Close: all of them end the call, though its messages are under way.
func TestStalledPlanIsEndedFromOutside(t *testing.T) {
	for _, how := range []string{"context", "abort", "close"} {
		c := faults("ring", "delay 1 -> 2 send 1 1h", 0)
		c.Timeout, c.CloseTimeout = 30*time.Minute, time.Second
		inBubble(t, c, 4, func(ctx context.Context, w *World, age func() time.Duration) error {
			if w.Rank() == 0 && how == "context" {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, time.Second)
				defer cancel()
			}
			work := AllReduceAsync(w.Group(), fill(w.Rank(), 100), kolo.Sum)
			kinds := []error{kolo.ErrCanceled, kolo.ErrDeadline}
			if w.Rank() == 0 && how == "abort" {
				sleep(time.Second)
				w.Group().Abort(errBadInput)
			}
			if how == "abort" {
				kinds = []error{kolo.ErrAborted, errBadInput}
			}
			if w.Rank() == 0 && how == "close" {
				require.ErrorIs(t, w.Group().Close(ctx), kolo.ErrDeadline)
			}
			if how == "close" {
				kinds = []error{kolo.ErrLeft, kolo.ErrDeadline}
			}
			want(t, work.Wait(ctx), w.Rank(), kinds)
			require.Equal(t, time.Second, age())
			return nil
		})
	}
}

// What a message without a plan does: a lost one is missed by its receiver.
func TestLostMessageIsMissedByItsReceiver(t *testing.T) {
	c := faults("", "lose 0 -> 1 send 1", 0)
	inBubble(t, c, 2, func(ctx context.Context, w *World, age func() time.Duration) error {
		if w.Rank() == 0 {
			require.NoError(t, Send(ctx, w.Group(), fill(0, 5), 1, 7))
			require.NoError(t, Send(ctx, w.Group(), fill(0, 6), 1, 8)) // as far as a sender can tell
			return silent()
		}
		require.NoError(t, Recv(ctx, w.Group(), fill(1, 5), 0, 7))
		want(t, Recv(ctx, w.Group(), fill(1, 6), 0, 8), 1, []error{kolo.ErrDeadline}, "rank 0 has not sent to rank 1 (Recv(6 int32), tag 8)")
		require.Equal(t, 2*time.Second, age())
		return nil
	})
}

func TestWrongWrapIsRefused(t *testing.T) {
	c := faults("", "loose 0 -> 1", 0)
	err := c.Run(t.Context(), 2, func(context.Context, *World) error { panic("never") })
	require.ErrorIs(t, err, kolo.ErrArgument)
	require.ErrorContains(t, err, "Config.Wrap: ")
}
