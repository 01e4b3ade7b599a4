package roce_test

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/actor"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/channel/hccs"
	"github.com/kolo-ccl/kolo/channel/roce"

	"github.com/stretchr/testify/require"
)

// childVariable tells the test binary that it is another process, and which rank.
const childVariable = "KOLO_ROCE_TEST_CHILD"

// processConfig is what both processes use.
var processConfig = roce.Config{Timeout: time.Second, Retries: 3, QPs: 2}

// lone is one rank of two, each in a process of its own.
func lone(t testing.TB, me kolo.Rank, r *bufio.Reader, w io.Writer) *side {
	sys := actor.NewSystem(actor.Config{})
	engine := hccs.NewEngine(1)
	t.Cleanup(engine.Close)
	t.Cleanup(func() { closeSystem(t, sys) })
	s := &side{t: t, ended: make(chan *channel.Op, 64)}
	var err error
	s.d, err = roce.New(channel.Config{Job: "two processes", Engine: engine}, processConfig)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.d.Close()) })
	s.shard = sys.NewShard("rank")
	s.do, err = actor.Spawn[*call](s.shard, actor.Props{Name: "side", Limit: 64}, s)
	require.NoError(t, err)
	address, err := s.d.Address()
	require.NoError(t, err)
	_, err = fmt.Fprintf(w, "address %x\n", address)
	require.NoError(t, err)
	for { // the test binary prints lines of its own, too
		line, err := r.ReadString('\n')
		require.NoError(t, err)
		if text, ok := strings.CutPrefix(line, "address "); ok {
			peer, err := hex.DecodeString(strings.TrimSpace(text))
			require.NoError(t, err)
			require.NoError(t, s.d.Meet([]channel.Peer{{Rank: 1 - me, Address: peer}}))
			break
		}
	}
	s.connect(me, 1-me)
	return s
}

// processSizes are the messages between the processes, each answered with other bytes.
var processSizes = []int{0, 1, 8, 8 << 10, 8<<10 + 1, 1<<20 + 3, 20 << 20}

// TestChild is another process: rank 1 answers, rank 0 asks.
func TestChild(t *testing.T) {
	switch os.Getenv(childVariable) {
	case "0":
		ask(t, lone(t, 0, bufio.NewReader(os.Stdin), os.Stdout))
	case "1":
		defer watchPackets(t)()
		s := lone(t, 1, bufio.NewReader(os.Stdin), os.Stdout)
		if size, err := strconv.Atoi(os.Getenv(tradeVariable)); err == nil {
			for x := newTrader(s, size); x.trade() == nil; {
			}
			return
		}
		answer(t, s)
		// never sent: until this process is killed, or the other has closed its link
		s.post(channel.Recv, channel.Key{Call: 1 << 20}, make([]byte, 4))
		require.ErrorIs(t, s.wait().Err, kolo.ErrLost)
	default:
		t.Skip("it is run by other tests, in a process of its own")
	}
}

func ask(t *testing.T, s *side) {
	for i, n := range processSizes {
		k := channel.Key{Call: uint64(i), Class: channel.Message}
		buf := make([]byte, n)
		s.post(channel.Send, k, pattern(n, uint64(i)))
		s.post(channel.Recv, k, buf)
		for range 2 {
			require.NoError(t, s.wait().Err)
		}
		require.True(t, bytes.Equal(pattern(n, uint64(100+i)), buf), "%d bytes", n)
	}
	require.Zero(t, s.d.Stats().BadCRC)
}

func answer(t *testing.T, s *side) {
	for i, n := range processSizes {
		k := channel.Key{Call: uint64(i), Class: channel.Message}
		buf := make([]byte, n)
		s.post(channel.Recv, k, buf)
		require.NoError(t, s.wait().Err)
		require.True(t, bytes.Equal(pattern(n, uint64(i)), buf), "%d bytes", n)
		s.post(channel.Send, k, pattern(n, uint64(100+i)))
		require.NoError(t, s.wait().Err)
	}
	require.Zero(t, s.d.Stats().BadCRC)
}

// child starts another process, with a prefix to its command.
func child(t testing.TB, rank int, prefix ...string) (*exec.Cmd, io.WriteCloser, *bufio.Reader) {
	list := append(prefix, os.Args[0], "-test.run=^TestChild$", "-test.v", "-test.timeout=60s")
	c := exec.CommandContext(t.Context(), list[0], list[1:]...)
	c.Env = append(os.Environ(), fmt.Sprint(childVariable, "=", rank))
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	require.NoError(t, err)
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	t.Cleanup(func() {
		_ = c.Process.Kill() // it may have ended
		_ = c.Wait()
	})
	return c, in, bufio.NewReader(out)
}

// Two processes exchange messages; then one of them is killed while it receives, and the
// other loses it within the deadline.
func TestTwoProcesses(t *testing.T) {
	c, in, out := child(t, 1)
	s := lone(t, 0, out, in)
	ask(t, s)
	recv := s.post(channel.Recv, channel.Key{Call: 1 << 21}, make([]byte, 4))
	require.NoError(t, c.Process.Kill())
	start := time.Now()
	send := s.post(channel.Send, channel.Key{Call: 1 << 22, Class: channel.Message}, make([]byte, 4))
	for range 2 {
		op := s.wait()
		require.ErrorIs(t, op.Err, kolo.ErrLost)
		require.Contains(t, []*channel.Op{recv, send}, op)
	}
	t.Logf("the killed process was lost after %v", time.Since(start))
}

// trader is one of two ranks that give each other a message, wait for both to be
// through, and begin again: what an AllReduce of two ranks does.
type trader struct {
	s    *side
	ops  [2]channel.Op
	left atomic.Int32 // completions to come
	done atomic.Uint32
	park chan struct{}
}

func newTrader(s *side, size int) *trader {
	x := &trader{s: s, park: make(chan struct{}, 1)}
	for kind := range x.ops {
		x.ops[kind] = channel.Op{Kind: channel.Kind(kind), Key: channel.Key{Group: 1}, Size: int64(size), Sink: x, Mem: []kolo.Memory{kolo.HostMemory(make([]byte, size))}}
	}
	return x
}

// Complete hears of the two completions of an exchange.
func (x *trader) Complete(*channel.Op) {
	if x.left.Add(-1) == 0 && x.done.Swap(1) == 2 {
		x.park <- struct{}{}
	}
}

// trade is one exchange.
func (x *trader) trade() error {
	x.left.Store(2)
	x.done.Store(0)
	if err := x.s.do.Tell(&call{func() {
		x.s.to.Post(&x.ops[channel.Recv])
		x.s.to.Post(&x.ops[channel.Send])
	}}); err != nil {
		return err
	}
	if p, ok := channel.Driver(x.s.d).(channel.Poller); ok && x.done.Load() == 0 {
		p.Poll(&x.done)
	}
	if x.done.CompareAndSwap(0, 2) {
		<-x.park
	}
	return errors.Join(x.ops[0].Err, x.ops[1].Err)
}

// BenchmarkTrade is two processes that exchange messages, both ways at a time.
func BenchmarkTrade(b *testing.B) {
	for _, size := range []int{8, 4 << 10, 64 << 10, 1 << 20, 16 << 20} {
		b.Run(fmt.Sprintf("bytes=%d", size), func(b *testing.B) {
			b.Setenv(tradeVariable, fmt.Sprint(size))
			_, in, out := child(b, 1)
			x := newTrader(lone(b, 0, out, in), size)
			for range 10 {
				require.NoError(b, x.trade())
			}
			b.SetBytes(2 * int64(size))
			b.ReportAllocs()
			for b.Loop() {
				require.NoError(b, x.trade())
			}
		})
	}
}

// tradeVariable is the size of the messages of a trader in another process.
const tradeVariable = "KOLO_ROCE_TEST_TRADE"
