//go:build linux && (amd64 || arm64)

package shm

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"

	"github.com/stretchr/testify/require"
)

// newPair is two nodes in this process, each as if in one of its own.
func newPair(t testing.TB, configure ...func(*Driver)) (a, b *node) {
	t.Helper()
	var list [2]*node
	var peers []channel.Peer
	for i := range list {
		n, err := newNode(kolo.Rank(i), false)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, n.close()) })
		for _, f := range configure {
			f(n.d)
		}
		address, err := n.d.Address()
		require.NoError(t, err)
		peers = append(peers, channel.Peer{Rank: kolo.Rank(i), Address: address})
		list[i] = n
	}
	for i, n := range list {
		require.NoError(t, n.d.Meet(peers[1-i:2-i]))
	}
	return list[0], list[1]
}

// exchange sends n bytes from a to b.
func exchange(t testing.TB, a, b *node, call uint64, n int) {
	t.Helper()
	s := a.send(b.rank, call, pattern(make([]byte, n), call))
	got := make([]byte, n)
	require.NoError(t, b.wait(b.recv(a.rank, call, got)))
	require.NoError(t, a.wait(s))
	require.True(t, bytes.Equal(got, pattern(make([]byte, n), call)))
}

// A process connects, sends what it has and ends while this one connects to it in vain: its
// message is received.
func TestPeerThatCameByItself(t *testing.T) {
	a, b := newPair(t)
	a.d.peers[b.d.me.Socket].Socket = "@!nobody" // where a finds nobody; smaller than a's, which therefore yields
	got := make([]byte, 100)
	w := a.recv(b.rank, 1, got)
	s := b.send(a.rank, 1, pattern(make([]byte, 100), 1))
	require.NoError(t, a.wait(w))
	require.NoError(t, b.wait(s))
	require.Equal(t, pattern(make([]byte, 100), 1), got)
}

// The same where the peer's driver is closed while a's hello waits there, or is being read.
func TestPeerThatCameByItselfHangsUp(t *testing.T) {
	a, b := newPair(t)
	name := fmt.Sprintf("@!hangs-up-%d", os.Getpid()) // smaller than a's, which therefore yields
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: name, Net: "unixpacket"})
	require.NoError(t, err)
	defer l.Close()
	hung := make(chan error, 1)
	go func() { // ends when it has hung up, or when l is closed
		c, err := l.AcceptUnix()
		if err == nil {
			_, err = c.Read(make([]byte, maxText))
			err = errors.Join(err, c.Close())
		}
		hung <- err
	}()
	a.d.peers[b.d.me.Socket].Socket = name
	got := make([]byte, 100)
	w := a.recv(b.rank, 1, got)
	require.NoError(t, <-hung)
	s := b.send(a.rank, 1, pattern(make([]byte, 100), 1))
	require.NoError(t, a.wait(w))
	require.NoError(t, b.wait(s))
	require.Equal(t, pattern(make([]byte, 100), 1), got)
}

// A peer writes garbage over the shared memory: its links are lost, at worst, and
// nothing else happens.
func TestGarbageInSharedMemory(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for round := range 30 {
		a, b := newPair(t)
		exchange(t, a, b, 1, 100)
		exchange(t, b, a, 2, 100_000)
		p := a.d.peers[b.d.me.Socket]
		p.mu.Lock()
		mem := p.mem
		p.mu.Unlock()
		wants := []*want{a.recv(1, 5, make([]byte, 50_000)), a.send(1, 6, make([]byte, 50_000)), b.recv(0, 7, make([]byte, 10))}
		for range 1 + rng.IntN(200) {
			at := rng.IntN(len(mem)) &^ 7
			if round%2 == 0 {
				at = rng.IntN(2)*halfBytes + rng.IntN(dataAt+4096)&^7
			}
			for i := range 8 {
				mem[at+i] = byte(rng.Uint32())
			}
		}
		p.in.tail.Store(p.in.at.Load() + uint64(rng.IntN(3000)))
		a.d.bell.wake()
		b.d.bell.wake()
		for i := range 50 { // it does not matter how these end
			a.send(1, uint64(100+i), make([]byte, 100))
			b.send(0, uint64(100+i), make([]byte, 20_000))
		}
		require.NoError(t, a.d.Close())
		require.NoError(t, b.d.Close())
		for _, w := range wants {
			select {
			case <-w.come:
			case <-time.After(time.Minute):
				t.Fatalf("an op has not completed (seed %d, round %d)", seed, round)
			}
		}
	}
}

// Who connects and talks nonsense is shown the door; the driver goes on.
func TestGarbageAtTheSocket(t *testing.T) {
	a, b := newPair(t)
	name := &net.UnixAddr{Name: a.d.me.Socket, Net: "unixpacket"}
	for _, text := range []string{"", "x", `{"Version":1}`, strings.Repeat("[", 4000), strings.Repeat("x", 100_000),
		fmt.Sprintf(`{"Version":1,"Job":"test","Epoch":7,"From":%q,"To":%q}`, b.d.me.Socket, a.d.me.Socket)} {
		c, err := net.DialUnix("unixpacket", nil, name)
		require.NoError(t, err)
		if len(text) > 0 {
			_, err = c.Write([]byte(text))
			require.NoError(t, err)
		} else {
			require.NoError(t, c.CloseWrite())
		}
		for buf := make([]byte, 8192); err == nil; {
			var n int
			if n, err = c.Read(buf); n == 0 {
				break
			}
		}
		_ = c.Close() // nothing more is said
	}
	exchange(t, a, b, 1, 1000)
}

// A process of another job or epoch does not get in.
func TestStrangersAreRefused(t *testing.T) {
	for name, change := range map[string]func(*Driver){
		"job":   func(d *Driver) { d.config.Job = d.me.Socket },
		"epoch": func(d *Driver) { d.config.Epoch = rand.Uint64() },
		"host":  func(d *Driver) { d.me.Host = d.me.Socket },
		"start": func(d *Driver) { d.me.Started++ },
	} {
		t.Run(name, func(t *testing.T) {
			a, _ := newPair(t, change)
			err := a.wait(a.recv(1, 1, make([]byte, 8)))
			require.ErrorIs(t, err, kolo.ErrLost)
			t.Log(err)
		})
	}
}

// Memory of Alloc is read where it is.
func TestAllocIsReadInPlace(t *testing.T) {
	a, b := newPair(t, func(d *Driver) { d.private = true })
	exchange(t, a, b, 1, 10)
	const n = 1 << 20
	m, err := a.d.Alloc(n)
	require.NoError(t, err)
	s := m.Host
	pattern(s, 5)
	peer := b.d.peers[a.d.me.Socket]
	require.Eventually(t, func() bool { // the other process has heard of it
		peer.mu.Lock()
		defer peer.mu.Unlock()
		return len(peer.regions) == 1
	}, time.Minute, time.Millisecond)
	send := a.send(1, 2, s)
	v := b.op(channel.View, 0, 2, s)
	require.NoError(t, b.wait(b.start(v)))
	require.True(t, bytes.Equal(v.op.Mem[0].Host, s))
	s[3]++ // the sender may not do that; it shows that there is one memory
	require.Equal(t, s[3], v.op.Mem[0].Host[3])
	require.EqualValues(t, 0, send.done.Load())
	released := make(chan struct{})
	require.NoError(t, b.hand.Tell(&errand{do: func() { b.links[0].Release(&v.op); close(released) }}))
	<-released
	require.NoError(t, a.wait(send))
	exchange(t, a, b, 3, 100)
	require.NoError(t, a.d.Free(m))
	require.ErrorIs(t, a.d.Free(m), kolo.ErrArgument)
	require.Eventually(t, func() bool {
		peer.mu.Lock()
		defer peer.mu.Unlock()
		return len(peer.regions) == 0
	}, time.Minute, time.Millisecond)
	_, err = a.d.Alloc(0)
	require.ErrorIs(t, err, kolo.ErrArgument)
}

// Descriptors, mappings and names stay as many as they were.
func TestNothingIsLeftBehind(t *testing.T) {
	cycle := func() {
		a, b := newPair(t)
		exchange(t, a, b, 1, 10)
		exchange(t, b, a, 2, 300_000)
		_, err := a.d.Alloc(4000)
		require.NoError(t, err)
		require.NoError(t, a.close())
		require.NoError(t, b.close())
	}
	count := func() (descriptors, mappings int) {
		list, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		maps, err := os.ReadFile("/proc/self/maps")
		require.NoError(t, err)
		return len(list), bytes.Count(maps, []byte("memfd:kolo"))
	}
	for range 5 {
		cycle()
	}
	runtime.GC()
	d0, m0 := count()
	cycles := 200
	if testing.Short() || raceDetector {
		cycles = 20
	}
	for range cycles {
		cycle()
	}
	runtime.GC()
	d1, m1 := count()
	if d1 > d0 || m1 > m0 {
		maps, _ := os.ReadFile("/proc/self/maps")
		t.Errorf("%d cycles: %d descriptors and %d mappings, before %d and %d\n%s", cycles, d1, m1, d0, m0, maps)
	}
}

// What a peer could make smaller is not mapped: reading it would end the process.
func TestUnsealedMemoryIsRefused(t *testing.T) {
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	require.NoError(t, unix.Ftruncate(fd, 4096))
	_, err = mapShared(fd, 4096, unix.PROT_READ)
	require.ErrorIs(t, err, errCorrupt)
}

// Whether a peer's private memory can be read is known from the handshake on, and where the
// system refuses it so are the reason and what to do.
func TestReads(t *testing.T) {
	for _, refused := range []bool{false, true} {
		a, b := newPair(t, func(d *Driver) { d.private = refused })
		known, _ := a.d.Reads(b.rank)
		require.False(t, known, "before they are connected")
		exchange(t, a, b, 1, 1<<20)
		for _, n := range []*node{a, b} {
			known, err := n.d.Reads(1 - n.rank)
			require.True(t, known)
			if !refused {
				require.NoError(t, err)
				continue
			}
			require.ErrorIs(t, err, unix.EPERM)
			require.ErrorContains(t, err, "operation not permitted: set kernel.yama.ptrace_scope to 0")
			require.ErrorContains(t, err, "seccomp")
		}
		known, _ = a.d.Reads(7)
		require.False(t, known, "a rank that nobody has named")
	}
	require.ErrorContains(t, refusalOf(fmt.Errorf("call: %w", unix.ENOSYS)), "CONFIG_CROSS_MEMORY_ATTACH")
	_, err := seize(0, 0)
	require.ErrorContains(t, refusalOf(err), "name space")
}
