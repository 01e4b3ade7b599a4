package tcp

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/actor"
	"github.com/kolo-ccl/kolo/channel"

	"github.com/stretchr/testify/require"
)

// trader is one of two ranks that give each other a message, wait for both to be
// through, and begin again: what an AllReduce of two ranks does.
type trader struct {
	p     *party
	peer  kolo.Rank
	ops   [2]channel.Op
	on    actor.Ref[*trader]
	left  atomic.Int32  // completions to come
	done  atomic.Uint32 // 1: they have come; 2: a goroutine is parked
	park  chan struct{}
	polls bool
}

func newTrader(p *party, peer kolo.Rank, size int, polls bool) *trader {
	x := &trader{p: p, peer: peer, park: make(chan struct{}, 1), polls: polls}
	for kind := range x.ops {
		x.ops[kind] = channel.Op{Kind: channel.Kind(kind), Key: channel.Key{Group: 1}, Size: int64(size), Sink: x, Mem: []kolo.Memory{kolo.HostMemory(make([]byte, size))}}
	}
	p.do(func() { p.link(peer) })
	on, err := actor.Spawn[*trader](p.shard, actor.Props{Name: "trader"}, x)
	require.NoError(p.t, err)
	x.on = on
	return x
}

func (x *trader) Handle(*trader) error {
	x.p.chans[x.peer].Post(&x.ops[channel.Recv])
	x.p.chans[x.peer].Post(&x.ops[channel.Send])
	return nil
}

func (x *trader) Complete(op *channel.Op) {
	if x.left.Add(-1) == 0 && x.done.Swap(1) == 2 {
		x.park <- struct{}{}
	}
}

// trade is one exchange.
func (x *trader) trade() error {
	x.left.Store(2)
	x.done.Store(0)
	if err := x.on.Tell(x); err != nil {
		return err
	}
	if x.polls && x.done.Load() == 0 {
		x.p.d.Poll(&x.done)
	}
	if x.done.CompareAndSwap(0, 2) {
		<-x.park
	}
	if x.ops[0].Err != nil {
		return x.ops[0].Err
	}
	return x.ops[1].Err
}

// traderChild is the other process of a benchmark: rank 1.
func traderChild(size int, polls bool, stripes int) {
	p := newParty(&crash{}, 1, Config{Stripes: stripes}, channel.Config{Job: "bench"})
	mine, _ := p.d.Address()
	fmt.Println(hex.EncodeToString(mine))
	line, err := bufio.NewReader(os.Stdin).ReadString('\n')
	require.NoError(p.t, err)
	theirs, err := hex.DecodeString(strings.TrimSpace(line))
	require.NoError(p.t, err)
	require.NoError(p.t, p.d.Meet([]channel.Peer{{Rank: 0, Address: theirs}, {Rank: 1, Address: mine}}))
	x := newTrader(p, 0, size, polls)
	for x.trade() == nil {
	}
}

// plainChild is the other process of a benchmark over one socket and nothing else: it
// sends what it gets, both ways at a time.
func plainChild(size int) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(&crash{}, err)
	fmt.Println(l.Addr())
	c, err := l.Accept()
	require.NoError(&crash{}, err)
	for plainTrade(c, make([]byte, size), make([]byte, size)) == nil {
	}
}

// plainTrade gives out and takes in at the same time.
func plainTrade(c net.Conn, out, in []byte) error {
	sent := make(chan error, 1)
	// ends with the write
	go func() {
		_, err := c.Write(out)
		sent <- err
	}()
	_, err := io.ReadFull(c, in)
	if e := <-sent; err == nil {
		err = e
	}
	return err
}

// startChild runs this program again, which becomes what child says, and returns its
// first line and its input.
func startChild(b *testing.B, child string) (line string, in io.Writer) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+child)
	cmd.Stderr = os.Stderr
	pipe, err := cmd.StdinPipe()
	require.NoError(b, err)
	out, err := cmd.StdoutPipe()
	require.NoError(b, err)
	require.NoError(b, cmd.Start())
	b.Cleanup(func() {
		require.NoError(b, cmd.Process.Kill())
		_ = cmd.Wait() // it was killed
	})
	line, err = bufio.NewReader(out).ReadString('\n')
	require.NoError(b, err)
	return strings.TrimSpace(line), pipe
}

// BenchmarkTrade is two processes that exchange messages: by the driver with the waiting
// ranks polling and not, and by a plain socket.
func BenchmarkTrade(b *testing.B) {
	for _, size := range []int{8, 4 << 10, 64 << 10, 1 << 20, 16 << 20} {
		for _, polls := range []bool{true, false} {
			for _, stripes := range []int{1, 2} {
				if stripes > 1 && size <= DefaultEager {
					continue
				}
				b.Run(fmt.Sprintf("bytes=%d/polls=%v/stripes=%d", size, polls, stripes), func(b *testing.B) { benchmarkTrade(b, size, polls, stripes) })
			}
		}
		b.Run(fmt.Sprintf("bytes=%d/plain", size), func(b *testing.B) {
			at, _ := startChild(b, fmt.Sprintf("plain %d", size))
			c, err := net.Dial("tcp", at)
			require.NoError(b, err)
			defer c.Close()
			out, in := make([]byte, size), make([]byte, size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				require.NoError(b, plainTrade(c, out, in))
			}
		})
	}
}

func benchmarkTrade(b *testing.B, size int, polls bool, stripes int) {
	p := newParty(b, 0, Config{Stripes: stripes}, channel.Config{Job: "bench"})
	line, in := startChild(b, fmt.Sprintf("trade %d %v %d", size, polls, stripes))
	theirs, err := hex.DecodeString(line)
	require.NoError(b, err)
	mine, err := p.d.Address()
	require.NoError(b, err)
	require.NoError(b, p.d.Meet([]channel.Peer{{Rank: 0, Address: mine}, {Rank: 1, Address: theirs}}))
	_, err = fmt.Fprintln(in, hex.EncodeToString(mine))
	require.NoError(b, err)
	x := newTrader(p, 1, size, polls)
	require.NoError(b, x.trade())
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for b.Loop() {
		require.NoError(b, x.trade())
	}
}
