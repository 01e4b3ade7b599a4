package msccl

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/plan"
)

// Plan is a file that was read and proven.
type Plan struct {
	*File
	Key plan.Key
	// Programs do what the file says, one step after the other where it says so, for
	// vectors that its chunks divide evenly. plan.Rendezvous makes of them what the runtime
	// wants; see Entry.
	Programs []*plan.Program
	Report   plan.Report
}

// Import reads a plan, an XML file of MSCCL or a JSON file of MSCCL++, and proves it. The error of the
// proof is a *plan.Fault, wrapped with the step of the file that it speaks of.
func Import(data []byte) (*Plan, error) {
	if text := bytes.TrimLeft(data, " \t\r\n"); len(text) > 0 && text[0] == '{' {
		return ImportPlusPlus(data)
	}
	f, err := Read(data)
	if err != nil {
		return nil, err
	}
	return f.Plan()
}

// Entry is the plan as the runtime wants it, to be put into a plan.Library.
func (p *Plan) Entry() (*plan.Entry, error) {
	e, err := plan.NewEntry(p.Name, p.Key, p.Programs)
	if err != nil {
		return nil, fmt.Errorf("msccl: %s: %w", p.Name, err)
	}
	e.InPlace, e.OutOfPlace, e.MinBytes, e.MaxBytes = p.InPlace, p.OutOfPlace, p.MinBytes, p.MaxBytes
	return e, nil
}

// Plan makes the Programs of a file and proves them.
//
// A thread block's steps come one after the other, and after the step that each names
// (depid, deps), nops adding further ones. The fused steps become two: what is received
// is stored, and then sent. rrs stores nothing in MSCCL; here it has a place of its own
// in Scratch.
func (f *File) Plan() (*Plan, error) {
	key := plan.Key{Algorithm: f.Name, Collective: f.Collective, Root: f.Root, InPlace: f.InPlace}
	if f.Collective == kolo.Broadcast {
		key.InPlace = true
	}
	p := &Plan{File: f, Key: key, Programs: make([]*plan.Program, len(f.GPUs))}
	origins := make([][]origin, len(f.GPUs))
	after := 0
	for g := range f.GPUs {
		t, err := newTranslation(f, key, g)
		if err == nil {
			t.after = after
			err = t.run()
		}
		if err != nil {
			return nil, fmt.Errorf("msccl: %w", err)
		}
		after = t.after
		p.Programs[g], origins[g] = t.p, t.origins
	}
	var err error
	if p.Report, err = plan.Complete(key, p.Programs); err != nil {
		var fault *plan.Fault
		if errors.As(err, &fault) && fault.Rank >= 0 && fault.Step >= 0 {
			o := origins[fault.Rank][fault.Step]
			return nil, fmt.Errorf("msccl: %s: %w", f.name(int(fault.Rank), o.block, o.step), err)
		}
		return nil, fmt.Errorf("msccl: %w", err)
	}
	return p, nil
}

// origin is the step of a file that a step of a Program comes from.
type origin struct{ block, step int }

// translation makes the Program of one GPU.
type translation struct {
	f       *File
	g       *GPU
	gpu     int
	p       *plan.Program
	origins []origin
	at      []int            // by block: the step that comes next
	before  [][]int32        // by block: steps of the Program that must end before its next one
	ends    [][][]int32      // by block and step: steps of the Program that end it
	waiting map[origin][]int // by step: blocks that wait for it
	room    []int            // by block: its first place in Scratch for rrs
	after   int              // dependencies so far, of all ranks
}

func newTranslation(f *File, key plan.Key, gpu int) (*translation, error) {
	g := &f.GPUs[gpu]
	n := len(f.GPUs)
	p := &plan.Program{Collective: f.Collective, Algorithm: f.Name, Rank: kolo.Rank(gpu), Ranks: n, Root: f.Root,
		InPlace: key.InPlace, Chunks: 1, Parts: f.Chunks, Even: true}
	switch f.Collective {
	case kolo.AllGather, kolo.ReduceScatter, kolo.Gather, kolo.Scatter, kolo.AllToAll:
		if f.Chunks%n != 0 {
			return nil, bad("nchunksperloop %d is no multiple of %d ranks", f.Chunks, n)
		}
		p.Chunks, p.Parts = n, f.Chunks/n
	}
	p.Blocks[plan.In], p.Blocks[plan.Out] = p.Buffers()
	t := &translation{f: f, g: g, gpu: gpu, p: p, at: make([]int, len(g.Blocks)), before: make([][]int32, len(g.Blocks)),
		ends: make([][][]int32, len(g.Blocks)), room: make([]int, len(g.Blocks)), waiting: map[origin][]int{}}
	scratch := g.Scratch
	type end struct {
		peer    kolo.Rank
		channel int
		send    bool
	}
	owner := map[end]int{}
	for b := range g.Blocks {
		block := &g.Blocks[b]
		if block.Channel >= f.Channels {
			return nil, bad("gpu %d, tb %d: channel %d of %d", gpu, b, block.Channel, f.Channels)
		}
		for _, e := range []end{{block.Send, block.Channel, true}, {block.Recv, block.Channel, false}} {
			if e.peer < 0 {
				continue
			}
			if o, ok := owner[e]; ok {
				return nil, bad("gpu %d: tb %d and tb %d both have the connection with gpu %d on channel %d", gpu, o, b, int(e.peer), e.channel)
			}
			if owner[e] = b; int(e.peer) >= n || int(e.peer) == gpu {
				return nil, bad("gpu %d, tb %d: its peer is gpu %d of %d", gpu, b, int(e.peer), n)
			}
		}
		t.ends[b], t.room[b] = make([][]int32, len(block.Steps)), scratch
		most := 0
		for _, s := range block.Steps {
			if s.Op == RecvReduceSend {
				most = max(most, s.Count)
			}
		}
		scratch += most
	}
	if scratch > maxSlots {
		return nil, bad("gpu %d: its steps hold more than %d chunks", gpu, maxSlots)
	}
	p.Blocks[plan.Scratch], p.UsesScratch = scratch, scratch > 0
	return t, nil
}

// run goes through the blocks, each as far as it comes before it must wait for another.
func (t *translation) run() error {
	todo := make([]int, len(t.g.Blocks))
	for b := range todo {
		todo[b] = b
	}
	for len(todo) > 0 {
		b := todo[0]
		todo = todo[1:]
		for t.at[b] < len(t.g.Blocks[b].Steps) {
			i := t.at[b]
			dep, err := t.dependency(b, i)
			if err != nil {
				return err
			}
			if dep != nil && dep.step >= t.at[dep.block] {
				t.waiting[*dep] = append(t.waiting[*dep], b)
				break
			}
			if err := t.step(b, i, dep); err != nil {
				return fmt.Errorf("%s: %w", t.f.name(t.gpu, b, i), err)
			}
			t.at[b]++
			todo = append(todo, t.waiting[origin{b, i}]...)
			delete(t.waiting, origin{b, i})
		}
	}
	for b, i := range t.at {
		if i < len(t.g.Blocks[b].Steps) {
			s := t.g.Blocks[b].Steps[i]
			return bad("%s: it waits for step %d of tb %d, and that in the end for this one", t.f.name(t.gpu, b, i), s.DepStep, s.DepBlock)
		}
	}
	return nil
}

// dependency is the step that step i of a block waits for, nil if there is none.
func (t *translation) dependency(b, i int) (*origin, error) {
	s := &t.g.Blocks[b].Steps[i]
	if s.DepBlock < 0 {
		return nil, nil
	}
	if s.DepBlock >= len(t.g.Blocks) || s.DepStep < 0 || s.DepStep >= len(t.g.Blocks[s.DepBlock].Steps) {
		return nil, bad("%s: it waits for step %d of tb %d, which is none", t.f.name(t.gpu, b, i), s.DepStep, s.DepBlock)
	}
	return &origin{s.DepBlock, s.DepStep}, nil
}

// step appends what step i of block b does.
func (t *translation) step(b, i int, dep *origin) error {
	block := &t.g.Blocks[b]
	s := &block.Steps[i]
	after := t.before[b]
	if dep != nil {
		after = slices.Concat(after, t.ends[dep.block][dep.step])
		slices.Sort(after)
		after = slices.Compact(after)
	}
	if t.after += len(after); t.after > maxAfter {
		return bad("the steps have more than %d dependencies", maxAfter)
	}
	if s.Op == Nop {
		t.before[b], t.ends[b][i] = after, after
		return nil
	}
	if s.Op.sends() && block.Send < 0 || s.Op.receives() && block.Recv < 0 {
		return bad("its tb has no peer for it")
	}
	if s.Count < 1 {
		return bad("it moves %d chunks", s.Count)
	}
	var src, dst []plan.Span
	var err error
	if s.Op.reads() {
		src, err = t.span(s.Src, s.Count)
	}
	if s.Op.writes() && err == nil {
		dst, err = t.span(s.Dst, s.Count)
	}
	if err != nil {
		return err
	}
	if s.Op == RecvReduceSend {
		dst = []plan.Span{{Buf: plan.Scratch, Off: int32(t.room[b]), N: int32(s.Count), Stride: 1}}
	}
	add := func(x plan.Step) {
		x.After, x.Lane = after, uint8(block.Channel)
		after = []int32{int32(len(t.p.Steps))}
		t.p.Steps, t.origins = append(t.p.Steps, x), append(t.origins, origin{b, i})
	}
	switch {
	case s.Op.receives() && s.Op.reads():
		add(plan.Step{Op: plan.RecvReduce, Peers: []kolo.Rank{block.Recv}, Src: src, Dst: dst})
	case s.Op.receives():
		add(plan.Step{Op: plan.Recv, Peers: []kolo.Rank{block.Recv}, Dst: dst})
	case s.Op == Copy:
		add(plan.Step{Op: plan.Copy, Src: src, Dst: dst})
	case s.Op == Reduce:
		add(plan.Step{Op: plan.Reduce, Src: src, Dst: dst})
	}
	if s.Op == Send {
		dst = src
	}
	if s.Op.sends() {
		add(plan.Step{Op: plan.Send, Peers: []kolo.Rank{block.Send}, Src: dst})
	}
	t.before[b], t.ends[b][i] = after, after
	return nil
}

// span is a range of chunks. In place input and output are one buffer, of which the
// smaller one is this rank's part.
func (t *translation) span(at Place, n int) ([]plan.Span, error) {
	p, buf, first := t.p, at.Buffer, 0
	have := t.g.Scratch
	if buf != plan.Scratch {
		have = p.Blocks[buf]
	}
	if have == 0 && p.InPlace && buf != plan.Scratch { // the other name of the one buffer
		buf = plan.Out - buf
		if have = p.Blocks[buf]; t.part(at.Buffer) {
			first, have = t.gpu*p.Parts, p.Parts
		}
	}
	if at.Offset < 0 || at.Offset+n > have {
		return nil, bad("chunks %d to %d of %v, which has %d", at.Offset, at.Offset+n-1, at.Buffer, have)
	}
	return []plan.Span{{Buf: buf, Off: int32(first + at.Offset), N: int32(n), Stride: 1}}, nil
}

// part says whether a buffer of the collective is one part of the whole vector.
func (t *translation) part(b plan.Buffer) bool {
	switch t.f.Collective {
	case kolo.AllGather, kolo.Gather:
		return b == plan.In
	case kolo.ReduceScatter, kolo.Scatter:
		return b == plan.Out
	}
	return false
}
