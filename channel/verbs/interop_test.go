//go:build linux && (amd64 || arm64) && !noverbs

package verbs

import (
	"net/netip"
	"os"
	"runtime"
	"sync"
	"testing"

	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/channel/channeltest"
	"github.com/kolo-ccl/kolo/channel/roce"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestInterop joins an end of this driver, whose packets are the adapter's, and one of
// channel/roce, whose packets are made in software, in the network namespace of
// KOLO_VERBS_NAMESPACE (a file) at the address KOLO_VERBS_SOFTWARE. They pass what every
// driver must. It runs in the machine of make rxe-vm.
func TestInterop(t *testing.T) {
	space, at := os.Getenv("KOLO_VERBS_NAMESPACE"), os.Getenv("KOLO_VERBS_SOFTWARE")
	if space == "" || at == "" {
		t.Skip("KOLO_VERBS_NAMESPACE and KOLO_VERBS_SOFTWARE are not set; make rxe-vm runs this test")
	}
	x := &mixed{t: t, space: space, at: netip.MustParseAddr(at), hardware: opener(underTest(t))}
	channeltest.Kit{Open: x.open, Buffered: true}.Run(t)
	require.Positive(t, x.pairs, "worlds with both")
	t.Logf("%d worlds of both kinds of end, of %d drivers", x.pairs, x.opened)
}

// mixed makes a driver in software where there is none, as it has a port of its own, and
// else one of the adapter.
type mixed struct {
	t        testing.TB
	space    string
	at       netip.Addr
	hardware func(testing.TB, channel.Config) channel.Driver

	mu            sync.Mutex
	busy          bool
	job           string
	opened, pairs int
}

func (x *mixed) open(t testing.TB, c channel.Config) channel.Driver {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.opened++
	if x.busy {
		if x.job == c.Job {
			x.pairs++
		}
		return x.hardware(t, c)
	}
	d := &elsewhere{x: x}
	x.there(func() {
		var err error
		d.Driver, err = roce.New(c, roce.Config{Addr: x.at, Port: roce.Port})
		require.NoError(t, err)
		_, err = d.Driver.Address() // opens the port
		require.NoError(t, err)
	})
	x.busy, x.job = true, c.Job
	return d
}

// there runs f in the other network namespace: sockets stay where they were made.
func (x *mixed) there(f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	move := func(name string) {
		fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		require.NoError(x.t, err)
		defer unix.Close(fd)
		require.NoError(x.t, unix.Setns(fd, unix.CLONE_NEWNET))
	}
	home, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	require.NoError(x.t, err)
	defer unix.Close(home)
	defer func() { require.NoError(x.t, unix.Setns(home, unix.CLONE_NEWNET)) }()
	move(x.space)
	f()
}

// elsewhere is a driver in the other network namespace.
type elsewhere struct {
	*roce.Driver
	x *mixed
}

// Close lets there be another one.
func (d *elsewhere) Close() error {
	err := d.Driver.Close()
	d.x.mu.Lock()
	defer d.x.mu.Unlock()
	d.x.busy = false
	return err
}
