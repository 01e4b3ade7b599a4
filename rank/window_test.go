package rank_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/channel/faulty"
	_ "github.com/kolo-ccl/kolo/channel/roce"
	_ "github.com/kolo-ccl/kolo/channel/shm"
	_ "github.com/kolo-ccl/kolo/channel/tcp"
	"github.com/kolo-ccl/kolo/rank"

	"github.com/stretchr/testify/require"
)

// plain hides that a driver has more than a Driver must have.
type plain struct{ channel.Driver }

// media are the ways that one-sided transfers go. Each gives n worlds and closes what is
// left of them.
func media(t *testing.T) map[string]func(t *testing.T, n int, c rank.Config) []*rank.World {
	local := func(driver string, change func(*rank.Config)) func(t *testing.T, n int, c rank.Config) []*rank.World {
		return func(t *testing.T, n int, c rank.Config) []*rank.World {
			c.Driver = driver
			if change != nil {
				change(&c)
			}
			worlds, err := rank.Open(n, c)
			require.NoError(t, err)
			t.Cleanup(func() { closeAll(t, worlds) })
			return worlds
		}
	}
	m := map[string]func(t *testing.T, n int, c rank.Config) []*rank.World{
		"direct":   local("hccs", nil),
		"messages": local("hccs", func(c *rank.Config) { c.Wrap = func(d channel.Driver) (channel.Driver, error) { return plain{d}, nil } }),
		"tcp":      local("tcp", nil),
		"roce":     local("roce", nil),
		"parts": func(t *testing.T, n int, c rank.Config) []*rank.World {
			of := make([]int, n)
			for i := range of {
				of[i] = i
			}
			s := openParts(t, of, c)
			t.Cleanup(func() { s.close(t) })
			return s.worlds
		},
	}
	if os.Getenv("KOLO_VERBS_DEVICE") != "" {
		m["verbs"] = local("verbs", nil)
	}
	if runtime.GOOS == "linux" {
		m["shm"] = local("shm", nil)
	}
	if rank.RaceEnabled {
		// What a packet has brought through the system is no synchronisation for the race
		// detector, where both ends look at memory of one process.
		delete(m, "roce")
		delete(m, "verbs")
	}
	return m
}

func closeAll(t testing.TB, worlds []*rank.World) {
	var wg sync.WaitGroup
	for _, w := range worlds {
		wg.Go(func() { require.NoError(t, w.Close(context.Background())) }) // ends with the World
	}
	wg.Wait()
}

// pattern is n bytes that differ per rank and index.
func pattern(r kolo.Rank, salt, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8*13 + int(r)*101 + salt*29 + 1)
	}
	return b
}

func host(b []byte) kolo.Memory { return kolo.HostMemory(b) }

// pair is an origin and a target with one region.
type pair struct {
	a, b   *rank.Window
	target *rank.Target
	region rank.Region
	memory []byte
}

func newPair(t *testing.T, worlds []*rank.World, size int, c rank.WindowConfig) *pair {
	p := &pair{memory: pattern(1, 0, size)}
	var err error
	p.a, err = worlds[0].NewWindow(c)
	require.NoError(t, err)
	p.b, err = worlds[1].NewWindow(c)
	require.NoError(t, err)
	p.region, err = p.b.Register("cache", host(p.memory))
	require.NoError(t, err)
	require.NoError(t, p.b.Listen())
	p.target, err = p.a.Connect(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, []rank.Region{p.region}, p.target.Regions())
	require.EqualValues(t, 1, p.target.Peer())
	require.Equal(t, c.Name, p.a.Name())
	return p
}

func (p *pair) piece(b []byte, offset int64) rank.TransferDesc {
	return rank.TransferDesc{Local: host(b), Region: p.region.Key, Offset: offset}
}

// Lists of pieces of odd sizes, put and got at random places, compared with a plain copy.
func TestPutAndGetAreCopies(t *testing.T) {
	for name, open := range media(t) {
		t.Run(name, func(t *testing.T) {
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			rng := rand.New(rand.NewPCG(seed, 0))
			const size = 3<<20 + 5
			p := newPair(t, open(t, 2, rank.Config{Timeout: 20 * time.Second}), size, rank.WindowConfig{Name: "kv"})
			want := bytes.Clone(p.memory)
			for round, most := range []int{1, 8, 100, 5000, 40000, 1 << 20, 1, 40000} {
				var puts, gets []rank.TransferDesc
				at, n := 0, []int{1, 2, 40, 3}[round%4]
				for i := range n {
					k := min(rng.IntN(most+1), (size-at)/(n-i))
					at += rng.IntN((size-at)/(n-i) - k + 1)
					b := pattern(0, round*100+i, k)
					puts = append(puts, p.piece(b, int64(at)))
					copy(want[at:], b)
					at += k
				}
				require.NoError(t, p.target.Put(t.Context(), puts))
				require.True(t, bytes.Equal(want, p.memory), "round %d: memory after the put", round)
				var parts [][]byte
				for i := range n {
					k := rng.IntN(most + 1)
					off := rng.IntN(size - k + 1)
					b := pattern(5, i, k)
					parts = append(parts, want[off:off+k], b)
					gets = append(gets, p.piece(b, int64(off)))
				}
				require.NoError(t, p.target.Get(t.Context(), gets))
				for i := 0; i < len(parts); i += 2 {
					require.True(t, bytes.Equal(parts[i], parts[i+1]), "round %d: piece %d of the get", round, i/2)
				}
			}
			require.True(t, bytes.Equal(want, p.memory), "gets have written")
			require.NoError(t, p.target.Put(t.Context(), nil))
			require.NoError(t, p.target.Get(t.Context(), []rank.TransferDesc{p.piece(nil, size)}))
			require.Empty(t, p.b.Notices(), "a put says nothing")
			require.NoError(t, p.target.Disconnect(t.Context()))
			require.ErrorIs(t, p.target.Put(t.Context(), nil), kolo.ErrClosed)
		})
	}
}

// What a notice tells of is there when it comes, however many transfers are on their way.
func TestNoticesComeBehindTheData(t *testing.T) {
	for name, open := range media(t) {
		t.Run(name, func(t *testing.T) {
			const blocks, block = 40, 70001
			worlds := open(t, 2, rank.Config{Timeout: 20 * time.Second})
			p := newPair(t, worlds, blocks*block, rank.WindowConfig{Name: "kv"})
			var all []*rank.Transfer
			for i := range blocks {
				n := []int{block, 10, 3000, 0}[i%4]
				x := p.target.PutNotifyAsync([]rank.TransferDesc{p.piece(pattern(0, i, n), int64(i*block))},
					rank.Notice{Name: "block", Message: []byte{byte(i)}})
				all = append(all, x)
			}
			all = append(all, p.target.NotifyAsync(rank.Notice{Name: "end"}))
			for i := range blocks {
				n, err := p.b.NextNotice(t.Context())
				require.NoError(t, err)
				require.Equal(t, rank.Notice{From: 0, Name: "block", Message: []byte{byte(i)}}, n)
				k := []int{block, 10, 3000, 0}[i%4]
				require.True(t, bytes.Equal(pattern(0, i, k), p.memory[i*block:i*block+k]), "block %d", i)
			}
			n, err := p.b.NextNotice(t.Context())
			require.NoError(t, err)
			require.Equal(t, "end", n.Name)
			for _, x := range all {
				<-x.Done()
				require.NoError(t, x.Wait(t.Context()))
			}
			long := rank.Notice{Name: string(pattern(0, 1, 1024)), Message: pattern(0, 2, 1024)}
			require.NoError(t, p.target.Notify(t.Context(), long))
			require.Equal(t, []rank.Notice{long}, p.b.Notices())
			long.Message = append(long.Message, 0)
			require.ErrorIs(t, p.target.Notify(t.Context(), long), kolo.ErrLimit)
		})
	}
}

// An access outside of what was registered is an error at the origin, touches nothing, and
// the connection goes on.
func TestAccessOutsideOfTheMemoryTouchesNothing(t *testing.T) {
	for name, open := range media(t) {
		t.Run(name, func(t *testing.T) {
			worlds := open(t, 2, rank.Config{Timeout: 20 * time.Second})
			p := newPair(t, worlds, 100_000, rank.WindowConfig{})
			want := bytes.Clone(p.memory)
			mine := pattern(0, 1, 1000)
			mineWas := bytes.Clone(mine)
			good := p.piece(pattern(0, 3, 10), 0)
			for what, bad := range map[string]rank.TransferDesc{
				"behind":   p.piece(mine, 99_001),
				"far":      p.piece(mine, 1<<62),
				"negative": p.piece(mine, -1),
				"key":      {Local: host(mine), Region: p.region.Key + 2, Offset: 0},
				"no key":   {Local: host(mine)},
				"space":    {Local: kolo.Memory{Space: 12345, Size: 10}, Region: p.region.Key},
			} {
				for _, x := range []*rank.Transfer{p.target.PutAsync([]rank.TransferDesc{good, bad}), p.target.GetAsync([]rank.TransferDesc{bad, bad})} {
					err := x.Wait(t.Context())
					var e *kolo.Error
					require.ErrorAs(t, err, &e, what)
					require.Equal(t, kolo.Rank(1), e.Peer)
					if !errors.Is(err, kolo.ErrArgument) && !errors.Is(err, kolo.ErrUnsupported) {
						t.Errorf("%s: %v", what, err)
					}
				}
			}
			// What the target has taken back since, only the target knows.
			other, err := p.b.Register("later", host(pattern(1, 5, 50)))
			require.NoError(t, err)
			require.ErrorIs(t, p.target.Put(t.Context(), []rank.TransferDesc{{Local: host(mine), Region: other.Key}}), kolo.ErrArgument, "registered after Connect")
			require.NoError(t, p.b.Deregister(t.Context(), p.region))
			require.ErrorIs(t, p.b.Deregister(t.Context(), p.region), kolo.ErrArgument)
			big := pattern(0, 4, 90_000)
			for range 3 {
				for _, b := range [][]byte{mine, big} {
					require.ErrorIs(t, p.target.Put(t.Context(), []rank.TransferDesc{p.piece(b, 5)}), kolo.ErrArgument)
					require.ErrorIs(t, p.target.Get(t.Context(), []rank.TransferDesc{p.piece(b, 5)}), kolo.ErrArgument)
					require.ErrorIs(t, p.target.PutNotify(t.Context(), []rank.TransferDesc{p.piece(b, 5)}, rank.Notice{Name: "n"}), kolo.ErrArgument)
				}
			}
			require.NoError(t, p.target.Notify(t.Context(), rank.Notice{Name: "still here"}))
			require.Len(t, p.b.Notices(), 1, "a notice of a put that was refused")
			require.True(t, bytes.Equal(want, p.memory) && bytes.Equal(mine, mineWas))
		})
	}
}

// A target that closes its window, or its world, ends what is outstanding at its origins
// with the cause, and nobody touches its memory from then on.
func TestTargetLeaves(t *testing.T) {
	for name, open := range media(t) {
		t.Run(name, func(t *testing.T) {
			worlds := open(t, 2, rank.Config{Timeout: 20 * time.Second})
			p := newPair(t, worlds, 50<<18, rank.WindowConfig{Name: "kv"})
			var all []*rank.Transfer
			for i := range 50 {
				all = append(all, p.target.PutAsync([]rank.TransferDesc{p.piece(pattern(0, i, 1<<18), int64(i)<<18)}))
			}
			require.NoError(t, p.b.Close(t.Context()))
			require.NoError(t, p.b.Close(t.Context()))
			clear(p.memory) // it is ours again
			for _, x := range all {
				if err := x.Wait(t.Context()); err != nil {
					require.ErrorIs(t, err, kolo.ErrLeft)
				}
			}
			require.True(t, bytes.Equal(p.memory, make([]byte, 50<<18)), "written after Close")
			require.Error(t, p.target.Put(t.Context(), []rank.TransferDesc{p.piece([]byte{1}, 0)}))
			_, err := p.b.NextNotice(t.Context())
			require.ErrorIs(t, err, kolo.ErrClosed)

			// The world itself, while a connection waits for a window.
			done := make(chan error, 1)
			other, err := worlds[0].NewWindow(rank.WindowConfig{Name: "other"})
			require.NoError(t, err)
			go func() { _, err := other.Connect(context.Background(), 1); done <- err }() // ended below
			require.NoError(t, worlds[1].Close(t.Context()))
			require.ErrorIs(t, <-done, kolo.ErrLeft)
			_, err = other.Connect(t.Context(), 1)
			require.ErrorIs(t, err, kolo.ErrLeft)
		})
	}
}

// Connecting waits for the peer's window, but not for ever.
func TestConnectWaitsForTheWindow(t *testing.T) {
	for name, open := range media(t) {
		t.Run(name, func(t *testing.T) {
			worlds := open(t, 2, rank.Config{})
			a, err := worlds[0].NewWindow(rank.WindowConfig{Name: "x", Timeout: 30 * time.Millisecond})
			require.NoError(t, err)
			_, err = a.Connect(t.Context(), 1)
			require.ErrorIs(t, err, kolo.ErrDeadline)
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			_, err = a.Connect(ctx, 1)
			require.ErrorIs(t, err, kolo.ErrCanceled)
			_, err = a.Connect(t.Context(), 2)
			require.ErrorIs(t, err, kolo.ErrArgument)
			_, err = worlds[0].NewWindow(rank.WindowConfig{Name: "x"})
			require.ErrorIs(t, err, kolo.ErrArgument)
			require.NoError(t, a.Close(t.Context()))

			a, err = worlds[0].NewWindow(rank.WindowConfig{Name: "x"})
			require.NoError(t, err)
			done := make(chan error, 1)
			go func() { _, err := a.Connect(t.Context(), 1); done <- err }() // ended below
			b, err := worlds[1].NewWindow(rank.WindowConfig{Name: "x"})
			require.NoError(t, err)
			require.NoError(t, b.Listen())
			require.NoError(t, <-done)
			require.NoError(t, a.Listen())
			self, err := a.Connect(t.Context(), 0)
			require.NoError(t, err)
			require.NoError(t, self.Notify(t.Context(), rank.Notice{Name: "me"}))
			require.Equal(t, "me", a.Notices()[0].Name)
			require.NoError(t, self.Disconnect(t.Context()))
			require.NoError(t, self.Disconnect(t.Context()))
		})
	}
}

// All ranks put into all, at the same time as a collective.
func TestWindowsOfManyRanks(t *testing.T) {
	for name, open := range media(t) {
		t.Run(name, func(t *testing.T) {
			const n, size = 5, 30011
			worlds := open(t, n, rank.Config{Timeout: 20 * time.Second})
			errs := make([]error, n)
			var wg sync.WaitGroup
			for r, w := range worlds {
				wg.Go(func() { // ends with the calls
					if errs[r] = exchangeOneSided(t.Context(), w, size); errs[r] != nil {
						w.Group().Abort(errs[r])
					}
				})
			}
			wg.Wait()
			require.NoError(t, errors.Join(errs...))
		})
	}
}

func exchangeOneSided(ctx context.Context, w *rank.World, size int) error {
	n := w.Size()
	win, err := w.NewWindow(rank.WindowConfig{Name: "all"})
	if err != nil {
		return err
	}
	memory := make([]byte, n*size)
	if _, err := win.Register("in", host(memory)); err != nil {
		return err
	}
	if err := win.Listen(); err != nil {
		return err
	}
	var all []*rank.Transfer
	for r := range n {
		to, err := win.Connect(ctx, kolo.Rank(r))
		if err != nil {
			return err
		}
		region, err := to.Region("in")
		if err != nil {
			return err
		}
		all = append(all, to.PutNotifyAsync([]rank.TransferDesc{{Local: host(pattern(w.Rank(), r, size)), Region: region.Key, Offset: int64(int(w.Rank()) * size)}}, rank.Notice{}))
	}
	b := int32s(w.Rank(), 1000)
	if err := rank.AllReduce(ctx, w.Group(), b, kolo.Sum); err != nil {
		return err
	}
	for range n {
		m, err := win.NextNotice(ctx)
		if err != nil {
			return err
		}
		from := int(m.From)
		if !bytes.Equal(memory[from*size:(from+1)*size], pattern(m.From, int(w.Rank()), size)) {
			return fmt.Errorf("rank %d has other bytes of rank %d", w.Rank(), from)
		}
	}
	for _, x := range all {
		if err := x.Wait(ctx); err != nil {
			return err
		}
	}
	return rank.Barrier(ctx, w.Group())
}

// Data that does not come through ends the connection at the deadline, on the origin with
// kolo.ErrDeadline, and a new connection works.
func TestTransferIsPastItsDeadline(t *testing.T) {
	lossy := func(d channel.Driver) (channel.Driver, error) {
		return faulty.New(d, "lose 0 -> 1 send 3..4", 1) // the second put's data, the get's request
	}
	worlds, err := rank.Open(2, rank.Config{Wrap: lossy})
	require.NoError(t, err)
	defer closeAll(t, worlds)
	p := newPair(t, worlds, 1000, rank.WindowConfig{Timeout: 200 * time.Millisecond})
	require.NoError(t, p.target.Put(t.Context(), []rank.TransferDesc{p.piece([]byte{1, 2}, 0)}))
	all := []*rank.Transfer{p.target.PutAsync([]rank.TransferDesc{p.piece([]byte{3}, 0)}), p.target.GetAsync([]rank.TransferDesc{p.piece([]byte{4}, 0)})}
	for _, x := range all {
		require.ErrorIs(t, x.Wait(t.Context()), kolo.ErrDeadline)
	}
	require.ErrorIs(t, p.target.Put(t.Context(), nil), kolo.ErrDeadline)
	again, err := p.a.Connect(t.Context(), 1)
	require.NoError(t, err)
	require.NoError(t, again.Put(t.Context(), []rank.TransferDesc{p.piece([]byte{5}, 0)}))
	require.Equal(t, []byte{5, 2}, p.memory[:2])
}

// Transfers that stand still are seen in two looks, by kind, size and peer, and are gone from
// a third when their connection has ended.
func TestProgressOfTransfers(t *testing.T) {
	lossy := func(d channel.Driver) (channel.Driver, error) {
		return faulty.New(d, "lose 0 -> 1 send 3..4", 1) // the second put's data, the get's request
	}
	worlds, err := rank.Open(2, rank.Config{Wrap: lossy})
	require.NoError(t, err)
	defer closeAll(t, worlds)
	p := newPair(t, worlds, 1000, rank.WindowConfig{Name: "kv", Timeout: time.Hour})
	look := func() []rank.Progress {
		list, err := worlds[0].Progress(t.Context())
		require.NoError(t, err)
		return list
	}
	require.NoError(t, p.target.Put(t.Context(), []rank.TransferDesc{p.piece([]byte{1, 2}, 0)}))
	require.Empty(t, look())
	put := p.target.PutAsync([]rank.TransferDesc{p.piece([]byte{3, 4, 5}, 0)})
	get := p.target.GetAsync([]rank.TransferDesc{p.piece([]byte{6}, 0)})
	first, second := look(), look()
	require.Len(t, first, 2)
	require.Equal(t, first, rank.Stuck(first, second))
	for i, w := range []rank.Wait{{For: "put", Step: -1, Bytes: 3, Peers: []kolo.Rank{1}}, {For: "get", Step: -1, Bytes: 1, Peers: []kolo.Rank{1}}} {
		require.Equal(t, []rank.Wait{w}, first[i].Waits)
		require.EqualValues(t, i+2, first[i].Seq)
		require.Equal(t, "kv", first[i].Window)
		require.Equal(t, rank.Running, first[i].Phase)
		require.InDelta(t, 0, time.Since(first[i].Since).Seconds(), 60)
	}
	require.Regexp(t, `^rank 0: transfer #2 of window "kv", running since [0-9:.]+; waits \(put of 3 bytes\) for rank 1$`, first[0].String())
	list, err := worlds[0].Group().Progress(t.Context())
	require.NoError(t, err)
	require.Empty(t, list, "it is none of the group's")
	list, err = worlds[1].Progress(t.Context())
	require.NoError(t, err)
	require.Empty(t, list, "it is for the origin to tell")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, put.Wait(ended), kolo.ErrCanceled)
	require.ErrorIs(t, get.Wait(t.Context()), kolo.ErrCanceled)
	require.Empty(t, look())
}

// A context that ends while a transfer is waited for ends the connection, and the memory is
// free when Wait returns.
func TestTransferIsCanceled(t *testing.T) {
	for name, open := range media(t) {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, open(t, 2, rank.Config{Timeout: 20 * time.Second}), 8<<20, rank.WindowConfig{})
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			b := pattern(0, 1, 8<<20)
			x := p.target.GetAsync([]rank.TransferDesc{p.piece(b, 0)})
			if err := x.Wait(ctx); err != nil {
				require.ErrorIs(t, err, kolo.ErrCanceled)
			}
			clear(b)
		})
	}
}

// A process that is gone fails what is outstanding with it.
func TestTargetIsLost(t *testing.T) {
	s := openParts(t, []int{0, 1, 2}, rank.Config{CloseTimeout: time.Second})
	p := newPair(t, s.worlds, 1000, rank.WindowConfig{})
	waits, err := s.worlds[0].NewWindow(rank.WindowConfig{Name: "never"})
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { _, err := waits.Connect(context.Background(), 1); done <- err }() // ended below
	s.kill(1, errors.New("out of power"))
	require.ErrorIs(t, <-done, kolo.ErrLost)
	err = p.target.Put(t.Context(), []rank.TransferDesc{p.piece([]byte{1}, 0)})
	require.ErrorIs(t, err, kolo.ErrLost)
	require.ErrorContains(t, err, "out of power")
	_, err = p.a.Connect(t.Context(), 1)
	require.ErrorIs(t, err, kolo.ErrLost)
	s.close(t)
}

// A transfer that is refused says how large it was.
func TestRefusedTransferSaysItsSize(t *testing.T) {
	require.NoError(t, rank.Run(t.Context(), 1, func(ctx context.Context, w *rank.World) error {
		win, err := w.NewWindow(rank.WindowConfig{Name: "w"})
		require.NoError(t, err)
		r, err := win.Register("a", kolo.HostMemory(make([]byte, 16)))
		require.NoError(t, err)
		require.NoError(t, win.Listen())
		to, err := win.Connect(ctx, 0)
		require.NoError(t, err)
		err = to.Put(ctx, []rank.TransferDesc{{Local: kolo.HostMemory(make([]byte, 17)), Region: r.Key}})
		require.ErrorIs(t, err, kolo.ErrArgument)
		require.ErrorContains(t, err, "put of 17 bytes, pieces: 1")
		return nil
	}))
}
