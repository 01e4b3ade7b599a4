package tcp_test

import (
	"testing"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/channel/channeltest"
	"github.com/kolo-ccl/kolo/channel/tcp"

	"github.com/stretchr/testify/require"
)

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

func TestDriverByName(t *testing.T) {
	d, err := channel.Open("tcp", channel.Config{Job: "test"})
	require.NoError(t, err)
	require.Equal(t, kolo.LinkTCP, d.Link())
	require.NoError(t, d.Close())
	require.NoError(t, d.Close(), "again")
}

func TestDriverWithoutEager(t *testing.T) {
	channeltest.Kit{Buffered: true, Open: func(t testing.TB, c channel.Config) channel.Driver {
		return world(t, c, tcp.Config{Eager: 1, Stripes: 2}, 4)
	}}.Run(t)
}

func TestDriverWithTLS(t *testing.T) {
	channeltest.Kit{Buffered: true, Open: func(t testing.TB, c channel.Config) channel.Driver {
		return world(t, c, tcp.Config{TLS: tcp.TLSOf(t, "a", "a")}, 4)
	}}.Run(t)
}

func BenchmarkHop(b *testing.B) {
	channeltest.BenchmarkHop(b, func(t testing.TB, c channel.Config) channel.Driver { return world(t, c, tcp.Config{}, 2) })
}

func TestDriver(t *testing.T) {
	channeltest.Kit{Buffered: true, Open: func(t testing.TB, c channel.Config) channel.Driver {
		return world(t, c, tcp.Config{}, 4)
	}}.Run(t)
}
