package rank

import (
	"fmt"
	"slices"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/internal/kernel"
	"github.com/kolo-ccl/kolo/plan"
)

// run is one run of a Program by one rank. A hub has one per rank, used again for
// each round; the rank actor drives it.
type run struct {
	hub   *hub
	rank  kolo.Rank // in the group
	actor *rankActor

	ticket    *ticket
	program   plan.Compiled
	machine   plan.Machine
	layout    plan.Layout
	mem       [3]kolo.Memory
	tensors   tensors // what In and Out are, if not mem
	scratch   []byte
	segs      []plan.Segment
	partial   kernel.Op // joins partial results
	final     kernel.Op // the last reduction of a block
	scale     kernel.Op // multiplies a contribution
	live      bool      // started and not ended
	over      bool      // the hub knows that it has ended; the hub's
	open      int       // steps begun and not ended
	advancing bool      // inside advance
	digest    uint64    // of the call; 0 in a group of one process
	err       error
	waits     string // what it waited for when it was aborted
}

// startRuns gives each rank its Program.
func (h *hub) startRuns(rd *round, algorithm string) error {
	if h.runs == nil {
		for _, r := range h.mine {
			h.runs = append(h.runs, &run{hub: h, rank: r, actor: h.p.actors[h.ranks[r]]})
		}
	}
	if h.far != nil {
		h.far.begin(rd.firstCall(), algorithm)
	}
	for _, r := range h.runs {
		t := rd.tickets[r.rank]
		p, err := h.plans.program(t, algorithm)
		if err != nil {
			return err
		}
		r.prepare(t, p)
		if h.far != nil {
			r.digest = h.far.digest
		}
	}
	for _, r := range h.runs {
		r.actor.tell(h.shard, r)
	}
	return nil
}

// prepare sets the run up for a ticket.
func (r *run) prepare(t *ticket, p plan.Compiled) {
	c := &t.call
	r.ticket, r.program, r.err, r.waits, r.over = t, p, nil, "", false
	r.layout = plan.LayoutOf(p.Program, c, t.displs)
	r.mem = [3]kolo.Memory{plan.In: t.in, plan.Out: t.out}
	r.tensors.set(t.asked.tensors)
	if n := r.layout.ScratchSize(p.Program); n > 0 {
		if int64(len(r.scratch)) < n {
			r.scratch = make([]byte, n)
		}
		r.mem[plan.Scratch] = kolo.HostMemory(r.scratch[:n])
	}
	if c.Collective.Reduces() {
		full := kernel.OpOf(c.DType, c.Op, len(r.hub.ranks))
		r.partial, r.final, r.scale = full.Partial(), full.Partial(), full
		if c.Op.Kind == kolo.OpAvg || c.Op.Kind == kolo.OpPreMulSum && r.hub.plans.scalesInFold() {
			r.final = full
		}
	}
}

// start begins the run on the rank's shard.
func (r *run) start() {
	r.machine.Reset(r.program.Program, r.program.Successors)
	r.open, r.live = 0, true
	r.advance()
}

// advance begins every step that may run, and tells the hub when all have ended. What
// ends while it begins makes it go on, and nothing else: once the hub knows that the run
// has ended it may give it to the next round, so nobody may touch it behind that.
func (r *run) advance() {
	if r.advancing {
		return
	}
	r.advancing = true
	for r.err == nil {
		i, ok := r.machine.Next()
		if !ok {
			break
		}
		r.open++
		r.begin(i)
	}
	r.advancing = false
	if r.live && r.open == 0 && (r.err != nil || r.machine.Ended()) {
		r.live = false
		r.hub.tell(r.actor.shard, r)
	}
}

// fail stops the run: no further step begins, and what has not met its peer is
// withdrawn.
func (r *run) fail(err error) {
	if r.err != nil || !r.live {
		return
	}
	r.err = err
	for _, c := range r.actor.channels {
		c.Abort(r.hub.id, err)
	}
}

// abort ends the run with a cause from outside, noting what it was waiting for.
func (r *run) abort(cause error) {
	if r.live && r.err == nil {
		r.waits = r.waiting()
	}
	r.fail(cause)
	r.advance()
}

// waiting says which step the run waits for.
func (r *run) waiting() string {
	var p Progress
	r.look(&p)
	for i := range p.Waits {
		if w := &p.Waits[i]; len(w.Peers) > 0 {
			return fmt.Sprintf("rank %d waits in step %d of %d (%s of %d bytes, %s) for rank %s, %d steps done",
				int(r.rank), w.Step, p.Steps, w.For, w.Bytes, p.Algorithm, kolo.RankList(w.Peers), p.StepsDone)
		}
	}
	return fmt.Sprintf("rank %d has done %d of %d steps of %s", int(r.rank), p.StepsDone, p.Steps, p.Algorithm)
}

// begin starts step i.
func (r *run) begin(i int) {
	st := &r.program.Steps[i]
	s := r.actor.newStep(r, i)
	switch st.Op {
	case plan.Send:
		s.post(st, channel.Send, st.Src)
	case plan.Recv:
		s.post(st, channel.Recv, st.Dst)
	case plan.RecvReduce:
		s.post(st, channel.View, nil)
	case plan.Copy, plan.Scale:
		op := kernel.Op{}
		if st.Op == plan.Scale {
			op = r.scale
		}
		s.dst, s.src = r.memory(s.dst[:0], st.Dst), r.memory(s.src[:0], st.Src)
		s.fold(op, s.dst, s.src)
	case plan.Reduce:
		op := r.folds(st)
		s.dst, s.src = r.memory(s.dst[:0], st.Dst), r.memory(s.src[:0], st.Src)
		s.fold(op, s.dst, s.dst, s.src)
	default:
		panic(fmt.Sprintf("rank: cannot run step %d, a %v", i, st.Op))
	}
}

// memory appends the memory of spans to dst.
func (r *run) memory(dst []kolo.Memory, spans []plan.Span) []kolo.Memory {
	r.segs = r.layout.Segments(r.segs[:0], r.program.Program, spans)
	for _, s := range r.segs {
		if s.Buf != plan.Scratch && len(r.tensors.list) > 0 {
			dst = r.tensors.slice(dst, s.Off, s.Len)
			continue
		}
		dst = append(dst, r.mem[s.Buf].Slice(s.Off, s.Len))
	}
	return dst
}

// stepRun is a step that has begun: its transfers and its job.
type stepRun struct {
	run       *run
	step      int
	left      int
	transfers []*transfer
	src, dst  []kolo.Memory
	operands  [][]kolo.Memory
	job       channel.Job
	jobErr    error
	jobHere   bool
	next      *stepRun
}

// transfer is one op of a step.
type transfer struct {
	op   channel.Op
	of   *stepRun
	at   *channel.Channel
	peer kolo.Rank // group rank

	piece func(off int64, b []byte) // is fold
}

// Complete is called by the channel actor, which is on the same shard.
func (t *transfer) Complete(*channel.Op) { t.of.arrive(t) }

func (a *rankActor) newStep(r *run, i int) *stepRun {
	s := a.steps
	if s == nil {
		s = &stepRun{}
		s.job.Done = s.jobEnded
	} else {
		a.steps, s.next = s.next, nil
	}
	s.run, s.step, s.left, s.jobErr = r, i, 0, nil
	return s
}

// post posts one op for each peer of the step.
func (s *stepRun) post(st *plan.Step, kind channel.Kind, spans []plan.Span) {
	r := s.run
	s.left = len(st.Peers)
	for k, q := range st.Peers {
		if k == len(s.transfers) {
			t := &transfer{of: s}
			t.op.Sink, t.piece = t, t.fold
			s.transfers = append(s.transfers, t)
		}
		t := s.transfers[k]
		t.peer = r.program.Peer(q)
		op := &t.op
		op.Kind, op.Key = kind, channel.Key{Group: r.hub.id, Call: r.ticket.seq, Lane: st.Lane,
			Number: r.program.Successors.Number(s.step, k)}
		op.DType, op.Digest = r.ticket.call.DType, r.digest
		op.Job.Priority, op.Job.Call = r.hub.cfg.Priority, r.ticket.touches()
		if op.Take = nil; kind == channel.View {
			s.dst = r.memory(s.dst[:0], st.Dst)
			op.Mem, op.Size = op.Mem[:0], lengthOf(s.dst)
			if len(st.Peers) == 1 && r.actor.p.cfg.Engine == nil {
				s.src = r.memory(s.src[:0], st.Src)
				op.Take = t.piece
			}
		} else {
			op.Mem = r.memory(op.Mem[:0], spans)
			op.Size = lengthOf(op.Mem)
		}
	}
	for _, t := range s.transfers[:len(st.Peers)] {
		c, err := r.actor.channel(r.hub.ranks[t.peer])
		if err != nil {
			t.op.Err = err
			t.Complete(&t.op)
			continue
		}
		t.at = c
		c.Post(&t.op)
	}
}

func lengthOf(list []kolo.Memory) (n int64) {
	for _, m := range list {
		n += m.Len()
	}
	return n
}

// arrive takes note of a completed transfer.
func (s *stepRun) arrive(t *transfer) {
	r := s.run
	if err := t.op.Err; err != nil {
		r.fail(r.failure(s.step, t, err))
	}
	if s.left--; s.left > 0 {
		return
	}
	st := &r.program.Steps[s.step]
	if st.Op != plan.RecvReduce {
		s.end()
		return
	}
	if r.err != nil {
		s.release(st)
		s.end()
		return
	}
	s.foldViews(st)
}

// foldViews folds what the peers have sent with this rank's own part, in ascending
// rank order.
func (s *stepRun) foldViews(st *plan.Step) {
	r := s.run
	list := s.transfers[:len(st.Peers)]
	slices.SortFunc(list, func(a, b *transfer) int { return int(a.peer - b.peer) })
	s.src = r.memory(s.src[:0], st.Src)
	s.operands = s.operands[:0]
	placed := false
	for _, t := range list {
		if !placed && t.peer > r.rank {
			s.operands, placed = append(s.operands, s.src), true
		}
		s.operands = append(s.operands, t.op.Mem)
	}
	if !placed {
		s.operands = append(s.operands, s.src)
	}
	if list[0].op.Taken { // the only one, and it is folded
		s.jobErr = nil
		s.folded()
		return
	}
	s.fold(r.folds(st), s.dst, s.operands...)
}

// folds is the operation of a step that folds.
func (r *run) folds(st *plan.Step) kernel.Op {
	if st.Final {
		return r.final
	}
	return r.partial
}

// fold folds a piece of what the only peer of the step sends with this rank's own part, while it
// is in the cache. The channel calls it.
func (t *transfer) fold(off int64, b []byte) {
	s := t.of
	r := s.run
	op := r.folds(&r.program.Steps[s.step])
	dst, src := cursor{s.dst, off}, cursor{s.src, off}
	for len(b) > 0 {
		d, own := dst.next(), src.next()
		n := min(len(d), len(own), len(b))
		if t.peer < r.rank {
			op.Reduce(d[:n], b[:n], own[:n])
		} else {
			op.Reduce(d[:n], own[:n], b[:n])
		}
		b = b[n:]
		dst.off, src.off = dst.off+int64(n), src.off+int64(n)
	}
}

// cursor is a place in a list of host memory: off bytes behind the begin of the first.
type cursor struct {
	list []kolo.Memory
	off  int64
}

// next is the memory from the place on, as far as it is in one piece.
func (c *cursor) next() []byte {
	for c.off >= c.list[0].Len() {
		c.off -= c.list[0].Len()
		c.list = c.list[1:]
	}
	return c.list[0].Host[c.off:]
}

// fold starts the step's job.
func (s *stepRun) fold(op kernel.Op, dst []kolo.Memory, operands ...[]kolo.Memory) {
	s.job.Reset()
	s.job.Op, s.job.Priority, s.job.Call = op, s.run.hub.cfg.Priority, s.run.ticket.touches()
	s.job.AddFold(dst, operands...)
	s.jobHere = false
	s.run.actor.p.engine.Start(s.run.actor.shard, &s.job)
	if s.jobHere {
		s.folded()
	}
}

// jobEnded is called by the engine.
func (s *stepRun) jobEnded(t channel.Turn, err error) {
	s.jobErr = err
	a := s.run.actor
	if t == a.shard {
		s.jobHere = true
		return
	}
	a.tell(t, s)
}

// folded ends a step whose job has ended.
func (s *stepRun) folded() {
	if s.jobErr != nil {
		s.run.fail(s.jobErr)
	}
	if st := &s.run.program.Steps[s.step]; st.Op == plan.RecvReduce {
		s.release(st)
	}
	s.end()
}

// release gives the peers their memory back.
func (s *stepRun) release(st *plan.Step) {
	for _, t := range s.transfers[:len(st.Peers)] {
		if t.op.Err == nil {
			t.at.Release(&t.op)
		}
	}
}

// end takes the step out of the run.
func (s *stepRun) end() {
	r, a := s.run, s.run.actor
	r.open--
	if r.err == nil {
		r.machine.Done(s.step)
	}
	s.next, a.steps = a.steps, s
	r.advance()
}

// failure says which step and which peer a transfer failed for.
func (r *run) failure(step int, t *transfer, err error) error {
	e := r.ticket.failure(err)
	if k, ok := err.(*kolo.Error); ok {
		return k
	}
	e.Peer = t.peer
	e.Err = fmt.Errorf("step %d of %d (%v, %s), peer %d: %w", step, len(r.program.Steps), r.program.Steps[step].Op, r.program.Algorithm, int(t.peer), err)
	return e
}
