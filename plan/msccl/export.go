package msccl

import (
	"fmt"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/plan"
)

// maxCount is the longest run of chunks that microsoft/msccl takes in one step.
const maxCount = 71

// Export writes Programs as an MSCCL file. Import proves the result to be the same
// collective. A rank gets a thread block for each connection's end, and one for what it
// does by itself. A message of several spans becomes several messages. A reduction of
// several peers becomes one after another, this rank's own part first: so of a plan that
// folds in rank order ranks may then round differently (Report.SameBits). What MSCCL
// cannot say is refused: the medium's steps and PreMulSum's.
func Export(key plan.Key, programs []*plan.Program) (*File, error) {
	if _, err := plan.Verify(key, programs); err != nil {
		return nil, fmt.Errorf("msccl: what is to be exported is wrong: %w", err)
	}
	if _, err := collectiveOf(collectiveName(key.Collective)); err != nil || key.Scale {
		return nil, fmt.Errorf("%w: msccl: %v with key %+v", kolo.ErrUnsupported, key.Collective, key)
	}
	first := programs[0]
	f := &File{Name: first.Algorithm, Protocol: "Simple", Collective: key.Collective, Root: first.Root, Channels: 1,
		Chunks: first.Chunks * first.Parts, InPlace: key.InPlace, OutOfPlace: !key.InPlace, GPUs: make([]GPU, len(programs))}
	e := &exporter{f: f, programs: programs, given: map[connection][][]Place{}, taken: map[connection][]message{}}
	for _, p := range programs {
		if err := e.note(p); err != nil {
			return nil, err
		}
	}
	for _, p := range programs {
		e.gpu(p)
	}
	return f, nil
}

// connection is a FIFO of messages.
type connection struct {
	from, to kolo.Rank
	lane     uint8
}

// message is the receiver's end: where its chunks come to lie and, where it is reduced,
// what they are added to.
type message struct{ src, dst []Place }

// exporter writes a file.
type exporter struct {
	f        *File
	programs []*plan.Program
	given    map[connection][][]Place
	taken    map[connection][]message
}

// note takes down the messages that a rank sends and receives.
func (e *exporter) note(p *plan.Program) error {
	for i := range p.Steps {
		s := &p.Steps[i]
		switch s.Op {
		case plan.Fabric, plan.Scale:
			return fmt.Errorf("%w: msccl: the format has no word for %v", kolo.ErrUnsupported, s.Op)
		case plan.Send:
			for _, q := range s.Peers {
				c := connection{p.Rank, p.Peer(q), s.Lane}
				e.given[c] = append(e.given[c], places(p, s.Src))
			}
		case plan.Recv, plan.RecvReduce:
			src, dst := places(p, s.Src), places(p, s.Dst)
			for _, q := range s.Peers {
				c := connection{p.Peer(q), p.Rank, s.Lane}
				e.taken[c] = append(e.taken[c], message{src, dst})
				src = nil
				if s.Op == plan.RecvReduce {
					src = dst
				}
			}
		}
		e.f.Channels = max(e.f.Channels, int(s.Lane)+1)
	}
	return nil
}

// places are the chunks of spans.
func places(p *plan.Program, spans []plan.Span) (out []Place) {
	for _, s := range spans {
		p.At(s, func(i int) { out = append(out, Place{s.Buf, i}) })
	}
	return out
}

// runs calls f for each longest run of neighbours in all lists, which are equally long
// or empty.
func runs(f func(at, n int), lists ...[]Place) {
	total := 0
	for _, l := range lists {
		total = max(total, len(l))
	}
	at := 0
	for i := 1; i <= total; i++ {
		same := i < total && i-at < maxCount
		for _, l := range lists {
			same = same && (len(l) == 0 || l[i] == Place{l[i-1].Buffer, l[i-1].Offset + 1})
		}
		if !same {
			f(at, i-at)
			at = i
		}
	}
}

// end is a connection's end, or what a rank does by itself.
type end struct {
	peer kolo.Rank
	lane uint8
	send bool
}

// writer writes one GPU.
type writer struct {
	e     *exporter
	p     *plan.Program
	g     *GPU
	block map[end]int
	met   map[connection]int // messages of a connection so far
	ends  [][]origin         // by step of the Program: the steps that end it
}

func (e *exporter) gpu(p *plan.Program) {
	g := &e.f.GPUs[p.Rank]
	g.In, g.Out = p.Blocks[plan.In], p.Blocks[plan.Out]
	if p.UsesScratch {
		g.Scratch = p.Blocks[plan.Scratch]
	}
	w := &writer{e: e, p: p, g: g, block: map[end]int{}, met: map[connection]int{}, ends: make([][]origin, len(p.Steps))}
	for i := range p.Steps {
		w.step(i)
	}
}

// step writes step i of the Program.
func (w *writer) step(i int) {
	s := &w.p.Steps[i]
	var after []origin
	for _, a := range s.After {
		after = append(after, w.ends[a]...)
	}
	src, dst := places(w.p, s.Src), places(w.p, s.Dst)
	switch s.Op {
	case plan.Send:
		for _, q := range s.Peers {
			c := connection{w.p.Rank, w.p.Peer(q), s.Lane}
			m := w.e.taken[c][w.met[c]]
			w.met[c]++
			w.ends[i] = append(w.ends[i], w.write(end{c.to, s.Lane, true}, Send, after, src, m.src, m.dst))
		}
	case plan.Recv, plan.RecvReduce:
		op := Recv
		if s.Op == plan.RecvReduce {
			op = RecvReduceCopy
		}
		for _, q := range s.Peers {
			c := connection{w.p.Peer(q), w.p.Rank, s.Lane}
			last := w.write(end{c.from, s.Lane, false}, op, after, src, w.e.given[c][w.met[c]], dst)
			w.met[c]++
			after, w.ends[i] = []origin{last}, []origin{last}
			if s.Op == plan.RecvReduce {
				src = dst
			}
		}
	case plan.Copy:
		w.ends[i] = []origin{w.write(end{peer: kolo.NoRank}, Copy, after, src, nil, dst)}
	case plan.Reduce:
		w.ends[i] = []origin{w.write(end{peer: kolo.NoRank}, Reduce, after, src, nil, dst)}
	}
}

// write writes a step, a run of chunks at a time, into the block of an end; far is what
// else cuts the runs. It returns the last of them.
func (w *writer) write(at end, op Op, after []origin, src, far, dst []Place) origin {
	b, ok := w.block[at]
	if !ok {
		b = len(w.g.Blocks)
		w.block[at] = b
		block := Block{Send: kolo.NoRank, Recv: kolo.NoRank, Channel: int(at.lane)}
		if at.send {
			block.Send = at.peer
		} else {
			block.Recv = at.peer
		}
		w.g.Blocks = append(w.g.Blocks, block)
	}
	block := &w.g.Blocks[b]
	waits := w.waits(b, after)
	for len(waits) > 1 {
		block.Steps = append(block.Steps, Step{Op: Nop, Src: Place{plan.In, -1}, Dst: Place{plan.Out, -1},
			DepBlock: waits[0].block, DepStep: waits[0].step})
		waits = waits[1:]
	}
	runs(func(k, n int) {
		s := Step{Op: op, Src: Place{plan.In, -1}, Dst: Place{plan.Out, -1}, Count: n, DepBlock: -1, DepStep: -1}
		if op.reads() {
			s.Src = src[k]
		}
		if op.writes() {
			s.Dst = dst[k]
		}
		if op == Send {
			s.Dst = dst[k]
		}
		if op == Recv {
			s.Src = far[k]
		}
		if len(waits) > 0 {
			s.DepBlock, s.DepStep, waits = waits[0].block, waits[0].step, nil
		}
		block.Steps = append(block.Steps, s)
	}, src, far, dst)
	return origin{b, len(block.Steps) - 1}
}

// waits are the steps to wait for: the last one of each other block.
func (w *writer) waits(b int, after []origin) (out []origin) {
	last := map[int]int{}
	for _, o := range after {
		if k, ok := last[o.block]; o.block != b && (!ok || o.step > k) {
			last[o.block] = o.step
		}
	}
	for k := range w.g.Blocks {
		if i, ok := last[k]; ok {
			out = append(out, origin{k, i})
			w.g.Blocks[k].Steps[i].HasDep = true
		}
	}
	return out
}
