package rank

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/channel/hccs"

	"github.com/stretchr/testify/require"
)

// brittle is a driver around hccs that panics at the n-th call of a method of its
// Conns, counted over all.
type brittle struct {
	channel.Driver
	method string
	left   *atomic.Int64
}

// breaking makes a driver that panics at the n-th call of a method.
func breaking(method string, n int64) func(channel.Config) (channel.Driver, error) {
	return func(c channel.Config) (channel.Driver, error) {
		d, err := hccs.New(c)
		left := new(atomic.Int64)
		left.Store(n)
		return &brittle{d, method, left}, err
	}
}

func (b *brittle) step(method string) {
	if method == b.method && b.left.Add(-1) == 0 {
		panic(errBrittle)
	}
}

var errBrittle = errors.New("the driver is broken")

func (b *brittle) Open(r kolo.Rank) (channel.Endpoint, error) {
	e, err := b.Driver.Open(r)
	return &brittleEnd{e, b}, err
}

type brittleEnd struct {
	channel.Endpoint
	b *brittle
}

func (e *brittleEnd) Connect(peer kolo.Rank) (channel.Conn, error) {
	e.b.step("Connect")
	c, err := e.Endpoint.Connect(peer)
	return &brittleConn{c, e.b}, err
}

type brittleConn struct {
	channel.Conn
	b *brittle
}

func (c *brittleConn) Post(t channel.Turn, op *channel.Op) {
	c.b.step("Post")
	c.Conn.Post(t, op)
	c.b.step("AfterPost")
}

func (c *brittleConn) Release(t channel.Turn, op *channel.Op) {
	c.b.step("Release")
	c.Conn.Release(t, op)
}

func (c *brittleConn) Abort(t channel.Turn, group uint64, cause error) {
	c.b.step("Abort")
	c.Conn.Abort(t, group, cause)
}

func (c *brittleConn) Close(t channel.Turn, cause error) {
	c.b.step("Close")
	c.Conn.Close(t, cause)
}

// drivers numbers the drivers that tests register.
var drivers atomic.Int64

// register makes a driver known for the rest of the process and gives its name.
func register(open func(channel.Config) (channel.Driver, error)) string {
	name := fmt.Sprintf("test-%d", drivers.Add(1))
	channel.Register(name, open)
	return name
}

// A driver that panics at any call, in any message of a plan, fails the group with
// that as the cause on every rank; nothing hangs, and everything closes.
func TestDriverThatPanicsFailsItsGroups(t *testing.T) {
	for _, method := range []string{"Post", "AfterPost", "Connect", "Release"} {
		for _, algorithm := range some([]string{"nhr", "ring", "star"}, 2) {
			for _, n := range some([]int64{0, 3, 5, 1, 2, 4, 6}, 3) {
				t.Run(fmt.Sprintf("%s/%s/%d", method, algorithm, n), func(t *testing.T) {
					name := register(breaking(method, n+1))
					synctest.Test(t, func(t *testing.T) {
						errs := each(t, Config{Driver: name, Algorithm: algorithm}, 3, func(ctx context.Context, w *World) error {
							var err error
							for range 4 {
								err = errors.Join(err, AllReduce(ctx, w.Group(), fill(w.Rank(), 100), kolo.Sum))
							}
							return err
						})
						failed := 0
						for r, err := range errs {
							if err != nil {
								require.ErrorIs(t, err, kolo.ErrPanic, "rank %d", r)
								require.ErrorIs(t, err, errBrittle, "rank %d", r)
								failed++
							}
						}
						if failed != 0 {
							require.Equal(t, 3, failed)
						} else {
							require.NotEqual(t, "Post", method)
						}
					})
				})
			}
		}
	}
}

func TestDriverThatPanicsFailsMessages(t *testing.T) {
	for _, method := range []string{"Post", "AfterPost", "Connect"} {
		name := register(breaking(method, 1))
		synctest.Test(t, func(t *testing.T) {
			errs := each(t, Config{Driver: name}, 2, func(ctx context.Context, w *World) error {
				if w.Rank() == 0 {
					return Send(ctx, w.Group(), fill(0, 10), 1, 0)
				}
				return Recv(ctx, w.Group(), fill(1, 10), 0, 0)
			})
			for r, err := range errs {
				if err == nil && method == "AfterPost" {
					continue // the message was through before the panic
				}
				require.ErrorIs(t, err, kolo.ErrPanic, "%s: rank %d", method, r)
			}
		})
	}
}

func TestDriverThatPanicsInCloseDoesNotHangClose(t *testing.T) {
	for _, method := range []string{"Abort", "Close"} {
		name := register(breaking(method, 1))
		synctest.Test(t, func(t *testing.T) {
			require.NoError(t, Config{Driver: name, Algorithm: "ring"}.Run(t.Context(), 3, func(ctx context.Context, w *World) error {
				return AllReduce(ctx, w.Group(), fill(w.Rank(), 10), kolo.Sum)
			}))
		})
	}
}

// A rank's actor ends in the middle of a plan: nobody waits for its part.
func TestActorThatPanicsInAPlanEndsThePlan(t *testing.T) {
	c := faults("ring", "delay 1 -> 2 send 1 1h", 0)
	c.Timeout = time.Hour / 2
	inBubble(t, c, 3, func(ctx context.Context, w *World, age func() time.Duration) error {
		work := AllReduceAsync(w.Group(), fill(w.Rank(), 99), kolo.Sum)
		sleep(time.Second)
		if w.Rank() == 2 {
			w.crash("rank")
		}
		err := work.Wait(ctx)
		want(t, err, w.Rank(), []error{kolo.ErrPanic})
		require.Equal(t, time.Second, age())
		sleep(time.Second)
		return nil
	})
}

// Calls that are on their way to a hub when it ends are resolved.
func TestCallsBehindAPanicAreResolved(t *testing.T) {
	inBubble(t, Config{}, 2, func(ctx context.Context, w *World, age func() time.Duration) error {
		if w.Rank() == 1 {
			sleep(time.Second)
			return nil
		}
		var works []Work
		queued := make(chan struct{})
		w.group.hub.tell(nil, &failure{why: func(*hub) {
			go func() { // ends when the calls are in the queue of the hub, which is busy here
				for range 3 {
					works = append(works, AllReduceAsync(w.Group(), fill(0, 5), kolo.Sum))
				}
				close(queued)
			}()
			<-queued
			panic(errBrittle)
		}})
		for _, work := range works {
			want(t, work.Wait(ctx), 0, []error{kolo.ErrPanic, errBrittle})
		}
		want(t, Barrier(ctx, w.Group()), 0, []error{kolo.ErrPanic, errBrittle})
		require.Zero(t, age())
		return nil
	})
}

type badMessage struct{}

func (badMessage) isMessage()    {}
func (badMessage) isHubMessage() {}

// An actor of the runtime that panics, by a bug, fails what depends on it: calls
// that wait, calls on their way and later ones. Other groups, and Close, go on.
func TestActorThatPanicsFailsItsGroupsOnly(t *testing.T) {
	for _, which := range []string{"hub", "rank"} {
		t.Run(which, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				errs := each(t, Config{Algorithm: "ring"}, 3, func(ctx context.Context, w *World) error {
					other, err := w.NewGroup(GroupConfig{Name: "other", Ranks: []kolo.Rank{0, 1, 2}})
					require.NoError(t, err)
					require.NoError(t, AllReduce(ctx, w.Group(), fill(w.Rank(), 10), kolo.Sum))
					require.NoError(t, Barrier(ctx, other))
					if w.Rank() == 2 {
						w.crash(which)
					}
					var works []Work
					if w.Rank() < 2 {
						works = append(works, AllReduceAsync(w.Group(), fill(w.Rank(), 10), kolo.Sum))
						m := make([]int32, 4)
						works = append(works, DoAsync(w.Group(), Request{Collective: kolo.Recv, Out: Of(m), Peer: 2, Tag: 3}))
					}
					works = append(works, AllReduceAsync(w.Group(), fill(w.Rank(), 10), kolo.Sum))
					for _, work := range works {
						if err := work.Wait(ctx); err == nil || !errors.Is(err, kolo.ErrPanic) {
							return fmt.Errorf("not the panic: %v", err)
						}
					}
					if which == "hub" {
						return Barrier(ctx, other)
					}
					return nil
				})
				require.NoError(t, errors.Join(errs...))
			})
		})
	}
}

// crash makes an actor panic.
func (w *World) crash(which string) {
	switch which {
	case "hub":
		w.group.hub.tell(nil, badMessage{})
	case "rank":
		w.actor.tell(nil, badMessage{})
	}
}
