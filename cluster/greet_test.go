package cluster

import (
	"context"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Addresses where nobody answers, or somebody else does, cost a join little: the first
// that is the process which is meant is taken, and no other link comes of it.
func TestAddressesAreTriedBesideEachOther(t *testing.T) {
	silent := func() string {
		l, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts, and nobody reads
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, l.Close()) })
		return l.Addr().String()
	}
	list, others := together(t, Config{}, 1, 1), together(t, Config{}, 1, 1)
	at := func(p *Process) string {
		return net.JoinHostPort("127.0.0.1", strconv.Itoa(p.roster.Members[0].Port))
	}
	start := time.Now()
	addresses := []string{silent(), silent(), at(others[0]), "127.0.0.1:" + freePort(t), at(list[0])}
	d := newDialling(addresses)
	l := list[1].race(t.Context(), 0, d)
	require.NotNil(t, l, d.list)
	if d := time.Since(start); d >= 2*greetTime { // as one after the other
		t.Errorf("it took %v", d)
	}
	require.Empty(t, d.list[4].Error)
	require.Equal(t, 1, d.list[4].Tries)
	require.Equal(t, addresses[4], l.address)
	_, err := receive(l.s)
	require.ErrorContains(t, err, "has a link already") // it was only one time too many
	l.hangUp()
	d = newDialling(addresses[2:4])
	require.Nil(t, list[1].race(t.Context(), 0, d))
	require.Contains(t, d.list[0].Error, "stale: expected epoch")
	require.Equal(t, "ECONNREFUSED", d.list[1].Errno)
	require.Contains(t, d.list[1].String(), "connection refused (ECONNREFUSED) in ")

	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	d = newDialling(addresses[:2])
	require.Nil(t, list[1].race(ctx, 0, d), "nobody is there")
	require.Equal(t, "no answer", d.list[0].Error)
	closeAll(t, worldsOf(list))
	closeAll(t, worldsOf(others))
}
