package faulty

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/actor"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/channel/channeltest"
	"github.com/kolo-ccl/kolo/channel/hccs"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open makes a faulty driver around hccs.
func open(script string) func(t testing.TB, c channel.Config) channel.Driver {
	return func(t testing.TB, c channel.Config) channel.Driver {
		inner, err := hccs.New(c)
		require.NoError(t, err)
		d, err := New(inner, script, 1)
		require.NoError(t, err)
		return d
	}
}

func TestWithoutFaults(t *testing.T) {
	channeltest.Kit{Open: open(""), ZeroCopy: true, AllocFree: true}.Run(t)
}

// Delays change no behaviour but when.
func TestWithDelays(t *testing.T) {
	channeltest.Run(t, open("delay * -> * 40% 20us\ndelay 1 -> * 10% 300us"))
}

func TestWrongScript(t *testing.T) {
	_, err := New(nil, "lose 1", 1)
	require.ErrorIs(t, err, kolo.ErrArgument)
}

// site is some ranks with a faulty driver; every op's completion is kept.
type site struct {
	t      *testing.T
	d      *Driver
	engine *hccs.Engine
	sys    *actor.System
	ranks  []*siteRank
	mu     sync.Mutex
	events []string
}

type siteRank struct {
	site  *site
	id    kolo.Rank
	shard *actor.Shard
	ref   actor.Ref[func()]
	end   channel.Endpoint
	links map[kolo.Rank]*channel.Channel
}

// transfer is an op, done when it has completed.
type transfer struct {
	channel.Op
	name string
	at   *siteRank
	done chan struct{}
	when time.Time
}

func newSite(t *testing.T, n int, script string, seed uint64) *site {
	s := &site{t: t, engine: hccs.NewEngine(1), sys: actor.NewSystem(actor.Config{})}
	inner, err := hccs.New(channel.Config{Job: t.Name(), Engine: s.engine})
	require.NoError(t, err)
	s.d, err = New(inner, script, seed)
	require.NoError(t, err)
	require.Equal(t, kolo.LinkHCCS, s.d.Link())
	for i := range n {
		r := &siteRank{site: s, id: kolo.Rank(i), shard: s.sys.NewShard("rank"), links: map[kolo.Rank]*channel.Channel{}}
		r.end, err = s.d.Open(r.id)
		require.NoError(t, err)
		r.ref, err = actor.Spawn[func()](r.shard, actor.Props{Name: "rank"}, r)
		require.NoError(t, err)
		s.ranks = append(s.ranks, r)
	}
	return s
}

var errOver = errors.New("over")

func (s *site) close() {
	for _, r := range s.ranks {
		r.do(func() {
			for _, c := range r.links {
				c.Close(errOver)
			}
			r.end.Close()
		})
	}
	require.NoError(s.t, s.sys.Close(context.Background()))
	require.NoError(s.t, s.d.Close())
	s.engine.Close()
}

func (r *siteRank) Handle(f func()) error {
	f()
	return nil
}

func (r *siteRank) do(f func()) {
	done := make(chan struct{})
	require.NoError(r.site.t, r.ref.Tell(func() { f(); close(done) }))
	<-done
}

func (r *siteRank) link(peer kolo.Rank) *channel.Channel {
	if r.links[peer] == nil {
		conn, err := r.end.Connect(peer)
		require.NoError(r.site.t, err)
		r.links[peer], err = channel.Spawn(r.shard, "link", peer, conn, nil)
		require.NoError(r.site.t, err)
	}
	return r.links[peer]
}

func (x *transfer) Complete(*channel.Op) {
	x.when = time.Now()
	s := x.at.site
	s.mu.Lock()
	s.events = append(s.events, x.name)
	s.mu.Unlock()
	close(x.done)
}

// post posts a transfer of one byte.
func (s *site) post(kind channel.Kind, at, peer kolo.Rank, key channel.Key, b byte) *transfer {
	x := &transfer{at: s.ranks[at], done: make(chan struct{}), name: fmt.Sprintf("%v %d", kind, b)}
	x.Op = channel.Op{Kind: kind, Key: key, Size: 1, Mem: []kolo.Memory{kolo.HostMemory([]byte{b})}, Sink: x}
	x.at.do(func() { x.at.link(peer).Post(&x.Op) })
	return x
}

func (s *site) send(from, to kolo.Rank, b byte) *transfer {
	return s.post(channel.Send, from, to, channel.Key{}, b)
}

func (s *site) recv(at, from kolo.Rank) *transfer {
	return s.post(channel.Recv, at, from, channel.Key{}, 255)
}

func (x *transfer) got() byte { return x.Mem[0].Host[0] }

func TestLose(t *testing.T) {
	s := newSite(t, 2, "lose 0 -> 1 send 1..2", 1)
	defer s.close()
	var sends []*transfer
	for i := range byte(4) {
		sends = append(sends, s.send(0, 1, i))
	}
	for _, x := range sends[1:3] {
		<-x.done
		require.NoError(t, x.Err, "the sender knows nothing")
	}
	for _, want := range []byte{0, 3} {
		r := s.recv(1, 0)
		<-r.done
		require.NoError(t, r.Err)
		require.Equal(t, want, r.got())
	}
	back := s.recv(0, 1)
	<-s.send(1, 0, 9).done
	<-back.done
	require.Equal(t, Report{Sends: 5, Lost: 2, Faults: []Fault{{What: Lose, From: 0, To: 1, Send: 1}, {What: Lose, From: 0, To: 1, Send: 2}}}, s.d.Report())
	require.Equal(t, "lose 0 -> 1 send 1", s.d.Report().Faults[0].String())
	require.Equal(t, "lose 0 -> 1 send 1..2\n", s.d.Script().String())
}

func TestDelayIsExactInVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, 3, "delay 0 -> * 10ms\ndelay 0 -> 1 send 1 5ms", 1)
		defer s.close()
		start := time.Now()
		var recvs []*transfer
		for i := range byte(3) {
			recvs = append(recvs, s.recv(1, 0))
			s.send(0, 1, i)
		}
		time.Sleep(time.Millisecond)
		late := s.recv(2, 0)
		s.send(0, 2, 7)
		back := s.recv(0, 1)
		s.send(1, 0, 8)
		for i, want := range []time.Duration{10 * time.Millisecond, 15 * time.Millisecond, 15 * time.Millisecond} {
			<-recvs[i].done
			require.NoError(t, recvs[i].Err)
			require.Equal(t, byte(i), recvs[i].got(), "messages keep their order")
			require.Equal(t, want, recvs[i].when.Sub(start), "message %d", i)
		}
		<-late.done
		require.Equal(t, 11*time.Millisecond, late.when.Sub(start))
		<-back.done
		require.Equal(t, time.Millisecond, back.when.Sub(start), "the way back")
		r := s.d.Report()
		require.Equal(t, int64(4), r.Delayed)
		require.Equal(t, "delay 0 -> 1 send 1 15ms", r.Faults[1].String())
	})
}

// A message that waits for its time is completed by an abort and by a close, once.
func TestDelayedMessagesEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, 2, "delay 0 -> 1 1s", 1)
		defer s.close()
		gone := s.post(channel.Send, 0, 1, channel.Key{Group: 1}, 1)
		kept := s.post(channel.Send, 0, 1, channel.Key{Group: 2}, 2)
		s.ranks[0].do(func() { s.ranks[0].link(1).Abort(1, errOver) })
		<-gone.done
		require.ErrorIs(t, gone.Err, errOver)
		taken := s.post(channel.Recv, 1, 0, channel.Key{Group: 2}, 0)
		start := time.Now()
		<-taken.done
		<-kept.done
		require.NoError(t, kept.Err)
		require.Equal(t, time.Second, time.Since(start))

		closed := s.post(channel.Send, 0, 1, channel.Key{Group: 2}, 3)
		waits := s.post(channel.Recv, 1, 0, channel.Key{Group: 2}, 0)
		s.ranks[0].do(func() { s.ranks[0].link(1).Close(errOver) })
		<-closed.done
		<-waits.done
		require.ErrorIs(t, closed.Err, errOver)
		require.ErrorIs(t, waits.Err, kolo.ErrLost)
		require.Equal(t, time.Second, time.Since(start), "nobody waited for the delay")
		time.Sleep(time.Minute)
	})
}

func TestCut(t *testing.T) {
	s := newSite(t, 3, "cut 0 -> 1 after 2", 1)
	defer s.close()
	for i := range byte(2) {
		r := s.recv(1, 0)
		<-s.send(0, 1, i).done
		<-r.done
		require.NoError(t, r.Err)
	}
	pending := []*transfer{s.recv(1, 0), s.recv(0, 1), s.send(1, 0, 5)}
	<-pending[1].done // met
	<-pending[2].done
	require.NoError(t, pending[1].Err)
	pending = []*transfer{pending[0], s.recv(0, 1), s.post(channel.Send, 1, 0, channel.Key{Lane: 1}, 5)}
	pending = append(pending, s.send(0, 1, 2)) // cuts
	pending = append(pending, s.send(0, 1, 3), s.recv(0, 1), s.recv(1, 0), s.send(1, 0, 4))
	for i, x := range pending {
		<-x.done
		require.ErrorIs(t, x.Err, kolo.ErrLost, "transfer %d", i)
	}
	require.ErrorContains(t, pending[3].Err, "the link of rank 0 to rank 1 was cut before message 2 (script line 1)")
	r := s.recv(2, 0) // another link
	<-s.send(0, 2, 6).done
	<-r.done
	require.NoError(t, r.Err)
	report := s.d.Report()
	require.Equal(t, int64(1), report.Cuts)
	require.Equal(t, []Fault{{What: Cut, From: 0, To: 1, Send: 2}}, report.Faults)
}

// A cut behind delayed messages lets them pass first.
func TestCutBehindDelayedMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, 2, "delay 0 -> 1 1s\ncut 0 -> 1 after 2", 1)
		defer s.close()
		var recvs, sends []*transfer
		for i := range byte(5) {
			recvs, sends = append(recvs, s.recv(1, 0)), append(sends, s.send(0, 1, i))
		}
		start := time.Now()
		for i := range sends {
			<-sends[i].done
			<-recvs[i].done
			if i < 2 {
				require.NoError(t, recvs[i].Err)
			} else {
				require.ErrorIs(t, sends[i].Err, kolo.ErrLost)
				require.ErrorIs(t, recvs[i].Err, kolo.ErrLost)
			}
		}
		require.Equal(t, time.Second, time.Since(start))
	})
}

// The faults of a way depend on the seed and the script, not on the other ways nor
// on the order in which goroutines run.
func TestSameSeedSameFaults(t *testing.T) {
	run := func(seed uint64) []Fault {
		s := newSite(t, 4, "lose * -> * 20%\nlose 1 -> 0 send 3", seed)
		defer s.close()
		var wg sync.WaitGroup
		for _, r := range s.ranks {
			// ended by wg.Wait
			wg.Go(func() {
				for i := range 200 {
					peer := (int(r.id) + 1 + i%3) % 4
					x := &transfer{at: r, done: make(chan struct{})}
					x.Op = channel.Op{Kind: channel.Send, Size: 1, Mem: []kolo.Memory{kolo.HostMemory([]byte{1})}, Sink: x}
					r.do(func() { r.link(kolo.Rank(peer)).Post(&x.Op) })
					runtime.Gosched()
				}
			})
		}
		wg.Wait()
		return s.d.Report().Faults
	}
	first := run(1)
	require.Greater(t, len(first), 100)
	require.Contains(t, first, Fault{What: Lose, From: 1, To: 0, Send: 3})
	require.Equal(t, first, run(1))
	require.NotEqual(t, first, run(2))
}
