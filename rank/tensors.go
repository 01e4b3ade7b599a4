package rank

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sort"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
)

// maxTensors is the most tensors of one call.
const maxTensors = 1 << 16

// AllReduceTensors is AllReduce of several buffers in one call, as if they were one,
// and without bringing them together: the medium takes all of them as one job, and
// the messages of a choreography are gathered from them and scattered to them. All
// ranks give as many buffers, of the same lengths.
func AllReduceTensors[T Number](ctx context.Context, g *Group, list [][]T, op kolo.ReduceOp) error {
	return do(ctx, g, &Request{Collective: kolo.AllReduce, Tensors: buffersOf(list), Op: op})
}

// AllReduceTensorsAsync is AllReduceTensors that returns at once.
func AllReduceTensorsAsync[T Number](g *Group, list [][]T, op kolo.ReduceOp) Work {
	return doAsync(g, &Request{Collective: kolo.AllReduce, Tensors: buffersOf(list), Op: op})
}

func buffersOf[T Number](list [][]T) []Buffer {
	buffers := make([]Buffer, len(list))
	for i, s := range list {
		buffers[i] = Of(s)
	}
	return buffers
}

// list checks a Request with Tensors and makes the call of it.
func (c *asked) list(r *Request, e channel.Engine) error {
	switch {
	case r.Collective != kolo.AllReduce:
		return fmt.Errorf("%w: Tensors are for AllReduce", kolo.ErrUnsupported)
	case r.In.Memory.Len() > 0 || r.Out.Memory.Len() > 0:
		return fmt.Errorf("%w: Tensors, and In or Out besides", kolo.ErrArgument)
	case len(r.Tensors) == 0 || len(r.Tensors) > maxTensors:
		return fmt.Errorf("%w: %d tensors in a call; want 1 to %d", kolo.ErrArgument, len(r.Tensors), maxTensors)
	}
	c.call = kolo.Call{Collective: r.Collective, Op: r.Op, DType: r.Tensors[0].DType, InPlace: true}
	first := Request{Collective: r.Collective, Op: r.Op, In: r.Tensors[0]}
	if err := c.checkTypes(&first, e); err != nil {
		return fmt.Errorf("tensor 0: %w", err)
	}
	space := first.In.Memory.Space
	c.counts = c.counts[:0]
	for i := range r.Tensors {
		b := &r.Tensors[i]
		if b.DType != c.call.DType {
			return fmt.Errorf("%w: tensor %d is of %v, tensor 0 of %v; all tensors of a call have one type", kolo.ErrArgument, i, b.DType, c.call.DType)
		}
		if s := b.Memory.Space; s != space && !e.Reaches(s) {
			return fmt.Errorf("tensor %d: %w", i, unreached(s))
		}
		if err := c.checkBuffer("memory", *b); err != nil {
			return fmt.Errorf("tensor %d: %w", i, err)
		}
		n := b.Memory.Len() / int64(c.call.DType.Size())
		c.tensors = append(c.tensors, b.Memory)
		c.counts = append(c.counts, n)
		c.call.Count += n
	}
	c.call.Counts = c.counts
	return nil
}

// size is the number of bytes that the call reads and writes on its rank.
func (c *asked) size() int64 {
	n := c.in.Len() + c.out.Len()
	if len(c.tensors) > 0 {
		n += 2 * c.call.Count * int64(c.call.DType.Size())
	}
	return n
}

// owned is where a tensor of a rank lies.
type owned struct {
	span
	rank, tensor int
}

// checkTensors refuses tensors that overlap, on one rank or on two: all are written.
// A list that was checked last is not checked again.
func (h *hub) checkTensors(rd *round) error {
	clear(h.seen)
	per, same := len(rd.firstTicket().tensors), false
	if len(h.apart) == per*len(h.mine) {
		same = true
		for k, r := range h.mine {
			for i, m := range rd.tickets[r].tensors {
				same = same && h.apart[k*per+i].span == spanOf(m)
			}
		}
	}
	if same {
		return nil
	}
	h.apart = h.apart[:0]
	for _, r := range h.mine {
		for i, m := range rd.tickets[r].tensors {
			h.apart = append(h.apart, owned{spanOf(m), int(r), i})
		}
	}
	list := slices.DeleteFunc(slices.Clone(h.apart), func(o owned) bool { return o.empty() })
	slices.SortFunc(list, func(x, y owned) int { return cmp.Or(cmp.Compare(x.space, y.space), cmp.Compare(x.lo, y.lo)) })
	for i := range max(len(list)-1, 0) {
		a, b := list[i], list[i+1]
		if !a.overlaps(b.span) {
			continue
		}
		h.apart = h.apart[:0]
		return &kolo.Error{Op: rd.firstCall().Collective, Group: h.key.name, Rank: kolo.NoRank, Peer: kolo.NoRank, Seq: h.base,
			Ranks: []kolo.Rank{kolo.Rank(min(a.rank, b.rank)), kolo.Rank(max(a.rank, b.rank))},
			Err: fmt.Errorf("%w: the memory of tensor %d of rank %d and of tensor %d of rank %d is in part the same",
				kolo.ErrOverlap, a.tensor, a.rank, b.tensor, b.rank)}
	}
	return nil
}

// tensors is memory in pieces, which is addressed as if it were one.
type tensors struct {
	list []kolo.Memory
	ends []int64 // of each, counted from the begin of the first
}

func (t *tensors) set(list []kolo.Memory) {
	t.list, t.ends = list, t.ends[:0]
	at := int64(0)
	for _, m := range list {
		at += m.Len()
		t.ends = append(t.ends, at)
	}
}

// slice appends the memory of n bytes from off on.
func (t *tensors) slice(dst []kolo.Memory, off, n int64) []kolo.Memory {
	i := sort.Search(len(t.ends), func(i int) bool { return t.ends[i] > off })
	for ; n > 0; i++ {
		m := t.list[i]
		from := off - (t.ends[i] - m.Len())
		size := min(n, m.Len()-from)
		if size > 0 {
			dst = append(dst, m.Slice(from, size))
		}
		off, n = off+size, n-size
	}
	return dst
}
