package rank

import (
	"fmt"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/internal/kernel"
)

// post does a round by the medium between processes: this process's ranks give their
// vectors to the board, and the others' boards meet it. Vectors of devices go there, and
// the result from there, by way of the host:
//
//	post -> [ engine: to bounce buffers ] -> give -> board -> [ engine: to the devices ] -> roundOnBoardEnded
func (f *far) post(rd *round) {
	h := f.h
	c := rd.firstCall()
	f.begin(c, fabricName)
	r := &f.onBoard
	r.Op, r.Size, r.Digest = kernel.Op{}, 0, f.digest
	r.Src, r.Dst = r.Src[:0], r.Dst[:0]
	err := f.open()
	f.posted, f.stage = true, stageNone
	for _, k := range h.mine {
		t := rd.tickets[k]
		if c.Collective != kolo.AllReduce {
			break
		}
		if len(t.tensors) > 0 {
			err = fmt.Errorf("%w: shared memory between processes takes one buffer a call", kolo.ErrUnsupported)
			break
		}
		if t.in.Space != kolo.HostSpace || t.out.Space != kolo.HostSpace {
			f.stage = stageIn
		}
		r.Op, r.Size = kernel.OpOf(c.DType, c.Op, len(h.ranks)), t.in.Len()
		r.Src, r.Dst = append(r.Src, t.in), append(r.Dst, t.out)
	}
	switch {
	case err != nil:
		f.roundOnBoardEnded(err)
	case f.stage == stageIn:
		f.stageVectors()
	default:
		f.give()
	}
}

// The ways of a round's vectors between devices and bounce buffers.
const (
	stageNone = iota
	stageIn
	stageOut
)

// stageVectors begins to move the vectors to bounce buffers, or the results out of them.
func (f *far) stageVectors() {
	r, j := &f.onBoard, &f.staging
	if f.stage == stageIn {
		f.devices = append(append(f.devices[:0], r.Src...), r.Dst...)
		if int64(len(f.bounce)) < int64(len(r.Src))*r.Size {
			f.bounce = make([]byte, int64(len(r.Src))*r.Size)
		}
		for i := range r.Src {
			m := kolo.HostMemory(f.bounce[int64(i)*r.Size:][:r.Size])
			r.Src[i], r.Dst[i] = m, m
		}
	}
	j.Reset()
	n := len(r.Src)
	for i, m := range r.Src {
		if f.stage == stageIn {
			j.AddMove([]kolo.Memory{m}, f.devices[i:i+1])
		} else {
			j.AddMove(f.devices[n+i:n+i+1], []kolo.Memory{m})
		}
	}
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
		f.stageVectors()
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
