package roce_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/actor"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/channel/channeltest"
	"github.com/kolo-ccl/kolo/channel/hccs"
	"github.com/kolo-ccl/kolo/channel/roce"

	"github.com/stretchr/testify/require"
)

func BenchmarkHop(b *testing.B) { channeltest.BenchmarkHop(b, opener(roce.Config{})) }

// side is one rank with its own driver and a channel to the other.
type side struct {
	t     testing.TB
	d     *roce.Driver
	e     channel.Endpoint
	shard *actor.Shard
	to    *channel.Channel
	do    actor.Ref[*call]
	ended chan *channel.Op
}

// call is what a side is told to do on its shard.
type call struct{ f func() }

// Handle does it.
func (s *side) Handle(c *call) error {
	c.f()
	return nil
}

// Complete hears of completions.
func (s *side) Complete(op *channel.Op) { s.ended <- op }

func closeSystem(t testing.TB, sys *actor.System) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	require.NoError(t, sys.Close(ctx))
}

// newPair makes two ranks with a driver each, as in two processes.
func newPair(t testing.TB, configs ...roce.Config) [2]*side {
	sys := actor.NewSystem(actor.Config{})
	engine := hccs.NewEngine(1)
	t.Cleanup(engine.Close)
	t.Cleanup(func() { closeSystem(t, sys) })
	var sides [2]*side
	for i := range sides {
		s := &side{t: t, ended: make(chan *channel.Op, 1<<12)}
		var err error
		s.d, err = roce.New(channel.Config{Job: t.Name(), Engine: engine}, configs[i%len(configs)])
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.d.Close()) })
		s.shard = sys.NewShard(fmt.Sprint("rank ", i))
		s.do, err = actor.Spawn[*call](s.shard, actor.Props{Name: fmt.Sprint("side ", i), Limit: 1 << 12}, s)
		require.NoError(t, err)
		sides[i] = s
	}
	for i, s := range sides {
		address, err := s.d.Address()
		require.NoError(t, err)
		require.NoError(t, sides[1-i].d.Meet([]channel.Peer{{Rank: kolo.Rank(i), Address: address}}))
	}
	for i, s := range sides {
		s.connect(kolo.Rank(i), kolo.Rank(1-i))
	}
	return sides
}

// connect opens the side's endpoint and its channel.
func (s *side) connect(me, peer kolo.Rank) {
	var err error
	s.e, err = s.d.Open(me)
	require.NoError(s.t, err)
	conn, err := s.e.Connect(peer)
	require.NoError(s.t, err)
	s.to, err = channel.Spawn(s.shard, fmt.Sprint("to ", peer), peer, conn, nil)
	require.NoError(s.t, err)
	s.t.Cleanup(s.hangUp)
}

// hangUp closes what the side has. It may be called again.
func (s *side) hangUp() {
	s.run(func() {
		s.to.Close(errEnd)
		s.e.Close()
	})
}

// run runs f on the side's shard and waits for it.
func (s *side) run(f func()) {
	done := make(chan struct{})
	require.NoError(s.t, s.do.Tell(&call{func() { f(); close(done) }}))
	<-done
}

// post posts an op of some bytes.
func (s *side) post(kind channel.Kind, k channel.Key, mem ...[]byte) *channel.Op {
	op := &channel.Op{Kind: kind, Key: k, Sink: s, DType: kolo.Uint8}
	for _, m := range mem {
		op.Size += int64(len(m))
		op.Mem = append(op.Mem, kolo.HostMemory(m))
	}
	s.run(func() { s.to.Post(op) })
	return op
}

// wait waits for the next completion.
func (s *side) wait() *channel.Op {
	select {
	case op := <-s.ended:
		return op
	case <-time.After(30 * time.Second):
		require.Fail(s.t, "no completion in 30 s")
		return nil
	}
}

// BenchmarkMove measures large messages from one driver to another.
func BenchmarkMove(b *testing.B) {
	for _, c := range []struct {
		name string
		cfg  roce.Config
	}{{"", roce.Config{}}, {"/qps=4", roce.Config{QPs: 4}}, {"/mtu=1024", roce.Config{MTU: 1024}}} {
		for _, size := range []int{64 << 10, 1 << 20, 64 << 20} {
			b.Run(fmt.Sprintf("bytes=%d%s", size, c.name), func(b *testing.B) {
				sides := newPair(b, c.cfg)
				src, dst := make([]byte, size), make([]byte, size)
				move := func(i int) {
					k := channel.Key{Call: uint64(i)}
					sides[1].post(channel.Recv, k, dst)
					sides[0].post(channel.Send, k, src)
					require.NoError(b, sides[0].wait().Err)
					require.NoError(b, sides[1].wait().Err)
				}
				move(0)
				b.SetBytes(int64(size))
				b.ReportAllocs()
				b.ResetTimer()
				for i := range b.N {
					move(i + 1)
				}
			})
		}
	}
}

// BenchmarkTCP is what a plain TCP connection of the loopback does with the same
// messages, to compare with: one way for large ones, one hop of 8 bytes to and fro.
func BenchmarkTCP(b *testing.B) {
	for _, size := range []int{8, 64 << 10, 1 << 20, 64 << 20} {
		b.Run(fmt.Sprintf("bytes=%d", size), func(b *testing.B) {
			l, err := net.Listen("tcp", "[::1]:0")
			require.NoError(b, err)
			defer l.Close()
			out, err := net.Dial("tcp", l.Addr().String())
			require.NoError(b, err)
			defer out.Close()
			in, err := l.Accept()
			require.NoError(b, err)
			defer in.Close()
			answer := size
			if size > 8 {
				answer = 1
			}
			done := make(chan struct{})
			go func() { // ends when out is closed
				defer close(done)
				buf := make([]byte, size)
				for {
					if _, err := io.ReadFull(in, buf); err != nil {
						return
					}
					if _, err := in.Write(buf[:answer]); err != nil {
						return
					}
				}
			}()
			buf := make([]byte, size)
			b.SetBytes(int64(size))
			if size == 8 {
				b.SetBytes(16)
			}
			for b.Loop() {
				_, err := out.Write(buf)
				require.NoError(b, err)
				_, err = io.ReadFull(out, buf[:answer])
				require.NoError(b, err)
			}
			require.NoError(b, out.Close())
			<-done
		})
	}
}
