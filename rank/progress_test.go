package rank

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"

	"github.com/stretchr/testify/require"
)

// looks are two looks at what a rank does, some time apart. It is called in a bubble.
func looks(ctx context.Context, t *testing.T, w *World, between time.Duration) (first, second []Progress) {
	first, err := w.Progress(ctx)
	require.NoError(t, err)
	time.Sleep(between) // in a bubble
	second, err = w.Progress(ctx)
	require.NoError(t, err)
	return first, second
}

// All ranks have launched a call, of which one message is lost (NVIDIA/nccl#1730, where
// the health report said OK: it counted launches). Two looks show that nothing moves, in
// which step each rank is, and whom it waits for.
func TestCallWhoseLinkStallsIsStuckAndNamesThePeer(t *testing.T) {
	for _, algorithm := range []string{"ring", "nhr", "star"} {
		t.Run(algorithm, func(t *testing.T) {
			const loser = 1
			stuck := make([][]Progress, 4)
			inBubble(t, faults(algorithm, "lose 1 -> * send 0", 0), 4, func(ctx context.Context, w *World, _ func() time.Duration) error {
				work := AllReduceAsync(w.Group(), fill(w.Rank(), 1003), kolo.Sum)
				sleep(time.Second / 2)
				first, second := looks(ctx, t, w, time.Second)
				stuck[w.Rank()] = Stuck(first, second)
				one, err := work.Progress(ctx)
				require.NoError(t, err)
				if len(second) > 0 {
					require.Equal(t, second[0], one)
				} else {
					require.Equal(t, Ended, one.Phase)
				}
				return work.Wait(ctx)
			})
			missed := false
			for r, list := range stuck {
				for _, p := range list {
					require.Equal(t, kolo.Rank(r), p.Rank)
					require.Equal(t, Running, p.Phase)
					require.Equal(t, algorithm, p.Algorithm)
					require.Equal(t, uint64(0), p.Seq)
					require.Equal(t, kolo.AllReduce, p.Call.Collective)
					require.False(t, p.Since.IsZero())
					require.Less(t, p.StepsDone, p.Steps)
					require.Less(t, p.BytesDone, p.Bytes)
					for _, wait := range p.Waits {
						if slices.Contains(wait.Peers, loser) && wait.For != "send" {
							missed = true
							require.Positive(t, wait.Bytes)
							require.Contains(t, p.String(), fmt.Sprintf("rank %d: AllReduce(1003 int32, sum) #0 of group \"world\", running since ", r))
							require.Contains(t, p.String(), fmt.Sprintf("waits in step %d (%s of %d bytes) for rank", wait.Step, wait.For, wait.Bytes))
						}
					}
				}
			}
			require.True(t, missed, "nobody waits for rank 1: %v", stuck)
		})
	}
}

// Each message takes its time, which is long, but they come: two looks show that.
func TestSlowCallThatLivesIsNotStuck(t *testing.T) {
	c := faults("ring", "delay * -> * 1s", 0)
	c.Timeout = time.Minute
	errs := inBubble(t, c, 4, func(ctx context.Context, w *World, _ func() time.Duration) error {
		work := AllReduceAsync(w.Group(), fill(w.Rank(), 4000), kolo.Sum)
		done, bytes := -1, int64(-1)
		sleep(time.Second / 2)
		for range 4 {
			first, second := looks(ctx, t, w, 1100*time.Millisecond)
			require.Len(t, first, 1)
			require.Empty(t, Stuck(first, second))
			require.Greater(t, first[0].StepsDone, done)
			require.Greater(t, first[0].BytesDone, bytes)
			done, bytes = first[0].StepsDone, first[0].BytesDone
			require.InDelta(t, 2*2*(4-1)*4000, first[0].Bytes, 4*64) // 3/4 of the vector twice out and twice in, in blocks of whole cache lines
			require.Len(t, Stuck(first, first), 1)
		}
		return work.Wait(ctx)
	})
	require.NoError(t, errors.Join(errs...))
}

// A call for which a rank is missing names it, what it did last and what it says that it
// does; those behind are queued. A look at calls that have met leaves their places open:
// who comes then meets as if nobody had looked.
func TestProgressOfCallsThatWaitForARank(t *testing.T) {
	errs := inBubble(t, Config{Timeout: time.Hour}, 3, func(ctx context.Context, w *World, _ func() time.Duration) error {
		g := w.Group()
		require.NoError(t, Broadcast(ctx, g, fill(w.Rank(), 5), 0))
		if w.Rank() == 2 {
			w.Busy("reading data")
			sleep(time.Minute)
			w.Busy("")
		}
		works := []Work{AllReduceAsync(g, fill(w.Rank(), 9), kolo.Sum), BarrierAsync(g), AllReduceAsync(g, fill(w.Rank(), 9), kolo.Max)}
		if w.Rank() == 0 {
			sleep(time.Second)
			first, second := looks(ctx, t, w, time.Second)
			require.Equal(t, first, second)
			require.Equal(t, []Phase{Gathering, Queued, Queued}, []Phase{first[0].Phase, first[1].Phase, first[2].Phase})
			require.Equal(t, []uint64{1, 2, 3}, []uint64{first[0].Seq, first[1].Seq, first[2].Seq})
			require.Equal(t, []Wait{{For: WaitCall, Peers: []kolo.Rank{2}, Step: -1,
				Last: "rank 2 last called Broadcast(5 int32, root 0) #0 and is busy: reading data"}}, first[0].Waits)
			require.Contains(t, first[0].String(), `gathering since 00:00:00.000; waits for rank 2 to make the call (rank 2 last called`)
			require.Len(t, Stuck(first, second), 1)
			for i := range first {
				a := g.hub.placeFor(uint64(1+i), 0)
				require.Zero(t, a.state.Load()&closedArrivals, "call %d", i)
			}
			of, err := works[1].Progress(ctx)
			require.NoError(t, err)
			require.Equal(t, first[1], of)
		}
		var errs []error
		for _, work := range works {
			errs = append(errs, work.Wait(ctx))
			p, err := work.Progress(ctx)
			require.NoError(t, err)
			require.Equal(t, Progress{}, p)
		}
		list, err := g.Progress(ctx)
		require.NoError(t, err)
		require.Empty(t, list)
		return errors.Join(errs...)
	})
	require.NoError(t, errors.Join(errs...))
}

// Messages that wait name their peer; a look at one group or one call is at that only.
func TestProgressOfMessages(t *testing.T) {
	errs := inBubble(t, Config{Timeout: time.Hour}, 2, func(ctx context.Context, w *World, _ func() time.Duration) error {
		pair, err := w.NewGroup(GroupConfig{Name: "pair", Ranks: []kolo.Rank{1, 0}})
		require.NoError(t, err)
		if w.Rank() == 1 {
			sleep(time.Minute)
			return errors.Join(Send(ctx, pair, fill(1, 7), 1, 42), Send(ctx, w.Group(), fill(1, 3), 0, 0))
		}
		a, b := RecvAsync(pair, make([]int32, 7), 0, 42), RecvAsync(w.Group(), make([]int32, 3), 1, 0)
		sleep(time.Second)
		first, second := looks(ctx, t, w, time.Second)
		require.Len(t, first, 2)
		require.Equal(t, first, Stuck(first, second))
		p := first[0]
		require.Equal(t, "pair", p.Group)
		require.Equal(t, kolo.Recv, p.Call.Collective)
		require.Equal(t, []Wait{{For: "receive", Peers: []kolo.Rank{0}, Step: -1, Bytes: 28}}, p.Waits)
		require.EqualValues(t, 42, p.Tag)
		list, err := pair.Progress(ctx)
		require.NoError(t, err)
		require.Equal(t, first[:1], list)
		one, err := b.Progress(ctx)
		require.NoError(t, err)
		require.Equal(t, first[1], one)
		require.Contains(t, one.String(), "waits (receive of 12 bytes) for rank 1")
		return errors.Join(a.Wait(ctx), b.Wait(ctx))
	})
	require.NoError(t, errors.Join(errs...))
}

// Ranks that call, whatever way the calls take, are looked at from other goroutines all
// the time; nobody is disturbed.
func TestProgressFromAnyGoroutineDisturbsNobody(t *testing.T) {
	for _, algorithm := range []string{"ring", "fabric"} {
		for _, count := range []int{3, 200_000} {
			t.Run(name(algorithm, 4, 4*count), func(t *testing.T) {
				const n, rounds = 4, 12
				var seen [n]int
				c := Config{Algorithm: algorithm}
				require.NoError(t, c.Run(t.Context(), n, func(ctx context.Context, w *World) error {
					stop := make(chan struct{})
					var others sync.WaitGroup
					others.Go(func() { // ends when stop is closed
						for {
							list, err := w.Progress(ctx)
							if err != nil {
								t.Error(err)
							}
							for _, p := range list {
								if p.Call.Count != int64(count) || p.Seq >= rounds || p.Rank != w.Rank() || p.StepsDone > p.Steps {
									t.Error(p)
								}
								seen[w.Rank()]++
							}
							select {
							case <-stop:
								return
							default:
							}
						}
					})
					defer others.Wait()
					defer close(stop)
					buf := make([]int32, count)
					for k := range rounds {
						for i := range buf {
							buf[i] = value(w.Rank(), i) + int32(k)
						}
						if err := AllReduce(ctx, w.Group(), buf, kolo.Sum); err != nil {
							return err
						}
						for i := range buf {
							want := int32(n * k)
							for r := range n {
								want += value(kolo.Rank(r), i)
							}
							if buf[i] != want {
								return fmt.Errorf("round %d, element %d: %d instead of %d", k, i, buf[i], want)
							}
						}
					}
					return nil
				}))
				if count > 100_000 {
					require.Positive(t, seen[0]+seen[1]+seen[2]+seen[3], "no call was ever seen")
				}
			})
		}
	}
}

// A driver that does not return blocks the actors of its rank, which the look says after
// a second; the hub answers.
func TestProgressSaysWhichActorDoesNotAnswer(t *testing.T) {
	var release chan struct{}
	c := Config{Algorithm: "ring", Timeout: time.Hour, Wrap: func(inner channel.Driver) (channel.Driver, error) {
		release = make(chan struct{}) // in the bubble
		return &blocking{inner, release}, nil
	}}
	errs := inBubble(t, c, 2, func(ctx context.Context, w *World, age func() time.Duration) error {
		if w.Rank() == 0 {
			go func() { // ends when the driver lets go
				_ = AllReduce(context.Background(), w.Group(), fill(0, 100), kolo.Sum) // its end is not looked at
			}()
			sleep(time.Second)
			start := age()
			_, err := w.Progress(ctx)
			want(t, err, 0, []error{kolo.ErrDeadline}, "no answer from the actor of rank 0")
			require.Equal(t, time.Second, age()-start)
			short, cancel := context.WithTimeout(ctx, time.Millisecond)
			defer cancel()
			_, err = w.Progress(short)
			want(t, err, 0, []error{kolo.ErrCanceled}, "no answer from the actor of rank 0")
			close(release)
			return nil
		}
		return AllReduce(ctx, w.Group(), fill(1, 100), kolo.Sum)
	})
	require.NoError(t, errors.Join(errs...))
}

// blocking is a driver whose rank 0 is stuck in Post until release is closed.
type blocking struct {
	channel.Driver
	release chan struct{}
}

func (d *blocking) Open(r kolo.Rank) (channel.Endpoint, error) {
	e, err := d.Driver.Open(r)
	if r == 0 {
		e = &blockingEndpoint{e, d.release}
	}
	return e, err
}

type blockingEndpoint struct {
	channel.Endpoint
	release chan struct{}
}

func (e *blockingEndpoint) Connect(peer kolo.Rank) (channel.Conn, error) {
	c, err := e.Endpoint.Connect(peer)
	return &blockingConn{c, e.release}, err
}

type blockingConn struct {
	channel.Conn
	release chan struct{}
}

func (c *blockingConn) Post(t channel.Turn, op *channel.Op) {
	<-c.release
	c.Conn.Post(t, op)
}

// A world that was closed has no calls, and a group of it answers.
func TestProgressAfterClose(t *testing.T) {
	worlds, err := Open(2, Config{})
	require.NoError(t, err)
	for _, w := range worlds {
		require.NoError(t, w.Close(t.Context()))
		for _, look := range []func(context.Context) ([]Progress, error){w.Progress, w.Group().Progress} {
			list, err := look(t.Context())
			require.NoError(t, err)
			require.Empty(t, list)
		}
	}
}
