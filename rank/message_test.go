package rank_test

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/rank"
	"github.com/kolo-ccl/kolo/rank/ranktest"

	"github.com/stretchr/testify/require"
)

// to and from are the entries of a batch.
func to(peer kolo.Rank, tag uint64, b []int32) rank.Request {
	return rank.Request{Collective: kolo.Send, In: rank.Of(b), Peer: peer, Tag: tag}
}

func from(peer kolo.Rank, tag uint64, b []int32) rank.Request {
	return rank.Request{Collective: kolo.Recv, Out: rank.Of(b), Peer: peer, Tag: tag}
}

func TestMessagesAreMatchedByTag(t *testing.T) {
	ranktest.Run(t, 2, func(t *testing.T, g *rank.Group) {
		ctx := t.Context()
		if g.Rank() == 0 {
			a, b := rank.SendAsync(g, []int32{7}, 1, 7), rank.SendAsync(g, []int32{1 << 30}, 1, 1<<63)
			require.NoError(t, rank.Send(ctx, g, []int32{9}, 1, 9)) // taken first
			require.NoError(t, b.Wait(ctx))
			require.NoError(t, a.Wait(ctx))
			return
		}
		got := make([]int32, 3)
		for i, tag := range []uint64{9, 1 << 63, 7} {
			require.NoError(t, rank.Recv(ctx, g, got[i:i+1], 0, tag))
		}
		require.Equal(t, []int32{9, 1 << 30, 7}, got)
	})
}

func TestMessagesOfOneTagComeInOrder(t *testing.T) {
	const n = 200
	ranktest.Run(t, 2, func(t *testing.T, g *rank.Group) {
		var works []rank.Work
		bufs := make([]int32, 2*n)
		for i := range n {
			for tag := range 2 {
				b := bufs[2*i+tag:][:1]
				if g.Rank() == 0 {
					b[0] = int32(10*i + tag)
					works = append(works, rank.SendAsync(g, b, 1, uint64(tag)))
				} else {
					works = append(works, rank.RecvAsync(g, b, 0, uint64(tag)))
				}
			}
		}
		for _, w := range works {
			require.NoError(t, w.Wait(t.Context()))
		}
		for i := range n {
			require.Equal(t, []int32{int32(10 * i), int32(10*i + 1)}, bufs[2*i:2*i+2])
		}
	})
}

func TestRankSendsToItself(t *testing.T) {
	ranktest.Run(t, 2, func(t *testing.T, g *rank.Group) {
		for _, n := range []int{0, 1, 100000} {
			want, got := ranktest.Data[int32](g.Rank(), n), make([]int32, n)
			w := rank.SendAsync(g, want, g.Rank(), 3)
			require.NoError(t, rank.Recv(t.Context(), g, got, g.Rank(), 3))
			require.NoError(t, w.Wait(t.Context()))
			require.Equal(t, want, got)
			clear(got)
			require.NoError(t, rank.Batch(t.Context(), g, []rank.Request{from(g.Rank(), 1, got), to(g.Rank(), 1, want)}))
			require.Equal(t, want, got)
		}
	})
}

func TestLargeMessages(t *testing.T) {
	const n = 3<<20/4 + 1
	ranktest.Run(t, 3, func(t *testing.T, g *rank.Group) {
		next, prev := (g.Rank()+1)%3, (g.Rank()+2)%3
		out, in := ranktest.Data[int32](g.Rank(), n), make([]int32, n)
		work := rank.SendAsync(g, out, next, 0)
		require.NoError(t, rank.Recv(t.Context(), g, in, prev, 0))
		require.NoError(t, work.Wait(t.Context()))
		if !slices.Equal(in, ranktest.Data[int32](prev, n)) {
			t.Error("the message has changed on its way")
		}
	})
}

func TestBatchIsNotBoundToAnOrder(t *testing.T) {
	const n = 50000
	ranktest.Run(t, 2, func(t *testing.T, g *rank.Group) {
		me, peer := g.Rank(), 1-g.Rank()
		for _, c := range []struct {
			name      string
			sendFirst [2]bool
		}{
			{"both send first", [2]bool{true, true}}, {"both receive first", [2]bool{false, false}},
			{"one sends first", [2]bool{true, false}}, {"the other sends first", [2]bool{false, true}},
		} {
			got := make([]int32, n)
			list := []rank.Request{to(peer, 0, ranktest.Data[int32](me, n)), from(peer, 0, got)}
			if !c.sendFirst[me] {
				slices.Reverse(list)
			}
			require.NoError(t, rank.Batch(t.Context(), g, list), c.name)
			require.Equal(t, ranktest.Data[int32](peer, n), got, c.name)
		}
	})
}

// A batch is done when its last entry is, and not before, however often it is asked.
func TestBatchIsDone(t *testing.T) {
	ranktest.Run(t, 2, func(t *testing.T, g *rank.Group) {
		<-rank.BatchAsync(g, nil).Done()
		<-rank.BatchAsync(g, []rank.Request{{Collective: kolo.Barrier}}).Done() // refused
		if g.Rank() == 1 {
			require.NoError(t, rank.Send(t.Context(), g, []int32{7}, 0, 0))
			require.NoError(t, rank.Barrier(t.Context(), g))
			require.NoError(t, rank.Send(t.Context(), g, []int32{8}, 0, 1))
			return
		}
		got := []int32{0, 0}
		w := rank.BatchAsync(g, []rank.Request{from(1, 0, got[:1]), from(1, 1, got[1:])})
		first, second := w.Done(), w.Done()
		select {
		case <-first:
			t.Error("done without its second message")
		default:
		}
		require.NoError(t, rank.Barrier(t.Context(), g))
		<-first
		<-second
		require.Equal(t, []int32{7, 8}, got)
		require.NoError(t, w.Wait(t.Context()))
		<-w.Done()
	})
}

func TestBatchWithOneSideOnly(t *testing.T) {
	ranktest.Run(t, 3, func(t *testing.T, g *rank.Group) {
		switch g.Rank() {
		case 0: // sends only
			require.NoError(t, rank.Batch(t.Context(), g, []rank.Request{to(1, 0, []int32{10}), to(2, 0, []int32{20})}))
		case 1: // is in no batch
			b := []int32{0}
			require.NoError(t, rank.Recv(t.Context(), g, b, 0, 0))
			require.NoError(t, rank.Send(t.Context(), g, b, 2, 0))
		case 2: // receives only
			b := []int32{0, 0}
			require.NoError(t, rank.Batch(t.Context(), g, []rank.Request{from(1, 0, b[:1]), from(0, 0, b[1:])}))
			require.Equal(t, []int32{10, 20}, b)
		}
		require.NoError(t, rank.Batch(t.Context(), g, nil))
	})
}

func TestBatchAmongAllRanksInAnyOrder(t *testing.T) {
	const p, each = 6, 3
	seed := rand.Uint64()
	ranktest.Run(t, p, func(t *testing.T, g *rank.Group) {
		rng := rand.New(rand.NewPCG(seed, uint64(g.Rank())))
		var list []rank.Request
		got := make([][]int32, p*each)
		for r := range kolo.Rank(p) {
			for k := range each {
				list = append(list, to(r, uint64(k), []int32{int32(g.Rank()), int32(r), int32(k)}))
				got[int(r)*each+k] = make([]int32, 3)
				list = append(list, from(r, uint64(k), got[int(r)*each+k]))
			}
		}
		rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		require.NoError(t, rank.Batch(t.Context(), g, list), "seed %d", seed)
		for i, b := range got {
			require.Equal(t, []int32{int32(i / each), int32(g.Rank()), int32(i % each)}, b, "seed %d", seed)
		}
	})
}

func TestBatchRefusesCollectives(t *testing.T) {
	ranktest.Run(t, 2, func(t *testing.T, g *rank.Group) {
		err := rank.Batch(t.Context(), g, []rank.Request{to(1-g.Rank(), 0, []int32{1}), {Collective: kolo.Barrier}})
		require.ErrorIs(t, err, kolo.ErrArgument)
		require.ErrorContains(t, err, "entry 1 of the batch: bad argument: Barrier")
		require.NoError(t, rank.Barrier(t.Context(), g), "nothing of it was started")
	})
}

func TestBatchWithABadEntryStartsNothing(t *testing.T) {
	ranktest.Run(t, 2, func(t *testing.T, g *rank.Group) {
		peer := 1 - g.Rank()
		a, b := []int32{int32(g.Rank())}, []int32{-1}
		for _, bad := range []rank.Request{to(2, 0, a), from(-1, 0, b), {Collective: kolo.Send, In: rank.Buffer{Memory: kolo.HostMemory(make([]byte, 3)), DType: kolo.Int32}}} {
			err := rank.Batch(t.Context(), g, []rank.Request{from(peer, 0, b), bad})
			require.ErrorIs(t, err, kolo.ErrArgument)
			require.ErrorContains(t, err, "entry 1 of the batch")
		}
		require.NoError(t, rank.Batch(t.Context(), g, []rank.Request{from(peer, 0, b), to(peer, 0, a)}))
		require.Equal(t, []int32{int32(peer)}, b)
	})
}

func TestMessageOfAnotherSizeOrTypeFailsBothEnds(t *testing.T) {
	for _, c := range []struct {
		name string
		recv rank.Buffer
		says string
	}{
		{"shorter", rank.Of(make([]int32, 1)), "the sender gives 8 bytes and the receiver takes 4"},
		{"longer", rank.Of(make([]int32, 3)), "the sender gives 8 bytes and the receiver takes 12"},
		{"empty", rank.Of([]int32{}), "the sender gives 8 bytes and the receiver takes 0"},
		{"other type", rank.Of(make([]float32, 2)), "the sender gives int32 and the receiver takes fp32"},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := slices.Clone(c.recv.Memory.Host)
			ranktest.Run(t, 3, func(t *testing.T, g *rank.Group) {
				var err error
				switch g.Rank() {
				case 0:
					err = rank.Send(t.Context(), g, []int32{1, 2}, 1, 5)
				case 1:
					err = rank.Do(t.Context(), g, rank.Request{Collective: kolo.Recv, Out: c.recv, Peer: 0, Tag: 5})
				case 2:
					err = rank.Barrier(t.Context(), g) // the group fails as a whole
				}
				require.ErrorIs(t, err, kolo.ErrMismatch)
				require.ErrorContains(t, err, c.says)
				var e *kolo.Error
				require.ErrorAs(t, err, &e)
				if g.Rank() < 2 {
					require.Equal(t, 1-g.Rank(), e.Peer)
					require.Equal(t, g.Rank(), e.Rank)
				}
			})
			require.Equal(t, before, c.recv.Memory.Host)
		})
	}
}

func TestManyMessagesAreOutstandingInBothDirections(t *testing.T) {
	const n = 2000
	seed := rand.Uint64()
	ranktest.Run(t, 4, func(t *testing.T, g *rank.Group) {
		rng := rand.New(rand.NewPCG(seed, uint64(g.Rank())))
		peers := []kolo.Rank{(g.Rank() + 1) % 4, (g.Rank() + 3) % 4}
		var works []rank.Work
		got := make([]int64, 2*n)
		for _, i := range rng.Perm(2 * n) { // every message has a tag of its own
			peer := peers[i%2]
			works = append(works,
				rank.SendAsync(g, []int64{int64(g.Rank())<<32 | int64(i^1)}, peer, uint64(i^1)), // i^1: it comes from the other side there
				rank.RecvAsync(g, got[i:i+1], peer, uint64(i)))
		}
		rng.Shuffle(len(works), func(i, j int) { works[i], works[j] = works[j], works[i] })
		for _, w := range works {
			require.NoError(t, w.Wait(t.Context()), "seed %d", seed)
		}
		for i, v := range got {
			if want := int64(peers[i%2])<<32 | int64(i); v != want {
				t.Fatalf("message %d is %#x, not %#x, seed %d", i, v, want, seed)
			}
		}
	})
}

func TestMessagesDoNotDisturbCollectives(t *testing.T) {
	ranktest.RunConfig(t, 3, rank.Config{Algorithm: "ring"}, func(t *testing.T, g *rank.Group) {
		next, prev := (g.Rank()+1)%3, (g.Rank()+2)%3
		for i := range 50 {
			got, b := []int32{0}, []int32{1}
			works := []rank.Work{
				rank.RecvAsync(g, got, prev, uint64(i)), // tags are equal to call numbers
				rank.AllReduceAsync(g, b, kolo.Sum),
				rank.SendAsync(g, []int32{int32(g.Rank())}, next, uint64(i)),
			}
			for _, w := range works {
				require.NoError(t, w.Wait(t.Context()))
			}
			require.Equal(t, []int32{int32(prev), 3}, []int32{got[0], b[0]})
		}
	})
}

// Where a send is over before its receive is there, what was sent is received nevertheless
// after the sender has left, also between ranks of one process.
func TestMessageOfARankOfThisProcessThatHasLeftIsReceived(t *testing.T) {
	for name, open := range media(t) {
		if name != "tcp" && name != "shm" {
			continue // whose sends wait for their receives
		}
		t.Run(name, func(t *testing.T) {
			worlds := open(t, 2, rank.Config{Timeout: 5 * time.Second})
			for i := range 6 {
				c := rank.GroupConfig{Name: "pair", Ranks: []kolo.Rank{0, 1}}
				a, err := worlds[0].NewGroup(c)
				require.NoError(t, err)
				b, err := worlds[1].NewGroup(c)
				require.NoError(t, err)
				want, got := []int32{int32(i), 2, int32(3 * i)}, make([]int32, 3)
				early := rank.RecvAsync(a, got, 1, 7)
				if i%2 == 0 {
					require.NoError(t, rank.Send(t.Context(), b, want, 0, 7))
					require.NoError(t, b.Close(t.Context()))
				} else { // the receive is made when the sender has left
					require.NoError(t, rank.Send(t.Context(), b, []int32{1, 1, 1}, 0, 7))
					require.NoError(t, early.Wait(t.Context()))
					require.NoError(t, rank.Send(t.Context(), b, want, 0, 7))
					require.NoError(t, b.Close(t.Context()))
					for len(a.Left()) == 0 {
						runtime.Gosched()
					}
					early = rank.RecvAsync(a, got, 1, 7)
				}
				require.NoError(t, early.Wait(t.Context()), "group %d", i)
				require.Equal(t, want, got)
				require.ErrorIs(t, rank.Recv(t.Context(), a, got, 1, 7), kolo.ErrLeft)
				require.NoError(t, a.Close(t.Context()))
			}
		})
	}
}

// A send that was received is no failure, though the word that the receiver has left may
// come before the word that it has the message.
func TestSendToARankThatReceivesAndLeaves(t *testing.T) {
	for name, open := range media(t) {
		t.Run(name, func(t *testing.T) {
			worlds := open(t, 2, rank.Config{Timeout: 5 * time.Second})
			for i := range 60 {
				n := []int{3, 3000, 100000}[i%3]
				c := rank.GroupConfig{Name: "pair", Ranks: []kolo.Rank{0, 1}}
				a, err := worlds[0].NewGroup(c)
				require.NoError(t, err)
				b, err := worlds[1].NewGroup(c)
				require.NoError(t, err)
				ended := make(chan error, 1)
				go func() { // ends with the group
					got := make([]int32, n)
					ended <- errors.Join(rank.Recv(t.Context(), a, got, 1, 7), a.Close(t.Context()))
				}()
				require.NoError(t, rank.Send(t.Context(), b, int32s(1, n), 0, 7), "group %d", i)
				require.NoError(t, <-ended)
				require.NoError(t, b.Close(t.Context()))
			}
		})
	}
}
