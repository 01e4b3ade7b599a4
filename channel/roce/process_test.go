package roce_test

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/actor"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/channel/hccs"
	"github.com/kolo-ccl/kolo/channel/roce"

	"github.com/stretchr/testify/require"
)

// childVariable tells the test binary that it is the other process.
const childVariable = "KOLO_ROCE_TEST_CHILD"

// processConfig is what both processes use.
var processConfig = roce.Config{Timeout: 30 * time.Millisecond, Retries: 3, QPs: 2}

// lone is one rank of two, each in a process of its own.
func lone(t *testing.T, me kolo.Rank, r *bufio.Reader, w io.Writer) *side {
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

// TestChild is the other process.
func TestChild(t *testing.T) {
	if os.Getenv(childVariable) == "" {
		t.Skip("it is run by TestTwoProcesses, in a process of its own")
	}
	s := lone(t, 1, bufio.NewReader(os.Stdin), os.Stdout)
	for i, n := range processSizes {
		k := channel.Key{Call: uint64(i), Class: channel.Message}
		buf := make([]byte, n)
		s.post(channel.Recv, k, buf)
		require.NoError(t, s.wait().Err)
		require.Equal(t, pattern(n, uint64(i)), buf)
		s.post(channel.Send, k, pattern(n, uint64(100+i)))
		require.NoError(t, s.wait().Err)
	}
	s.post(channel.Recv, channel.Key{Call: 1 << 20}, make([]byte, 4)) // never sent: until this process is killed
	s.wait()
}

// Two processes exchange messages; then one of them is killed while it receives, and the
// other loses it within the deadline.
func TestTwoProcesses(t *testing.T) {
	c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestChild$", "-test.timeout=60s")
	c.Env = append(os.Environ(), childVariable+"=1")
	in, err := c.StdinPipe()
	require.NoError(t, err)
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	c.Stderr = os.Stderr
	require.NoError(t, c.Start())
	defer func() { _ = c.Wait() }() // it was killed
	defer func() { _ = c.Process.Kill() }()
	s := lone(t, 0, bufio.NewReader(out), in)
	for i, n := range processSizes {
		k := channel.Key{Call: uint64(i), Class: channel.Message}
		buf := make([]byte, n)
		s.post(channel.Send, k, pattern(n, uint64(i)))
		s.post(channel.Recv, k, buf)
		for range 2 {
			require.NoError(t, s.wait().Err)
		}
		require.Equal(t, pattern(n, uint64(100+i)), buf)
	}
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
