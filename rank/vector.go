package rank

import (
	"fmt"

	"github.com/kolo-ccl/kolo"
)

// check says what is wrong with counts and displacements for n parts of a buffer
// that has size elements. All sums are of 64 bits and checked.
func (v *Vector) check(what string, n, size int64) error {
	if int64(len(v.Counts)) != n {
		return fmt.Errorf("%w: %s has %d counts; want one for each of %d ranks", kolo.ErrArgument, what, len(v.Counts), n)
	}
	if v.Displs != nil && int64(len(v.Displs)) != n {
		return fmt.Errorf("%w: %s has %d displacements; want one for each of %d ranks, or none", kolo.ErrArgument, what, len(v.Displs), n)
	}
	at := int64(0)
	for i, k := range v.Counts {
		if k < 0 {
			return fmt.Errorf("%w: %s.Counts[%d] is %d", kolo.ErrArgument, what, i, k)
		}
		if v.Displs != nil {
			at = v.Displs[i]
		}
		if at < 0 || at > size || k > size-at {
			return fmt.Errorf("%w: %s: part %d is %d elements from %d on, of a buffer of %d", kolo.ErrArgument, what, i, k, at, size)
		}
		at += k
	}
	return nil
}

// disjoint says whether no two parts overlap, as what is written must be.
func (v *Vector) disjoint(what string) error {
	for i, a := range v.Displs {
		for k := range i {
			b := v.Displs[k]
			if v.Counts[i] > 0 && v.Counts[k] > 0 && a < b+v.Counts[k] && b < a+v.Counts[i] {
				return fmt.Errorf("%w: %s: parts %d and %d overlap", kolo.ErrOverlap, what, k, i)
			}
		}
	}
	return nil
}

func (c *asked) gatherV(r *Request, n, me int64) error {
	holds := r.Collective == kolo.AllGatherV || me == int64(r.Root)
	size := int64(1)<<62 - 1
	if holds {
		size = c.elements(c.out)
	} else {
		c.out = kolo.Memory{}
	}
	if err := r.Recv.check("Recv", n, size); err != nil {
		return err
	}
	if err := c.sized("input", c.in, r.Recv.Counts[me]); err != nil {
		return err
	}
	c.call.Counts = r.Recv.Counts
	if !holds {
		return nil
	}
	if err := r.Recv.disjoint("Recv"); err != nil {
		return err
	}
	c.displs.Out = r.Recv.Displs
	mine := part(c.out, 0, c.call.Counts, r.Recv.Displs, int(me), int64(c.call.DType.Size()))
	return c.placed(c.in, mine, "the input is this rank's part of the output")
}

func (c *asked) scatterV(r *Request, n, me int64) error {
	holds := r.Collective == kolo.ReduceScatterV || me == int64(r.Root)
	size := int64(1)<<62 - 1
	if holds {
		size = c.elements(c.in)
	} else {
		c.in = kolo.Memory{}
	}
	if err := r.Send.check("Send", n, size); err != nil {
		return err
	}
	if err := c.sized("output", c.out, r.Send.Counts[me]); err != nil {
		return err
	}
	c.call.Counts = r.Send.Counts
	if !holds {
		return nil
	}
	c.displs.In = r.Send.Displs
	mine := part(c.in, 0, c.call.Counts, r.Send.Displs, int(me), int64(c.call.DType.Size()))
	if err := c.placed(c.out, mine, "the output is this rank's part of the input"); err != nil {
		return err
	}
	if c.call.InPlace { // the part is written while the others are read
		return r.Send.disjoint("Send")
	}
	return nil
}

func (c *asked) allToAllV(r *Request, n, me int64) error {
	send, recv := r.Send, r.Recv
	if r.Collective == kolo.AllToAllVC {
		if int64(len(r.Send.Counts)) != n*n {
			return fmt.Errorf("%w: Send has %d counts; want a matrix of %d by %d", kolo.ErrArgument, len(r.Send.Counts), n, n)
		}
		for i, k := range r.Send.Counts {
			if k < 0 {
				return fmt.Errorf("%w: Send.Counts[%d] is %d", kolo.ErrArgument, i, k)
			}
		}
		send.Counts, send.Displs = r.Send.Counts[me*n:(me+1)*n], nil
		recv = Vector{Counts: make([]int64, n)}
		for i := range n {
			recv.Counts[i] = r.Send.Counts[i*n+me]
		}
		c.call.Counts = r.Send.Counts
	} else {
		c.call.Counts, c.call.RecvCounts = send.Counts, recv.Counts
		c.displs.In, c.displs.Out = send.Displs, recv.Displs
	}
	if err := send.check("Send", n, c.elements(c.in)); err != nil {
		return err
	}
	if err := recv.check("Recv", n, c.elements(c.out)); err != nil {
		return err
	}
	if err := recv.disjoint("Recv"); err != nil {
		return err
	}
	if spanOf(c.in).overlaps(spanOf(c.out)) {
		return fmt.Errorf("%w: input and output; %v has no in-place form", kolo.ErrOverlap, r.Collective)
	}
	return nil
}
