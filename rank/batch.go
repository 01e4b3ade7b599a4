package rank

import (
	"context"
	"errors"
	"fmt"

	"github.com/kolo-ccl/kolo"
)

// BatchWork is the handle of a batch.
type BatchWork struct{ works []Work }

// BatchAsync is Batch that returns at once.
func BatchAsync(g *Group, list []Request) BatchWork {
	for i := range list {
		if c := list[i].Collective; c != kolo.Send && c != kolo.Recv {
			err := fmt.Errorf("%w: entry %d of the batch is %v; a batch holds sends and receives", kolo.ErrArgument, i, c)
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
