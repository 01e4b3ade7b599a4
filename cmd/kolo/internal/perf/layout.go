package perf

import (
	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/rank"
)

// trial is one row's work: what is the same on all ranks.
type trial struct {
	operator  Operator
	placement Placement
	ranks     int
	root      int
	count     int64   // elements of the whole vector
	shares    []int64 // elements of each part, where there are parts
}

// segment is a stretch of expected output: elements from, from+1, ... of a rank's
// sequence, or of the fold.
type segment struct {
	rank        int
	from, count int64
}

// layout is where one rank's data lie, in elements.
type layout struct {
	in, out     int64 // lengths; 0 is none
	inAt, outAt int64 // in place: where they are in the one buffer
	send, recv  rank.Vector
	want        []segment // the output, from its beginning on
}

// whole is the length of the buffer in place.
func (l *layout) whole() int64 { return max(l.inAt+l.in, l.outAt+l.out) }

// elements is all memory that the layout needs.
func (l *layout) elements(p Placement) int64 {
	if p == InPlace {
		return l.whole()
	}
	return l.in + l.out
}

func newTrial(c *Config, p Placement, count int64) *trial {
	t := &trial{operator: c.Operator, placement: p, ranks: c.Ranks, root: int(c.Root), count: count}
	if c.Operator.split() {
		t.shares = share(count, c.Ranks, c.Uneven)
	}
	return t
}

// share divides count among n parts: equally, or with part i as large as i+1 says
// and what is left over in the last.
func share(count int64, n int, uneven bool) []int64 {
	parts := make([]int64, n)
	sum := int64(n) * int64(n+1) / 2
	left := count
	for i := range parts {
		parts[i] = count / int64(n)
		if uneven {
			parts[i] = count / sum * int64(i+1)
		}
		left -= parts[i]
	}
	parts[n-1] += left
	return parts
}

// before is the sum of the parts before part r.
func before(parts []int64, r int) int64 {
	sum := int64(0)
	for _, k := range parts[:r] {
		sum += k
	}
	return sum
}

// lay is the layout of rank me.
func (t *trial) lay(me int) layout {
	all := t.count
	switch t.operator.Collective.Base() {
	case kolo.AllReduce:
		return layout{in: all, out: all, want: []segment{{reduced, 0, all}}}
	case kolo.Reduce:
		if me != t.root {
			return layout{in: all}
		}
		return layout{in: all, out: all, want: []segment{{reduced, 0, all}}}
	case kolo.Broadcast:
		l := layout{out: all, want: []segment{{t.root, 0, all}}}
		if me == t.root {
			l.in = all
		}
		return l
	case kolo.AllGather:
		l := layout{in: t.shares[me], out: all, inAt: before(t.shares, me), recv: rank.Vector{Counts: t.shares}}
		for r, k := range t.shares {
			l.want = append(l.want, segment{r, 0, k})
		}
		return l
	case kolo.ReduceScatter:
		at := before(t.shares, me)
		return layout{in: all, out: t.shares[me], outAt: at, send: rank.Vector{Counts: t.shares},
			want: []segment{{reduced, at, t.shares[me]}}}
	case kolo.Scatter:
		at := before(t.shares, me)
		l := layout{out: t.shares[me], want: []segment{{t.root, at, t.shares[me]}}}
		if me == t.root {
			l.in, l.outAt = all, at
		}
		return l
	}
	return t.layExchange(me)
}

// layExchange is the layout of an alltoall. Rank i sends part i+j (of all parts, in a
// circle) to rank j, so that each sends and receives every part once.
func (t *trial) layExchange(me int) layout {
	l := layout{in: t.count, out: t.count}
	n := t.ranks
	sent := make([]int64, 2*n+1) // elements of the parts before part i, twice around
	for i := range 2 * n {
		sent[i+1] = sent[i] + t.shares[i%n]
	}
	part := func(i, j int) int64 { return t.shares[(i+j)%n] }
	for r := range n {
		l.want = append(l.want, segment{r, sent[r+me] - sent[r], part(r, me)})
	}
	for i := range n {
		for j := range n {
			switch {
			case t.operator.Collective == kolo.AllToAllVC:
				l.send.Counts = append(l.send.Counts, part(i, j))
			case i == me:
				l.send.Counts = append(l.send.Counts, part(i, j))
				l.recv.Counts = append(l.recv.Counts, part(j, i))
			}
		}
	}
	return l
}

// call is the trial as rank me's call, for asking what would be chosen.
func (t *trial) call(c *Config, l *layout) kolo.Call {
	call := kolo.Call{Collective: t.operator.Collective, DType: c.DType, InPlace: t.placement == InPlace, Count: t.perCall()}
	if call.Collective.Reduces() {
		call.Op = c.Op
	}
	if call.Collective.Rooted() {
		call.Root = c.Root
	}
	if t.operator.Counted() {
		call.Count, call.Counts, call.RecvCounts = 0, l.send.Counts, l.recv.Counts
		if call.Counts == nil {
			call.Counts, call.RecvCounts = l.recv.Counts, nil
		}
	}
	return call
}

// perCall is the count that the call is made with; of one with counts, the mean.
func (t *trial) perCall() int64 {
	if t.operator.split() {
		return t.count / int64(t.ranks)
	}
	return t.count
}

// request is the call itself, on the rank's two stretches of memory.
func (t *trial) request(c *Config, l *layout, in, out []byte) rank.Request {
	r := rank.Request{
		Collective: t.operator.Collective,
		In:         rank.Buffer{Memory: kolo.HostMemory(in), DType: c.DType},
		Out:        rank.Buffer{Memory: kolo.HostMemory(out), DType: c.DType},
		Op:         c.Op,
		Root:       c.Root,
	}
	if t.operator.Counted() {
		r.Send, r.Recv = l.send, l.recv
	}
	return r
}
