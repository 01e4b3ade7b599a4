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
	tried := make([]string, len(addresses))
	l := list[1].race(t.Context(), 0, addresses, tried)
	require.NotNil(t, l, tried)
	if d := time.Since(start); d >= 2*greetTime { // as one after the other
		t.Errorf("it took %v", d)
	}
	require.Empty(t, tried[4])
	_, err := receive(l.s)
	require.ErrorContains(t, err, "has a link already") // it was only one time too many
	l.hangUp()
	require.Nil(t, list[1].race(t.Context(), 0, addresses[2:4], tried[2:4]))
	require.Contains(t, tried[2], "stale: expected epoch", tried)
	require.Contains(t, tried[3], "refused", tried)

	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	require.Nil(t, list[1].race(ctx, 0, addresses[:2], tried), "nobody is there")
	closeAll(t, worldsOf(list))
	closeAll(t, worldsOf(others))
}
