package cluster

import (
	"context"
	"encoding/json"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// played is a rendezvous whose answers a test gives: the n-th hello, from 0 on, gets
// what f says; on nil it waits for the process to go.
func played(t *testing.T, f func(n int, h *hello) *answer) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	turns := make(chan int, 1)
	turns <- 0
	v := newServer(services{meet: func(s stream) error {
		b, err := receive(s)
		if err != nil {
			return err
		}
		var h hello
		if err := json.Unmarshal(b, &h); err != nil {
			return err
		}
		n := <-turns
		turns <- n + 1
		if a := f(n, &h); a != nil {
			return send(s, encode(a))
		}
		<-s.Context().Done()
		return s.Context().Err()
	}}, nil, l)
	t.Cleanup(v.close)
	return l.Addr().String()
}

// A process that says hello again has less time left to wait for the others: else it
// would be gone before the rendezvous says who has not come.
func TestWhoComesAgainWaitsForAShorterTime(t *testing.T) {
	waits := make(chan time.Duration, 2)
	at := played(t, func(n int, h *hello) *answer {
		waits <- h.Wait
		if n == 0 {
			return &answer{Retry: "not now"}
		}
		return &answer{World: &roster{}}
	})
	const all = time.Minute
	ctx, cancel := context.WithTimeout(t.Context(), all)
	defer cancel()
	_, m, err := meet(ctx, at, nil, &hello{})
	require.NoError(t, err)
	m.close()
	first, second := <-waits, <-waits
	require.Positive(t, second)
	require.Less(t, first, all)
	require.LessOrEqual(t, second, first-50*time.Millisecond)
}

// What the rendezvous has said counts more than that the time was over while it was asked again.
func TestTheTimeIsOverWhileTheRendezvousIsAskedAgain(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	at := played(t, func(n int, _ *hello) *answer {
		if n == 0 {
			return &answer{Retry: "its rank 0 has not begun another"}
		}
		cancel()
		return nil
	})
	_, _, err := meet(ctx, at, nil, &hello{})
	require.ErrorContains(t, err, "its rank 0 has not begun another")
}
