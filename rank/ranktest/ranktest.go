package ranktest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/rank"
)

// DefaultTimeout is the Config.Timeout of a test that sets none: a test that hangs
// should say so before go test ends it.
const DefaultTimeout = time.Minute

// Run runs f on n ranks of this process, each on a goroutine of its own, and returns
// when all of them have returned and the World is closed. g is the group of all
// ranks. If f fails, panics apart, its rank leaves and the calls of the others fail
// with kolo.ErrLeft; a rank that returns before the others need it does the same.
// f must not call t.Parallel.
func Run(t *testing.T, n int, f func(t *testing.T, g *rank.Group)) {
	t.Helper()
	RunConfig(t, n, rank.Config{}, f)
}

// RunConfig is Run with a configuration. A Timeout of 0 is DefaultTimeout.
func RunConfig(t *testing.T, n int, c rank.Config, f func(t *testing.T, g *rank.Group)) {
	t.Helper()
	var failed atomic.Bool
	err := withTimeout(c).Run(context.Background(), n, func(_ context.Context, w *rank.World) error {
		err := subtest(t, w.Group(), f)
		if err != nil {
			failed.Store(true)
		}
		return err
	})
	if err != nil && !failed.Load() {
		t.Errorf("ranktest: %v", err)
	}
}

func withTimeout(c rank.Config) rank.Config {
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	return c
}

// Why a rank has left.
var (
	errFailed  = errors.New("its test has failed")
	errSkipped = errors.New("its test was not run; -run or -failfast leaves it out")
)

// subtest runs f as the subtest of one rank.
func subtest(t *testing.T, g *rank.Group, f func(t *testing.T, g *rank.Group)) error {
	ran := false
	ok := t.Run(fmt.Sprintf("rank %d", int(g.Rank())), func(t *testing.T) {
		ran = true
		f(t, g)
	})
	switch {
	case !ran:
		return errSkipped
	case !ok:
		return errFailed
	}
	return nil
}

// Ranks are the ranks of a World that serves several runs, one after the other.
// Making a World takes milliseconds; many small tests share one.
type Ranks struct {
	worlds []*rank.World
	all    []kolo.Rank
	closed bool
}

// Open makes n ranks. They are closed when t and its subtests have ended, or by Close.
func Open(t *testing.T, n int, c rank.Config) *Ranks {
	t.Helper()
	worlds, err := rank.Open(n, withTimeout(c))
	if err != nil {
		t.Fatalf("ranktest: open %d ranks: %v", n, err)
	}
	r := &Ranks{worlds: worlds}
	for i := range n {
		r.all = append(r.all, kolo.Rank(i))
	}
	t.Cleanup(func() { r.Close(t) })
	return r
}

// Run runs f on all ranks as the function Run does. g is a group of all ranks that
// is made for this run, so that a run that fails leaves nothing to the next.
func (r *Ranks) Run(t *testing.T, f func(t *testing.T, g *rank.Group)) {
	t.Helper()
	r.RunGroup(t, rank.GroupConfig{}, f)
}

// RunGroup is Run with a configuration for the group. Without Ranks it is all of
// them; otherwise f runs on the members only. An empty Name is the test's.
func (r *Ranks) RunGroup(t *testing.T, c rank.GroupConfig, f func(t *testing.T, g *rank.Group)) {
	t.Helper()
	if len(c.Ranks) == 0 {
		c.Ranks = r.all
	}
	if c.Name == "" {
		c.Name = t.Name()
	}
	var groups []*rank.Group
	for _, m := range c.Ranks {
		if m < 0 || int(m) >= len(r.worlds) {
			t.Fatalf("ranktest: a group with %v out of %d", m, len(r.worlds))
		}
		g, err := r.worlds[m].NewGroup(c)
		if err != nil {
			t.Fatalf("ranktest: new group on %v: %v", m, err)
		}
		groups = append(groups, g)
	}
	errs := make([]error, len(groups))
	var wg sync.WaitGroup
	for i, g := range groups {
		// ends when f has returned and the rank has left its groups
		wg.Go(func() { errs[i] = r.one(t, g, f) })
	}
	wg.Wait()
	err := errors.Join(errs...)
	if err != nil && !errors.Is(err, errFailed) && !errors.Is(err, errSkipped) {
		t.Errorf("ranktest: %v", err)
	}
}

// one runs f on one rank and leaves every group but the World's.
func (r *Ranks) one(t *testing.T, g *rank.Group, f func(t *testing.T, g *rank.Group)) error {
	w := g.World()
	errs := []error{subtest(t, g, f)}
	for _, g := range w.Groups() {
		if g == w.Group() {
			continue
		}
		if errs[0] != nil {
			g.Abort(fmt.Errorf("world rank %d: %w", int(w.Rank()), errs[0]))
		}
		errs = append(errs, g.Close(context.Background()))
	}
	return errors.Join(errs...)
}

// Close closes the ranks. It may be called again.
func (r *Ranks) Close(t *testing.T) {
	t.Helper()
	if r.closed {
		return
	}
	r.closed = true
	for _, w := range r.worlds {
		if err := w.Close(context.Background()); err != nil {
			t.Errorf("ranktest: close %v: %v", w.Rank(), err)
		}
	}
}
