package schedule

import (
	"fmt"
	"math"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/plan"
)

// Kind is what an Op does.
type Kind uint8

// The kinds.
const (
	Send Kind = iota
	Recv
	Calc // folds or copies
)

// Op is one operation of one rank. It may begin when all of After have ended and all of
// Behind have begun; both are earlier ones of the same rank, by their index.
type Op struct {
	Kind Kind
	Peer kolo.Rank // of a message
	// Tag tells the messages between two ranks apart: each has its own, so they match in
	// whatever order they come.
	Tag   int
	Size  int64 // bytes; of a Calc those that are folded or copied
	Nanos int64 // of a Calc
	After []int
	// Behind keeps the messages of a connection in their order.
	Behind []int
	Step   int // of the Program
}

// Schedule is what each rank does.
type Schedule [][]Op

// Of is the schedule of programs, one per rank, for call c, with reduce bytes folded or
// copied in a second; 0: in no time. A message to several peers is one to each, and a fold
// a Calc behind the receives of its operands. Messages without bytes, as those of a barrier,
// have one: LogGOPSim charges for size-1 bytes. The window of plan.Machine is left out.
//
// Errors: ErrUnsupported for the medium's steps and for AllToAllV, where no rank knows all
// counts; those of plan.Verify for what is wrong.
func Of(programs []*plan.Program, c *kolo.Call, reduce float64) (Schedule, error) {
	if len(programs) == 0 || programs[0] == nil || c.Collective == kolo.AllToAllV || reduce < 0 || math.IsNaN(reduce) {
		return nil, fmt.Errorf("%w: a schedule of %d programs for %v, with %v bytes folded in a second", kolo.ErrUnsupported, len(programs), c, reduce)
	}
	key := plan.KeyOf(c, programs[0].Algorithm)
	key.InPlace = programs[0].InPlace
	if _, err := plan.Verify(key, programs); err != nil {
		return nil, err
	}
	out := make(Schedule, len(programs))
	for r, p := range programs {
		b := &builder{p: p, layout: plan.LayoutOf(p, c, plan.Displs{}), reduce: reduce, last: map[end]int{}, count: map[end]int{}}
		for i := range p.Steps {
			if err := b.step(i); err != nil {
				return nil, err
			}
		}
		out[r] = b.ops
	}
	return out, nil
}

// end is one end of a connection.
type end struct {
	peer kolo.Rank
	lane uint8
	send bool
}

// builder makes the Ops of one rank.
type builder struct {
	p      *plan.Program
	layout plan.Layout
	reduce float64
	ops    []Op
	ends   [][]int     // by step: the Ops that end it
	last   map[end]int // 1 + the last Op of a connection
	count  map[end]int // messages so far
}

func (b *builder) step(i int) error {
	s := &b.p.Steps[i]
	if s.Op == plan.Fabric {
		return fmt.Errorf("%w: what the medium does by itself is no schedule of messages", kolo.ErrUnsupported)
	}
	var after, met []int
	for _, a := range s.After {
		after = append(after, b.ends[a]...)
	}
	spans := s.Src
	if s.Op == plan.Recv {
		spans = s.Dst
	}
	size := int64(0)
	for _, x := range b.layout.Segments(nil, b.p, spans) {
		size += x.Len
	}
	for _, q := range s.Peers {
		e := end{b.p.Peer(q), s.Lane, s.Op == plan.Send}
		op := Op{Kind: Recv, Peer: e.peer, Tag: b.count[e]*lanes + int(s.Lane), Size: max(size, 1), After: after, Step: i}
		if e.send {
			op.Kind = Send
		}
		if k := b.last[e]; k > 0 {
			op.Behind = []int{k - 1}
		}
		b.count[e]++
		met = append(met, len(b.ops))
		b.ops = append(b.ops, op)
		b.last[e] = len(b.ops)
	}
	if s.Op != plan.Send && s.Op != plan.Recv {
		if s.Op == plan.RecvReduce {
			size *= int64(len(s.Peers))
			after = met
		}
		calc := Op{Kind: Calc, Size: size, After: after, Step: i}
		if b.reduce > 0 {
			calc.Nanos = int64(math.Round(float64(size) / b.reduce * 1e9))
		}
		met = []int{len(b.ops)}
		b.ops = append(b.ops, calc)
	}
	b.ends = append(b.ends, met)
	return nil
}

// lanes is one more than the greatest lane.
const lanes = 256
