//go:build linux && (amd64 || arm64)

package shm

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/actor"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/channel/hccs"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// childVariable makes of the test binary another process of the test: its value is
// the child's role.
const childVariable = "KOLO_SHM_TEST_ROLE"

func TestMain(m *testing.M) {
	if role := os.Getenv(childVariable); role != "" {
		if err := child(role, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// node is one rank in a process of its own, driven by plain calls.
type node struct {
	rank   kolo.Rank
	d      *Driver
	engine *hccs.Engine
	sys    *actor.System
	shard  *actor.Shard
	hand   actor.Ref[*errand]
	end    channel.Endpoint
	links  map[kolo.Rank]*channel.Channel
	over   bool
}

// errand is something to do on the node's shard.
type errand struct{ do func() }

type hand struct{}

func (hand) Handle(e *errand) error {
	e.do()
	return nil
}

func newNode(rank kolo.Rank, private bool) (*node, error) {
	n := &node{rank: rank, engine: hccs.NewEngine(2), sys: actor.NewSystem(actor.Config{}), links: map[kolo.Rank]*channel.Channel{}}
	d, err := New(channel.Config{Job: "test", Epoch: 7, Engine: n.engine})
	if err != nil {
		return nil, err
	}
	n.d = d.(*Driver)
	n.d.private = private
	n.shard = n.sys.NewShard("node")
	if n.hand, err = actor.Spawn[*errand](n.shard, actor.Props{Name: "hand", Limit: 1 << 20}, hand{}); err != nil {
		return nil, err
	}
	n.end, err = n.d.Open(rank)
	return n, err
}

// close ends the node. It may be called again.
func (n *node) close() error {
	if n.over {
		return nil
	}
	n.over = true
	closed := make(chan struct{})
	e := errand{do: func() {
		for _, c := range n.links {
			c.Close(errors.New("the test is over"))
		}
		n.end.Close()
		close(closed)
	}}
	if err := n.hand.Tell(&e); err != nil {
		return err
	}
	<-closed
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err := errors.Join(n.sys.Close(ctx), n.d.Close())
	n.engine.Close()
	return err
}

// want is an op and its completion.
type want struct {
	op    channel.Op
	done  atomic.Uint32
	come  chan struct{}
	begin errand
}

func (w *want) Complete(*channel.Op) {
	w.done.Store(1)
	w.come <- struct{}{}
}

// link is the channel to a peer.
func (n *node) link(peer kolo.Rank) *channel.Channel {
	if c := n.links[peer]; c != nil {
		return c
	}
	conn, err := n.end.Connect(peer)
	if err != nil {
		panic("shm: " + err.Error())
	}
	c, err := channel.Spawn(n.shard, peer.String(), peer, conn, nil)
	if err != nil {
		panic("shm: " + err.Error())
	}
	n.links[peer] = c
	return c
}

// op makes an op with a peer, to be started.
func (n *node) op(kind channel.Kind, peer kolo.Rank, call uint64, mem []byte) *want {
	w := &want{come: make(chan struct{}, 1)}
	w.op = channel.Op{Kind: kind, Key: channel.Key{Group: 1, Call: call}, Size: int64(len(mem)), DType: kolo.Uint8, Sink: w}
	if kind != channel.View {
		w.op.Mem = []kolo.Memory{kolo.HostMemory(mem)}
	}
	c := n.link(peer)
	w.begin.do = func() { c.Post(&w.op) }
	return w
}

// start posts the op, again if it was posted before.
func (n *node) start(w *want) *want {
	w.done.Store(0)
	if err := n.hand.Tell(&w.begin); err != nil {
		panic("shm: " + err.Error())
	}
	return w
}

func (n *node) send(peer kolo.Rank, call uint64, mem []byte) *want {
	return n.start(n.op(channel.Send, peer, call, mem))
}

func (n *node) recv(peer kolo.Rank, call uint64, mem []byte) *want {
	return n.start(n.op(channel.Recv, peer, call, mem))
}

// wait polls for the completion, then sleeps.
func (n *node) wait(w *want) error {
	n.d.Poll(&w.done)
	select {
	case <-w.come:
		return w.op.Err
	case <-time.After(time.Minute):
		return errors.New("not completed in a minute")
	}
}

// pattern fills b with bytes that differ per stream and index.
func pattern(b []byte, stream uint64) []byte {
	x := stream*0x9e3779b97f4a7c15 + 1
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x >> 32)
	}
	return b
}

// world is what a child is told: its rank and everybody's address.
type world struct {
	Rank    kolo.Rank
	Peers   []channel.Peer
	Private bool
}

var echoSizes = []int{0, 1, 8, 9, 64, 65, 4095, 4096, 16 << 10, 16<<10 + 1, 64 << 10, 128<<10 + 1, 1<<20 + 3, 5<<20 + 7}

// child is what another process of the test does: it prints its address, is told of
// the world, and plays its role with rank 0.
func child(role string, in io.Reader, out io.Writer) error {
	r := bufio.NewReader(in)
	line, err := r.ReadBytes('\n')
	if err != nil {
		return err
	}
	var w world
	if err := json.Unmarshal(line, &w); err != nil {
		return err
	}
	n, err := newNode(w.Rank, w.Private)
	if err != nil {
		return err
	}
	text, err := n.d.Address()
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(out, "%s\n", text); err != nil {
		return err
	}
	if line, err = r.ReadBytes('\n'); err != nil {
		return err
	}
	if err := json.Unmarshal(line, &w); err != nil {
		return err
	}
	if err := n.d.Meet(slices.DeleteFunc(w.Peers, func(p channel.Peer) bool { return p.Rank == w.Rank })); err != nil {
		return err
	}
	if err := n.play(role); err != nil {
		return err
	}
	fmt.Fprintln(out, "played")
	if _, err := r.ReadBytes('\n'); err != io.EOF { // until the parent has had enough
		return err
	}
	return n.close()
}

// play plays a role until it is over.
func (n *node) play(role string) error {
	role, _, _ = strings.Cut(role, " ")
	switch role {
	case "echo":
		for i, size := range echoSizes {
			b := make([]byte, size)
			if err := n.wait(n.recv(0, uint64(i), b)); err != nil {
				return err
			}
			if !bytes.Equal(b, pattern(make([]byte, size), uint64(i))) {
				return fmt.Errorf("other bytes in message %d", i)
			}
			if err := n.wait(n.send(0, uint64(i), pattern(b, uint64(i)+100))); err != nil {
				return err
			}
		}
		return nil
	case "victim": // it has begun and does not go on
		n.send(0, 1, make([]byte, 100))
		n.send(0, 2, make([]byte, 1<<20))
		n.recv(0, 3, make([]byte, 1<<20))
		return n.wait(n.send(0, 4, make([]byte, 1)))
	case "pong":
		return n.pong()
	}
	return fmt.Errorf("no role %q", role)
}

// family is this process, rank 0, and its children.
type family struct {
	*node
	kids []*kid
}

type kid struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Reader
	ended bool
}

// newFamily starts a process for each role.
func newFamily(t testing.TB, private bool, roles ...string) *family {
	t.Helper()
	n, err := newNode(0, private)
	require.NoError(t, err)
	f := &family{node: n}
	t.Cleanup(func() {
		for _, k := range f.kids {
			k.end(t)
		}
		require.NoError(t, n.close())
	})
	address, err := n.d.Address()
	require.NoError(t, err)
	w := world{Peers: []channel.Peer{{Rank: 0, Address: address}}, Private: private}
	for i, role := range roles {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childVariable+"="+role)
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		require.NoError(t, err)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		k := &kid{cmd: cmd, in: in, out: bufio.NewReader(out)}
		f.kids = append(f.kids, k)
		w.Rank = kolo.Rank(i + 1)
		k.tell(t, w)
		line := k.hear(t)
		w.Peers = append(w.Peers, channel.Peer{Rank: w.Rank, Address: []byte(line)})
	}
	for i, k := range f.kids {
		w.Rank = kolo.Rank(i + 1)
		k.tell(t, w)
	}
	require.NoError(t, n.d.Meet(w.Peers[1:]))
	return f
}

func (k *kid) tell(t testing.TB, w world) {
	t.Helper()
	text, err := json.Marshal(w)
	require.NoError(t, err)
	_, err = fmt.Fprintf(k.in, "%s\n", text)
	require.NoError(t, err)
}

func (k *kid) hear(t testing.TB) string {
	t.Helper()
	line, err := k.out.ReadString('\n')
	require.NoError(t, err)
	return strings.TrimSpace(line)
}

// end lets a child go home.
func (k *kid) end(t testing.TB) {
	if k.ended {
		return
	}
	k.ended = true
	_ = k.in.Close() // it may have ended
	if t.Failed() {
		_ = k.cmd.Process.Kill() // it may be waiting for what does not come
	}
	if err := k.cmd.Wait(); err != nil {
		t.Errorf("a child: %v", err)
	}
}

// kill ends a child as kill -9 does.
func (k *kid) kill(t testing.TB) {
	k.ended = true
	require.NoError(t, k.cmd.Process.Kill())
}

func TestEchoOfAnotherProcess(t *testing.T) {
	for _, private := range []bool{false, true} {
		t.Run(fmt.Sprintf("private=%v", private), func(t *testing.T) {
			f := newFamily(t, private, "echo", "echo")
			for i, size := range echoSizes {
				for peer := kolo.Rank(1); peer <= 2; peer++ {
					s := f.send(peer, uint64(i), pattern(make([]byte, size), uint64(i)))
					got := make([]byte, size)
					require.NoError(t, f.wait(f.recv(peer, uint64(i), got)), "message %d", i)
					require.NoError(t, f.wait(s))
					require.True(t, bytes.Equal(got, pattern(make([]byte, size), uint64(i)+100)), "echo of %d bytes", size)
				}
			}
			for _, k := range f.kids {
				require.Equal(t, "played", k.hear(t))
			}
		})
	}
}

// A process is killed while messages to and from it wait and move. The survivors hear of
// it; what had come whole is received.
func TestKilledProcess(t *testing.T) {
	f := newFamily(t, false, "victim", "echo")
	one := make([]byte, 1)
	require.NoError(t, f.wait(f.recv(1, 4, one)))
	small := make([]byte, 100)
	pending := []*want{f.recv(1, 9, make([]byte, 8)), f.recv(1, 10, make([]byte, 1<<20)), f.send(1, 11, make([]byte, 1<<20))}
	stopped := make(chan struct{})
	moving := make(chan error, 1)
	go func() { // large sends that nobody takes, and more in flight
		defer close(stopped)
		moving <- f.wait(f.send(1, 3, make([]byte, 1<<20)))
	}()
	require.NoError(t, <-moving)
	<-stopped
	f.kids[0].kill(t)
	for _, w := range pending {
		err := f.wait(w)
		require.ErrorIs(t, err, kolo.ErrLost)
		require.Contains(t, err.Error(), "ranks 1 ")
	}
	_ = f.kids[0].cmd.Wait() // killed
	require.NoError(t, f.wait(f.recv(1, 1, small)), "a message that had come whole")
	require.ErrorIs(t, f.wait(f.recv(1, 2, make([]byte, 1<<20))), kolo.ErrLost, "an offer of a process that is dead")
	require.ErrorIs(t, f.wait(f.send(1, 12, one)), kolo.ErrLost)
	for i, size := range echoSizes { // the other one goes on
		s := f.send(2, uint64(i), pattern(make([]byte, size), uint64(i)))
		require.NoError(t, f.wait(f.recv(2, uint64(i), make([]byte, size))))
		require.NoError(t, f.wait(s))
	}
}
