//go:build linux && (amd64 || arm64)

package shm

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sync"
	"testing"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/internal/kernel"

	"github.com/stretchr/testify/require"
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
