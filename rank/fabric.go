package rank

import (
	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/internal/kernel"
)

// fabric makes the job with which the medium does a round: parts that each fold
// the memory of some ranks, in rank order, and store it to that of others.
func (h *hub) fabric(rd *round) {
	j, c := &h.job, &rd.tickets[0].call
	j.Reset()
	j.Op = kernel.Op{}
	if c.Collective.Reduces() {
		j.Op = kernel.OpOf(c.DType, c.Op, len(h.ranks))
	}
	size := int64(c.DType.Size())
	switch c.Collective.Base() {
	case kolo.AllReduce:
		for i := range rd.tickets[0].tensors {
			p := j.Add()
			for _, t := range rd.tickets {
				p.Src, p.Dst = append(p.Src, t.tensors[i]), append(p.Dst, t.tensors[i])
			}
		}
		if len(c.Counts) > 0 {
			return
		}
		p := j.Add()
		for _, t := range rd.tickets {
			p.Src, p.Dst = append(p.Src, t.in), append(p.Dst, t.out)
		}
	case kolo.Reduce:
		p := j.Add()
		for _, t := range rd.tickets {
			p.Src = append(p.Src, t.in)
		}
		p.Dst = append(p.Dst, rd.tickets[c.Root].out)
	case kolo.Broadcast:
		p := j.Add()
		for r, t := range rd.tickets {
			if kolo.Rank(r) == c.Root {
				p.Src = append(p.Src, t.out)
			} else {
				p.Dst = append(p.Dst, t.out)
			}
		}
	case kolo.ReduceScatter:
		for r := range rd.tickets {
			p := j.Add()
			for _, t := range rd.tickets {
				p.Src = append(p.Src, t.chunk(t.in, t.displs.In, r, size))
			}
			p.Dst = append(p.Dst, rd.tickets[r].out)
		}
	case kolo.AllGather:
		for r := range rd.tickets {
			p := j.Add()
			p.Src = append(p.Src, rd.tickets[r].in)
			for _, t := range rd.tickets {
				p.Dst = append(p.Dst, t.chunk(t.out, t.displs.Out, r, size))
			}
		}
	default:
		h.fabricMoves(rd, size)
	}
}

// fabricMoves makes the parts of the collectives that move each piece to one rank.
func (h *hub) fabricMoves(rd *round, size int64) {
	j, c := &h.job, &rd.tickets[0].call
	move := func(dst, src kolo.Memory) {
		p := j.Add()
		p.Src, p.Dst = append(p.Src, src), append(p.Dst, dst)
	}
	switch c.Collective.Base() {
	case kolo.Gather:
		root := rd.tickets[c.Root]
		for r, t := range rd.tickets {
			move(root.chunk(root.out, root.displs.Out, r, size), t.in)
		}
	case kolo.Scatter:
		root := rd.tickets[c.Root]
		for r, t := range rd.tickets {
			move(t.out, root.chunk(root.in, root.displs.In, r, size))
		}
	case kolo.AllToAll:
		for i, from := range rd.tickets {
			for k, to := range rd.tickets {
				move(to.piece(to.out, to.displs.Out, i, size, true), from.piece(from.in, from.displs.In, k, size, false))
			}
		}
	}
}

// chunk is the part of rank r in memory that has a part for each.
func (t *ticket) chunk(m kolo.Memory, displs []int64, r int, size int64) kolo.Memory {
	return part(m, t.call.Count, t.call.Counts, displs, r, size)
}

// piece is what t's rank sends to, or takes from, rank r in an AllToAll.
func (t *ticket) piece(m kolo.Memory, displs []int64, r int, size int64, takes bool) kolo.Memory {
	counts := t.call.Counts
	switch {
	case t.call.Collective == kolo.AllToAllV && takes:
		counts = t.call.RecvCounts
	case t.call.Collective == kolo.AllToAllVC:
		n, me := t.group.Size(), int(t.group.rank)
		if !takes {
			counts = counts[me*n : (me+1)*n]
			break
		}
		off := int64(0)
		for i := range r {
			off += counts[i*n+me]
		}
		if displs != nil {
			off = displs[r]
		}
		return m.Slice(off*size, counts[r*n+me]*size)
	}
	return part(m, t.call.Count, counts, displs, r, size)
}

// part is chunk r of memory: count elements each, or counts[i]; at displs[r], or
// one behind the other.
func part(m kolo.Memory, count int64, counts, displs []int64, r int, size int64) kolo.Memory {
	off := int64(r) * count
	if counts != nil {
		count = counts[r]
		off = 0
		for _, n := range counts[:r] {
			off += n
		}
	}
	if displs != nil {
		off = displs[r]
	}
	return m.Slice(off*size, count*size)
}
