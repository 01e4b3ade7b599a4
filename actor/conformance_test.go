package actor

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	proto "github.com/asynkron/protoactor-go/actor"
)

// stack is a way to run actors: ours, or protoactor's own mailbox and dispatcher.
// What protoactor promises must hold for both.
type stack struct {
	name string
	// open returns a function that spawns an actor. A panic ends it.
	open func(t testing.TB) func(handle func(*message)) peer
}

// peer is an actor under test.
type peer struct {
	tell  func(*message)
	stop  func() // after what is in the mailbox
	ended <-chan struct{}
}

var stacks = []stack{{"kolo", openKolo}, {"protoactor", openStock}}

func openKolo(t testing.TB) func(func(*message)) peer {
	s := newSystem(t)
	return func(handle func(*message)) peer {
		ended := make(chan struct{})
		r := spawn(t, s.NewShard("s"), func(m *message) error { handle(m); return nil }, func(error) { close(ended) })
		return peer{func(m *message) { _ = r.Tell(m) }, r.Stop, ended} // protoactor tells no error either
	}
}

func openStock(t testing.TB) func(func(*message)) peer {
	s := proto.NewActorSystem(
		proto.WithLoggerFactory(func(*proto.ActorSystem) *slog.Logger { return slog.New(slog.DiscardHandler) }),
		proto.WithDeadLetterThrottleInterval(time.Nanosecond))
	t.Cleanup(s.Shutdown)
	guardian := failFast()
	return func(handle func(*message)) peer {
		ended := make(chan struct{})
		pid := s.Root.Spawn(proto.PropsFromFunc(func(c proto.Context) {
			switch m := c.Message().(type) {
			case *message:
				handle(m)
			case *proto.Stopped:
				close(ended)
			}
		}, proto.WithGuardian(guardian)))
		return peer{func(m *message) { s.Root.Send(pid, m) }, func() { s.Root.Poison(pid) }, ended}
	}
}

func onEachStack(t *testing.T, f func(t *testing.T, spawn func(func(*message)) peer)) {
	for _, s := range stacks {
		t.Run(s.name, func(t *testing.T) { f(t, s.open(t)) })
	}
}

func ends(t *testing.T, p peer) {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		t.Fatal("the actor does not end")
	}
}

func TestEveryMessageOnceInItsSendersOrderAndAlone(t *testing.T) {
	onEachStack(t, func(t *testing.T, spawn func(func(*message)) peer) {
		const senders, each = 4, 20000
		var inside atomic.Int32
		next := make([]int, senders)
		p := spawn(func(m *message) {
			if inside.Add(1) != 1 {
				t.Error("two messages at a time")
			}
			from, n := m.n/each, m.n%each
			if n != next[from] {
				t.Errorf("sender %d: message %d instead of %d", from, n, next[from])
			}
			next[from] = n + 1
			inside.Add(-1)
		})
		var wg sync.WaitGroup
		for k := range senders {
			wg.Go(func() {
				for i := range each {
					p.tell(&message{k*each + i})
				}
			})
		}
		wg.Wait()
		p.stop()
		ends(t, p)
		for k, n := range next {
			if n != each {
				t.Errorf("sender %d: %d messages of %d", k, n, each)
			}
		}
	})
}

// Actors that send to each other and to themselves at random are never entered
// twice, and nothing that they send is lost.
func TestNoReentryAmongActorsThatCallEachOther(t *testing.T) {
	onEachStack(t, func(t *testing.T, spawn func(func(*message)) peer) {
		const actors, tokens, hops = 5, 8, 2000
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		peers := make([]peer, actors)
		var arrived atomic.Int32
		all := make(chan struct{})
		for i := range peers {
			var inside atomic.Int32
			rng := rand.New(rand.NewPCG(seed, uint64(i))) // only used inside the actor
			peers[i] = spawn(func(m *message) {
				if inside.Add(1) != 1 {
					t.Error("entered twice")
				}
				defer inside.Add(-1)
				if m.n--; m.n > 0 {
					peers[rng.IntN(actors)].tell(m)
				} else if arrived.Add(1) == tokens {
					close(all)
				}
			})
		}
		for i := range tokens {
			peers[i%actors].tell(&message{hops})
		}
		select {
		case <-all:
		case <-time.After(patience):
			t.Fatalf("%d of %d tokens arrived", arrived.Load(), tokens)
		}
	})
}

func TestPanicIsTheActorsOwn(t *testing.T) {
	onEachStack(t, func(t *testing.T, spawn func(func(*message)) peer) {
		var before, after, others atomic.Int32
		failed := make(chan struct{})
		bad := spawn(func(m *message) {
			if m.n == 1 {
				close(failed)
				panic(errors.New("boom"))
			}
			select {
			case <-failed:
				after.Add(1)
			default:
				before.Add(1)
			}
		})
		good := spawn(func(*message) { others.Add(1) })
		for n := range 5 {
			bad.tell(&message{n})
			good.tell(&message{n})
		}
		ends(t, bad)
		bad.tell(&message{9})
		good.stop()
		ends(t, good)
		require.EqualValues(t, 1, before.Load(), "what came before the panic")
		require.Zero(t, after.Load(), "nothing after it")
		require.EqualValues(t, 5, others.Load())
	})
}

func TestStopIsBehindWhatIsInTheMailbox(t *testing.T) {
	onEachStack(t, func(t *testing.T, spawn func(func(*message)) peer) {
		var handled atomic.Int32
		entered, gate := make(chan struct{}), make(chan struct{})
		p := spawn(func(m *message) {
			if handled.Add(1); m.n == 0 {
				close(entered)
				<-gate
			}
		})
		var wg sync.WaitGroup
		wg.Go(func() { p.tell(&message{0}) })
		<-entered
		for i := range 1000 {
			p.tell(&message{i + 1})
		}
		p.stop()
		close(gate)
		ends(t, p)
		wg.Wait()
		require.EqualValues(t, 1001, handled.Load())
	})
}

// BenchmarkStacks sends one token around 8 actors: what a hop costs here, and with
// protoactor's own mailbox and dispatcher.
func BenchmarkStacks(b *testing.B) {
	for _, s := range stacks {
		b.Run("actors=8/"+s.name, func(b *testing.B) {
			b.ReportAllocs()
			spawn := s.open(b)
			peers := make([]peer, 8)
			done := make(chan struct{})
			for i := range peers {
				peers[i] = spawn(func(m *message) {
					if m.n--; m.n <= 0 {
						close(done)
						return
					}
					peers[(i+1)%len(peers)].tell(m)
				})
			}
			m := &message{n: b.N}
			b.ResetTimer()
			peers[0].tell(m)
			<-done
		})
	}
}
