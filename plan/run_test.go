package plan

import (
	"fmt"
	"slices"

	"github.com/kolo-ccl/kolo"
)

// run executes the Programs of a performance under strict rendezvous: a message moves
// when both its steps have begun, a send ends when all its messages have moved, and
// a receive then. What happens next is drawn from the performance's rng. It returns an error
// for a deadlock, for two running steps of a rank that are in each other's way, for
// a message that does not fit, and for a wrong result.
func (x *performance) run() (err error) {
	defer func() {
		if p := recover(); p != nil { // outside of a buffer
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	e := &execution{performance: x, conns: map[wire]*conn{}}
	for r := range x.compiled {
		p := x.compiled[r]
		ps := &process{rank: r, p: p.Program, open: make([]openStep, len(p.Steps))}
		for b := range ps.busy {
			ps.busy[b] = make([]int, p.Blocks[b])
		}
		ps.machine.Reset(p.Program, p.Successors)
		e.ranks = append(e.ranks, ps)
		e.todo = append(e.todo, happening{kind: begin, rank: r})
	}
	for len(e.todo) > 0 {
		i := x.rng.IntN(len(e.todo))
		ev := e.todo[i]
		e.todo[i] = e.todo[len(e.todo)-1]
		e.todo = e.todo[:len(e.todo)-1]
		if err := e.handle(ev); err != nil {
			return err
		}
	}
	for _, ps := range e.ranks {
		if !ps.machine.Ended() {
			ended, all := ps.machine.Progress()
			return fmt.Errorf("deadlock: rank %d has ended %d of %d steps and waits in %v", ps.rank, ended, all, ps.waiting())
		}
	}
	return x.check()
}

// waiting lists the steps that have begun and not ended.
func (ps *process) waiting() (list []int) {
	for i := range ps.p.Steps {
		if begun, ended := ps.machine.State(i); begun && !ended {
			list = append(list, i)
		}
	}
	return list
}

// wire is a connection between two ranks.
type wire struct {
	from, to kolo.Rank
	lane     uint8
}

// conn holds the steps that have begun on a wire, in order.
type conn struct {
	sends, recvs []int // step indices
	matched      int
}

// process is one rank in execution.
type process struct {
	rank    int
	p       *Program
	machine Machine
	open    []openStep
	busy    [numBuffers][]int // by block: running readers, or -1 for a writer
}

// openStep is a step that has begun.
type openStep struct {
	left     int // messages that have not moved
	operands map[kolo.Rank][]elem
}

type eventKind int

const (
	begin eventKind = iota // rank may begin a step
	move                   // a message of a wire, the k-th, moves
	local                  // step of rank, which needs no peer, is done
)

type happening struct {
	kind    eventKind
	rank    int
	step    int
	wire    wire
	message int
}

type execution struct {
	*performance
	ranks []*process
	conns map[wire]*conn
	todo  []happening
}

func (e *execution) handle(ev happening) error {
	switch ev.kind {
	case begin:
		ps := e.ranks[ev.rank]
		i, ok := ps.machine.Next()
		if !ok {
			return nil
		}
		e.todo = append(e.todo, ev)
		return e.begin(ps, i)
	case move:
		return e.move(ev)
	}
	ps := e.ranks[ev.rank]
	src, dst := ps.elems(e, ps.p.Steps[ev.step].Src), ps.elems(e, ps.p.Steps[ev.step].Dst)
	if len(src) != len(dst) {
		return fmt.Errorf("rank %d step %d: %d elements to %d", ev.rank, ev.step, len(src), len(dst))
	}
	values, before := gather(src), gather(dst)
	for i := range dst {
		*dst[i] = values[i]
		switch s := &ps.p.Steps[ev.step]; s.Op {
		case Scale:
			dst[i].sum *= factor
		case Reduce:
			*dst[i] = before[i].fold(values[i])
			if s.Final {
				dst[i].sum /= int64(len(e.ranks))
			}
		}
	}
	e.end(ps, ev.step)
	return nil
}

// begin marks the blocks of step i as busy and offers its messages.
func (e *execution) begin(ps *process, i int) error {
	s := &ps.p.Steps[i]
	if !slices.IsSorted(s.After) || len(s.After) > 0 && int(s.After[len(s.After)-1]) >= i {
		return fmt.Errorf("rank %d step %d comes after %v", ps.rank, i, s.After)
	}
	if !ps.claim(s) {
		return fmt.Errorf("rank %d step %d is in the way of %v", ps.rank, i, ps.waiting())
	}
	if s.Op == Copy || s.Op == Scale || s.Op == Reduce {
		e.todo = append(e.todo, happening{kind: local, rank: ps.rank, step: i})
		return nil
	}
	ps.open[i] = openStep{left: len(s.Peers), operands: map[kolo.Rank][]elem{}}
	for _, q := range s.Peers {
		me, peer := kolo.Rank(ps.rank), ps.p.Peer(q)
		w := wire{me, peer, s.Lane}
		if s.Op != Send {
			w = wire{peer, me, s.Lane}
		}
		c := e.conns[w]
		if c == nil {
			c = &conn{}
			e.conns[w] = c
		}
		if s.Op == Send {
			c.sends = append(c.sends, i)
		} else {
			c.recvs = append(c.recvs, i)
		}
		if m := min(len(c.sends), len(c.recvs)); m > c.matched {
			e.todo = append(e.todo, happening{kind: move, wire: w, message: c.matched})
			c.matched = m
		}
	}
	return nil
}

// move carries a message and ends the steps for which it was the last.
func (e *execution) move(ev happening) error {
	c := e.conns[ev.wire]
	a, b := e.ranks[ev.wire.from], e.ranks[ev.wire.to]
	i, j := c.sends[ev.message], c.recvs[ev.message]
	s := &b.p.Steps[j]
	src, dst := a.elems(e, a.p.Steps[i].Src), b.elems(e, s.Dst)
	if len(src) != len(dst) {
		return fmt.Errorf("rank %d step %d sends %d elements, rank %d step %d takes %d", a.rank, i, len(src), b.rank, j, len(dst))
	}
	b.open[j].operands[ev.wire.from] = gather(src)
	if a.open[i].left--; a.open[i].left == 0 {
		e.end(a, i)
	}
	if b.open[j].left--; b.open[j].left > 0 {
		return nil
	}
	operands := b.open[j].operands
	if s.Op == RecvReduce {
		operands[kolo.Rank(b.rank)] = gather(b.elems(e, s.Src))
	}
	for k := range dst {
		*dst[k] = e.fold(operands, k)
		if s.Final {
			dst[k].sum /= int64(len(e.ranks))
		}
	}
	e.end(b, j)
	return nil
}

// fold combines element k of the operands in ascending order of ranks.
func (e *execution) fold(operands map[kolo.Rank][]elem, k int) (out elem) {
	first := true
	for r := range e.ranks {
		v, ok := operands[kolo.Rank(r)]
		switch {
		case !ok:
		case first:
			out, first = v[k], false
		default:
			out = out.fold(v[k])
		}
	}
	return out
}

func (e *execution) end(ps *process, i int) {
	s := &ps.p.Steps[i]
	ps.each(s.Src, func(at *int) {
		if *at > 0 {
			*at--
		}
	})
	ps.each(s.Dst, func(at *int) { *at = 0 })
	ps.machine.Done(i)
	e.todo = append(e.todo, happening{kind: begin, rank: ps.rank})
}

// claim notes what a step reads and writes, or returns false if a running one writes
// any of it or reads what it writes.
func (ps *process) claim(s *Step) bool {
	free := true
	ps.each(s.Src, func(at *int) { free = free && *at >= 0 })
	ps.each(s.Dst, func(at *int) { free = free && *at == 0 })
	ps.each(s.Src, func(at *int) { *at++ })
	ps.each(s.Dst, func(at *int) { *at = -1 })
	return free
}

func (ps *process) each(spans []Span, f func(at *int)) {
	for _, s := range spans {
		ps.p.At(s, func(block int) { f(&ps.busy[s.Buf][block]) })
	}
}

// elems are the elements of spans in memory.
func (ps *process) elems(e *execution, spans []Span) []*elem {
	var out []*elem
	l := e.layouts[ps.rank]
	for _, g := range l.Segments(nil, ps.p, spans) {
		part := e.memory[ps.rank][g.Buf][g.Off/8 : (g.Off+g.Len)/8]
		for i := range part {
			out = append(out, &part[i])
		}
	}
	return out
}

func gather(at []*elem) []elem {
	out := make([]elem, len(at))
	for i, p := range at {
		out[i] = *p
	}
	return out
}
