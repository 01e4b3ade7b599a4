package rank

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/internal/ctxerr"
)

// Survivors lists the ranks of the world that this one knows to be neither lost nor
// closed nor left out by Shrink, ascending.
func (w *World) Survivors() []kolo.Rank {
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	return w.p.survivors()
}

// survivors is Survivors; p.mu is held.
func (p *process) survivors() []kolo.Rank {
	var list []kolo.Rank
	for r := range p.actors {
		_, out := p.shrinks.out[kolo.Rank(r)]
		if p.parted[kolo.Rank(r)] == nil && !out {
			list = append(list, kolo.Rank(r))
		}
	}
	return list
}

// Shrink makes a group of the ranks that are left after others were lost or have closed
// their worlds. Every rank that is left calls it; it returns when all have, so that they
// agree on who that is. A rank that is lost meanwhile is left out too.
//
// Where only the data link between two ranks has broken, both live, but no group can have
// both. Then one of them is left out: of all ranks at such links as few as can be, and of
// equal choices the higher ranks. The others go on without it. Links that no call has opened are not
// tried, but for those by which the new group meets: the call that finds one broken says so, and
// takes another Shrink.
//
// A rank that the others go on without gets kolo.ErrLeftOut, a kolo.ErrLost too, as a *kolo.Error
// that says why; Ranks are the other ends of its broken links, where it was left out for those. Its other groups are not
// touched, and it may join the next epoch of the job. Config.Timeout and ctx bound the wait
// for each other.
func (w *World) Shrink(ctx context.Context) (*Group, error) {
	w.p.announce(w.rank)
	late, stop := w.p.lateness()
	defer stop()
	for {
		v, err := w.whoIsLeft()
		if err != nil {
			return nil, fmt.Errorf("shrink: %w", err)
		}
		if v.try != nil {
			if err := w.tryLinks(ctx, v, late); err != nil {
				return nil, fmt.Errorf("shrink: %w", err)
			}
			continue
		}
		if v.awaits != nil {
			if err := w.lookAgain(ctx, v.news, late, nil, v.awaits); err != nil {
				return nil, fmt.Errorf("shrink: %w", err)
			}
			continue
		}
		g, err := w.NewGroup(GroupConfig{Name: "survivors of " + nameOf(v.list), Ranks: v.list})
		if err != nil {
			return nil, fmt.Errorf("shrink: %w", err)
		}
		if err = w.meet(ctx, g, v.list); err == nil {
			w.p.shrunk(w, v)
			return g, nil
		}
		err = errors.Join(err, g.Close(ctx))
		if err := w.anew(ctx, v, late, err); err != nil {
			return nil, fmt.Errorf("shrink: %w", err)
		}
	}
}

// anew is nil when there is a reason to look again after the ranks have not met.
func (w *World) anew(ctx context.Context, v *view, late <-chan time.Time, err error) error {
	w.p.state(w.rank, w.checkLinks())
	if w.leftOut() != nil || !w.p.stands(v.list) {
		return nil
	}
	if !errors.Is(err, kolo.ErrLeft) && !errors.Is(err, kolo.ErrLost) && !errors.Is(err, kolo.ErrAborted) {
		return err
	}
	settled := time.NewTimer(settleTime)
	defer settled.Stop()
	return w.lookAgain(ctx, v.news, late, settled.C, allLeft(v.list, err)) // another process has heard before this one that a rank is gone
}

// settleTime is how long the loss of a link waits for the word that a rank is lost: twice
// the time within which package cluster finds that by default.
const settleTime = 10 * time.Second

// allLeft is the error where nobody is missed, no link is known to be broken, and yet the
// ranks cannot meet.
func allLeft(list []kolo.Rank, err error) error {
	if !errors.Is(err, kolo.ErrLost) {
		return err
	}
	return fmt.Errorf("rank %s are all left and reach each other, but not all at once: make groups of fewer of them by NewGroup; %w", kolo.RankList(list), err)
}

// lateness is a channel that says that Config.Timeout is over.
func (p *process) lateness() (late <-chan time.Time, stop func()) {
	if p.cfg.Timeout <= 0 {
		return nil, func() {}
	}
	t := time.NewTimer(p.cfg.Timeout)
	return t.C, func() { t.Stop() }
}

// lookAgain waits until there is news, or returns err when it is late.
func (w *World) lookAgain(ctx context.Context, news <-chan struct{}, late, settled <-chan time.Time, err error) error {
	select {
	case <-news:
		return nil
	case <-late:
		return err
	case <-settled:
		return err
	case <-w.canceling(ctx):
		return errors.Join(ctxerr.Of(ctx), err)
	}
}

// whoIsLeft says which links of this rank are broken, lets go who has to, and is what then is
// known of who is left.
func (w *World) whoIsLeft() (*view, error) {
	c := w.checkLinks()
	w.p.state(w.rank, c)
	v := w.p.agree(w)
	for v.owes { // it has heard of a link of its own in between
		w.p.state(w.rank, c)
		v = w.p.agree(w)
	}
	if err := w.leftOut(); err != nil {
		return nil, err
	}
	if !slices.Contains(v.list, w.rank) {
		return nil, fmt.Errorf("%w: the world of %v", kolo.ErrClosed, w.rank)
	}
	return v, nil
}

// meet waits for the others in a group, as long as its members are those who are left.
func (w *World) meet(ctx context.Context, g *Group, list []kolo.Rank) error {
	work := BarrierAsync(g)
	for {
		news := w.p.news()
		if !w.p.stands(list) {
			g.hub.tell(nil, &failure{err: &kolo.Error{Group: g.Name(), Rank: kolo.NoRank, Peer: kolo.NoRank,
				Err: fmt.Errorf("%w: fewer ranks are left", kolo.ErrAborted)}})
			return work.Wait(ctx)
		}
		select {
		case <-news:
		case <-work.Done():
			return work.Wait(ctx)
		case <-w.canceling(ctx):
			return work.Wait(ctx)
		}
	}
}

// news is closed when a rank has closed its world, is lost, or shrinks it, after the call.
func (p *process) news() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.nextNews()
}

// nextNews is news; p.mu is held.
func (p *process) nextNews() <-chan struct{} {
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	return p.changed
}

// tellNews says that there is something new about who is left. p.mu is held.
func (p *process) tellNews() {
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

// leftOut is why the others go on without this rank, or nil.
func (w *World) leftOut() error {
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	if o := w.p.outside; o != nil && o.leftOut != nil {
		return o.leftOut
	}
	if out := w.p.shrinks.out[w.rank]; out != nil {
		return out.err(w.rank)
	}
	return nil
}
