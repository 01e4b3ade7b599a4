//go:build linux && (amd64 || arm64)

package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/internal/kernel"

	"github.com/stretchr/testify/require"
)

// table is drivers in this process that join each other as those of several processes,
// with the ranks that each has.
type table struct {
	drivers []*Driver
	ranks   [][]kolo.Rank
	boards  []channel.Board
	shared  []kolo.Memory // of each process for its vectors, if it has some
	each    int           // bytes of it for a vector
}

const tableGroup = 77

// newTable makes a driver for each list of ranks, and a board of all of them.
func newTable(t testing.TB, ranks ...[]kolo.Rank) *table {
	return newTableOf(t, func(*Driver) {}, ranks...)
}

// newTableOf is newTable with drivers that are configured before they join.
func newTableOf(t testing.TB, configure func(*Driver), ranks ...[]kolo.Rank) *table {
	b := &table{ranks: ranks}
	var peers []channel.Peer
	for range ranks {
		d, err := New(channel.Config{Job: "board", Engine: noEngine{}})
		require.NoError(t, err)
		configure(d.(*Driver))
		b.drivers = append(b.drivers, d.(*Driver))
	}
	t.Cleanup(func() {
		for i, d := range b.drivers {
			if i < len(b.boards) {
				b.boards[i].Close()
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	n := 0
	for i, d := range b.drivers {
		address, err := d.Address()
		require.NoError(t, err)
		for _, r := range ranks[i] {
			peers = append(peers, channel.Peer{Rank: r, Address: address})
			n++
		}
	}
	all := make([]kolo.Rank, n)
	for r := range all {
		all[r] = kolo.Rank(r)
	}
	for i, d := range b.drivers {
		for _, r := range ranks[i] {
			_, err := d.Open(r)
			require.NoError(t, err)
		}
		require.NoError(t, d.Meet(peers))
		if !d.Spans(all) {
			t.Error("the medium does not span its ranks")
		}
		board, err := d.Board(tableGroup, all)
		require.NoError(t, err)
		b.boards = append(b.boards, board)
	}
	return b
}

// noEngine is an engine that nothing is asked of.
type noEngine struct{ channel.Engine }

// post begins a round of process i and returns a function that polls until it is over.
func (b *table) post(i int, r *channel.Round) (wait func() error) {
	var over atomic.Uint32
	var result error
	ended := make(chan struct{})
	r.Done = func(_ channel.Turn, err error) {
		result = err
		over.Store(1)
		close(ended)
	}
	b.boards[i].Post(nil, r)
	return func() error {
		b.drivers[i].Poll(&over)
		<-ended
		return result
	}
}

// element is what a rank gives at index i of a round.
func element(round, rank, i int) uint64 {
	return uint64(round+1)*1_000_003 + uint64(rank)*65_537 + uint64(i)*2654435761
}

// memory is n bytes for a vector of process i: in shared memory where the process is to
// have that. The vectors lie at odd places of it.
func (b *table) memory(i, rank, n int) ([]byte, error) {
	if i >= len(b.shared) || b.shared[i].Len() == 0 {
		return make([]byte, n), nil
	}
	at := 8 * (1 + rank) // apart from the others'
	for _, r := range b.ranks[i] {
		if int(r) < rank {
			at += b.each
		}
	}
	return b.shared[i].Host[at:][:n:n], nil
}

// share gives a process shared memory for vectors of at most n bytes.
func (b *table) share(i, n int) error {
	m, err := b.drivers[i].Alloc(int64((n + 8*64) * len(b.ranks[i])))
	if err != nil {
		return err
	}
	for len(b.shared) <= i {
		b.shared = append(b.shared, kolo.Memory{})
	}
	b.shared[i], b.each = m, n+8*8
	return nil
}

// allReduce is a round of one part for all.
func allReduce(op kernel.Op, digest uint64, src, dst []kolo.Memory) *channel.Round {
	r := &channel.Round{Op: op, Digest: digest, Inputs: src}
	p := r.Add(src[0].Len(), channel.EveryRank, channel.EveryRank, 0)
	p.Src, p.Dst = src, dst
	return r
}

// round is one AllReduce of process i, of count numbers, which is checked.
func (b *table) round(i, number, count, all int, inPlace bool) error {
	var from, to []kolo.Memory
	for _, rank := range b.ranks[i] {
		src, err := b.memory(i, int(rank), 8*count)
		if err != nil {
			return err
		}
		for k := range count {
			binary.LittleEndian.PutUint64(src[8*k:], element(number, int(rank), k))
		}
		dst := src
		if !inPlace {
			dst = make([]byte, 8*count)
		}
		from, to = append(from, kolo.HostMemory(src)), append(to, kolo.HostMemory(dst))
	}
	r := allReduce(kernel.OpOf(kolo.Uint64, kolo.Sum, all), uint64(number), from, to)
	if err := b.post(i, r)(); err != nil {
		return err
	}
	for k := range count {
		want := uint64(0)
		for rank := range all {
			want += element(number, rank, k)
		}
		for j, m := range to {
			if got := binary.LittleEndian.Uint64(m.Host[8*k:]); got != want {
				return fmt.Errorf("round %d of %d numbers: rank %v has %d at %d, want %d", number, count, b.ranks[i][j], got, k, want)
			}
		}
	}
	return nil
}

func TestBoard(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for _, ranks := range [][][]kolo.Rank{
		{{0}, {1}}, {{1}, {0}}, {{0}, {1}, {2}}, {{0, 3}, {2, 1}}, {{0}, {1}, {2}, {3}, {4}},
		{{4, 0, 2}, {1}, {3, 5}},
	} {
		t.Run(fmt.Sprint(ranks), func(t *testing.T) {
			b := newTable(t, ranks...)
			all := 0
			for _, list := range ranks {
				all += len(list)
			}
			rng := rand.New(rand.NewPCG(seed, uint64(all)))
			counts := []int{1, 0, 3, 2, 1, 6, 7, 1000, 1 << 10, 1<<10 + 1, 1, 16 << 10, 100_003}
			for range 8 {
				counts = append(counts, rng.IntN(1<<(1+rng.IntN(16))))
			}
			inPlace := rng.Uint64()
			var wg sync.WaitGroup
			for i := range b.boards {
				wg.Go(func() {
					for n, count := range counts {
						if err := b.round(i, n, count, all, inPlace>>n&1 != 0); err != nil {
							t.Errorf("process %d: %v", i, err)
							return
						}
					}
				})
			}
			wg.Wait()
		})
	}
}

// TestBoardReadsInPlace mixes processes whose vectors are in shared memory with others, of
// which one has more ranks than a head has places.
func TestBoardReadsInPlace(t *testing.T) {
	const most = 300_000
	for _, c := range []struct {
		ranks  [][]kolo.Rank
		shared []int
	}{
		{[][]kolo.Rank{{0}, {1}}, []int{0, 1}},
		{[][]kolo.Rank{{0}, {1}}, []int{1}},
		{[][]kolo.Rank{{0}, {1}, {2}}, []int{0, 1, 2}},
		{[][]kolo.Rank{{0, 3}, {2, 1}, {4}}, []int{0, 2}},
		{[][]kolo.Rank{{0, 3, 1, 5}, {2}, {4}}, []int{0, 1, 2}},
	} {
		t.Run(fmt.Sprint(c.ranks, c.shared), func(t *testing.T) {
			b := newTable(t, c.ranks...)
			all := 0
			for _, list := range c.ranks {
				all += len(list)
			}
			for _, i := range c.shared {
				require.NoError(t, b.share(i, 8*most))
			}
			var wg sync.WaitGroup
			for i := range b.boards {
				wg.Go(func() {
					for n, count := range []int{1, placesFrom / 8, 100_003, 7, placesFrom/8 - 1, most, 17, most - 1} {
						if err := b.round(i, n, count, all, n%3 != 2); err != nil {
							t.Errorf("process %d: %v", i, err)
							return
						}
					}
				})
			}
			wg.Wait()
			for i, m := range b.shared {
				if m.Len() > 0 {
					require.NoError(t, b.drivers[i].Free(m)) // nobody keeps it
				}
			}
		})
	}
}

// TestBoardWithForeignPlaces is a head that shows memory which its process has not.
func TestBoardWithForeignPlaces(t *testing.T) {
	const size = placesFrom
	tab := newTable(t, []kolo.Rank{0}, []kolo.Rank{1})
	require.NoError(t, tab.share(1, size))
	var wg sync.WaitGroup
	for i := range tab.boards {
		wg.Go(func() {
			if err := tab.round(i, 0, size/8, 2, true); err != nil {
				t.Errorf("process %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	b := tab.boards[0].(*board)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.round = &channel.Round{}
	defer func() { b.round = nil }()
	q := &b.parties[0]
	number, _ := tab.drivers[1].regionOf(tab.shared[1].Host)
	room := uint64(tab.shared[1].Len())
	const private = 1 << 20 // an address
	for _, c := range []struct {
		name           string
		shows          uint64
		input, output  place
		there, private bool
	}{
		{"nothing", placesNone, place{0, 5}, place{}, true, false},
		{"an address of nothing", placesInputs, place{}, place{}, false, false},
		{"all of it", placesInputs, place{uint64(number), room - size}, place{}, true, false},
		{"one byte too many", placesInputs, place{uint64(number), room - size + 1}, place{}, false, false},
		{"behind the end", placesInputs, place{uint64(number), room + 1}, place{}, false, false},
		{"an offset that wraps", placesInputs, place{uint64(number), ^uint64(0) - 8}, place{}, false, false},
		{"no number of memory", placesInputs, place{uint64(number) | 1<<32, 0}, place{}, false, false},
		{"private memory", placesInputs, place{0, private}, place{}, true, true},
		{"private memory that wraps", placesInputs, place{0, ^uint64(0) - size + 2}, place{}, false, false},
		{"an output", placesAll, place{uint64(number), 0}, place{0, private}, true, true},
		{"an output behind the end", placesAll, place{0, private}, place{uint64(number), room}, false, false},
		{"more than there is", placesAll + 1, place{uint64(number), 0}, place{uint64(number), 0}, false, false},
	} {
		h := boardHead{data: make([]byte, boardInline), places: make([]byte, boardPlaces*boardPlace)}
		binary.NativeEndian.PutUint64(h.data, c.shows)
		h.setPlace(0, c.input)
		h.setPlace(1, c.output)
		there, err := b.visit(q, &h)
		if there != c.there || (err == nil) != c.there || q.private != c.private {
			t.Errorf("%s: there %v, private %v, %v", c.name, there, q.private, err)
		}
		b.leavePlaces(nil)
		require.Empty(t, q.inputs, c.name)
		require.Zero(t, q.p.regions[number].users, c.name)
	}
	h := boardHead{data: make([]byte, boardInline), places: make([]byte, boardPlaces*boardPlace)}
	binary.NativeEndian.PutUint64(h.data, placesInputs)
	h.setPlace(0, place{uint64(number) + 1, 0})
	there, err := b.visit(q, &h)
	require.NoError(t, err)
	require.False(t, there, "memory of which nothing is known yet")
}

// TestBoardTakesVectorsBack cancels a round whose vectors others may read in place: who
// folds them afterwards hears of it and has no result.
func TestBoardTakesVectorsBack(t *testing.T) {
	const size = 4 * placesFrom
	b := newTable(t, []kolo.Rank{0}, []kolo.Rank{1})
	require.NoError(t, b.share(1, size))
	post := func(i int) func() error {
		m, err := b.memory(i, i, size)
		require.NoError(t, err)
		one := []kolo.Memory{kolo.HostMemory(m)}
		return b.post(i, allReduce(kernel.OpOf(kolo.Uint64, kolo.Sum, 2), 5, one, one))
	}
	var wg sync.WaitGroup
	for i := range b.boards { // they know each other's memory then
		wait := post(i)
		wg.Go(func() {
			if err := wait(); err != nil {
				t.Errorf("process %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	wait := post(1)
	other := b.boards[0].(*board)
	other.mu.Lock() // so that it stops when it has met the head
	q := &other.parties[0]
	other.number++
	other.round = &channel.Round{}
	there, err := other.visit(q, &q.area.heads[other.number%boardHeads])
	require.NoError(t, err)
	require.True(t, there)
	require.Nil(t, other.gaveUp())
	b.boards[1].Cancel(nil, kolo.ErrCanceled)
	require.ErrorIs(t, wait(), kolo.ErrCanceled)
	if other.gaveUp() != q {
		t.Error("nobody says that the vectors were taken back")
	}
	other.leavePlaces(nil)
	other.round = nil
	other.mu.Unlock()
}

// TestPollSleeps has a rank wait that nobody comes to meet for some time: it sleeps, and is
// woken by who comes.
func TestPollSleeps(t *testing.T) {
	b := newTable(t, []kolo.Rank{0}, []kolo.Rank{1})
	for n := range 20 {
		ended := make(chan error, 1)
		d := b.drivers[0]
		before := d.polls.Load()
		go func() { ended <- b.round(0, n, 1000, 2, true) }() // ends with the round
		asleep := func() bool {                               // in one of the naps, or after the last of them
			return d.polls.Load() > before && d.bell.asleep.Load() != 0 && (d.nappers.Load() > 0 || d.pollers.Load() == 0)
		}
		for start := time.Now(); !asleep(); runtime.Gosched() {
			if time.Since(start) > time.Minute {
				t.Fatal("the rank that waits does not sleep")
			}
		}
		require.NoError(t, b.round(1, n, 1000, 2, true))
		require.NoError(t, <-ended)
	}
	if b.drivers[0].bell.rung.Load() == 0 {
		t.Error("nobody has rung")
	}
}

// TestBoardWhenNobodyPolls leaves the rounds to the goroutines of the drivers.
func TestBoardWhenNobodyPolls(t *testing.T) {
	b := newTable(t, []kolo.Rank{0}, []kolo.Rank{1}, []kolo.Rank{2})
	for n, count := range []int{1, 50_000, 3} {
		var all []chan error
		var mem [][]byte
		for i := range b.boards {
			m := make([]byte, 8*count)
			for k := range count {
				binary.LittleEndian.PutUint64(m[8*k:], element(n, i, k))
			}
			mem = append(mem, m)
			ended := make(chan error, 1)
			all = append(all, ended)
			one := []kolo.Memory{kolo.HostMemory(m)}
			r := allReduce(kernel.OpOf(kolo.Uint64, kolo.Max, 3), 9, one, one)
			r.Done = func(_ channel.Turn, err error) { ended <- err }
			b.boards[i].Post(nil, r)
		}
		for _, ended := range all {
			select {
			case err := <-ended:
				require.NoError(t, err)
			case <-time.After(time.Minute):
				t.Fatal("the round does not end")
			}
		}
		for k := range count {
			want := max(element(n, 0, k), element(n, 1, k), element(n, 2, k))
			for i := range mem {
				if got := binary.LittleEndian.Uint64(mem[i][8*k:]); got != want {
					t.Fatalf("round %d: rank %d has %d at %d, want %d", n, i, got, k, want)
				}
			}
		}
	}
}

// TestBoardHasTheBitsOfTheOrderOfRanks folds numbers whose sum depends on the order.
func TestBoardHasTheBitsOfTheOrderOfRanks(t *testing.T) {
	b := newTable(t, []kolo.Rank{2, 0}, []kolo.Rank{1}, []kolo.Rank{3})
	const count = 30_001
	op := kernel.OpOf(kolo.Float32, kolo.Avg, 4)
	given, rng := make([][]byte, 4), rand.New(rand.NewPCG(3, 4))
	for r := range given {
		given[r] = make([]byte, 4*count)
		for i := range count {
			binary.LittleEndian.PutUint32(given[r][4*i:], rng.Uint32()&^(1<<30)) // no infinity
		}
	}
	want := make([]byte, 4*count)
	op.Fold(want, given...)
	var wg sync.WaitGroup
	for i := range b.boards {
		wg.Go(func() {
			var list []kolo.Memory
			for _, rank := range slices.Sorted(slices.Values(b.ranks[i])) {
				m := kolo.HostMemory(slices.Clone(given[rank]))
				list = append(list, m)
			}
			if err := b.post(i, allReduce(op, 1, list, list))(); err != nil {
				t.Error(err)
			}
			for _, m := range list {
				if !slices.Equal(m.Host, want) {
					t.Errorf("process %d has other bits", i)
				}
			}
		})
	}
	wg.Wait()
}

func TestBoardOfOtherCalls(t *testing.T) {
	b := newTable(t, []kolo.Rank{0}, []kolo.Rank{1})
	errs := make(chan error, 2)
	for i := range b.boards {
		m := []kolo.Memory{kolo.HostMemory(make([]byte, 8))}
		go func() {
			errs <- b.post(i, allReduce(kernel.OpOf(kolo.Int64, kolo.Sum, 2), uint64(i+1), m, m))()
		}()
	}
	require.ErrorIs(t, <-errs, kolo.ErrMismatch)
	require.ErrorIs(t, <-errs, kolo.ErrMismatch)
}

func TestBoardWithoutTheOthers(t *testing.T) {
	post := func(b *table) func() error {
		m := []kolo.Memory{kolo.HostMemory(make([]byte, 1<<20))}
		return b.post(0, allReduce(kernel.OpOf(kolo.Int64, kolo.Sum, 2), 1, m, m))
	}
	t.Run("cancelled", func(t *testing.T) {
		b := newTable(t, []kolo.Rank{0}, []kolo.Rank{1})
		wait := post(b)
		b.boards[0].Cancel(nil, kolo.ErrAborted)
		require.ErrorIs(t, wait(), kolo.ErrAborted)
		require.ErrorIs(t, post(b)(), kolo.ErrAborted, "a board that has failed takes no round")
	})
	t.Run("closed", func(t *testing.T) {
		b := newTable(t, []kolo.Rank{0}, []kolo.Rank{1})
		wait := post(b)
		b.boards[0].Close()
		require.ErrorIs(t, wait(), kolo.ErrClosed)
	})
	t.Run("lost", func(t *testing.T) {
		b := newTable(t, []kolo.Rank{0}, []kolo.Rank{1})
		wait := post(b)
		<-b.drivers[0].peers[b.drivers[1].me.Socket].rose
		require.NoError(t, b.drivers[1].Close())
		require.ErrorIs(t, wait(), kolo.ErrLost)
	})
}

// TestBoardThatIsLeftAtOnce: who has its result may close the board, and its driver,
// before the others have looked.
func TestBoardThatIsLeftAtOnce(t *testing.T) {
	for range 20 {
		b := newTable(t, []kolo.Rank{0}, []kolo.Rank{1}, []kolo.Rank{2})
		var wg sync.WaitGroup
		for i := range b.boards {
			wg.Go(func() {
				if err := b.round(i, 5, 5000, 3, true); err != nil {
					t.Errorf("process %d: %v", i, err)
				}
				b.boards[i].Close()
				if err := b.drivers[i].Close(); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
}

// A round says how far it is and on whom it waits: on a process that has not come, and
// after some blocks on one that has given up looking.
func TestBoardSaysWhomItWaitsFor(t *testing.T) {
	b := newTable(t, []kolo.Rank{0, 2}, []kolo.Rank{1})
	gauge := b.boards[0].(channel.Gauge)
	done, all, behind := gauge.Level(nil)
	require.Equal(t, []any{int64(0), int64(0), []int(nil)}, []any{done, all, behind})
	for _, count := range []int{2, 1 << 20} {
		round := func(i int) *channel.Round {
			var list []kolo.Memory
			for range b.ranks[i] {
				list = append(list, kolo.HostMemory(make([]byte, 8*count)))
			}
			return allReduce(kernel.OpOf(kolo.Uint64, kolo.Sum, 3), 7, list, list)
		}
		first := b.post(0, round(0))
		for range 2 {
			now, total, behind := gauge.Level(nil)
			if now >= total || count > 100 && now == 0 {
				t.Errorf("%d numbers: %d of %d blocks are done while a process is missing", count, now, total)
			}
			require.Equal(t, []int{1}, behind)
			done = now
		}
		second := b.post(1, round(1))
		require.NoError(t, errors.Join(second(), first()))
		now, total, behind := gauge.Level(nil)
		require.Equal(t, []any{int64(0), int64(0), []int(nil)}, []any{now, total, behind})
	}
}
