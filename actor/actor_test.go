package actor

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/kolo-ccl/kolo"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newSystem(t testing.TB) *System {
	s := NewSystem(Config{})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, s.Close(ctx))
	})
	return s
}

type message struct{ n int }

type handlerFunc func(*message) error

func (f handlerFunc) Handle(m *message) error { return f(m) }

func spawn(t testing.TB, s *Shard, f handlerFunc, onExit func(error)) Ref[*message] {
	r, err := Spawn(s, Props{Name: "test", OnExit: onExit}, f)
	require.NoError(t, err)
	return r
}

func TestShardsDoNotNest(t *testing.T) {
	s := newSystem(t)
	a, b := s.NewShard("a"), s.NewShard("b")
	inA := false
	nested := false
	got := 0
	rb := spawn(t, b, func(*message) error { nested = nested || inA; got++; return nil }, nil)
	ra := spawn(t, a, func(m *message) error {
		inA = true
		require.NoError(t, rb.From(a).Tell(m))
		inA = false
		return nil
	}, nil)
	require.NoError(t, ra.Tell(&message{1}))
	require.Equal(t, 1, got, "the sender's goroutine runs what it made runnable")
	require.False(t, nested)
}

func TestPanicEndsTheActorAndOnlyIt(t *testing.T) {
	s := newSystem(t)
	sh := s.NewShard("a")
	var exit error
	bad := spawn(t, sh, func(m *message) error { panic("boom") }, func(err error) { exit = err })
	got := 0
	good := spawn(t, sh, func(m *message) error { got++; return nil }, nil)
	require.NoError(t, bad.Tell(&message{1}))
	require.ErrorIs(t, exit, kolo.ErrPanic)
	require.ErrorContains(t, exit, "boom")
	require.ErrorIs(t, bad.Tell(&message{2}), kolo.ErrClosed)
	require.NoError(t, good.Tell(&message{3}))
	require.Equal(t, 1, got)
	require.Equal(t, 1, s.Actors())
}

func TestErrorEndsTheActorWithItsCause(t *testing.T) {
	s := newSystem(t)
	cause := errors.New("no more")
	exits := 0
	var exit error
	r := spawn(t, s.NewShard("a"), func(m *message) error { return cause }, func(err error) { exit = err; exits++ })
	require.NoError(t, r.Tell(&message{1}))
	require.ErrorIs(t, exit, cause)
	r.Stop()
	r.Stop()
	require.Equal(t, 1, exits)
}

func TestFullMailboxRefuses(t *testing.T) {
	s := newSystem(t)
	sh := s.NewShard("a")
	var r Ref[*message]
	var errs []error
	got := 0
	r, err := Spawn(sh, Props{Name: "small", Limit: 2}, handlerFunc(func(m *message) error {
		if got++; m.n == 0 {
			for range 3 {
				errs = append(errs, r.From(sh).Tell(&message{1}))
			}
		}
		return nil
	}))
	require.NoError(t, err)
	require.NoError(t, r.Tell(&message{0}))
	require.NoError(t, errs[0])
	require.NoError(t, errs[1])
	require.ErrorIs(t, errs[2], kolo.ErrLimit)
	require.Equal(t, 3, got, "what was taken is handled")
}

func TestBudgetLeavesTheRestToTheWorker(t *testing.T) {
	s := NewSystem(Config{Budget: 10})
	sh := s.NewShard("a")
	var r Ref[*message]
	done := make(chan struct{})
	got := 0
	r = spawn(t, sh, func(m *message) error {
		if got++; got == 1000 {
			close(done)
			return nil
		}
		return r.From(sh).Tell(m)
	}, nil)
	require.NoError(t, r.Tell(&message{1}))
	<-done
	require.NoError(t, s.Close(context.Background()))
	require.Equal(t, 1000, got)
}

func TestCloseTwiceAndSpawnAfterIt(t *testing.T) {
	s := NewSystem(Config{})
	exits := 0
	for range 10 {
		spawn(t, s.NewShard("a"), func(*message) error { return nil }, func(err error) {
			require.NoError(t, err)
			exits++
		})
	}
	require.NoError(t, s.Close(context.Background()))
	require.NoError(t, s.Close(context.Background()))
	require.Equal(t, 10, exits)
	_, err := Spawn(s.NewShard("b"), Props{Name: "late"}, handlerFunc(func(*message) error { return nil }))
	require.ErrorIs(t, err, kolo.ErrClosed)
}

func TestOneSeedGivesOneSchedule(t *testing.T) {
	order := func(seed uint64) (got []int) {
		s := NewSystem(Config{Steps: rand.New(rand.NewPCG(seed, 1))})
		sink := s.NewShard("sink")
		to := spawn(t, sink, func(m *message) error { got = append(got, m.n); return nil }, nil)
		s.Run()
		for k := range 6 {
			sh := s.NewShard("w")
			w := spawn(t, sh, func(m *message) error { return to.From(sh).Tell(m) }, nil)
			require.NoError(t, w.Tell(&message{k}))
		}
		s.Run()
		require.NoError(t, s.Close(context.Background()))
		return got
	}
	different := 0
	for seed := range uint64(30) {
		a := order(seed)
		require.Len(t, a, 6)
		require.Equal(t, a, order(seed))
		if seed > 0 && !equal(a, order(0)) {
			different++
		}
	}
	require.Greater(t, different, 20, "seeds explore schedules")
}

func equal(a, b []int) bool {
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func TestTellDoesNotAllocate(t *testing.T) {
	s := newSystem(t)
	r := spawn(t, s.NewShard("a"), func(*message) error { return nil }, nil)
	m := &message{}
	require.Zero(t, testing.AllocsPerRun(1000, func() { _ = r.Tell(m) }))
}

// ring is an actor that hands a token to the next until its count is down to 0.
type ring struct {
	next Ref[*message]
	done chan struct{}
}

func (r *ring) Handle(m *message) error {
	if m.n--; m.n <= 0 {
		r.done <- struct{}{}
		return nil
	}
	return r.next.Tell(m)
}

func BenchmarkHop(b *testing.B) {
	for _, shards := range []int{1, 8} {
		b.Run(map[int]string{1: "actors=8/shards=1", 8: "actors=8/shards=8"}[shards], func(b *testing.B) {
			s := newSystem(b)
			b.ReportAllocs()
			var sh []*Shard
			for range shards {
				sh = append(sh, s.NewShard("s"))
			}
			actors := make([]*ring, 8)
			refs := make([]Ref[*message], 8)
			done := make(chan struct{}, 1)
			for i := range actors {
				actors[i] = &ring{done: done}
				r, err := Spawn(sh[i%shards], Props{Name: "ring"}, actors[i])
				require.NoError(b, err)
				refs[i] = r
			}
			for i := range actors {
				actors[i].next = refs[(i+1)%8].From(sh[i%shards])
			}
			m := &message{n: b.N}
			b.ResetTimer()
			_ = refs[0].Tell(m)
			<-done
		})
	}
}

func TestZeroRefAddressesNobody(t *testing.T) {
	var r Ref[*int]
	require.False(t, r.Valid())
	require.ErrorIs(t, r.Tell(new(int)), kolo.ErrClosed)
	require.ErrorIs(t, r.From(nil).Tell(nil), kolo.ErrClosed)
	require.Zero(t, r.Waiting())
	r.Stop()
}
