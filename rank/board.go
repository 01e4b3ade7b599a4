package rank

import (
	"fmt"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/internal/kernel"
)

// post does a round by the medium between processes: this process's ranks give their
// memory to the board, and the others' boards meet it. What is of devices goes there, and
// the result from there, by way of the host:
//
//	post -> [ engine: to bounce buffers ] -> give -> board -> [ engine: to the devices ] -> roundOnBoardEnded
func (f *far) post(rd *round) {
	h := f.h
	c := rd.firstCall()
	f.begin(c, fabricName)
	r := &f.onBoard
	r.Reset()
	r.Op, r.Digest = kernel.Op{}, f.digest
	if c.Collective.Reduces() {
		r.Op = kernel.OpOf(c.DType, c.Op, len(h.ranks))
	}
	err := f.open()
	f.posted, f.stage = true, stageNone
	f.parts(rd)
	switch {
	case err != nil:
		f.roundOnBoardEnded(err)
	case f.ofDevices():
		f.stage = stageIn
		f.stageParts()
	default:
		h.learn(rd)
		f.give()
	}
}

// again does the round that was done before once more.
func (f *far) again() {
	f.algorithm = fabricName
	f.posted, f.stage = true, stageNone
	f.give()
}

// parts makes the parts of the round, as fabric does for the ranks of one process.
func (f *far) parts(rd *round) {
	h, r := f.h, &f.onBoard
	c := rd.firstCall()
	n, size := len(h.ranks), int64(c.DType.Size())
	length := func(k int) int64 { // bytes of chunk k
		if c.Counts == nil {
			return c.Count * size
		}
		return c.Counts[k] * size
	}
	switch c.Collective.Base() {
	case kolo.AllReduce:
		f.reduceParts(rd, size)
	case kolo.Reduce:
		p := r.Add(c.Count*size, channel.EveryRank, c.Root, 0)
		f.each(rd, p, func(t *ticket) kolo.Memory { return t.in }, func(t *ticket) kolo.Memory { return t.out })
	case kolo.Broadcast:
		p := r.Add(c.Count*size, c.Root, channel.EveryRank, 0)
		f.each(rd, p, func(t *ticket) kolo.Memory { return t.out }, func(t *ticket) kolo.Memory { return t.out })
	case kolo.ReduceScatter:
		off := int64(0)
		for k := range n {
			p := r.Add(length(k), channel.EveryRank, kolo.Rank(k), off)
			off += length(k)
			f.each(rd, p, func(t *ticket) kolo.Memory { return t.chunk(t.in, t.displs.In, k, size) }, func(t *ticket) kolo.Memory { return t.out })
		}
	case kolo.AllGather, kolo.Gather:
		to := channel.EveryRank
		if c.Collective.Rooted() {
			to = c.Root
		}
		for k := range n {
			p := r.Add(length(k), kolo.Rank(k), to, 0)
			f.each(rd, p, func(t *ticket) kolo.Memory { return t.in }, func(t *ticket) kolo.Memory { return t.chunk(t.out, t.displs.Out, k, size) })
		}
	case kolo.Scatter:
		off := int64(0)
		for k := range n {
			p := r.Add(length(k), c.Root, kolo.Rank(k), off)
			off += length(k)
			f.each(rd, p, func(t *ticket) kolo.Memory { return t.chunk(t.in, t.displs.In, k, size) }, func(t *ticket) kolo.Memory { return t.out })
		}
	case kolo.AllToAll:
		f.allToAllParts(rd, size)
	}
	f.inputs(rd)
}

// reduceParts makes those of an AllReduce: one for each tensor.
func (f *far) reduceParts(rd *round, size int64) {
	c := rd.firstCall()
	if len(c.Counts) == 0 {
		p := f.onBoard.Add(c.Count*size, channel.EveryRank, channel.EveryRank, 0)
		f.each(rd, p, func(t *ticket) kolo.Memory { return t.in }, func(t *ticket) kolo.Memory { return t.out })
	}
	for i, count := range c.Counts {
		p := f.onBoard.Add(count*size, channel.EveryRank, channel.EveryRank, 0)
		tensor := func(t *ticket) kolo.Memory { return t.tensors[i] }
		f.each(rd, p, tensor, tensor)
	}
}

// allToAllParts makes those of an AllToAll: one for each pair of ranks. What trades places
// in one rank's memory is read before it is written.
func (f *far) allToAllParts(rd *round, size int64) {
	c, n := rd.firstCall(), len(f.h.ranks)
	for i := range n {
		at := int64(0)
		for k := range n {
			length := c.Count * size
			if c.Counts != nil {
				length = c.Counts[i*n+k] * size
			}
			p := f.onBoard.Add(length, kolo.Rank(i), kolo.Rank(k), at)
			at += length
			f.each(rd, p, func(t *ticket) kolo.Memory { return t.piece(t.in, t.displs.In, k, size, false) },
				func(t *ticket) kolo.Memory { return t.piece(t.out, t.displs.Out, i, size, true) })
		}
	}
	for _, k := range f.h.mine {
		f.onBoard.Trades = f.onBoard.Trades || rd.tickets[k].call.InPlace
	}
}

// each adds to a part the memory of those ranks of this process that are in it.
func (f *far) each(rd *round, p *channel.Share, src, dst func(*ticket) kolo.Memory) {
	for _, k := range f.h.mine {
		t := rd.tickets[k]
		if p.From == channel.EveryRank || p.From == k {
			p.Src = append(p.Src, src(t))
		}
		if p.To == k || p.To == channel.EveryRank && !(t.call.Collective == kolo.Broadcast && p.From == k) {
			p.Dst = append(p.Dst, dst(t))
		}
	}
}

// inputs says where the ranks' inputs are, if they are in one piece each.
func (f *far) inputs(rd *round) {
	r := &f.onBoard
	for _, k := range f.h.mine {
		t := rd.tickets[k]
		m := t.in
		if t.call.Collective == kolo.Broadcast && k == t.call.Root {
			m = t.out
		}
		if t.displs.In != nil || len(t.tensors) > 0 || m.Space != kolo.HostSpace {
			r.Inputs = r.Inputs[:0]
			return
		}
		r.Inputs = append(r.Inputs, m)
	}
}

// The ways of a round's memory between devices and bounce buffers.
const (
	stageNone = iota
	stageIn
	stageOut
)

// ofDevices says whether some memory of the round is of a device.
func (f *far) ofDevices() bool {
	for i := range f.onBoard.Parts {
		p := &f.onBoard.Parts[i]
		for _, list := range [][]kolo.Memory{p.Src, p.Dst} {
			for k := range list {
				if list[k].Space != kolo.HostSpace {
					return true
				}
			}
		}
	}
	return false
}

// stageParts puts bounce buffers in the place of what is of devices, and begins to move the
// inputs there.
func (f *far) stageParts() {
	var size int64
	f.bounced(func(m *kolo.Memory, _ bool) { size += (m.Len() + bounceAlign - 1) &^ (bounceAlign - 1) })
	if int64(len(f.bounce)) < size {
		f.bounce = make([]byte, size)
	}
	j, at := &f.staging, int64(0)
	j.Reset()
	f.results.Reset()
	f.bounced(func(m *kolo.Memory, out bool) {
		n := m.Len()
		b := kolo.HostMemory(f.bounce[at:][:n:n])
		at += (n + bounceAlign - 1) &^ (bounceAlign - 1)
		if out {
			f.results.AddMove([]kolo.Memory{*m}, []kolo.Memory{b})
		} else {
			j.AddMove([]kolo.Memory{b}, []kolo.Memory{*m})
		}
		*m = b
	})
	f.move(j)
}

const bounceAlign = 64

// bounced calls fn with each input and each output of the round that is of a device.
func (f *far) bounced(fn func(m *kolo.Memory, out bool)) {
	for i := range f.onBoard.Parts {
		p := &f.onBoard.Parts[i]
		for k := range p.Src {
			if p.Src[k].Space != kolo.HostSpace {
				fn(&p.Src[k], false)
			}
		}
		for k := range p.Dst {
			if p.Dst[k].Space != kolo.HostSpace {
				fn(&p.Dst[k], true)
			}
		}
	}
}

// move begins a job between devices and bounce buffers.
func (f *far) move(j *channel.Job) {
	j.Done = f.staged
	if len(j.Parts) == 0 {
		f.staged(f.h.shard, nil)
		return
	}
	f.h.p.engine.Start(f.h.shard, j)
}

// staged is called by the engine.
func (f *far) staged(t channel.Turn, err error) { f.h.tell(t, &vectorsStaged{err}) }

// vectorsStaged says that the vectors of the running round have been moved.
type vectorsStaged struct{ err error }

// vectorsStaged goes on with the round.
func (f *far) vectorsStaged(err error) {
	switch {
	case err != nil:
		f.roundOnBoardEnded(fmt.Errorf("stage memory of a device: %w", err))
	case f.stage == stageOut:
		f.roundOnBoardEnded(nil)
	case f.h.failed != nil:
		f.roundOnBoardEnded(f.h.failed)
	default:
		f.give()
	}
}

// give gives the vectors to the board.
func (f *far) give() {
	f.posting, f.given, f.boardDone = true, true, nil
	f.board.Post(f.h.shard, &f.onBoard)
	f.posting = false
	if d := f.boardDone; d != nil {
		f.roundOnBoardDone(d.err)
	}
}

// open makes the board at its first use.
func (f *far) open() (err error) {
	if f.board == nil {
		f.board, err = f.medium.Board(f.h.id, f.h.ranks)
	}
	return err
}

// boardEnded is called by the board.
func (f *far) boardEnded(t channel.Turn, err error) {
	h := f.h
	d := &h.jobDone
	if err != nil {
		d = &jobDone{err}
	}
	if t == h.shard && f.posting {
		f.boardDone = d
		return
	}
	h.tell(t, d)
}

// roundOnBoardDone takes the round from the board.
func (f *far) roundOnBoardDone(err error) {
	f.given = false
	if err == nil && f.stage == stageIn {
		f.stage = stageOut
		f.move(&f.results)
		return
	}
	f.roundOnBoardEnded(err)
}

// roundOnBoardEnded ends the running round, unless the other processes are to explain
// why it has failed.
func (f *far) roundOnBoardEnded(err error) {
	h := f.h
	f.posted = false
	if len(h.rounds) == 0 || !h.running {
		return
	}
	rd := h.rounds[0]
	if rd.ended = len(h.mine); err != nil {
		rd.cause = err
		h.refuseRound(err)
	}
	if f.dispute == nil && f.loss == nil {
		h.finish(rd.cause)
	}
}

// cancel ends a round that is on the board. What an engine moves ends by itself.
func (f *far) cancel(cause error) {
	if f.given {
		f.board.Cancel(f.h.shard, cause)
	}
}

// closeBoard gives back what the board holds.
func (f *far) closeBoard() {
	if f.board != nil {
		f.board.Close()
	}
}
