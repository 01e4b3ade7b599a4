package rank

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/kolo-ccl/kolo"
)

// BatchWork is the handle of a batch.
type BatchWork struct{ works []Work }

// BatchAsync is Batch that returns at once. If an entry is wrong nothing is started.
func BatchAsync(g *Group, list []Request) BatchWork {
	for i := range list {
		if err := checkEntry(g, &list[i]); err != nil {
			err = fmt.Errorf("entry %d of the batch: %w", i, err)
			return BatchWork{[]Work{{err: g.refusal(&Request{Collective: kolo.BatchSendRecv}, err)}}}
		}
	}
	b := BatchWork{make([]Work, len(list))}
	for i, r := range list {
		b.works[i] = DoAsync(g, r)
	}
	return b
}

// Wait returns when all entries have ended, with their errors joined.
func (b BatchWork) Wait(ctx context.Context) error {
	var errs []error
	for _, w := range b.works {
		errs = append(errs, w.Wait(ctx))
	}
	return errors.Join(errs...)
}

// Done is closed when all entries have ended. Wait then returns at once.
func (b BatchWork) Done() <-chan struct{} {
	all := newSignal()
	var left atomic.Int64
	left.Store(int64(len(b.works)) + 1)
	count := func() {
		if left.Add(-1) == 0 {
			all.close()
		}
	}
	for _, w := range b.works {
		w.ended().after(count)
	}
	count() // for the end of the list: no entry at all is done too
	return all.ch
}

// checkEntry says what is wrong with an entry of a batch. All are checked before one
// is started, since the others would wait for what never comes.
func checkEntry(g *Group, r *Request) error {
	if r.Collective != kolo.Send && r.Collective != kolo.Recv {
		return fmt.Errorf("%w: %v; a batch holds sends and receives", kolo.ErrArgument, r.Collective)
	}
	var c asked
	return c.fill(g, r)
}
