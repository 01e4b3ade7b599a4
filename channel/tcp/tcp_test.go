package tcp_test

import (
	"testing"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/channel/channeltest"
	"github.com/kolo-ccl/kolo/channel/tcp"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world makes a driver for n ranks of this process, which meet by their sockets.
func world(t testing.TB, w channel.Config, c tcp.Config, n int) channel.Driver {
	d, err := c.New(w)
	require.NoError(t, err)
	meet(t, d, n)
	return d
}

func meet(t testing.TB, d channel.Driver, n int) {
	a, err := d.(channel.Remote).Address()
	require.NoError(t, err)
	var peers []channel.Peer
	for r := range n {
		peers = append(peers, channel.Peer{Rank: kolo.Rank(r), Address: a})
	}
	require.NoError(t, d.(channel.Remote).Meet(peers))
}

func TestDriver(t *testing.T) {
	channeltest.Kit{Buffered: true, Open: func(t testing.TB, c channel.Config) channel.Driver {
		return world(t, c, tcp.Config{}, 4)
	}}.Run(t)
}
