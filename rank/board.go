package rank

import (
	"fmt"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/internal/kernel"
)

// post does a round by the medium between processes: this process's ranks give their
// vectors to the board, and the others' boards meet it.
func (f *far) post(rd *round) {
	h := f.h
	c := rd.firstCall()
	f.begin(c, fabricName)
	r := &f.onBoard
	r.Op, r.Size, r.Digest, r.Done = kernel.Op{}, 0, f.digest, f.boardEnded
	r.Src, r.Dst = r.Src[:0], r.Dst[:0]
	err := f.open()
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
			err = fmt.Errorf("%w: shared memory between processes takes host memory only", kolo.ErrUnsupported)
			break
		}
		r.Op, r.Size = kernel.OpOf(c.DType, c.Op, len(h.ranks)), t.in.Len()
		r.Src, r.Dst = append(r.Src, t.in), append(r.Dst, t.out)
	}
	if err != nil {
		f.roundOnBoardEnded(err)
		return
	}
	f.posting, f.posted, f.boardDone = true, true, nil
	f.board.Post(h.shard, r)
	f.posting = false
	if d := f.boardDone; d != nil {
		f.roundOnBoardEnded(d.err)
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

// cancel ends a round that is on the board.
func (f *far) cancel(cause error) {
	if f.posted {
		f.board.Cancel(f.h.shard, cause)
	}
}

// closeBoard gives back what the board holds.
func (f *far) closeBoard() {
	if f.board != nil {
		f.board.Close()
	}
}
