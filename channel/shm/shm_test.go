//go:build linux && (amd64 || arm64)

package shm

import (
	"testing"

	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/channel/channeltest"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
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

// The descriptor 0 is this process's input, or whatever has been opened in its place.
func TestPeersThatAreNeverUsedCloseNothing(t *testing.T) {
	var before, after unix.Stat_t
	if err := unix.Fstat(0, &before); err != nil {
		t.Skipf("no descriptor 0: %v", err)
	}
	a, err := New(channel.Config{Job: "unused", Engine: noEngine{}})
	require.NoError(t, err)
	b, err := New(channel.Config{Job: "unused", Engine: noEngine{}})
	require.NoError(t, err)
	address, err := b.(channel.Remote).Address()
	require.NoError(t, err)
	require.NoError(t, a.(channel.Remote).Meet([]channel.Peer{{Rank: 1, Address: address}}))
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
	require.NoError(t, unix.Fstat(0, &after))
	require.Equal(t, [2]uint64{before.Dev, before.Ino}, [2]uint64{after.Dev, after.Ino})
}
