package rank

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"

	"github.com/stretchr/testify/require"
)

// With CallSites an error says where in the program the calls were made that do not fit
// each other, and what a rank that is missing called last.
func TestErrorsNameCallSites(t *testing.T) {
	errs := each(t, Config{Diagnose: CallSites}, 3, func(ctx context.Context, w *World) error {
		if w.Rank() == 1 {
			return AllReduce(ctx, w.Group(), fill(w.Rank(), 5), kolo.Sum)
		}
		return AllReduceAsync(w.Group(), fill(w.Rank(), 7), kolo.Sum).Wait(ctx)
	})
	for r, err := range errs {
		want(t, err, kolo.Rank(r), []error{kolo.ErrMismatch},
			"2 of 3 ranks called AllReduce(7 int32, sum) at rank/diagnosis_test.go:23;", "rank 1 called AllReduce(5 int32, sum) at rank/diagnosis_test.go:21:")
	}
	synctest.Test(t, func(t *testing.T) {
		errs := each(t, Config{Diagnose: CallSites, Timeout: time.Minute}, 2, func(ctx context.Context, w *World) error {
			if err := Broadcast(ctx, w.Group(), fill(w.Rank(), 5), 0); err != nil || w.Rank() == 1 {
				sleep(time.Hour)
				return err
			}
			return Barrier(ctx, w.Group())
		})
		want(t, errs[0], 0, []error{kolo.ErrDeadline}, "rank 1 last called Broadcast(5 int32, root 0) #0 at rank/diagnosis_test.go:31")
	})
}

// The rule of asynchronous calls, that the buffers are the runtime's until Wait, is
// checked with InFlight: before the data moves, and at the end.
func TestBuffersThatChangeInFlightAreFound(t *testing.T) {
	for name, c := range map[string]struct {
		late bool
		make func(g *Group, buf, out []int32) Work
	}{
		"in place":        {false, func(g *Group, buf, _ []int32) Work { return AllReduceAsync(g, buf, kolo.Sum) }},
		"out of place":    {false, func(g *Group, buf, out []int32) Work { return AllReduceToAsync(g, out, buf, kolo.Sum) }},
		"root":            {false, func(g *Group, buf, _ []int32) Work { return BroadcastAsync(g, buf, 1) }},
		"while it moves":  {true, func(g *Group, buf, out []int32) Work { return AllReduceToAsync(g, out, buf, kolo.Sum) }},
		"root, in motion": {true, func(g *Group, buf, _ []int32) Work { return BroadcastAsync(g, buf, 1) }},
	} {
		t.Run(name, func(t *testing.T) {
			if c.late && raceEnabled {
				t.Skip("the fault that is to be found is a data race")
			}
			config := Config{Diagnose: InFlight | CallSites, Timeout: time.Hour, Algorithm: "star"}
			if c.late {
				if raceEnabled {
					t.Skip("what is found here is a data race, which the race detector finds too")
				}
				config = faults("star", "delay * -> * send 0 10s", 0)
				config.Diagnose, config.Timeout = InFlight|CallSites, time.Hour
			}
			synctest.Test(t, func(t *testing.T) {
				errs := each(t, config, 3, func(ctx context.Context, w *World) error {
					if w.Rank() != 1 && !c.late {
						sleep(time.Second)
					}
					buf, out := fill(w.Rank(), 300), make([]int32, 300)
					work := c.make(w.Group(), buf, out)
					if w.Rank() == 1 {
						sleep(time.Second / 2)
						buf[123]++
					}
					return work.Wait(ctx)
				})
				for r, err := range errs {
					e := want(t, err, kolo.Rank(r), []error{kolo.ErrArgument}, "rank 1 has changed its buffer while the call was in flight", "diagnosis_test.go:")
					require.Equal(t, []kolo.Rank{1}, e.Ranks)
				}
			})
		})
	}
}

// Buffers that nobody touches raise no alarm, whatever the collective and the layout.
func TestDiagnosisFindsNothingWhereNothingIsWrong(t *testing.T) {
	require.NoError(t, Config{Diagnose: CallSites | InFlight | Results}.Run(t.Context(), 3, func(ctx context.Context, w *World) error {
		g, n := w.Group(), 3
		whole, part := fill(w.Rank(), 30), fill(w.Rank(), 10)
		apart := Vector{Counts: []int64{10, 10, 10}, Displs: []int64{30 + 10*int64(w.Rank()), 0, 15}} // with other things between
		return errors.Join(
			AllReduce(ctx, g, whole, kolo.Sum), AllReduceTo(ctx, g, whole, fill(w.Rank(), 30), kolo.Max),
			AllGather(ctx, g, whole, part), AllGather(ctx, g, whole, whole[10*int(w.Rank()):][:10]),
			AllGatherV(ctx, g, fill(w.Rank(), 60), part, apart), AllReduceTensors(ctx, g, [][]int32{whole, {}, part}, kolo.Sum),
			ReduceScatter(ctx, g, part, whole, kolo.Sum), ReduceScatter(ctx, g, whole[10*int(w.Rank()):][:10], whole, kolo.Sum),
			Broadcast(ctx, g, whole, 2), Reduce(ctx, g, whole, whole, kolo.Sum, 1), AllToAll(ctx, g, make([]int32, 10*n), whole),
			Gather(ctx, g, whole, part, 0), Scatter(ctx, g, part, whole, 0), Barrier(ctx, g))
	}))
}

// A driver that delivers a wrong byte is found by comparing the results.
func TestResultsThatDifferAreFound(t *testing.T) {
	d := &corrupt{last: 2}
	c := Config{Diagnose: Results, Algorithm: "ring", Wrap: func(inner channel.Driver) (channel.Driver, error) {
		d.Driver = inner
		return d, nil
	}}
	errs := each(t, c, 4, func(ctx context.Context, w *World) error {
		return AllGather(ctx, w.Group(), make([]int32, 400), fill(w.Rank(), 100))
	})
	for r, err := range errs {
		e := want(t, err, kolo.Rank(r), []error{kolo.ErrMismatch}, "the result of rank 2 is not that of the other ranks, from element")
		require.Equal(t, []kolo.Rank{2}, e.Ranks)
	}
	d.last = 5
	errs = each(t, c, 4, func(ctx context.Context, w *World) error {
		return AllReduceTensors(ctx, w.Group(), [][]int32{fill(w.Rank(), 100), {}, fill(w.Rank(), 300)}, kolo.Sum)
	})
	for r, err := range errs {
		want(t, err, kolo.Rank(r), []error{kolo.ErrMismatch}, "the result of rank 2 is not that of the other ranks, from element")
	}
}

// corrupt changes a byte of what rank 2 gets last from rank 1.
type corrupt struct {
	channel.Driver
	last uint32 // the number of that message
}

func (d *corrupt) Open(r kolo.Rank) (channel.Endpoint, error) {
	e, err := d.Driver.Open(r)
	if r == 2 {
		e = &corruptEndpoint{e, d.last}
	}
	return e, err
}

type corruptEndpoint struct {
	channel.Endpoint
	last uint32
}

func (e *corruptEndpoint) Connect(peer kolo.Rank) (channel.Conn, error) {
	c, err := e.Endpoint.Connect(peer)
	return &corruptConn{Conn: c, last: e.last}, err
}

type corruptConn struct {
	channel.Conn
	last uint32
}

func (c *corruptConn) Post(t channel.Turn, op *channel.Op) {
	if op.Kind == channel.Recv && op.Key.Number == c.last {
		op.Sink = &corruptSink{op.Sink}
	}
	c.Conn.Post(t, op)
}

type corruptSink struct{ channel.Sink }

func (s *corruptSink) Complete(op *channel.Op) {
	op.Mem[0].Host[7] ^= 1
	op.Sink = s.Sink
	s.Sink.Complete(op)
}

// A call that takes long is warned of once, long before its deadline, with who is
// missing and what it says that it does.
func TestSlowCallIsWarnedOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []Warning
		c := Config{Timeout: time.Hour, Warn: 10 * time.Second, Warned: func(w Warning) { got = append(got, w) }}
		errs := each(t, c, 3, func(ctx context.Context, w *World) error {
			for range 5 { // quick ones
				if err := Barrier(ctx, w.Group()); err != nil {
					return err
				}
			}
			if w.Rank() == 2 {
				w.Busy("writing a checkpoint")
				sleep(time.Minute)
				w.Busy("")
			}
			return AllReduce(ctx, w.Group(), fill(w.Rank(), 9), kolo.Sum)
		})
		require.NoError(t, errors.Join(errs...))
		require.Len(t, got, 1)
		require.Equal(t, 10*time.Second, got[0].Waited)
		require.Equal(t, []kolo.Rank{2}, got[0].Missing)
		require.EqualValues(t, 5, got[0].Seq)
		require.Contains(t, got[0].Text, `AllReduce(9 int32, sum) #5 of group "world" waits since 10s for rank 2 (rank 2 last called Barrier`)
		require.Contains(t, got[0].Text, "and is busy: writing a checkpoint")
	})
}

// A callback that does not return breaks its promise and holds up the runtime; Close says
// so and returns all the same.
func TestCallbackThatDoesNotReturnDoesNotHoldClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		c := Config{Timeout: time.Hour, CloseTimeout: 10 * time.Second, Warn: time.Second, Warned: func(Warning) { <-release }}
		worlds, err := Open(2, c)
		require.NoError(t, err)
		AllReduceAsync(worlds[0].Group(), fill(0, 9), kolo.Sum)
		require.NoError(t, err)
		sleep(2 * time.Second)
		begin := time.Now()
		err = worlds[0].Close(t.Context())
		require.ErrorIs(t, err, kolo.ErrDeadline)
		require.ErrorContains(t, err, heldUp)
		require.LessOrEqual(t, time.Since(begin), time.Minute)
		require.ErrorContains(t, worlds[1].Close(t.Context()), "still run: hub world")
		close(release)
		synctest.Wait()
		require.NoError(t, worlds[0].p.close(t.Context())) // what Close had to leave
	})
}
