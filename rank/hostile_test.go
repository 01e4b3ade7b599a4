package rank_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/actor"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/plan"
	"github.com/kolo-ccl/kolo/rank"
)

// panics is a driver that panics in one of its methods.
type panics struct {
	channel.Driver
	in string
}

type panicsEnd struct {
	channel.Endpoint
	d *panics
}

type panicsConn struct {
	channel.Conn
	d     *panics
	posts int
}

// at panics if this is the place.
func (d *panics) at(place string) {
	if d.in == place {
		panic("the driver's " + place)
	}
}

func (d *panics) Close() error {
	defer d.at("Driver.Close")
	return d.Driver.Close()
}

func (d *panics) Open(r kolo.Rank) (channel.Endpoint, error) {
	if r == 1 {
		d.at("Driver.Open")
	}
	e, err := d.Driver.Open(r)
	return &panicsEnd{e, d}, err
}

func (e *panicsEnd) Close() {
	defer e.d.at("Endpoint.Close")
	e.Endpoint.Close()
}

func (e *panicsEnd) Connect(peer kolo.Rank) (channel.Conn, error) {
	e.d.at("Endpoint.Connect")
	c, err := e.Endpoint.Connect(peer)
	return &panicsConn{c, e.d, 0}, err
}

func (c *panicsConn) Post(t channel.Turn, op *channel.Op) {
	if c.posts++; c.posts == 3 {
		c.d.at("Conn.Post")
	}
	c.Conn.Post(t, op)
}

func (c *panicsConn) Close(t channel.Turn, cause error) {
	c.Conn.Close(t, cause)
	c.d.at("Conn.Close")
}

// A driver that panics ends no process and holds nobody up, wherever it does: it is an error.
func TestDriverThatPanics(t *testing.T) {
	const n = 3
	for _, place := range []string{"Driver.Open", "Driver.Close", "Endpoint.Connect", "Endpoint.Close", "Conn.Post", "Conn.Close"} {
		t.Run(place, func(t *testing.T) {
			began := time.Now()
			wrap := func(d channel.Driver) (channel.Driver, error) { return &panics{d, place}, nil }
			worlds, err := rank.Open(n, rank.Config{Topology: plan.OneServer(n), Wrap: wrap})
			errs := []error{err}
			var mu sync.Mutex
			var wg sync.WaitGroup
			for _, w := range worlds {
				wg.Go(func() {
					b := make([]int64, 100)
					var err error
					for range 3 {
						err = errors.Join(err, rank.AllReduce(t.Context(), w.Group(), b, kolo.Sum))
					}
					err = errors.Join(err, w.Close(t.Context()))
					mu.Lock()
					defer mu.Unlock()
					errs = append(errs, err)
				})
			}
			wg.Wait()
			if err = errors.Join(errs...); place != "Conn.Close" { // whose channel has ended anyway
				var p *actor.PanicError
				require.ErrorAs(t, err, &p)
				require.ErrorContains(t, err, "the driver's "+place)
			}
			require.Less(t, time.Since(began), 20*time.Second)
		})
	}
}

// What makes a World may panic too, or make nothing.
func TestConfigThatPanics(t *testing.T) {
	var p *actor.PanicError
	_, err := rank.Open(2, rank.Config{Wrap: func(channel.Driver) (channel.Driver, error) { panic("in Wrap") }})
	require.ErrorAs(t, err, &p)
	_, err = rank.Open(2, rank.Config{Wrap: func(channel.Driver) (channel.Driver, error) { return nil, nil }})
	require.ErrorIs(t, err, kolo.ErrArgument)
	_, err = rank.Open(2, rank.Config{Engine: func(channel.Engine) channel.Engine { panic("in Engine") }})
	require.ErrorAs(t, err, &p)
	err = rank.Config{Warn: time.Millisecond, Warned: func(rank.Warning) { panic("in Warned") }}.Run(t.Context(), 2, func(ctx context.Context, w *rank.World) error {
		if w.Rank() == 1 {
			<-ctx.Done() // until the other's call has failed
			return nil
		}
		return rank.Barrier(ctx, w.Group())
	})
	require.ErrorAs(t, err, &p)
	require.ErrorContains(t, err, "in Warned")
}

// A window that is closed says so at once.
func TestConnectFromAWindowThatIsClosed(t *testing.T) {
	worlds, err := rank.Open(2, rank.Config{})
	require.NoError(t, err)
	win, err := worlds[0].NewWindow(rank.WindowConfig{Name: "w"})
	require.NoError(t, err)
	require.NoError(t, win.Close(t.Context()))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err = win.Connect(ctx, 1)
	require.ErrorIs(t, err, kolo.ErrClosed)
	for _, w := range worlds {
		require.NoError(t, w.Close(t.Context()))
	}
}
