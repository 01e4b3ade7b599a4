//go:build linux && (amd64 || arm64)

package shm

import (
	"runtime"
	"sync"
	"testing"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/internal/cpu"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// newSeated is a table of processes with a rank each, which have met and know what they can
// read of each other.
func newSeated(t *testing.T, n int) *table { return newSeatedOf(t, n, func(*Driver) {}) }

func newSeatedOf(t *testing.T, n int, configure func(*Driver)) *table {
	var ranks [][]kolo.Rank
	for r := range n {
		ranks = append(ranks, []kolo.Rank{kolo.Rank(r)})
	}
	b := newTableOf(t, configure, ranks...)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { // ends with the rounds
			for number := range 2 {
				if err := b.round(i, number, 5, n, true); err != nil {
					t.Errorf("process %d: %v", i, err)
				}
			}
		})
	}
	wg.Wait()
	return b
}

// TestWaiterYieldsToWhoNeedsItsCore: only a process that has not come to the round and was
// seen on this core is a reason to yield.
func TestWaiterYieldsToWhoNeedsItsCore(t *testing.T) {
	tab := newSeated(t, 3)
	b := tab.boards[0].(*board)
	core := func(i int) *board { return tab.boards[i].(*board) }
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.number++
	b.round = &channel.Round{}
	defer func() { b.round, b.number = nil, b.number-1 }()
	b.heads = 0
	// A core that nobody is on, and this one. The thread may be moved meanwhile: look again.
	away := uint64(4095)
	check := func(name string, want bool, one, two uint64) {
		for range 100 {
			here := uint64(cpu.CPU())
			for i, c := range []uint64{one, two} {
				if c == 0 {
					c = here
				}
				core(i + 1).mine.area.core.Store(c)
			}
			if got := b.needed(); uint64(cpu.CPU()) == here {
				require.Equal(t, want, got, name)
				return
			}
		}
		t.Skip("the thread is moved all the time")
	}
	b.d.crowded.Store(true)
	check("both are elsewhere", false, away, away)
	check("one is here", true, away, 0)
	core(2).mine.area.heads[b.number%boardHeads].number.Store(b.number) // it has come
	check("who is here has come", false, away, 0)
	check("who has not come is here", true, 0, away)
	b.d.crowded.Store(false)
	check("there are cores for all", true, away, away)
	core(2).mine.area.heads[b.number%boardHeads].number.Store(0)
}

// TestProcessesSpreadOverCores: the last of several processes on one core moves, and may
// run where it might before.
func TestProcessesSpreadOverCores(t *testing.T) {
	tab := newSeated(t, 4)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, after unix.CPUSet
	require.NoError(t, unix.SchedGetaffinity(0, &before))
	if before.Count() < 2 {
		t.Skip("there is one core")
	}
	for _, c := range []struct {
		name  string
		i     int
		here  int // of the others
		moves bool
	}{{"first of four", 0, 3, false}, {"second of four", 1, 3, false}, {"last of four", 3, 3, true}, {"alone", 3, 0, false}} {
		b := tab.boards[c.i].(*board)
		for range 100 {
			core, n := uint64(cpu.CPU()), 0
			for k := range tab.boards {
				if k != c.i {
					at := uint64(4000 + k)
					if n < c.here {
						at = core
					}
					n++
					tab.boards[k].(*board).mine.area.core.Store(at)
				}
			}
			moved := b.moved
			b.spread()
			require.NoError(t, unix.SchedGetaffinity(0, &after))
			require.Equal(t, before, after, c.name)
			did := b.moved != moved
			if did != c.moves && uint64(cpu.CPU()) != core {
				continue // the kernel has moved it
			}
			require.Equal(t, c.moves, did, c.name)
			break
		}
	}
}
