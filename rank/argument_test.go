package rank

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/plan"

	"github.com/stretchr/testify/require"
)

// asBytes is a Buffer of elements of d that holds the bytes b.
func asBytes(b []byte, d kolo.DType) Buffer { return Buffer{Memory: kolo.HostMemory(b), DType: d} }

// off is a buffer of n int32 that begins one byte behind where it should.
func off(n int) Buffer {
	b := bytesOf(make([]int64, n))
	return asBytes(b[1:4*n+1], kolo.Int32)
}

// wrongArgument is a call by rank 1 of 3 that is wrong.
type wrongArgument struct {
	name string
	call Request
	kind error
	text string
}

func wrongArguments() []wrongArgument {
	arg, over, no := kolo.ErrArgument, kolo.ErrOverlap, kolo.ErrUnsupported
	b := ints(1, 30)
	// cut is elements lo to hi of b.
	cut := func(lo, hi int64) Buffer {
		return Buffer{Memory: b.Memory.Slice(4*lo, 4*(hi-lo)), DType: kolo.Int32}
	}
	in := func(n int) Buffer { return ints(1, n) }
	device := Buffer{Memory: kolo.Memory{Space: 7, Addr: 4096, Size: 12}, DType: kolo.Int32}
	v := func(counts ...int64) Vector { return Vector{Counts: counts} }
	at := func(displs []int64, counts ...int64) Vector { return Vector{Counts: counts, Displs: displs} }
	none := Buffer{}
	var list []wrongArgument
	add := func(name string, r Request, kind error, text string) {
		list = append(list, wrongArgument{name, r, kind, text})
	}

	// Lengths.
	add("AllReduce/OutputShort", Request{Collective: kolo.AllReduce, In: in(4), Out: in(3)}, arg, "the output has 3 elements; want 4")
	add("AllReduce/NoOutput", Request{Collective: kolo.AllReduce, In: in(4)}, arg, "the output has 0 elements; want 4")
	add("AllReduce/NoInput", Request{Collective: kolo.AllReduce, Out: in(4)}, arg, "the output has 4 elements; want 0")
	add("Reduce/NoOutputAtRoot", Request{Collective: kolo.Reduce, In: in(4), Root: 1}, arg, "the output has 0 elements; want 4")
	add("AllGather/OutputShort", Request{Collective: kolo.AllGather, In: in(4), Out: in(11)}, arg, "the output has 11 elements; want 12")
	add("Gather/OutputLongAtRoot", Request{Collective: kolo.Gather, In: in(4), Out: in(13), Root: 1}, arg, "the output has 13 elements; want 12")
	add("ReduceScatter/InputShort", Request{Collective: kolo.ReduceScatter, In: in(11), Out: in(4)}, arg, "the input has 11 elements; want 12")
	add("Scatter/NoInputAtRoot", Request{Collective: kolo.Scatter, Out: in(4), Root: 1}, arg, "the input has 0 elements; want 12")
	add("AllToAll/NotShared", Request{Collective: kolo.AllToAll, In: in(7), Out: in(7)}, arg, "7 elements, which 3 ranks cannot share")
	add("AllToAll/OutputShort", Request{Collective: kolo.AllToAll, In: in(6), Out: in(3)}, arg, "the output has 3 elements; want 6")
	add("AllGatherV/InputShort", Request{Collective: kolo.AllGatherV, In: in(1), Out: in(6), Recv: v(1, 2, 3)}, arg, "the input has 1 elements; want 2")
	add("AllGatherV/OutputShort", Request{Collective: kolo.AllGatherV, In: in(2), Out: in(5), Recv: v(1, 2, 3)}, arg, "part 2")
	add("GatherV/InputShort", Request{Collective: kolo.GatherV, In: in(1), Out: in(6), Recv: v(1, 2, 3)}, arg, "want 2")
	add("ReduceScatterV/OutputShort", Request{Collective: kolo.ReduceScatterV, In: in(6), Out: in(1), Send: v(1, 2, 3)}, arg, "the output has 1 elements; want 2")
	add("ScatterV/InputShortAtRoot", Request{Collective: kolo.ScatterV, In: in(5), Out: in(2), Send: v(1, 2, 3), Root: 1}, arg, "part 2")
	add("AllToAllV/InputShort", Request{Collective: kolo.AllToAllV, In: in(5), Out: in(6), Send: v(1, 2, 3), Recv: v(1, 2, 3)}, arg, "Send: part 2")
	add("AllToAllV/OutputShort", Request{Collective: kolo.AllToAllV, In: in(6), Out: in(5), Send: v(1, 2, 3), Recv: v(1, 2, 3)}, arg, "Recv: part 2")
	add("AllToAllVC/OutputShort", Request{Collective: kolo.AllToAllVC, In: in(3), Out: in(2), Send: v(1, 1, 1, 1, 1, 1, 1, 1, 1)}, arg, "Recv: part 2")

	// Lists.
	add("AllGatherV/NoCounts", Request{Collective: kolo.AllGatherV, In: in(1), Out: in(3)}, arg, "Recv has 0 counts")
	add("AllGatherV/FewCounts", Request{Collective: kolo.AllGatherV, In: in(1), Out: in(3), Recv: v(1, 1)}, arg, "Recv has 2 counts")
	add("AllGatherV/NegativeCount", Request{Collective: kolo.AllGatherV, In: in(1), Out: in(3), Recv: v(1, 1, -1)}, arg, "Recv.Counts[2] is -1")
	add("AllGatherV/FewDispls", Request{Collective: kolo.AllGatherV, In: in(1), Out: in(3), Recv: at([]int64{0, 1}, 1, 1, 1)}, arg, "Recv has 2 displacements")
	add("AllGatherV/NegativeDispl", Request{Collective: kolo.AllGatherV, In: in(1), Out: in(3), Recv: at([]int64{-1, 1, 2}, 1, 1, 1)}, arg, "Recv: part 0")
	add("AllGatherV/DisplBeyond", Request{Collective: kolo.AllGatherV, In: in(1), Out: in(3), Recv: at([]int64{0, 1, 3}, 1, 1, 1)}, arg, "Recv: part 2")
	add("AllGatherV/HugeDispl", Request{Collective: kolo.AllGatherV, In: in(1), Out: in(3), Recv: at([]int64{0, 1, 1 << 62}, 1, 1, 1)}, arg, "Recv: part 2")
	add("AllGatherV/LargestDispl", Request{Collective: kolo.AllGatherV, In: in(1), Out: in(3), Recv: at([]int64{0, 1, math.MaxInt64}, 1, 1, 1)}, arg, "Recv: part 2")
	add("AllGatherV/SumOverflows", Request{Collective: kolo.AllGatherV, In: in(1), Out: in(3), Recv: v(1<<62, 1, 1<<62)}, arg, "Recv: part 0")
	add("AllGatherV/LargestCount", Request{Collective: kolo.AllGatherV, In: in(1), Out: in(3), Recv: v(math.MaxInt64, 1, math.MaxInt64)}, arg, "Recv: part 0")
	add("GatherV/SumOverflowsElsewhere", Request{Collective: kolo.GatherV, In: in(1), Recv: v(1<<62-1, 1, 1<<62), Root: 2}, arg, "Recv: part")
	add("ScatterV/SumOverflowsElsewhere", Request{Collective: kolo.ScatterV, Out: in(1), Send: v(math.MaxInt64, 1, 1), Root: 2}, arg, "Send: part")
	add("AllGatherV/PartsOverlap", Request{Collective: kolo.AllGatherV, In: in(2), Out: in(6), Recv: at([]int64{0, 1, 4}, 2, 2, 2)}, over, "Recv: parts 0 and 1 overlap")
	add("AllToAllV/PartsOverlap", Request{Collective: kolo.AllToAllV, In: in(6), Out: in(6), Send: v(2, 2, 2), Recv: at([]int64{0, 3, 2}, 2, 2, 2)}, over, "parts")
	add("AllToAllVC/NotSquare", Request{Collective: kolo.AllToAllVC, In: in(3), Out: in(3), Send: v(1, 1, 1)}, arg, "matrix of 3 by 3")
	add("AllToAllVC/Negative", Request{Collective: kolo.AllToAllVC, In: in(3), Out: in(3), Send: v(1, 1, 1, 1, 1, 1, 1, 1, -1)}, arg, "Send.Counts[8] is -1")
	add("AllToAllVC/Overflows", Request{Collective: kolo.AllToAllVC, In: in(3), Out: in(3), Send: v(1, 1, 1, 1<<62, 1<<62, 1<<62, 1, 1, 1)}, arg, "part")

	add("AllGather/NoOutput", Request{Collective: kolo.AllGather, In: in(4)}, arg, "the output has 0 elements; want 12, a part of 4 for each of 3 ranks")

	// Tensors.
	add("Tensors/None", Request{Collective: kolo.AllReduce, Tensors: []Buffer{}}, arg, "0 tensors")
	add("Tensors/Types", Request{Collective: kolo.AllReduce, Tensors: []Buffer{in(1), floats(1, 2)}}, arg, "tensor 1 is of fp32, tensor 0 of int32")
	add("Tensors/TypeOfNothing", Request{Collective: kolo.AllReduce, Tensors: []Buffer{in(1), {DType: kolo.Float64}}}, arg, "tensor 1 is of fp64, tensor 0 of int32")
	add("Tensors/Device", Request{Collective: kolo.AllReduce, Tensors: []Buffer{in(1), device}}, no, "tensor 1: not supported: the engine of this process does not reach memory of space 7")
	add("Tensors/InBesides", Request{Collective: kolo.AllReduce, In: in(1), Tensors: []Buffer{in(1)}}, arg, "In or Out besides")
	add("Tensors/Broadcast", Request{Collective: kolo.Broadcast, Tensors: []Buffer{in(1)}}, no, "Tensors are for AllReduce")

	// Types.
	add("AllReduce/Types", Request{Collective: kolo.AllReduce, In: in(4), Out: floats(1, 4)}, arg, "int32 and the output of fp32")
	add("AllReduce/NoSuchType", Request{Collective: kolo.AllReduce, In: asBytes(make([]byte, 8), 77), Out: asBytes(make([]byte, 8), 77)}, arg, "77")
	add("Broadcast/NoSuchTypeAndNothing", Request{Collective: kolo.Broadcast, Out: Buffer{DType: 200}}, arg, "200")
	add("AllGather/NoSuchTypeAndNothing", Request{Collective: kolo.AllGather, In: Buffer{DType: 13}, Out: Buffer{DType: 13}}, arg, "13")
	for _, d := range kolo.DTypes() {
		if !d.Reducible() {
			add("AllReduce/"+d.String(), Request{Collective: kolo.AllReduce, In: asBytes(make([]byte, 16), d), Out: asBytes(make([]byte, 16), d)}, kolo.ErrUnsupported, "sum of "+d.String())
		}
	}
	add("Send/NoSuchTypeAndNothing", Request{Collective: kolo.Send, In: Buffer{DType: 99}, Peer: 0}, arg, "99")
	add("AllReduce/NoSuchOperation", Request{Collective: kolo.AllReduce, In: in(4), Out: in(4), Op: kolo.ReduceOp{Kind: 99}}, arg, "99")
	add("AllReduce/HalfAnInteger", Request{Collective: kolo.AllReduce, In: in(4), Out: in(4), Op: kolo.PreMulSum(0.5)}, no, "0.5")
	add("AllReduce/NotANumber", Request{Collective: kolo.AllReduce, In: in(4), Out: in(4), Op: kolo.PreMulSum(math.NaN())}, no, "NaN")
	add("AllReduce/Infinite", Request{Collective: kolo.AllReduce, In: in(4), Out: in(4), Op: kolo.PreMulSum(math.Inf(1))}, no, "Inf")

	// Memory.
	for _, c := range []kolo.Collective{kolo.AllReduce, kolo.Broadcast, kolo.AllGather, kolo.ReduceScatter, kolo.AllToAll, kolo.Recv} {
		add(c.String()+"/Misaligned", Request{Collective: c, In: none, Out: off(3)}, arg, "the output is not aligned to its int32 elements")
		add(c.String()+"/OddBytes", Request{Collective: c, Out: asBytes(make([]byte, 13), kolo.Int32)}, arg, "13 bytes, no whole number of int32 elements")
		add(c.String()+"/Device", Request{Collective: c, Out: device}, no, "memory of space 7")
	}
	for _, c := range []kolo.Collective{kolo.AllReduce, kolo.Reduce, kolo.AllGather, kolo.Gather, kolo.Send} {
		add(c.String()+"/MisalignedInput", Request{Collective: c, In: off(3), Out: in(9)}, arg, "the input is not aligned")
		add(c.String()+"/OddBytesOfInput", Request{Collective: c, In: asBytes(make([]byte, 3), kolo.Float16)}, arg, "3 bytes, no whole number of fp16 elements")
		add(c.String()+"/DeviceInput", Request{Collective: c, In: device, Out: in(9)}, no, "memory of space 7")
	}

	// Overlaps that are no in-place layout.
	add("AllReduce/Shifted", Request{Collective: kolo.AllReduce, In: cut(0, 8), Out: cut(1, 9)}, over, "the same buffer")
	add("AllReduce/ByOne", Request{Collective: kolo.AllReduce, In: cut(0, 8), Out: cut(7, 15)}, over, "the same buffer")
	add("Reduce/ShiftedAtRoot", Request{Collective: kolo.Reduce, In: cut(0, 8), Out: cut(4, 12), Root: 1}, over, "the same buffer")
	add("AllGather/PartOfAnother", Request{Collective: kolo.AllGather, In: cut(0, 4), Out: cut(0, 12)}, over, "this rank's part of the output")
	add("AllGather/AcrossItsPart", Request{Collective: kolo.AllGather, In: cut(5, 9), Out: cut(0, 12)}, over, "this rank's part of the output")
	add("Gather/PartOfAnotherAtRoot", Request{Collective: kolo.Gather, In: cut(8, 12), Out: cut(0, 12), Root: 1}, over, "this rank's part of the output")
	add("ReduceScatter/PartOfAnother", Request{Collective: kolo.ReduceScatter, In: cut(0, 12), Out: cut(0, 4)}, over, "this rank's part of the input")
	add("ReduceScatter/BehindTheEnd", Request{Collective: kolo.ReduceScatter, In: cut(0, 12), Out: cut(11, 15)}, over, "this rank's part of the input")
	add("Scatter/PartOfAnotherAtRoot", Request{Collective: kolo.Scatter, In: cut(0, 12), Out: cut(8, 12), Root: 1}, over, "this rank's part of the input")
	add("AllToAll/Shifted", Request{Collective: kolo.AllToAll, In: cut(0, 6), Out: cut(3, 9)}, over, "the same buffer")
	add("AllGatherV/PartOfAnother", Request{Collective: kolo.AllGatherV, In: cut(0, 2), Out: cut(0, 6), Recv: v(1, 2, 3)}, over, "this rank's part of the output")
	add("ReduceScatterV/PartOfAnother", Request{Collective: kolo.ReduceScatterV, In: cut(0, 6), Out: cut(0, 2), Send: v(1, 2, 3)}, over, "this rank's part of the input")
	add("ReduceScatterV/PartsOverlapInPlace", Request{Collective: kolo.ReduceScatterV, In: cut(0, 6), Out: cut(1, 3), Send: at([]int64{0, 1, 2}, 2, 2, 2)}, over, "Send: parts 0 and 1 overlap")
	add("AllToAllV/SameBuffer", Request{Collective: kolo.AllToAllV, In: cut(0, 6), Out: cut(0, 6), Send: v(2, 2, 2), Recv: v(2, 2, 2)}, over, "no in-place form")
	add("AllToAllVC/Touching", Request{Collective: kolo.AllToAllVC, In: cut(0, 3), Out: cut(2, 5), Send: v(1, 1, 1, 1, 1, 1, 1, 1, 1)}, over, "no in-place form")

	// Ranks.
	for _, c := range []kolo.Collective{kolo.Broadcast, kolo.Reduce, kolo.Gather, kolo.Scatter, kolo.GatherV, kolo.ScatterV} {
		for _, root := range []kolo.Rank{-1, 3, math.MaxInt32} {
			add(fmt.Sprintf("%v/Root%d", c, int(root)), Request{Collective: c, In: in(1), Out: in(1), Root: root}, arg,
				fmt.Sprintf("root %d; the group has ranks 0 to 2", int(root)))
		}
	}
	for _, c := range []kolo.Collective{kolo.Send, kolo.Recv} {
		for _, peer := range []kolo.Rank{-1, 3} {
			add(fmt.Sprintf("%v/Peer%d", c, int(peer)), Request{Collective: c, In: in(1), Out: in(1), Peer: peer}, arg,
				fmt.Sprintf("peer %d; the group has ranks 0 to 2", int(peer)))
		}
	}

	// What is no call.
	add("NoCall/None", Request{In: in(1), Out: in(1)}, arg, "Request.Collective is not set")
	for _, c := range []kolo.Collective{kolo.BatchSendRecv, 42, 255} {
		add("NoCall/"+c.String(), Request{Collective: c, In: in(1), Out: in(1)}, arg, "is no call of a group")
	}
	return list
}

// A wrong argument is refused at the call, says what is wrong, starts nothing and
// counts for nothing: the group goes on on all ranks.
func TestWrongArgumentsAreRefusedAndTheGroupGoesOn(t *testing.T) {
	errs := each(t, Config{}, 3, func(ctx context.Context, w *World) error {
		g := w.Group()
		require.NoError(t, AllReduce(ctx, g, fill(w.Rank(), 3), kolo.Sum))
		if w.Rank() == 1 {
			for _, c := range wrongArguments() {
				for _, async := range []bool{false, true} {
					var err error
					if async {
						work := DoAsync(g, c.call)
						<-work.Done()
						err = work.Wait(ctx)
						require.Equal(t, err, work.Wait(ctx))
					} else {
						err = unchanged(ctx, t, g, c.call)
					}
					require.ErrorIs(t, err, c.kind, c.name)
					require.ErrorContains(t, err, c.text, c.name)
					e := want(t, err, 1, nil)
					require.Equal(t, c.call.Collective, e.Op, c.name)
					require.Equal(t, uint64(1), g.Calls(), c.name)
				}
			}
		}
		require.NoError(t, g.Err())
		b := fill(w.Rank(), 100)
		err := AllReduce(ctx, g, b, kolo.Sum)
		require.Equal(t, sums(3, 100), b)
		return err
	})
	require.NoError(t, errors.Join(errs...))
}

// What is allowed next to what is refused above: buffers that touch, parts with gaps,
// memory that a rank does not need.
func TestUnusualArgumentsAreTaken(t *testing.T) {
	errs := each(t, Config{}, 3, func(ctx context.Context, w *World) error {
		g, me := w.Group(), int(w.Rank())
		b := make([]int32, 40)
		copy(b, fill(w.Rank(), 4))
		require.NoError(t, AllReduceTo(ctx, g, b[4:8], b[:4], kolo.Sum), "buffers that touch")
		require.Equal(t, sums(3, 4), b[4:8])
		var dst []int32
		if me == 1 {
			dst = b[8:12]
		}
		require.NoError(t, Reduce(ctx, g, dst, fill(w.Rank(), 4), kolo.Sum, 1), "no output but at the root")
		if me == 1 {
			require.Equal(t, sums(3, 4), b[8:12])
		}
		gaps := Vector{Counts: []int64{1, 2, 0}, Displs: []int64{20, 14, 40}}
		require.NoError(t, AllGatherV(ctx, g, b, fill(w.Rank(), 3)[:gaps.Counts[me]], gaps), "parts with gaps, out of order, empty at the end")
		require.Equal(t, value(0, 0), b[20])
		require.Equal(t, []int32{value(1, 0), value(1, 1)}, b[14:16])
		require.Zero(t, b[16])
		inside := Vector{Counts: []int64{3, 2, 0}, Displs: []int64{20, 30, 21}}
		require.NoError(t, AllGatherV(ctx, g, b, fill(w.Rank(), 3)[:inside.Counts[me]], inside), "an empty part inside another")
		require.Equal(t, fill(0, 3), b[20:23])
		require.Equal(t, fill(1, 3)[:2], b[30:32])
		return nil
	})
	require.NoError(t, errors.Join(errs...))
}

// Buffers of two ranks that are in part the same, where one is written.
func TestBuffersSharedByRanksAreRefused(t *testing.T) {
	shared := make([]int32, 100)
	for _, c := range []struct {
		name string
		call func(r kolo.Rank) Request
		kind error
	}{
		{"OneBufferForAll", func(kolo.Rank) Request { return reduced(Of(shared[:10]), kolo.Sum) }, kolo.ErrOverlap},
		{"OutputsTouchingByOne", func(r kolo.Rank) Request {
			return Request{Collective: kolo.AllReduce, In: ints(r, 10), Out: Of(shared[9*r : 9*r+10])}
		}, kolo.ErrOverlap},
		{"OutputInAnothersInput", func(r kolo.Rank) Request {
			q := Request{Collective: kolo.AllReduce, In: Of(shared[:10]), Out: ints(r, 10)}
			if r == 2 {
				q.In, q.Out = ints(r, 10), Of(shared[5:15])
			}
			return q
		}, kolo.ErrOverlap},
		{"InputsMayBeOne", func(r kolo.Rank) Request {
			return Request{Collective: kolo.AllReduce, In: Of(shared[:10]), Out: ints(r, 10)}
		}, nil},
		{"Neighbours", func(r kolo.Rank) Request {
			return Request{Collective: kolo.AllReduce, In: ints(r, 10), Out: Of(shared[10*r : 10*r+10])}
		}, nil},
	} {
		for _, algorithm := range []string{"", "ring"} {
			t.Run(c.name+"/"+named(algorithm), func(t *testing.T) {
				errs := each(t, Config{Algorithm: algorithm}, 3, func(ctx context.Context, w *World) error {
					q := c.call(w.Rank())
					before := slices.Clone(q.Out.Memory.Host)
					err := Do(ctx, w.Group(), q)
					if err != nil && c.name != "OneBufferForAll" {
						require.Equal(t, before, q.Out.Memory.Host)
					}
					return err
				})
				for r, err := range errs {
					if c.kind == nil {
						require.NoError(t, err)
						continue
					}
					e := want(t, err, kolo.Rank(r), []error{c.kind}, "rank", "give each rank buffers of its own")
					require.Len(t, e.Ranks, 2)
				}
			})
		}
	}
}

// Nothing is a length like any other: nil, empty, everywhere, in every call.
func TestNoElementsAtAll(t *testing.T) {
	zeros := Vector{Counts: make([]int64, 3)}
	for _, algorithm := range []string{"", "ring", "nhr", "star"} {
		errs := each(t, Config{Algorithm: algorithm}, 3, func(ctx context.Context, w *World) error {
			for _, empty := range []Buffer{{}, Of([]int32{}), Of[int32](nil), Float16s(nil)} {
				for _, c := range kolo.Collectives() {
					q := Request{Collective: c, In: empty, Out: empty, Op: kolo.Sum}
					switch c {
					case kolo.AllGatherV, kolo.GatherV:
						q.Recv = zeros
					case kolo.ReduceScatterV, kolo.ScatterV:
						q.Send = zeros
					case kolo.AllToAllV:
						q.Send, q.Recv = zeros, zeros
					case kolo.AllToAllVC:
						q.Send = Vector{Counts: make([]int64, 9)}
					}
					if err := Do(ctx, w.Group(), q); err != nil && !errors.Is(err, kolo.ErrUnsupported) {
						return err
					}
				}
				next, prev := (w.Rank()+1)%3, (w.Rank()+2)%3
				if err := Batch(ctx, w.Group(), []Request{
					{Collective: kolo.Send, In: empty, Peer: next}, {Collective: kolo.Recv, Out: empty, Peer: prev},
				}); err != nil {
					return err
				}
			}
			return Batch(ctx, w.Group(), nil)
		})
		require.NoError(t, errors.Join(errs...), algorithm)
	}
}

// A world of one rank does what a world of many does.
func TestWorldOfOneRank(t *testing.T) {
	for _, algorithm := range []string{"", "ring", "nhr", "tree", "mesh"} {
		require.NoError(t, Config{Algorithm: algorithm}.Run(t.Context(), 1, func(ctx context.Context, w *World) error {
			for _, c := range calls(1) {
				q := c.call(0)
				want := slices.Clone(q.In.Memory.Host)
				if q.Collective == kolo.Broadcast {
					want = slices.Clone(q.Out.Memory.Host)
				}
				err := Do(ctx, w.Group(), q)
				if errors.Is(err, kolo.ErrUnsupported) {
					continue
				}
				require.NoError(t, err, "%s %s", algorithm, c.name)
				if q.Collective != kolo.Barrier {
					require.Equal(t, want, q.Out.Memory.Host, "%s %s", algorithm, c.name)
				}
			}
			for _, c := range []struct {
				op   kolo.ReduceOp
				want float64
			}{{kolo.Sum, 7}, {kolo.Avg, 7}, {kolo.Max, 7}, {kolo.PreMulSum(0.5), 3.5}} {
				b := []float64{7}
				require.NoError(t, AllReduce(ctx, w.Group(), b, c.op), "%s", algorithm)
				require.Equal(t, c.want, b[0], "%s %v in place", algorithm, c.op)
				b, d := []float64{7}, []float64{0}
				require.NoError(t, AllReduceTo(ctx, w.Group(), d, b, c.op), "%s", algorithm)
				require.Equal(t, c.want, d[0], "%s %v", algorithm, c.op)
			}
			got := []int32{0}
			require.NoError(t, Batch(ctx, w.Group(), []Request{
				{Collective: kolo.Recv, Out: Of(got)}, {Collective: kolo.Send, In: Of([]int32{5})},
			}))
			require.Equal(t, []int32{5}, got)
			return nil
		}), algorithm)
	}
}

func TestWrongGroupsAreRefused(t *testing.T) {
	errs := each(t, Config{}, 4, func(ctx context.Context, w *World) error {
		if w.Rank() > 0 {
			return nil
		}
		for _, c := range []struct {
			group GroupConfig
			kind  error
			text  string
		}{
			{GroupConfig{}, kolo.ErrArgument, "Ranks is empty"},
			{GroupConfig{Ranks: []kolo.Rank{0, 4}}, kolo.ErrArgument, "Ranks[1] is 4"},
			{GroupConfig{Ranks: []kolo.Rank{0, -1}}, kolo.ErrArgument, "Ranks[1] is -1"},
			{GroupConfig{Ranks: []kolo.Rank{0, 1, 0}}, kolo.ErrArgument, "rank 0 is in the list twice"},
			{GroupConfig{Ranks: []kolo.Rank{0}, Algorithm: "magic"}, kolo.ErrArgument, `"magic"`},
			{GroupConfig{Ranks: []kolo.Rank{2, 3}}, kolo.ErrNotMember, "2 and 3"},
			{GroupConfig{Ranks: []kolo.Rank{1, 3}}, kolo.ErrNotMember, "1 and 3"},
		} {
			g, err := w.NewGroup(c.group)
			require.Nil(t, g)
			require.ErrorIs(t, err, c.kind)
			require.ErrorContains(t, err, c.text)
		}
		require.Len(t, w.Groups(), 1)
		return nil
	})
	require.NoError(t, errors.Join(errs...))
}

func TestWrongConfigurationsAreRefused(t *testing.T) {
	for _, c := range []struct {
		ranks  int
		config Config
		kind   error
		text   string
	}{
		{0, Config{}, kolo.ErrArgument, "a world of 0 ranks"},
		{-1, Config{}, kolo.ErrArgument, "a world of -1 ranks"},
		{1 << 40, Config{}, kolo.ErrArgument, "a world of 1099511627776 ranks; want 1 to 1048576"},
		{maxRanks + 1, Config{}, kolo.ErrArgument, "ranks; want 1 to"},
		{2, Config{CloseTimeout: -1}, kolo.ErrArgument, "CloseTimeout"},
		{2, Config{Workers: -1}, kolo.ErrArgument, "Workers"},
		{2, Config{Algorithm: "magic"}, kolo.ErrArgument, `"magic"`},
		{2, Config{Driver: "smoke"}, kolo.ErrUnsupported, `"smoke"`},
		{2, Config{Topology: plan.OneProcess(3)}, kolo.ErrArgument, "3 ranks, the world 2"},
		{2, Config{Choice: 9}, kolo.ErrArgument, "Config.Choice"},
		{2, Config{Tuning: &plan.Tuning{Rules: []plan.Rule{{Algorithm: "magic"}}}}, kolo.ErrArgument, "Config.Tuning"},
	} {
		err := c.config.Run(t.Context(), c.ranks, func(context.Context, *World) error { panic("never") })
		require.ErrorIs(t, err, c.kind, "%v", c)
		require.ErrorContains(t, err, c.text)
	}
}

// Sums, products and offsets beyond 2^31 and 2^32 bytes, without the memory: what a
// layout gives for 2,048 ranks with 2 MiB each, and for parts of several GiB.
func TestLayoutsOfMoreThanFourGiB(t *testing.T) {
	for _, c := range []struct {
		name       string
		collective kolo.Collective
		ranks      int
		count      int64
		dtype      kolo.DType
	}{
		{"2048RanksOf2MiB", kolo.AllGather, 2048, 2 << 20, kolo.Uint8},
		{"2048RanksOf2MiBAtOneRoot", kolo.Gather, 2048, 2 << 20, kolo.Uint8},
		{"8RanksOf4GiBTogether", kolo.AllGather, 8, 1 << 27, kolo.Float32},
		{"8RanksOf16GiB", kolo.ReduceScatter, 8, 1 << 32, kolo.Float32},
		{"AllReduceOf2G+1Elements", kolo.AllReduce, 4, 1<<31 + 1, kolo.Float64},
		{"AllToAllOf3GiBPairs", kolo.AllToAll, 16, 3 << 30, kolo.Uint8},
	} {
		for _, algorithm := range []string{"ring", "star", "pairwise", "nhr"} {
			t.Run(c.name+"/"+algorithm, func(t *testing.T) {
				call := &kolo.Call{Collective: c.collective, DType: c.dtype, Count: c.count}
				a, err := plan.Lookup(algorithm)
				require.NoError(t, err)
				topology := plan.OneProcess(c.ranks)
				if a.Serves(c.collective, topology) != nil {
					t.Skip("the algorithm does not serve the collective")
				}
				me := kolo.Rank(c.ranks - 1)
				if c.collective.Rooted() {
					me = 0
				}
				p, _, err := plan.Compile(plan.KeyOf(call, algorithm), topology, me)
				require.NoError(t, err)
				p = p.For(me)
				layout := plan.LayoutOf(p.Program, call, plan.Displs{})
				size := int64(c.dtype.Size())
				all, mine := int64(c.ranks)*c.count*size, c.count*size
				want := map[plan.Buffer]int64{plan.In: all, plan.Out: all}
				switch c.collective {
				case kolo.AllGather, kolo.Gather:
					want[plan.In] = mine
				case kolo.ReduceScatter:
					want[plan.Out] = mine
				case kolo.AllReduce:
					want[plan.In], want[plan.Out] = mine, mine
				}
				for b, total := range want {
					at := int64(0)
					for i := range p.Program.Blocks[b] {
						off, n := layout.Range(b, i)
						require.Equal(t, at, off, "%v block %d", b, i)
						require.GreaterOrEqual(t, n, int64(0))
						at += n
					}
					if p.Program.Blocks[b] > 0 {
						require.Equal(t, total, at, "%v", b)
					}
				}
				require.GreaterOrEqual(t, layout.ScratchSize(p.Program), int64(0))
			})
		}
	}
}

// The V forms as well: sums of counts beyond 2^32 elements.
func TestLayoutsOfVFormsOfMoreThanFourGiB(t *testing.T) {
	const n = 64
	counts := make([]int64, n)
	total := int64(0)
	for i := range counts {
		counts[i] = 1<<28 + int64(i)
		total += counts[i]
	}
	for _, c := range []kolo.Collective{kolo.AllGatherV, kolo.ReduceScatterV} {
		call := &kolo.Call{Collective: c, DType: kolo.Float64, Counts: counts}
		p, _, err := plan.Compile(plan.KeyOf(call, "ring"), plan.OneProcess(n), 5)
		require.NoError(t, err)
		p = p.For(5)
		layout := plan.LayoutOf(p.Program, call, plan.Displs{})
		whole := plan.Out
		if c == kolo.ReduceScatterV {
			whole = plan.In
		}
		off, size := layout.Range(whole, p.Program.Blocks[whole]-1)
		require.Equal(t, total*8, off+size)
	}
	require.Equal(t, kolo.Memory{Space: 1, Addr: 1 << 40, Size: 8 << 32},
		part(kolo.Memory{Space: 1, Addr: 0, Size: 1 << 42}, 1<<32, nil, nil, 32, 8), "a part beyond 2^32 elements")
}
