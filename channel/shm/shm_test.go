//go:build linux && (amd64 || arm64)

package shm

import (
	"testing"

	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/channel/channeltest"

	"github.com/stretchr/testify/require"
)

func open(t testing.TB, c channel.Config) channel.Driver {
	d, err := channel.Open("shm", c)
	require.NoError(t, err)
	return d
}

// openPrivate makes a driver as on a kernel that lets nobody read a process's memory.
func openPrivate(t testing.TB, c channel.Config) channel.Driver {
	d := open(t, c)
	d.(*Driver).private = true
	return d
}

func TestDriver(t *testing.T) { channeltest.Kit{Open: open, Buffered: true}.Run(t) }

func TestDriverInChunks(t *testing.T) { channeltest.Kit{Open: openPrivate, Buffered: true}.Run(t) }

func BenchmarkHop(b *testing.B) { channeltest.BenchmarkHop(b, open) }
