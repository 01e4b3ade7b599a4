package pipeline

import (
	"context"
	"fmt"
	"strings"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/rank"
)

// Uneven is what becomes of a Join when some ranks have no more input and others have.
type Uneven uint8

// The policies.
const (
	// Shadow has the ranks that are done make the calls of the others' steps, until all are.
	Shadow Uneven = iota
	// Stop ends the steps of all ranks with the first that is done.
	Stop
	// Fail is an error on all ranks, with the number of steps that each has made.
	Fail
)

// String is the policy in a word.
func (u Uneven) String() string {
	switch u {
	case Shadow:
		return "shadow"
	case Stop:
		return "stop"
	case Fail:
		return "fail"
	}
	return fmt.Sprintf("Uneven(%d)", uint8(u))
}

// JoinConfig says how ranks go on whose inputs are uneven. All ranks give the same Uneven.
type JoinConfig struct {
	Group  *rank.Group
	Uneven Uneven
	// Shadow makes the calls that a step of the others makes, with what leaves their results as
	// they are: zeros for a sum. It is called for each step that others make when this rank
	// is done. An error aborts the group.
	Shadow func(ctx context.Context) error
}

// Join is for steps of calls that all ranks make as often as they have input, where some
// may have less than others: a rank that is done says so, and nobody waits for it in
// vain (torch's Join; its ranks tell each other in a call of 8 bytes for each step).
//
//	for batch := range batches {
//		active, err := join.Step(ctx) // ranks that make this step
//		if err != nil || active == 0 {
//			break // Done returns the error too
//		}
//		// compute gradients, reduce their sum, divide it by active
//	}
//	err = join.Done(ctx)
//
// Its calls are calls of the group, in order with the others. It is for one goroutine.
type Join struct {
	c     JoinConfig
	steps uint64
	over  bool  // by Stop or a failure
	err   error // the failure
	words []uint64
	mine  [1]uint64
}

// NewJoin makes a Join. It needs no Close.
func NewJoin(c JoinConfig) (*Join, error) {
	switch {
	case c.Group == nil:
		return nil, errNoGroup
	case c.Uneven > Fail:
		return nil, fmt.Errorf("%w: pipeline: Uneven is %d; known: shadow, stop, fail", kolo.ErrArgument, uint8(c.Uneven))
	case c.Uneven == Shadow && c.Shadow == nil:
		return nil, fmt.Errorf("%w: pipeline: no Shadow, which makes the calls of the others' steps; set it, or Uneven to Stop or Fail", kolo.ErrArgument)
	}
	return &Join{c: c, words: make([]uint64, c.Group.Size())}, nil
}

// Step says that this rank makes another step, and returns how many ranks do. 0 is none:
// by Stop, some rank is done. After an error it returns that one until Done.
func (j *Join) Step(ctx context.Context) (active int, err error) {
	if j.over {
		return 0, j.err
	}
	active, err = j.exchange(ctx, true)
	if active > 0 {
		j.steps++
	}
	return active, err
}

// Done says that this rank has no more input. It returns when no rank has, or at once by
// Stop or with the error that a Step has returned, and the Join can then be used for the
// next epoch.
func (j *Join) Done(ctx context.Context) (err error) {
	defer func() { j.steps, j.over, j.err = 0, false, nil }()
	for !j.over {
		active, err := j.exchange(ctx, false)
		if err != nil {
			return err
		}
		if active == 0 {
			break
		}
		if err := j.c.Shadow(ctx); err != nil {
			j.c.Group.Abort(err)
			return fmt.Errorf("pipeline: shadow a step: %w", err)
		}
	}
	return j.err
}

// exchange tells all ranks whether this one makes a step, and hears how many do.
func (j *Join) exchange(ctx context.Context, has bool) (active int, err error) {
	defer func() {
		if err != nil {
			j.over, j.err = true, err
		}
	}()
	j.mine[0] = j.steps<<3 | uint64(j.c.Uneven)<<1
	if has {
		j.mine[0]++
	}
	if err := rank.AllGather(ctx, j.c.Group, j.words, j.mine[:]); err != nil {
		return 0, err
	}
	var done []kolo.Rank
	for r, w := range j.words {
		if Uneven(w>>1&3) != j.c.Uneven {
			return 0, fmt.Errorf("%w: pipeline: rank %d joins with policy %v, rank %d with %v", kolo.ErrMismatch, int(j.c.Group.Rank()), j.c.Uneven, r, Uneven(w>>1&3))
		}
		if w&1 == 1 {
			active++
		} else {
			done = append(done, kolo.Rank(r))
		}
	}
	if active == 0 || len(done) == 0 || j.c.Uneven == Shadow {
		return active, nil
	}
	j.over = true
	if j.c.Uneven == Stop {
		return 0, nil
	}
	return 0, j.uneven(done)
}

// maxSteps is the most ranks whose steps an error lists.
const maxSteps = 16

// uneven is the error of ranks that have more input than others.
func (j *Join) uneven(done []kolo.Rank) error {
	var list []string
	for _, w := range j.words {
		if list = append(list, fmt.Sprint(w>>3)); len(list) == maxSteps && len(j.words) > maxSteps {
			list = append(list, "...")
			break
		}
	}
	return &kolo.Error{Group: j.c.Group.Name(), Rank: j.c.Group.Rank(), Peer: kolo.NoRank, Ranks: done,
		Err: fmt.Errorf("%w: uneven inputs: rank %s has no more, the others have; steps made by rank: %s", kolo.ErrMismatch, kolo.RankList(done), strings.Join(list, ", "))}
}
