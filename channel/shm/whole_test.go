//go:build linux && (amd64 || arm64)

package shm

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"unsafe"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/internal/kernel"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// broadcast is a round of one part from a rank to all; src is nil but for the root.
func broadcast(digest uint64, root kolo.Rank, n int, src, dst []byte) *channel.Round {
	r := &channel.Round{Digest: digest}
	p := r.Add(int64(n), root, channel.EveryRank, 0)
	r.Inputs = append(r.Inputs, kolo.HostMemory(src))
	if src != nil {
		p.Src = append(p.Src, kolo.HostMemory(src))
	} else {
		p.Dst = append(p.Dst, kolo.HostMemory(dst))
	}
	return r
}

// numbered is n bytes that differ by round and place.
func numbered(round, n int) []byte {
	b := make([]byte, n)
	for i := 0; i+8 <= n; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], element(round, 0, i))
	}
	return b
}

// The root of small Broadcasts runs ahead of the others by the heads that there are, and by
// no more; nothing that it has given is overwritten before all have it.
func TestRootRunsAhead(t *testing.T) {
	for _, n := range []int{8, 40} {
		tab := newSeated(t, 3)
		const rounds = 3 * boardHeads
		ended := 0
		var last func() error
		for k := range rounds {
			over := false
			r := broadcast(uint64(k+1), 0, n, numbered(k, n), nil)
			wait := tab.post(0, r)
			b := tab.boards[0].(*board)
			if over = !b.open.Load(); over {
				require.NoError(t, wait())
				ended++
				continue
			}
			last = wait
			break
		}
		require.Equal(t, boardHeads, ended, "rounds that the root has ended alone")
		var wg sync.WaitGroup
		for i := 1; i < 3; i++ {
			wg.Go(func() { // ends with its rounds
				for k := range ended + 1 {
					dst := make([]byte, n)
					if err := tab.post(i, broadcast(uint64(k+1), 0, n, nil, dst))(); err != nil {
						t.Errorf("process %d, round %d: %v", i, k, err)
						return
					}
					if !bytes.Equal(dst, numbered(k, n)) {
						t.Errorf("process %d, round %d: wrong bytes", i, k)
					}
				}
			})
		}
		require.NoError(t, last())
		wg.Wait()
	}
}

// A round without parts ends when all have begun it.
func TestBarrierWaitsForAll(t *testing.T) {
	tab := newSeated(t, 3)
	for k := range 2 * boardHeads {
		var waits []func() error
		for i := range tab.boards {
			for _, j := range tab.boards[:i] {
				b := j.(*board)
				b.advance(nil)
				require.True(t, b.open.Load(), "barrier %d has ended before process %d came", k, i)
			}
			waits = append(waits, tab.post(i, &channel.Round{Digest: uint64(k)}))
		}
		for _, wait := range waits {
			require.NoError(t, wait())
		}
	}
}

// A root that has run ahead with another call than the others is found out in the next round that
// takes something of it.
func TestEarlierCallsThatDiffer(t *testing.T) {
	tab := newSeated(t, 2)
	require.NoError(t, tab.post(0, broadcast(1, 0, 8, numbered(0, 8), nil))())
	require.NoError(t, tab.post(1, broadcast(2, 1, 8, numbered(0, 8), nil))())
	errs := make(chan error, 2)
	for i := range tab.boards {
		m := []kolo.Memory{kolo.HostMemory(make([]byte, 8))}
		go func() { // ends with the round
			errs <- tab.post(i, allReduce(kernel.OpOf(kolo.Int64, kolo.Sum, 2), 3, m, m))()
		}()
	}
	require.ErrorIs(t, <-errs, kolo.ErrMismatch)
	require.ErrorIs(t, <-errs, kolo.ErrMismatch)
}

// Private memory is read where it is, unless a process cannot: then it goes by the arenas.
func TestBoardReadsPrivateMemory(t *testing.T) {
	for _, forbidden := range []bool{false, true} {
		t.Run(fmt.Sprintf("forbidden=%v", forbidden), func(t *testing.T) {
			tab := newSeatedOf(t, 3, func(d *Driver) { d.private = forbidden })
			const n = 1 << 20
			var wg sync.WaitGroup
			wait := tab.post(0, broadcast(1, 0, n, numbered(1, n), nil))
			b := tab.boards[0].(*board)
			b.mu.Lock()
			shown := b.inPlace
			b.mu.Unlock()
			require.Equal(t, !forbidden, shown)
			for i := 1; i < 3; i++ {
				wg.Go(func() { // ends with the round
					dst := make([]byte, n)
					if err := tab.post(i, broadcast(1, 0, n, nil, dst))(); err != nil {
						t.Errorf("process %d: %v", i, err)
					}
					if !bytes.Equal(dst, numbered(1, n)) {
						t.Errorf("process %d has other bytes", i)
					}
				})
			}
			require.NoError(t, wait())
			wg.Wait()
		})
	}
}

// secret is memory that this process alone can read: a stand-in for that of devices.
func secret(t *testing.T, n int) []byte {
	fd, _, e := unix.Syscall(unix.SYS_MEMFD_SECRET, 0, 0, 0)
	if e != 0 {
		t.Skipf("this kernel has no memory that others cannot read: memfd_secret: %v", e)
	}
	defer func() { _ = unix.Close(int(fd)) }() // the mapping stays
	require.NoError(t, unix.Ftruncate(int(fd), int64(n)))
	m, err := unix.Mmap(int(fd), 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Skipf("%d bytes of locked memory: %v", n, err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Munmap(m)) })
	return m
}

// Memory that the kernel does not read for others goes by the arenas, in the calls that it is
// part of: the root's vector is of that kind, or its end is.
func TestMemoryThatOthersCannotRead(t *testing.T) {
	const n = 1 << 20
	whole := secret(t, n)
	halves, err := unix.Mmap(-1, 0, 2*n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(halves)) })
	fd, _, e := unix.Syscall(unix.SYS_MEMFD_SECRET, 0, 0, 0)
	require.Zero(t, e)
	require.NoError(t, unix.Ftruncate(int(fd), n/2))
	half := unsafe.Pointer(&halves[n/2])
	_, err = unix.MmapPtr(int(fd), 0, half, n/2, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED)
	require.NoError(t, err)
	require.NoError(t, unix.Close(int(fd)))
	tab := newSeated(t, 3)
	for round, src := range [][]byte{whole, numbered(1, n), halves[:n:n], numbered(3, n), halves[n/2 : n : n]} {
		want := numbered(round, len(src))
		copy(src, want)
		digest := uint64(round + 1)
		wait := tab.post(0, broadcast(digest, 0, len(src), src, nil))
		b := tab.boards[0].(*board)
		b.mu.Lock()
		shown := b.inPlace
		b.mu.Unlock()
		require.Equal(t, round%2 == 1, shown, "round %d", round)
		var wg sync.WaitGroup
		for i := 1; i < 3; i++ {
			wg.Go(func() { // ends with the round
				dst := make([]byte, len(src))
				if err := tab.post(i, broadcast(digest, 0, len(src), nil, dst))(); err != nil {
					t.Errorf("round %d, process %d: %v", round, i, err)
				}
				if !bytes.Equal(dst, want) {
					t.Errorf("round %d, process %d has other bytes", round, i)
				}
			})
		}
		require.NoError(t, wait())
		wg.Wait()
	}
}

// A process that takes private memory back, which the others have not read, gets it at once;
// they hear of it.
func TestPrivateMemoryIsTakenBack(t *testing.T) {
	tab := newSeated(t, 2)
	const n = 1 << 20
	wait := tab.post(0, broadcast(1, 0, n, numbered(1, n), nil))
	other := tab.boards[1].(*board)
	other.mu.Lock() // so that it stops when it has met the head
	other.number++
	dst := make([]byte, n)
	other.round = broadcast(1, 0, n, nil, dst)
	require.NoError(t, other.layout.lay(&other.seats, other.round.Parts))
	q := &other.parties[0]
	there, err := other.visit(q, q.area.head(other.number))
	require.NoError(t, err)
	require.True(t, there)
	require.True(t, q.private)
	require.Nil(t, other.gaveUp())
	tab.boards[0].Cancel(nil, kolo.ErrCanceled)
	require.ErrorIs(t, wait(), kolo.ErrCanceled)
	require.Equal(t, q, other.gaveUp())
	q.process.pid = 1 << 30 // nobody's: the read fails, and is not taken for a fault of the peer's
	require.NoError(t, other.copyFrom(q, dst[:64], 1<<20))
	require.Equal(t, q, other.withdrew)
	other.withdrew, other.round = nil, nil
	other.leavePlaces(nil)
	other.mu.Unlock()
}

// Who looks at a round or cancels it waits for a piece of a vector, not for all of it; a
// canceled round writes no more to its memory.
func TestLargeVectorsLeaveTheLock(t *testing.T) {
	for _, cancel := range []bool{false, true} {
		tab := newSeated(t, 2)
		const n = 64 << 20
		src, dst := make([]byte, n), make([]byte, n)
		for i := 0; i < n; i += 4096 {
			src[i] = 1
		}
		wait := tab.post(0, broadcast(1, 0, n, src, nil))
		reader := tab.boards[1].(*board)
		looks, through := 0, make(chan struct{})
		go func() { // ends when it has looked, at the latest when the round has ended
			defer close(through)
			for !reader.open.Load() {
				runtime.Gosched()
			}
			for reader.open.Load() {
				reader.Level(nil)
				if looks++; looks == 8 && cancel {
					reader.Cancel(nil, kolo.ErrCanceled)
					clear(dst)
				}
			}
		}()
		err := tab.post(1, broadcast(1, 0, n, nil, dst))()
		<-through
		require.GreaterOrEqual(t, looks, 8, "cancel %v", cancel)
		if cancel {
			require.ErrorIs(t, err, kolo.ErrCanceled)
			if slices.Max(dst) != 0 {
				t.Error("a canceled round has written to memory that was given back")
			}
			tab.boards[0].Cancel(nil, kolo.ErrCanceled)
			require.ErrorIs(t, wait(), kolo.ErrCanceled)
			continue
		}
		require.NoError(t, err)
		require.NoError(t, wait())
		require.True(t, bytes.Equal(src, dst))
	}
}

// Memory that is not there is an error of the round, which names the process.
func TestPrivateMemoryThatIsNotThere(t *testing.T) {
	tab := newSeated(t, 2)
	b := tab.boards[0].(*board)
	b.mu.Lock()
	defer b.mu.Unlock()
	q := &b.parties[0]
	q.process = q.p.process
	err := b.copyFrom(q, make([]byte, 64), 4096)
	q.process = process{}
	require.ErrorIs(t, err, kolo.ErrLost)
	require.ErrorContains(t, err, "bad address")
}
