package rank

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/kolo-ccl/kolo"

	"github.com/stretchr/testify/require"
)

// typedCall is a call in both its forms, on a result of size elements, and what a loop
// computes for it.
type typedCall struct {
	name     string
	size     int
	inPlace  bool // the result holds the rank's values before
	blocking func(ctx context.Context, d []int32) error
	async    func(d []int32) Work
	want     func(i int) int32
}

// typedRank is a rank whose calls are compared: counts differ for each rank and for each
// pair, as values do.
type typedRank struct {
	g       *Group
	me, n   int
	root    kolo.Rank
	own     int    // elements of this rank's part
	parts   Vector // of all ranks, in a buffer of 8
	matrix  []int64
	send    Vector
	recv    Vector
	out, in int // elements that this rank sends, and gets, by the matrix
}

func newTypedRank(g *Group) *typedRank {
	w := &typedRank{g: g, me: int(g.Rank()), n: g.Size(), root: kolo.Rank(g.Size() - 1),
		parts: Vector{Counts: []int64{2, 0, 3}, Displs: []int64{5, 1, 0}}}
	w.own = int(w.parts.Counts[w.me])
	for i := range w.n {
		for j := range w.n {
			w.matrix = append(w.matrix, int64(i+2*j)) // rank i gives rank j
		}
	}
	for k := range w.n {
		w.send.Counts = append(w.send.Counts, w.matrix[w.me*w.n+k])
		w.recv.Counts = append(w.recv.Counts, w.matrix[k*w.n+w.me])
		w.out, w.in = w.out+int(w.send.Counts[k]), w.in+int(w.recv.Counts[k])
	}
	return w
}

func (w *typedRank) src(n int) []int32 { return fill(kolo.Rank(w.me), n) }

// sum is the sum of all ranks' values.
func (w *typedRank) sum(i int) (s int32) {
	for k := range w.n {
		s += value(kolo.Rank(k), i)
	}
	return s
}

// gathered is equal parts of 4, spread those of parts, exchanged what the matrix gives.
func (w *typedRank) gathered(i int) int32 { return value(kolo.Rank(i/4), i%4) }

func (w *typedRank) spread(i int) int32 {
	for k := range w.n {
		if at := i - int(w.parts.Displs[k]); at >= 0 && at < int(w.parts.Counts[k]) {
			return value(kolo.Rank(k), at)
		}
	}
	return 0
}

func (w *typedRank) exchanged(i int) int32 {
	for k := range w.n {
		if n := int(w.recv.Counts[k]); i >= n {
			i -= n
			continue
		}
		for j := range w.me {
			i += int(w.matrix[k*w.n+j]) // what k gives to those before me
		}
		return value(kolo.Rank(k), i)
	}
	return 0
}

// atRoot is want on the root, and nothing elsewhere.
func (w *typedRank) atRoot(want func(int) int32) func(int) int32 {
	if w.me == int(w.root) {
		return want
	}
	return func(int) int32 { return 0 }
}

func (w *typedRank) wholes() []typedCall {
	g, tensors := w.g, func(d []int32) [][]int32 { return [][]int32{d[:2], d[2:2], d[2:]} }
	return []typedCall{
		{"AllReduce", 7, true,
			func(ctx context.Context, d []int32) error { return AllReduce(ctx, g, d, kolo.Sum) },
			func(d []int32) Work { return AllReduceAsync(g, d, kolo.Sum) }, w.sum},
		{"AllReduceTo", 7, false,
			func(ctx context.Context, d []int32) error { return AllReduceTo(ctx, g, d, w.src(7), kolo.Sum) },
			func(d []int32) Work { return AllReduceToAsync(g, d, w.src(7), kolo.Sum) }, w.sum},
		{"AllReduceTensors", 7, true,
			func(ctx context.Context, d []int32) error { return AllReduceTensors(ctx, g, tensors(d), kolo.Sum) },
			func(d []int32) Work { return AllReduceTensorsAsync(g, tensors(d), kolo.Sum) }, w.sum},
		{"Reduce", 7, false,
			func(ctx context.Context, d []int32) error { return Reduce(ctx, g, d, w.src(7), kolo.Sum, w.root) },
			func(d []int32) Work { return ReduceAsync(g, d, w.src(7), kolo.Sum, w.root) }, w.atRoot(w.sum)},
		{"Broadcast", 7, true,
			func(ctx context.Context, d []int32) error { return Broadcast(ctx, g, d, w.root) },
			func(d []int32) Work { return BroadcastAsync(g, d, w.root) },
			func(i int) int32 { return value(w.root, i) }},
	}
}

func (w *typedRank) gathers() []typedCall {
	g := w.g
	return []typedCall{
		{"AllGather", 4 * w.n, false,
			func(ctx context.Context, d []int32) error { return AllGather(ctx, g, d, w.src(4)) },
			func(d []int32) Work { return AllGatherAsync(g, d, w.src(4)) }, w.gathered},
		{"Gather", 4 * w.n, false,
			func(ctx context.Context, d []int32) error { return Gather(ctx, g, d, w.src(4), w.root) },
			func(d []int32) Work { return GatherAsync(g, d, w.src(4), w.root) }, w.atRoot(w.gathered)},
		{"AllGatherV", 8, false,
			func(ctx context.Context, d []int32) error { return AllGatherV(ctx, g, d, w.src(w.own), w.parts) },
			func(d []int32) Work { return AllGatherVAsync(g, d, w.src(w.own), w.parts) }, w.spread},
		{"GatherV", 8, false,
			func(ctx context.Context, d []int32) error { return GatherV(ctx, g, d, w.src(w.own), w.parts, w.root) },
			func(d []int32) Work { return GatherVAsync(g, d, w.src(w.own), w.parts, w.root) }, w.atRoot(w.spread)},
	}
}

func (w *typedRank) scatters() []typedCall {
	g, at := w.g, int(w.parts.Displs[w.me])
	return []typedCall{
		{"ReduceScatter", 4, false,
			func(ctx context.Context, d []int32) error {
				return ReduceScatter(ctx, g, d, w.src(4*w.n), kolo.Sum)
			},
			func(d []int32) Work { return ReduceScatterAsync(g, d, w.src(4*w.n), kolo.Sum) },
			func(i int) int32 { return w.sum(4*w.me + i) }},
		{"ReduceScatterV", w.own, false,
			func(ctx context.Context, d []int32) error {
				return ReduceScatterV(ctx, g, d, w.src(8), w.parts, kolo.Sum)
			},
			func(d []int32) Work { return ReduceScatterVAsync(g, d, w.src(8), w.parts, kolo.Sum) },
			func(i int) int32 { return w.sum(at + i) }},
		{"Scatter", 4, false,
			func(ctx context.Context, d []int32) error { return Scatter(ctx, g, d, w.src(4*w.n), w.root) },
			func(d []int32) Work { return ScatterAsync(g, d, w.src(4*w.n), w.root) },
			func(i int) int32 { return value(w.root, 4*w.me+i) }},
		{"ScatterV", w.own, false,
			func(ctx context.Context, d []int32) error { return ScatterV(ctx, g, d, w.src(8), w.parts, w.root) },
			func(d []int32) Work { return ScatterVAsync(g, d, w.src(8), w.parts, w.root) },
			func(i int) int32 { return value(w.root, at+i) }},
	}
}

func (w *typedRank) exchanges() []typedCall {
	g := w.g
	next, before := kolo.Rank((w.me+1)%w.n), kolo.Rank((w.me+w.n-1)%w.n)
	return []typedCall{
		{"AllToAll", 4 * w.n, false,
			func(ctx context.Context, d []int32) error { return AllToAll(ctx, g, d, w.src(4*w.n)) },
			func(d []int32) Work { return AllToAllAsync(g, d, w.src(4*w.n)) },
			func(i int) int32 { return value(kolo.Rank(i/4), 4*w.me+i%4) }},
		{"AllToAllV", w.in, false,
			func(ctx context.Context, d []int32) error { return AllToAllV(ctx, g, d, w.src(w.out), w.send, w.recv) },
			func(d []int32) Work { return AllToAllVAsync(g, d, w.src(w.out), w.send, w.recv) }, w.exchanged},
		{"AllToAllVC", w.in, false,
			func(ctx context.Context, d []int32) error { return AllToAllVC(ctx, g, d, w.src(w.out), w.matrix) },
			func(d []int32) Work { return AllToAllVCAsync(g, d, w.src(w.out), w.matrix) }, w.exchanged},
		{"Send and Recv", 5, false,
			func(ctx context.Context, d []int32) error {
				sent := SendAsync(g, w.src(5), next, 7)
				return errors.Join(Recv(ctx, g, d, before, 7), sent.Wait(ctx))
			},
			func(d []int32) Work {
				taken := RecvAsync(g, d, before, 7)
				if err := Send(context.Background(), g, w.src(5), next, 7); err != nil {
					return Work{err: err}
				}
				return taken
			},
			func(i int) int32 { return value(before, i) }},
		{"Barrier", 0, false,
			func(ctx context.Context, _ []int32) error { return Barrier(ctx, g) },
			func([]int32) Work { return BarrierAsync(g) }, nil},
	}
}

// Every function of a call does that call, with its arguments in their places.
func TestEveryTypedCall(t *testing.T) {
	errs := each(t, Config{}, 3, func(ctx context.Context, w *World) error {
		r := newTypedRank(w.Group())
		for _, c := range slices.Concat(r.wholes(), r.gathers(), r.scatters(), r.exchanges()) {
			for _, async := range []bool{false, true} {
				d, err := make([]int32, c.size), error(nil)
				if c.inPlace {
					copy(d, r.src(c.size))
				}
				if async {
					err = c.async(d).Wait(ctx)
				} else {
					err = c.blocking(ctx, d)
				}
				require.NoError(t, err, c.name)
				for i, x := range d {
					require.Equal(t, c.want(i), x, "%s, async %v: element %d of rank %d", c.name, async, i, r.me)
				}
			}
		}
		return nil
	})
	require.NoError(t, errors.Join(errs...))
}

// Elements that have no Go type go as bits or bytes: bfloat16 is folded, float8 only moved.
func TestBuffersOfTypesThatGoLacks(t *testing.T) {
	require.NoError(t, Run(t.Context(), 2, func(ctx context.Context, w *World) error {
		me := byte(w.Rank())
		b := BFloat16s([]uint16{0x3f80, 0x4040 + uint16(me)<<7}) // 1, and 3 or 6
		require.EqualValues(t, 2, b.Count())
		require.NoError(t, Do(ctx, w.Group(), Request{Collective: kolo.AllReduce, In: b, Out: b, Op: kolo.Sum}))
		require.Equal(t, []byte{0x00, 0x40, 0x10, 0x41}, b.Memory.Host) // 2 and 9
		out := Bytes(kolo.Float8E4M3, make([]byte, 4))
		require.NoError(t, Do(ctx, w.Group(), Request{Collective: kolo.AllGather, In: Bytes(kolo.Float8E4M3, []byte{me, 10 + me}), Out: out}))
		require.Equal(t, []byte{0, 10, 1, 11}, out.Memory.Host)
		err := Do(ctx, w.Group(), Request{Collective: kolo.AllReduce, In: out, Out: out, Op: kolo.Sum})
		require.ErrorIs(t, err, kolo.ErrUnsupported)
		return nil
	}))
}
