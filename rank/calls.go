package rank

import (
	"context"
	"runtime"

	"github.com/kolo-ccl/kolo"
)

// AllReduce folds buf of all ranks, element by element, and leaves the result in
// every rank's buf.
func AllReduce[T Number](ctx context.Context, g *Group, buf []T, op kolo.ReduceOp) error {
	b, d := bytesOf(buf), dtypeOf[T]()
	t, err := g.begin(ctx, whatOf(kolo.AllReduce, d, d, op.Kind, 0), op.Scale, b, b)
	if t == nil {
		return err
	}
	runtime.Gosched() // see begin
	return g.end(ctx, t)
}

// AllReduceTo is AllReduce that reads src and writes dst, of the same length.
func AllReduceTo[T Number](ctx context.Context, g *Group, dst, src []T, op kolo.ReduceOp) error {
	d := dtypeOf[T]()
	t, err := g.begin(ctx, whatOf(kolo.AllReduce, d, d, op.Kind, 0), op.Scale, bytesOf(src), bytesOf(dst))
	if t == nil {
		return err
	}
	runtime.Gosched() // see begin
	return g.end(ctx, t)
}

// Reduce folds src of all ranks into dst of the root. Elsewhere dst may be nil. dst
// may be src.
func Reduce[T Number](ctx context.Context, g *Group, dst, src []T, op kolo.ReduceOp, root kolo.Rank) error {
	return do(ctx, g, &Request{Collective: kolo.Reduce, In: Of(src), Out: Of(dst), Op: op, Root: root})
}

// Broadcast copies buf of the root to every other rank's.
func Broadcast[T Number](ctx context.Context, g *Group, buf []T, root kolo.Rank) error {
	if root < 0 || root > maxKnownRoot {
		return do(ctx, g, &Request{Collective: kolo.Broadcast, Out: Of(buf), Root: root})
	}
	t, err := g.begin(ctx, whatOf(kolo.Broadcast, 0, dtypeOf[T](), 0, root), 0, nil, bytesOf(buf))
	if t == nil {
		return err
	}
	runtime.Gosched() // see begin
	return g.end(ctx, t)
}

// AllGather puts src of rank r into part r of every rank's dst, which is Size times
// as long. In place: src is this rank's part of dst.
func AllGather[T Number](ctx context.Context, g *Group, dst, src []T) error {
	d := dtypeOf[T]()
	t, err := g.begin(ctx, whatOf(kolo.AllGather, d, d, 0, 0), 0, bytesOf(src), bytesOf(dst))
	if t == nil {
		return err
	}
	runtime.Gosched() // see begin
	return g.end(ctx, t)
}

// AllGatherV is AllGather with v.Counts[r] elements of rank r.
func AllGatherV[T Number](ctx context.Context, g *Group, dst, src []T, v Vector) error {
	return do(ctx, g, &Request{Collective: kolo.AllGatherV, In: Of(src), Out: Of(dst), Recv: v})
}

// ReduceScatter folds src of all ranks, which is Size times as long as dst, and
// leaves part r of the result in dst of rank r. In place: dst is this rank's part of
// src; the rest of src stays as it was.
func ReduceScatter[T Number](ctx context.Context, g *Group, dst, src []T, op kolo.ReduceOp) error {
	d := dtypeOf[T]()
	t, err := g.begin(ctx, whatOf(kolo.ReduceScatter, d, d, op.Kind, 0), op.Scale, bytesOf(src), bytesOf(dst))
	if t == nil {
		return err
	}
	runtime.Gosched() // see begin
	return g.end(ctx, t)
}

// ReduceScatterV is ReduceScatter with v.Counts[r] elements for rank r.
func ReduceScatterV[T Number](ctx context.Context, g *Group, dst, src []T, v Vector, op kolo.ReduceOp) error {
	return do(ctx, g, &Request{Collective: kolo.ReduceScatterV, In: Of(src), Out: Of(dst), Send: v, Op: op})
}

// Gather puts src of rank r into part r of the root's dst. Elsewhere dst may be nil.
func Gather[T Number](ctx context.Context, g *Group, dst, src []T, root kolo.Rank) error {
	return do(ctx, g, &Request{Collective: kolo.Gather, In: Of(src), Out: Of(dst), Root: root})
}

// GatherV is Gather with v.Counts[r] elements of rank r.
func GatherV[T Number](ctx context.Context, g *Group, dst, src []T, v Vector, root kolo.Rank) error {
	return do(ctx, g, &Request{Collective: kolo.GatherV, In: Of(src), Out: Of(dst), Recv: v, Root: root})
}

// Scatter puts part r of the root's src into dst of rank r. Elsewhere src may be nil.
func Scatter[T Number](ctx context.Context, g *Group, dst, src []T, root kolo.Rank) error {
	return do(ctx, g, &Request{Collective: kolo.Scatter, In: Of(src), Out: Of(dst), Root: root})
}

// ScatterV is Scatter with v.Counts[r] elements for rank r.
func ScatterV[T Number](ctx context.Context, g *Group, dst, src []T, v Vector, root kolo.Rank) error {
	return do(ctx, g, &Request{Collective: kolo.ScatterV, In: Of(src), Out: Of(dst), Send: v, Root: root})
}

// AllToAll puts part r of this rank's src into part Rank of rank r's dst. In place:
// dst is src.
func AllToAll[T Number](ctx context.Context, g *Group, dst, src []T) error {
	d := dtypeOf[T]()
	t, err := g.begin(ctx, whatOf(kolo.AllToAll, d, d, 0, 0), 0, bytesOf(src), bytesOf(dst))
	if t == nil {
		return err
	}
	runtime.Gosched() // see begin
	return g.end(ctx, t)
}

// AllToAllV is AllToAll with send.Counts[r] elements to rank r and recv.Counts[r]
// from it.
func AllToAllV[T Number](ctx context.Context, g *Group, dst, src []T, send, recv Vector) error {
	return do(ctx, g, &Request{Collective: kolo.AllToAllV, In: Of(src), Out: Of(dst), Send: send, Recv: recv})
}

// AllToAllVC is AllToAllV with the whole matrix of counts, the same on all ranks:
// matrix[i*Size+j] is what rank i sends to rank j.
func AllToAllVC[T Number](ctx context.Context, g *Group, dst, src []T, matrix []int64) error {
	return do(ctx, g, &Request{Collective: kolo.AllToAllVC, In: Of(src), Out: Of(dst), Send: Vector{Counts: matrix}})
}

// Send gives buf to rank peer, which receives it with the same tag. It returns when
// the receiver has it.
func Send[T Number](ctx context.Context, g *Group, buf []T, peer kolo.Rank, tag uint64) error {
	return do(ctx, g, &Request{Collective: kolo.Send, In: Of(buf), Peer: peer, Tag: tag})
}

// Recv fills buf with what rank peer sends with the same tag; the lengths must be
// equal. Several messages of one tag come in the order in which they were sent.
func Recv[T Number](ctx context.Context, g *Group, buf []T, peer kolo.Rank, tag uint64) error {
	return do(ctx, g, &Request{Collective: kolo.Recv, Out: Of(buf), Peer: peer, Tag: tag})
}

// Barrier returns when all ranks have called it.
func Barrier(ctx context.Context, g *Group) error {
	t, err := g.begin(ctx, whatOf(kolo.Barrier, 0, 0, 0, 0), 0, nil, nil)
	if t == nil {
		return err
	}
	runtime.Gosched() // see begin
	return g.end(ctx, t)
}

// AllReduceAsync is AllReduce that returns at once.
func AllReduceAsync[T Number](g *Group, buf []T, op kolo.ReduceOp) Work {
	b := Of(buf)
	return doAsync(g, &Request{Collective: kolo.AllReduce, In: b, Out: b, Op: op})
}

// AllReduceToAsync is AllReduceTo that returns at once.
func AllReduceToAsync[T Number](g *Group, dst, src []T, op kolo.ReduceOp) Work {
	return doAsync(g, &Request{Collective: kolo.AllReduce, In: Of(src), Out: Of(dst), Op: op})
}

// ReduceAsync is Reduce that returns at once.
func ReduceAsync[T Number](g *Group, dst, src []T, op kolo.ReduceOp, root kolo.Rank) Work {
	return doAsync(g, &Request{Collective: kolo.Reduce, In: Of(src), Out: Of(dst), Op: op, Root: root})
}

// BroadcastAsync is Broadcast that returns at once.
func BroadcastAsync[T Number](g *Group, buf []T, root kolo.Rank) Work {
	return doAsync(g, &Request{Collective: kolo.Broadcast, Out: Of(buf), Root: root})
}

// AllGatherAsync is AllGather that returns at once.
func AllGatherAsync[T Number](g *Group, dst, src []T) Work {
	return doAsync(g, &Request{Collective: kolo.AllGather, In: Of(src), Out: Of(dst)})
}

// AllGatherVAsync is AllGatherV that returns at once.
func AllGatherVAsync[T Number](g *Group, dst, src []T, v Vector) Work {
	return doAsync(g, &Request{Collective: kolo.AllGatherV, In: Of(src), Out: Of(dst), Recv: v})
}

// ReduceScatterAsync is ReduceScatter that returns at once.
func ReduceScatterAsync[T Number](g *Group, dst, src []T, op kolo.ReduceOp) Work {
	return doAsync(g, &Request{Collective: kolo.ReduceScatter, In: Of(src), Out: Of(dst), Op: op})
}

// ReduceScatterVAsync is ReduceScatterV that returns at once.
func ReduceScatterVAsync[T Number](g *Group, dst, src []T, v Vector, op kolo.ReduceOp) Work {
	return doAsync(g, &Request{Collective: kolo.ReduceScatterV, In: Of(src), Out: Of(dst), Send: v, Op: op})
}

// GatherAsync is Gather that returns at once.
func GatherAsync[T Number](g *Group, dst, src []T, root kolo.Rank) Work {
	return doAsync(g, &Request{Collective: kolo.Gather, In: Of(src), Out: Of(dst), Root: root})
}

// GatherVAsync is GatherV that returns at once.
func GatherVAsync[T Number](g *Group, dst, src []T, v Vector, root kolo.Rank) Work {
	return doAsync(g, &Request{Collective: kolo.GatherV, In: Of(src), Out: Of(dst), Recv: v, Root: root})
}

// ScatterAsync is Scatter that returns at once.
func ScatterAsync[T Number](g *Group, dst, src []T, root kolo.Rank) Work {
	return doAsync(g, &Request{Collective: kolo.Scatter, In: Of(src), Out: Of(dst), Root: root})
}

// ScatterVAsync is ScatterV that returns at once.
func ScatterVAsync[T Number](g *Group, dst, src []T, v Vector, root kolo.Rank) Work {
	return doAsync(g, &Request{Collective: kolo.ScatterV, In: Of(src), Out: Of(dst), Send: v, Root: root})
}

// AllToAllAsync is AllToAll that returns at once.
func AllToAllAsync[T Number](g *Group, dst, src []T) Work {
	return doAsync(g, &Request{Collective: kolo.AllToAll, In: Of(src), Out: Of(dst)})
}

// AllToAllVAsync is AllToAllV that returns at once.
func AllToAllVAsync[T Number](g *Group, dst, src []T, send, recv Vector) Work {
	return doAsync(g, &Request{Collective: kolo.AllToAllV, In: Of(src), Out: Of(dst), Send: send, Recv: recv})
}

// AllToAllVCAsync is AllToAllVC that returns at once.
func AllToAllVCAsync[T Number](g *Group, dst, src []T, matrix []int64) Work {
	return doAsync(g, &Request{Collective: kolo.AllToAllVC, In: Of(src), Out: Of(dst), Send: Vector{Counts: matrix}})
}

// SendAsync is Send that returns at once.
func SendAsync[T Number](g *Group, buf []T, peer kolo.Rank, tag uint64) Work {
	return doAsync(g, &Request{Collective: kolo.Send, In: Of(buf), Peer: peer, Tag: tag})
}

// RecvAsync is Recv that returns at once.
func RecvAsync[T Number](g *Group, buf []T, peer kolo.Rank, tag uint64) Work {
	return doAsync(g, &Request{Collective: kolo.Recv, Out: Of(buf), Peer: peer, Tag: tag})
}

// BarrierAsync is Barrier that returns at once.
func BarrierAsync(g *Group) Work {
	return doAsync(g, &Request{Collective: kolo.Barrier})
}
