package rank_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/channel/hccs"
	"github.com/kolo-ccl/kolo/plan"
	"github.com/kolo-ccl/kolo/rank"

	"github.com/stretchr/testify/require"
)

// switchboard joins several parts of a world that are all in this process of the
// operating system: one hccs driver for the data, and a queue for the control messages of
// each part. So the federation of hubs is tested without processes, also in virtual time.
type switchboard struct {
	driver channel.Driver
	engine channel.Engine
	lines  []*line
	told   atomic.Int64 // control messages
}

// line is the queue of one part.
type line struct {
	mu    sync.Mutex
	queue []telling
	wake  chan struct{}
	end   chan struct{}
	ended chan struct{}
	mute  bool              // it takes nothing any more and answers nothing
	slow  bool              // what has come is not handed over yet
	late  map[int][]telling // what has come of a process, and is not in the queue yet
	busy  bool              // something is being handed over
}

type telling struct {
	from    int
	message []byte
}

// plug is one part's Control.
type plug struct {
	s    *switchboard
	from int
}

func (p plug) Tell(to int, message []byte) error {
	p.s.told.Add(1)
	l, me := p.s.lines[to], p.s.lines[p.from]
	me.mu.Lock()
	mute := me.mute
	me.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if mute || l.mute {
		return nil
	}
	if list, ok := l.late[p.from]; ok {
		l.late[p.from] = append(list, telling{p.from, message})
		return nil
	}
	l.queue = append(l.queue, telling{p.from, message})
	select {
	case l.wake <- struct{}{}:
	default:
	}
	return nil
}

// run hands the messages of a part to it.
func (l *line) run(local *rank.Local) {
	defer close(l.ended)
	for {
		l.mu.Lock()
		var list []telling
		if !l.slow {
			list, l.queue = l.queue, nil
		}
		l.busy = len(list) > 0
		l.mu.Unlock()
		for _, m := range list {
			if err := local.Deliver(m.from, m.message); err != nil {
				panic(err)
			}
		}
		if len(list) > 0 {
			continue
		}
		select {
		case <-l.wake:
		case <-l.end:
			return
		}
	}
}

// hold keeps what comes for a part from it, until release.
func (l *line) hold() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.slow = true
}

func (l *line) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.slow = false
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// holdOf keeps what comes of a process, until releaseOf.
func (l *line) holdOf(process int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.late = map[int][]telling{process: nil}
}

func (l *line) releaseOf(process int) {
	l.mu.Lock()
	l.queue = append(l.queue, l.late[process]...)
	l.late = nil
	l.mu.Unlock()
	l.release()
}

// drain returns when what has come was handed over.
func (l *line) drain() {
	for {
		l.mu.Lock()
		idle := len(l.queue) == 0 && !l.busy
		l.mu.Unlock()
		if idle {
			return
		}
		runtime.Gosched()
	}
}

// shared is the driver of one part: the others' too, so it is not closed.
type shared struct{ channel.Driver }

func (shared) Close() error { return nil }

// parted is a world of several parts.
type parted struct {
	*switchboard
	locals []*rank.Local
	worlds []*rank.World // by rank
}

// openParts makes a world whose ranks are in the processes that of names, with a
// topology of a server for each unless c has one.
func openParts(t testing.TB, of []int, c rank.Config) *parted {
	engine := hccs.NewEngine(0)
	d, err := channel.Open("hccs", channel.Config{Job: "test", Engine: engine})
	require.NoError(t, err)
	s := &parted{switchboard: &switchboard{driver: d, engine: engine}, worlds: make([]*rank.World, len(of))}
	if c.Topology == nil {
		c.Topology, err = plan.Places(of, nil)
		require.NoError(t, err)
	}
	for range slices.Max(of) + 1 {
		s.lines = append(s.lines, &line{wake: make(chan struct{}, 1), end: make(chan struct{}), ended: make(chan struct{})})
	}
	for p := range s.lines {
		l, err := c.OpenPart(rank.Part{Process: p, Processes: of, Job: "test", Epoch: 1, Control: plug{s.switchboard, p},
			Driver: func(channel.Engine) (channel.Driver, error) { return shared{d}, nil }})
		require.NoError(t, err)
		s.locals = append(s.locals, l)
		for _, w := range l.Worlds() {
			s.worlds[w.Rank()] = w
		}
	}
	for p, l := range s.lines {
		go l.run(s.locals[p]) // ended by close
	}
	return s
}

// close closes what is left of the world.
func (s *parted) close(t testing.TB) {
	var wg sync.WaitGroup
	for _, w := range s.worlds {
		wg.Go(func() { require.NoError(t, w.Close(context.Background())) }) // ends with the World
	}
	wg.Wait()
	s.hangUp(t)
}

func (s *parted) hangUp(t testing.TB) {
	for _, l := range s.lines {
		close(l.end)
		<-l.ended
	}
	require.NoError(t, s.driver.Close())
	s.engine.Close()
}

// kill makes a process silent and tells the others that it is lost.
func (s *parted) kill(p int, cause error) {
	l := s.lines[p]
	l.mu.Lock()
	l.mute, l.queue = true, nil
	l.mu.Unlock()
	for q, other := range s.locals {
		if q != p {
			other.Lost(p, cause)
		}
	}
}

// each runs f for every rank and returns the errors by rank.
func (s *parted) each(f func(w *rank.World) error) []error {
	errs := make([]error, len(s.worlds))
	var wg sync.WaitGroup
	for r, w := range s.worlds {
		wg.Go(func() { errs[r] = f(w) }) // ends with f
	}
	wg.Wait()
	return errs
}

// The matrix over several processes: one for each server, or one for each rank or pair
// of ranks where there is one server.
func TestEveryCollectiveOverSeveralProcesses(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 1))
	byPlace := map[int][]matrixCase{}
	for _, c := range triples() {
		at := matrixPlaces[c[atPlace]]
		if at.long || at.topo.Ranks() > 7 || at.topo.Ranks() < 2 || matrixAlgorithms[c[byAlgorithm]].Name == "fabric" {
			continue
		}
		byPlace[c[atPlace]] = append(byPlace[c[atPlace]], c.random(rng))
	}
	for p, at := range matrixPlaces {
		if len(byPlace[p]) == 0 {
			continue
		}
		t.Run(at.name, func(t *testing.T) {
			of := slices.Clone(at.topo.Server)
			if len(at.topo.Groups()) == 1 {
				for r := range of {
					if of[r] = r; len(of) > 5 {
						of[r] = r / 2
					}
				}
			}
			s := openParts(t, of, rank.Config{Topology: at.topo, Timeout: 20 * time.Second})
			defer s.close(t)
			m := &matrixWorld{worlds: s.worlds, groups: map[string][]*rank.Group{}}
			for r := range of {
				m.all = append(m.all, kolo.Rank(r))
			}
			failed := 0
			for _, c := range byPlace[p] {
				if err := m.run(t, c); err != nil {
					t.Errorf("seed %d: %v: %v", seed, c, err)
					if failed++; failed == 5 {
						t.Fatal("and so on")
					}
				}
			}
		})
	}
}

func int32s(r kolo.Rank, n int) []int32 {
	b := make([]int32, n)
	for i := range b {
		b[i] = int32(int(r)*1000003 + i*7 + 1)
	}
	return b
}

func sumOf(ranks []kolo.Rank, n int) []int32 {
	b := make([]int32, n)
	for _, r := range ranks {
		for i, v := range int32s(r, n) {
			b[i] += v
		}
	}
	return b
}

// The cost of what is known, for the checks of the control traffic.
func TestCallsThatSucceedNeedNoControlMessages(t *testing.T) {
	s := openParts(t, []int{0, 0, 1, 2}, rank.Config{})
	defer s.close(t)
	loop := func(w *rank.World) error {
		for range 50 {
			b := int32s(w.Rank(), 1000)
			if err := rank.AllReduce(t.Context(), w.Group(), b, kolo.Sum); err != nil {
				return err
			}
			if !slices.Equal(b, sumOf([]kolo.Rank{0, 1, 2, 3}, 1000)) {
				return errors.New("wrong sum")
			}
		}
		return nil
	}
	start := time.Now()
	before := s.told.Load()
	require.NoError(t, errors.Join(s.each(loop)...))
	if time.Since(start) < 100*time.Millisecond && s.told.Load() != before {
		t.Errorf("%d control messages for calls that were quick and right", s.told.Load()-before)
	}
}

// A mismatch is the same error on every rank, whichever process finds it, also where
// the data of the two calls never meets.
func TestMismatchBetweenProcessesNamesTheOddRanksEverywhere(t *testing.T) {
	type row struct {
		name string
		call func(ctx context.Context, w *rank.World) error
		odd  []kolo.Rank
		says []string
	}
	sum := func(ctx context.Context, w *rank.World, n int) error {
		return rank.AllReduce(ctx, w.Group(), int32s(w.Rank(), n), kolo.Sum)
	}
	rows := []row{
		{name: "count", odd: []kolo.Rank{2}, says: []string{"count 7 instead of 1000", "rank 2"}, call: func(ctx context.Context, w *rank.World) error {
			if w.Rank() == 2 {
				return sum(ctx, w, 7)
			}
			return sum(ctx, w, 1000)
		}},
		{name: "one operation", odd: []kolo.Rank{0}, says: []string{"reduce operation max instead of sum"}, call: func(ctx context.Context, w *rank.World) error {
			if w.Rank() == 0 {
				return rank.AllReduce(ctx, w.Group(), int32s(0, 10), kolo.Max)
			}
			return sum(ctx, w, 10)
		}},
		{name: "data never meets", odd: []kolo.Rank{3}, says: []string{"rank 3 called Broadcast(10 int32, root 3)"}, call: func(ctx context.Context, w *rank.World) error {
			if w.Rank() == 3 {
				return rank.Broadcast(ctx, w.Group(), int32s(3, 10), 3)
			}
			return rank.Broadcast(ctx, w.Group(), int32s(w.Rank(), 10), 0)
		}},
		{name: "within a process", odd: []kolo.Rank{1}, says: []string{"3 of 4 ranks called AllReduce(10 int32, sum)"}, call: func(ctx context.Context, w *rank.World) error {
			if w.Rank() == 1 {
				return sum(ctx, w, 11)
			}
			return sum(ctx, w, 10)
		}},
		{name: "pairs", odd: []kolo.Rank{3, 0}, says: []string{"rank 3 sends 2 elements to rank 0, which takes 1"}, call: func(ctx context.Context, w *rank.World) error {
			v := rank.Vector{Counts: []int64{1, 1, 1, 1}}
			u, n := v, 4
			if w.Rank() == 3 {
				u, n = rank.Vector{Counts: []int64{2, 1, 1, 1}}, 5
			}
			return rank.AllToAllV(ctx, w.Group(), make([]int32, 4), int32s(w.Rank(), n), u, v)
		}},
	}
	for _, check := range []rank.Check{rank.Digests, rank.Strict} {
		for _, c := range rows {
			t.Run(fmt.Sprintf("%v/%s", check, c.name), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { // letters are never late
					s := openParts(t, []int{0, 0, 1, 2}, rank.Config{Check: check, Timeout: 20 * time.Second})
					defer s.close(t)
					for r, err := range s.each(func(w *rank.World) error {
						err := c.call(t.Context(), w)
						if err == nil && check == rank.Digests { // its data has not met the odd one's
							err = rank.Barrier(t.Context(), w.Group())
						}
						return err
					}) {
						require.ErrorIs(t, err, kolo.ErrMismatch, "rank %d", r)
						var e *kolo.Error
						require.ErrorAs(t, err, &e)
						require.Equal(t, c.odd, e.Ranks, "%v", err)
						for _, say := range c.says {
							require.ErrorContains(t, err, say)
						}
					}
				})
			})
		}
	}
}

func TestGroupThatProcessesMakeDifferently(t *testing.T) {
	for _, c := range []struct {
		name string
		conf func(w *rank.World) rank.GroupConfig
		says string
	}{
		{"members", func(w *rank.World) rank.GroupConfig {
			if w.Rank() == 2 {
				return rank.GroupConfig{Name: "g", Ranks: []kolo.Rank{2, 0}}
			}
			return rank.GroupConfig{Name: "g", Ranks: []kolo.Rank{0, 2}}
		}, "makes the group with ranks ["},
		{"algorithm", func(w *rank.World) rank.GroupConfig {
			c := rank.GroupConfig{Name: "g", Ranks: []kolo.Rank{0, 2}, Algorithm: "ring"}
			if w.Rank() == 2 {
				c.Algorithm = "mesh"
			}
			return c
		}, "makes the group with algorithm"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := openParts(t, []int{0, 0, 1}, rank.Config{Timeout: 20 * time.Second})
			defer s.close(t)
			for r, err := range s.each(func(w *rank.World) error {
				if w.Rank() == 1 {
					return nil
				}
				g, err := w.NewGroup(c.conf(w))
				if err != nil {
					return err
				}
				return rank.Barrier(t.Context(), g)
			}) {
				if r != 1 {
					require.ErrorIs(t, err, kolo.ErrMismatch, "rank %d", r)
					require.ErrorContains(t, err, c.says)
				}
			}
		})
	}
}

// Members make a group in any order and use it; others pay nothing.
func TestSubgroupsAcrossAndWithinProcesses(t *testing.T) {
	s := openParts(t, []int{0, 0, 1, 1, 2}, rank.Config{Timeout: 20 * time.Second})
	defer s.close(t)
	lists := [][]kolo.Rank{{0, 1}, {2, 3}, {3, 0}, {4, 1, 2}, {4}}
	require.NoError(t, errors.Join(s.each(func(w *rank.World) error {
		for i := range lists {
			ranks := lists[(i+int(w.Rank()))%len(lists)]
			if !slices.Contains(ranks, w.Rank()) {
				continue
			}
			g, err := w.NewGroup(rank.GroupConfig{Ranks: ranks})
			if err != nil {
				return err
			}
			b := int32s(w.Rank(), 100)
			work := rank.AllReduceAsync(g, b, kolo.Sum)
			defer func() { require.NoError(t, g.Close(t.Context())) }()
			defer func() {
				require.NoError(t, work.Wait(t.Context()))
				require.Equal(t, sumOf(ranks, 100), b)
			}()
		}
		return nil
	})...))
}

func TestRankThatLeavesIsMissedInOtherProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openParts(t, []int{0, 1, 2}, rank.Config{Timeout: 20 * time.Second})
		defer s.hangUp(t)
		ranks := []kolo.Rank{0, 1, 2}
		start := time.Now()
		for r, err := range s.each(func(w *rank.World) error {
			if err := rank.Barrier(t.Context(), w.Group()); err != nil {
				return err
			}
			if w.Rank() == 2 {
				return w.Close(t.Context())
			}
			err := rank.Barrier(t.Context(), w.Group())
			g, e := w.NewGroup(rank.GroupConfig{Name: "later", Ranks: ranks})
			if e != nil {
				return e
			}
			if e := rank.Barrier(t.Context(), g); !errors.Is(e, kolo.ErrLeft) {
				return fmt.Errorf("a group that rank 2 never makes: %w", e)
			}
			return errors.Join(err, w.Close(t.Context()))
		}) {
			if r == 2 {
				require.NoError(t, err)
				continue
			}
			require.ErrorIs(t, err, kolo.ErrLeft, "rank %d", r)
			var e *kolo.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, []kolo.Rank{2}, e.Ranks)
			require.Contains(t, err.Error(), "after Barrier #0")
		}
		require.Less(t, time.Since(start), 10*time.Second)
	})
}

// A rank leaves a group for its failure, and a third one hears of that before it hears of the
// failure itself: it is told why.
func TestRankThatLeavesAFailedGroupSaysWhy(t *testing.T) {
	s := openParts(t, []int{0, 1, 2}, rank.Config{Timeout: 20 * time.Second})
	groups := make([]*rank.Group, 3)
	for r, err := range s.each(func(w *rank.World) (err error) {
		groups[w.Rank()], err = w.NewGroup(rank.GroupConfig{Ranks: []kolo.Rank{0, 1, 2}})
		return errors.Join(err, rank.Barrier(t.Context(), groups[w.Rank()]))
	}) {
		require.NoError(t, err, "rank %d", r)
	}
	work := rank.BarrierAsync(groups[0])
	s.lines[0].holdOf(2)
	groups[2].Abort(errors.New("enough"))
	require.ErrorIs(t, rank.Barrier(t.Context(), groups[1]), kolo.ErrAborted)
	require.NoError(t, groups[1].Close(t.Context()))
	err := work.Wait(t.Context())
	require.ErrorIs(t, err, kolo.ErrAborted)
	require.ErrorContains(t, err, "aborted by rank 2: enough")
	s.lines[0].releaseOf(2)
	s.close(t)
}

// A rank leaves while all shrink. One of the others hears first from them that their group
// has failed for that, and only then of the rank itself: it waits for that word.
func TestShrinkWaitsForTheWordThatARankHasLeft(t *testing.T) {
	s := openParts(t, []int{0, 1, 2, 3}, rank.Config{Timeout: 20 * time.Second})
	s.lines[3].hold() // it calls, and hears of nobody else
	ctx, cancel := context.WithCancel(t.Context())
	groups, errs := make([]*rank.Group, 4), make([]error, 4)
	ended := make(chan int, 4)
	for r, w := range s.worlds {
		c := t.Context()
		if r == 3 {
			c = ctx
		}
		go func() { // ends with the Shrink
			groups[r], errs[r] = w.Shrink(c)
			ended <- r
		}()
	}
	shrinks := func(r int) bool { return len(s.worlds[r].Groups()) > 1 }
	require.Eventually(t, func() bool { return shrinks(0) && shrinks(1) && shrinks(2) }, 10*time.Second, time.Millisecond)
	s.lines[2].holdOf(3)
	cancel()
	require.Equal(t, 3, <-ended)
	require.ErrorIs(t, errs[3], kolo.ErrCanceled)
	require.ErrorContains(t, errs[3], "rank 0, 1 and 2 have not called Shrink")
	require.NoError(t, s.worlds[3].Close(t.Context()))
	require.Eventually(t, func() bool { return !shrinks(2) }, 10*time.Second, time.Millisecond, "the group has not failed")
	s.lines[2].releaseOf(3)
	for range 3 {
		<-ended
	}
	require.NoError(t, errors.Join(errs[:3]...))
	for r, g := range groups[:3] {
		require.Equal(t, 3, g.Size(), "rank %d", r)
	}
	s.lines[3].release()
	s.close(t)
}

// Survivors of a process that is lost get the typed error and go on without it.
func TestLostProcessFailsItsGroupsAndSurvivorsGoOn(t *testing.T) {
	s := openParts(t, []int{0, 1, 1, 2}, rank.Config{Timeout: 20 * time.Second})
	var calls atomic.Int64
	dead := errors.New("killed by the test")
	enough, killed := make(chan struct{}), make(chan struct{})
	go func() { // ends with the test, which awaits killed
		defer close(killed)
		<-enough
		s.kill(1, dead)
	}()
	rest := []kolo.Rank{0, 3}
	for r, err := range s.each(func(w *rank.World) error {
		var err error
		for err == nil {
			if calls.Add(1) == 20 {
				close(enough)
			}
			if s.lines[1].isMute() && (w.Rank() == 1 || w.Rank() == 2) {
				return nil
			}
			err = rank.AllReduce(t.Context(), w.Group(), int32s(w.Rank(), 10000), kolo.Sum)
		}
		if w.Rank() == 1 || w.Rank() == 2 {
			return nil
		}
		g, e := w.NewGroup(rank.GroupConfig{Ranks: rest})
		if e != nil {
			return e
		}
		b := int32s(w.Rank(), 100)
		if e := rank.AllReduce(t.Context(), g, b, kolo.Sum); e != nil {
			return e
		}
		require.Equal(t, sumOf(rest, 100), b)
		return err
	}) {
		if r == 0 || r == 3 {
			require.ErrorIs(t, err, kolo.ErrLost)
			require.ErrorContains(t, err, dead.Error())
			var e *kolo.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, []kolo.Rank{1, 2}, e.Ranks)
		}
	}
	<-killed
	for _, w := range s.worlds {
		_ = w.Close(t.Context()) // of the lost ones it says that calls were aborted
	}
	s.hangUp(t)
}

func (l *line) isMute() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mute
}

// The deadline names who has not come, and what those ranks do, in whatever process
// they are.
func TestDeadlineAcrossProcessesNamesWhoHasNotComeAndWhatItDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openParts(t, []int{0, 0, 1, 2}, rank.Config{Timeout: 5 * time.Second})
		defer s.close(t)
		start := time.Now()
		for r, err := range s.each(func(w *rank.World) error {
			if err := rank.Barrier(t.Context(), w.Group()); err != nil {
				return err
			}
			pair := []kolo.Rank{2, 3}
			switch w.Rank() {
			case 2: // waits elsewhere, with a later deadline
				time.Sleep(2 * time.Second) // in a bubble
				g, err := w.NewGroup(rank.GroupConfig{Name: "pair", Ranks: pair})
				if err != nil {
					return err
				}
				return rank.Barrier(t.Context(), g)
			case 3:
				time.Sleep(time.Second) // in a bubble
			}
			return rank.AllReduce(t.Context(), w.Group(), int32s(w.Rank(), 10), kolo.Sum)
		}) {
			require.ErrorIs(t, err, kolo.ErrDeadline, "rank %d", r)
			if r == 2 {
				continue
			}
			var e *kolo.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, []kolo.Rank{2}, e.Ranks, "%v", err)
			for _, say := range []string{"rank 2 has not arrived (rank 2 last called Barrier #0)", "3 of 4 ranks wait in AllReduce(10 int32, sum)",
				`world rank 2 waits in Barrier #0 of group "pair"`} {
				require.ErrorContains(t, err, say)
			}
		}
		require.Less(t, time.Since(start), 8*time.Second)
	})
}

// A process that does not answer is named too.
func TestDeadlineSaysWhichProcessDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openParts(t, []int{0, 1, 1}, rank.Config{Timeout: 5 * time.Second})
		s.lines[1].mu.Lock()
		s.lines[1].mute = true
		s.lines[1].mu.Unlock()
		start := time.Now()
		err := rank.Barrier(t.Context(), s.worlds[0].Group())
		require.ErrorIs(t, err, kolo.ErrDeadline)
		require.ErrorContains(t, err, "no answer within 1s from the process of rank 1 and 2")
		require.Equal(t, 6*time.Second, time.Since(start))
		s.close(t)
	})
}

// A rank whose context ends fails the call on all ranks, and says who was missing.
func TestCancelAcrossProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openParts(t, []int{0, 1, 2}, rank.Config{Timeout: 20 * time.Second})
		defer s.close(t)
		for r, err := range s.each(func(w *rank.World) error {
			if w.Rank() == 2 {
				return nil
			}
			ctx := t.Context()
			if w.Rank() == 1 {
				short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
				defer cancel()
				ctx = short
			}
			return rank.Barrier(ctx, w.Group())
		}) {
			if r < 2 {
				require.ErrorIs(t, err, kolo.ErrCanceled, "rank %d", r)
				require.ErrorContains(t, err, "rank 2 has not arrived")
			}
		}
	})
}

// Send and Recv go between processes as within one.
func TestMessagesBetweenProcesses(t *testing.T) {
	s := openParts(t, []int{0, 1, 1}, rank.Config{Timeout: 20 * time.Second})
	defer s.close(t)
	require.NoError(t, errors.Join(s.each(func(w *rank.World) error {
		next, last := (w.Rank()+1)%3, (w.Rank()+2)%3
		in := make([]int32, 100)
		err := rank.Batch(t.Context(), w.Group(), []rank.Request{
			{Collective: kolo.Send, In: rank.Of(int32s(w.Rank(), 100)), Peer: next, Tag: 7},
			{Collective: kolo.Recv, Out: rank.Of(in), Peer: last, Tag: 7}})
		require.Equal(t, int32s(last, 100), in)
		return err
	})...))
}

// A link may break before the control message comes that says why: a message waits for
// it a moment, whether it was posted before or is posted after.
func TestMessageToARankThatIsLeavingSaysThatItHasLeft(t *testing.T) {
	for name, late := range map[string]bool{"posted before": false, "posted after": true} {
		for _, told := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/told %v", name, told), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := openParts(t, []int{0, 1}, rank.Config{Timeout: 5 * time.Second})
					defer s.close(t)
					g := s.worlds[0].Group()
					require.NoError(t, errors.Join(s.each(func(w *rank.World) error { // a link is there
						return rank.AllReduce(t.Context(), w.Group(), int32s(w.Rank(), 10), kolo.Sum)
					})...))
					var work rank.Work
					if !late {
						work = rank.RecvAsync(g, make([]int32, 10), 1, 7)
					}
					synctest.Wait()
					s.lines[0].hold()
					require.NoError(t, s.worlds[1].Close(t.Context()))
					if late {
						work = rank.RecvAsync(g, make([]int32, 10), 1, 7)
					}
					synctest.Wait()
					if told {
						s.lines[0].release()
					}
					start := time.Now()
					err := work.Wait(t.Context())
					want, after := kolo.ErrLeft, time.Duration(0)
					if !told {
						want, after = kolo.ErrLost, 250*time.Millisecond
					}
					require.ErrorIs(t, err, want)
					require.Equal(t, after, time.Since(start))
					var e *kolo.Error
					require.ErrorAs(t, err, &e)
					require.Equal(t, kolo.Rank(1), e.Peer)
					s.lines[0].release()
				})
			})
		}
	}
}

// Nor is a connection between windows lost where its target has left and the word of it is
// on its way.
func TestConnectionToARankThatIsLeavingSaysThatItHasLeft(t *testing.T) {
	for _, told := range []bool{true, false} {
		t.Run(fmt.Sprint("told ", told), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := openParts(t, []int{0, 1}, rank.Config{Timeout: 5 * time.Second})
				defer s.close(t)
				there, err := s.worlds[1].NewWindow(rank.WindowConfig{Name: "kv"})
				require.NoError(t, err)
				region, err := there.Register("all", kolo.HostMemory(make([]byte, 100)))
				require.NoError(t, err)
				require.NoError(t, there.Listen())
				here, err := s.worlds[0].NewWindow(rank.WindowConfig{Name: "kv"})
				require.NoError(t, err)
				target, err := here.Connect(t.Context(), 1)
				require.NoError(t, err)
				put := func() *rank.Transfer {
					return target.PutAsync([]rank.TransferDesc{{Local: kolo.HostMemory(make([]byte, 100)), Region: region.Key}})
				}
				require.NoError(t, put().Wait(t.Context()))
				s.lines[0].hold()
				require.NoError(t, s.worlds[1].Close(t.Context()))
				synctest.Wait()
				start, x := time.Now(), put()
				synctest.Wait()
				want, after := kolo.ErrLeft, time.Duration(0)
				if told {
					s.lines[0].release()
				} else {
					want, after = kolo.ErrLost, 250*time.Millisecond
				}
				require.ErrorIs(t, x.Wait(t.Context()), want)
				require.Equal(t, after, time.Since(start))
				s.lines[0].release()
			})
		})
	}
}

// A rank that closes its world while a message waits for the word why its link has
// broken ends that message.
func TestCloseEndsAMessageWhoseLinkHasBroken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openParts(t, []int{0, 1}, rank.Config{Timeout: 5 * time.Second})
		defer s.close(t)
		work := rank.RecvAsync(s.worlds[0].Group(), make([]int32, 10), 1, 7)
		synctest.Wait()
		s.lines[0].hold()
		require.NoError(t, s.worlds[1].Close(t.Context()))
		synctest.Wait()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		require.Error(t, s.worlds[0].Close(ended), "a call was aborted")
		require.Error(t, work.Wait(t.Context()))
		s.lines[0].release()
	})
}

// What comes for a group is kept while a rank here may still make that group, and no
// longer: not when all of them have closed it, nor when they have closed their worlds.
func TestNothingIsKeptForGroupsThatAreClosed(t *testing.T) {
	s := openParts(t, []int{0, 0, 1}, rank.Config{Timeout: 20 * time.Second})
	kept := func() int { return rank.EarlyGroups(s.locals[0]) }
	open := func(r int, name string) {
		g, err := s.worlds[r].NewGroup(rank.GroupConfig{Name: name, Ranks: []kolo.Rank{0, 2}})
		require.NoError(t, err)
		require.NoError(t, g.Close(t.Context()))
	}
	come := func() { // what was told before has come
		require.NoError(t, errors.Join(s.each(func(w *rank.World) error { return rank.Barrier(t.Context(), w.Group()) })...))
		s.lines[0].drain()
	}
	const n = 20
	for range n {
		open(0, "here first")
		open(2, "here first")
		open(2, "there first")
	}
	come()
	require.Equal(t, n, kept(), "rank 0 may still make them")
	for range n {
		open(0, "there first")
	}
	require.Zero(t, kept())
	open(2, "never made here")
	come()
	require.Equal(t, 1, kept())
	require.NoError(t, s.worlds[0].Close(t.Context()))
	require.Zero(t, kept(), "rank 1 is not in it")
	open(2, "after the end")
	s.lines[0].drain()
	require.Zero(t, kept())
	s.close(t)
}
