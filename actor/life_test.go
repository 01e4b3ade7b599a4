package actor

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"

	"github.com/stretchr/testify/require"
)

// patience is how long a test waits for what should take no time.
const patience = 20 * time.Second

// within fails the test if f takes too long.
func within(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("%s does not end", what)
	}
}

func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func TestWhatIsInTheMailboxBeforeStopIsHandled(t *testing.T) {
	s := newSystem(t)
	sh := s.NewShard("a")
	var r Ref[*message]
	var got []int
	var late error
	var exits []error
	r = spawn(t, sh, func(m *message) error {
		if got = append(got, m.n); m.n == 0 {
			for i := range 100 {
				require.NoError(t, r.From(sh).Tell(&message{i + 1}))
			}
			r.From(sh).Stop()
			late = r.From(sh).Tell(&message{-1})
		}
		return nil
	}, func(err error) { exits = append(exits, err) })
	require.NoError(t, r.Tell(&message{0}))
	require.Len(t, got, 101)
	for i, n := range got {
		require.Equal(t, i, n)
	}
	require.ErrorIs(t, late, kolo.ErrClosed, "a message behind Stop would be lost: it is refused")
	require.Equal(t, []error{nil}, exits)
	require.ErrorIs(t, r.Tell(&message{1}), kolo.ErrClosed)
}

// Whatever Tell has taken is handled, also while another goroutine stops the actor.
func TestNothingTakenIsLostByStop(t *testing.T) {
	s := newSystem(t)
	for range 100 {
		handled, taken := 0, atomic.Int64{}
		exited := make(chan struct{})
		r := spawn(t, s.NewShard("a"), func(*message) error { handled++; return nil }, func(error) { close(exited) })
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				for r.Tell(&message{}) == nil {
					taken.Add(1)
				}
			})
		}
		wg.Go(func() {
			for taken.Load() < 20 {
				runtime.Gosched()
			}
			r.Stop()
		})
		wg.Wait()
		<-exited
		require.EqualValues(t, taken.Load(), handled)
	}
}

func TestPanicInOnExitDoesNotHangClose(t *testing.T) {
	s := NewSystem(Config{})
	sh := s.NewShard("a")
	spawn(t, sh, func(*message) error { return nil }, func(error) { panic("in the exit") })
	got := 0
	good := spawn(t, sh, func(*message) error { got++; return nil }, nil)
	bad := spawn(t, sh, func(*message) error { return fmt.Errorf("end") }, func(error) { panic("after an error") })
	require.NoError(t, bad.Tell(&message{}))
	require.NoError(t, good.Tell(&message{}))
	require.Equal(t, 1, got)
	err := s.Close(soon(t))
	require.NotErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, err, kolo.ErrPanic)
	require.ErrorContains(t, err, "in the exit")
	require.ErrorContains(t, err, "after an error")
	require.Zero(t, s.Actors())
}

func TestCloseNamesTheActorThatIsStuck(t *testing.T) {
	s := NewSystem(Config{})
	release, inside := make(chan struct{}), make(chan struct{})
	stuck, err := Spawn(s.NewShard("a"), Props{Name: "sleeper"}, handlerFunc(func(*message) error {
		close(inside)
		<-release
		return nil
	}))
	require.NoError(t, err)
	for range 5 {
		spawn(t, s.NewShard("b"), func(*message) error { return nil }, nil)
	}
	var wg sync.WaitGroup
	wg.Go(func() { require.NoError(t, stuck.Tell(&message{})) })
	<-inside
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	within(t, "Close with a stuck handler", func() { err = s.Close(ctx) })
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "sleeper")
	close(release)
	wg.Wait()
	within(t, "Close after one that gave up", func() { err = s.Close(soon(t)) })
	require.NoError(t, err)
}

func TestCloseEndsWithItsContextAlthoughOnExitIsStuck(t *testing.T) {
	s := NewSystem(Config{})
	release := make(chan struct{})
	_, err := Spawn(s.NewShard("a"), Props{Name: "clinger", OnExit: func(error) { <-release }},
		handlerFunc(func(*message) error { return nil }))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	within(t, "Close with a stuck OnExit", func() { err = s.Close(ctx) })
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "clinger")
	close(release)
	require.NoError(t, s.Close(soon(t)))
}

func TestManyGoroutinesCloseOneSystem(t *testing.T) {
	s := NewSystem(Config{})
	for range 20 {
		spawn(t, s.NewShard("a"), func(*message) error { return nil }, nil)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := s.Close(soon(t)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.Zero(t, s.Actors())
}

// An actor may be spawned on a shard that another goroutine keeps busy.
func TestSpawnOnABusyShard(t *testing.T) {
	s := NewSystem(Config{})
	sh := s.NewShard("a")
	const spawned = 3000
	var handled, exited atomic.Int64
	first := spawn(t, sh, func(*message) error { handled.Add(1); return nil }, nil)
	stop := make(chan struct{})
	var told atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if first.Tell(&message{}) == nil {
					told.Add(1)
				}
			}
		}
	})
	for range spawned {
		spawn(t, sh, func(*message) error { return nil }, func(error) { exited.Add(1) }).Stop()
	}
	close(stop)
	wg.Wait()
	require.NoError(t, s.Close(soon(t)), "the shard goes on")
	require.Equal(t, told.Load(), handled.Load())
	require.EqualValues(t, spawned, exited.Load())
}

func TestSpawnWhileTheSystemCloses(t *testing.T) {
	for range 60 {
		s := NewSystem(Config{})
		sh := s.NewShard("a")
		var spawned, exited atomic.Int64
		var wg sync.WaitGroup
		started := make(chan struct{})
		for k := range 2 {
			wg.Go(func() {
				for i := 0; ; i++ {
					if k == 0 && i == 3 {
						close(started)
					}
					_, err := Spawn(sh, Props{Name: "late", OnExit: func(error) { exited.Add(1) }},
						handlerFunc(func(*message) error { return nil }))
					if err != nil {
						return
					}
					spawned.Add(1)
				}
			})
		}
		<-started
		require.NoError(t, s.Close(soon(t)))
		require.Zero(t, s.Actors())
		wg.Wait()
		require.Equal(t, spawned.Load(), exited.Load())
	}
}

// A shard that a handler's Spawn finds idle is not run inside that handler.
func TestSpawnInAHandlerDoesNotNest(t *testing.T) {
	s := newSystem(t)
	a, b := s.NewShard("a"), s.NewShard("b")
	inside, nested, got := false, false, 0
	ra := spawn(t, a, func(m *message) error {
		inside = true
		r := spawn(t, b, func(*message) error { nested = nested || inside; got++; return nil }, nil)
		require.NoError(t, r.From(a).Tell(m))
		require.Zero(t, got)
		inside = false
		return nil
	}, nil)
	require.NoError(t, ra.Tell(&message{}))
	require.Equal(t, 1, got)
	require.False(t, nested)
}

func TestActorsThatEndedLeaveNothingBehind(t *testing.T) {
	s := newSystem(t)
	sh := s.NewShard("a")
	known := func() (n int) {
		for _, bucket := range s.proto.ProcessRegistry.LocalPIDs.LocalPIDs {
			n += bucket.Count()
		}
		return n
	}
	before := known()
	for range 100 {
		spawn(t, sh, func(*message) error { return nil }, nil).Stop()
	}
	require.LessOrEqual(t, known(), before+1, "and one guardian for all")
}

func TestWorkerTakesOverWhatIsOverTheBudget(t *testing.T) {
	s := NewSystem(Config{Budget: 10})
	a, b := s.NewShard("a"), s.NewShard("b")
	gate, done := make(chan struct{}), make(chan struct{})
	var rb Ref[*message]
	got := 0
	ra := spawn(t, a, func(m *message) error {
		for range 30 {
			require.NoError(t, rb.From(a).Tell(m))
		}
		return nil
	}, nil)
	rb = spawn(t, b, func(*message) error {
		if got++; got == 20 {
			<-gate // the goroutine of the Tell below could never open it
		}
		if got == 30 {
			close(done)
		}
		return nil
	}, nil)
	within(t, "Tell of more than the budget", func() { require.NoError(t, ra.Tell(&message{})) })
	close(gate)
	<-done
	require.NoError(t, s.Close(soon(t)))
	require.Equal(t, 30, got)
}

// Messages that a failed actor had in its mailbox are dropped, and the shard's other
// actors get theirs, in order.
func TestFailureDropsOnlyTheActorsOwnMessages(t *testing.T) {
	s := newSystem(t)
	sh := s.NewShard("a")
	var bad, good Ref[*message]
	var seen []int
	first := spawn(t, sh, func(m *message) error {
		for i := range 10 {
			require.NoError(t, bad.From(sh).Tell(&message{i}))
			require.NoError(t, good.From(sh).Tell(&message{i}))
		}
		return nil
	}, nil)
	badGot, exits := 0, 0
	bad = spawn(t, sh, func(m *message) error {
		if badGot++; m.n == 3 {
			panic(fmt.Errorf("at 3: %w", kolo.ErrArgument))
		}
		return nil
	}, func(err error) {
		exits++
		require.ErrorIs(t, err, kolo.ErrPanic)
		require.ErrorIs(t, err, kolo.ErrArgument)
	})
	good = spawn(t, sh, func(m *message) error { seen = append(seen, m.n); return nil }, nil)
	require.NoError(t, first.Tell(&message{}))
	require.Equal(t, 4, badGot)
	require.Equal(t, 1, exits)
	require.Equal(t, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, seen)
	require.Zero(t, bad.Waiting())
}

// A handler that ends its goroutine, as a test that fails in it does, ends its actor;
// all others go on, whichever goroutine it was.
func TestGoexitInAHandlerEndsItsActorOnly(t *testing.T) {
	for _, by := range []string{"a Tell", "the worker", "OnExit"} {
		t.Run(by, func(t *testing.T) {
			budget := 0
			if by == "the worker" {
				budget = 1
			}
			s := NewSystem(Config{Budget: budget})
			sh, other := s.NewShard("a"), s.NewShard("b")
			got, ended := make(chan int, 10), make(chan error, 1)
			good := spawn(t, sh, func(*message) error { got <- 1; return nil }, nil)
			far := spawn(t, other, func(*message) error { got <- 2; return nil }, nil)
			bad := spawn(t, sh, func(*message) error {
				require.NoError(t, far.From(sh).Tell(&message{}))
				if by == "OnExit" {
					return errors.New("end")
				}
				runtime.Goexit()
				return nil
			}, func(err error) {
				ended <- err
				if by == "OnExit" {
					runtime.Goexit()
				}
			})
			first := spawn(t, sh, func(*message) error {
				return errors.Join(bad.From(sh).Tell(&message{}), good.From(sh).Tell(&message{}))
			}, nil)
			var wg sync.WaitGroup
			wg.Go(func() { _ = first.Tell(&message{}) }) // ends with the handler
			wg.Wait()
			within(t, "what comes behind", func() { require.Equal(t, 3, <-got+<-got) })
			if err := <-ended; by != "OnExit" {
				require.ErrorIs(t, err, kolo.ErrPanic)
				require.ErrorContains(t, err, "Goexit")
			}
			require.ErrorIs(t, bad.Tell(&message{}), kolo.ErrClosed)
			require.NoError(t, good.Tell(&message{}))
			within(t, "a message after it", func() { require.Equal(t, 1, <-got) })
			if err := s.Close(soon(t)); by == "OnExit" {
				require.ErrorContains(t, err, "Goexit")
			} else {
				require.NoError(t, err)
			}
		})
	}
}

// A system that is made when another has ended costs no registry.
func TestSystemsAreCheapAfterTheFirst(t *testing.T) {
	least := 1e9 // the pool forgets when the collector runs, and under the race detector at random
	for range 20 {
		least = min(least, testing.AllocsPerRun(1, func() {
			s := NewSystem(Config{})
			spawn(t, s.NewShard("a"), func(*message) error { return nil }, nil)
			require.NoError(t, s.Close(context.Background()))
		}))
	}
	require.Less(t, least, 1000.0)
}

func BenchmarkSystem(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if err := NewSystem(Config{}).Close(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}

func TestSystemsBesideEachOtherEndByThemselves(t *testing.T) {
	for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 0, 2}} {
		first := NewSystem(Config{})
		list := []*System{first, NewSystem(Config{Beside: first}), NewSystem(Config{Beside: first})}
		got := make([]int, len(list))
		refs := make([]Ref[*message], len(list))
		for i, s := range list {
			refs[i] = spawn(t, s.NewShard("a"), func(m *message) error { got[i] += m.n; return nil }, nil)
		}
		for i, closed := range order {
			require.NoError(t, list[closed].Close(soon(t)))
			for _, open := range order[i+1:] {
				require.NoError(t, refs[open].Tell(&message{1}), "order %v", order)
			}
			require.Error(t, refs[closed].Tell(&message{100}), "order %v", order)
		}
		for i, closed := range order {
			require.Equal(t, i, got[closed], "order %v", order)
		}
	}
}
