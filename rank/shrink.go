package rank

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kolo-ccl/kolo"
)

// Survivors lists the ranks of the world that this one knows to be neither lost nor
// closed, ascending.
func (w *World) Survivors() []kolo.Rank {
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	var list []kolo.Rank
	for r := range w.p.actors {
		if w.p.parted[kolo.Rank(r)] == nil {
			list = append(list, kolo.Rank(r))
		}
	}
	return list
}

// Shrink makes a group of the ranks that are left after others were lost or have closed
// their worlds. Every rank that is left calls it; it returns when all have, so that they
// agree on who that is. A rank that is lost meanwhile is left out too. Where the others go on
// without this rank, the error is kolo.ErrLost and says why. It is kolo.ErrLost too where all
// are left and only the data link between two of them has broken: nothing says which of the
// two is to go, so NewGroup without either is the caller's way on. Config.Timeout and ctx bound
// the wait for each other.
func (w *World) Shrink(ctx context.Context) (*Group, error) {
	var late <-chan time.Time
	if t := w.p.cfg.Timeout; t > 0 {
		timer := time.NewTimer(t)
		defer timer.Stop()
		late = timer.C
	}
	for {
		news := w.p.news()
		if err := w.leftOut(); err != nil {
			return nil, fmt.Errorf("shrink: %w", err)
		}
		list := w.Survivors()
		if !slices.Contains(list, w.rank) {
			return nil, fmt.Errorf("shrink: %w: the world of %v", kolo.ErrClosed, w.rank)
		}
		g, err := w.NewGroup(GroupConfig{Name: "survivors of " + nameOf(list), Ranks: list})
		if err != nil {
			return nil, fmt.Errorf("shrink: %w", err)
		}
		err = Barrier(ctx, g)
		if err == nil {
			return g, nil
		}
		err = errors.Join(err, g.Close(ctx))
		if w.leftOut() != nil {
			continue
		}
		if len(w.Survivors()) < len(list) {
			continue
		}
		if !errors.Is(err, kolo.ErrLeft) && !errors.Is(err, kolo.ErrLost) {
			return nil, fmt.Errorf("shrink: %w", err)
		}
		settled := time.NewTimer(settleTime)
		select { // another process has heard before this one that a rank is gone
		case <-news:
			settled.Stop()
		case <-settled.C:
			return nil, allLeft(list, err)
		case <-late:
			return nil, allLeft(list, err)
		case <-w.canceling(ctx):
			return nil, fmt.Errorf("shrink: %w", err)
		}
	}
}

// settleTime is how long the loss of a link waits for the word that a rank is lost: twice
// the time within which package cluster finds that by default.
const settleTime = 10 * time.Second

// allLeft is the error where nobody is missed and yet the ranks cannot meet.
func allLeft(list []kolo.Rank, err error) error {
	if !errors.Is(err, kolo.ErrLost) {
		return fmt.Errorf("shrink: %w", err)
	}
	return fmt.Errorf("shrink: rank %s are all left, but the data link between two of them is broken: no group can have both of its ends, and which one to do without is the caller's choice (NewGroup); %w",
		kolo.RankList(list), err)
}

// news is closed when a rank has closed its world or is lost, after the call.
func (p *process) news() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	return p.changed
}

// tellNews says that there are fewer ranks. p.mu is held.
func (p *process) tellNews() {
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

// leftOut is why the other processes go on without this one, or nil.
func (w *World) leftOut() error {
	if w.p.outside == nil {
		return nil
	}
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	return w.p.outside.leftOut
}
