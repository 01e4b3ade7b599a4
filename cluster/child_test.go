package cluster

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/npu/sim"
	"github.com/kolo-ccl/kolo/rank"
	"github.com/kolo-ccl/kolo/rank/ranktest"

	"github.com/stretchr/testify/require"
)

// The children are this test binary again, each a process of a world. What one is to do
// is in KOLO_TEST_CHILD; it tells what it sees on its standard output, a line each.

// patience is how long a test waits for what must come: it ends a hang, and is no measure
// of how fast anything is.
const patience = 2 * time.Minute

// child runs what a test wants of a process of its own, and returns the exit code.
func child(what string) int {
	ctx := context.Background()
	c := rank.Config{Timeout: patience}
	var device npu.Device
	if os.Getenv("KOLO_TEST_DEVICES") != "" {
		cards, err := sim.New(sim.Config{Devices: 1, Fast: true})
		if err == nil {
			device, err = cards.Open(0)
		}
		if err != nil {
			fmt.Println("DEVICE", err)
			return 1
		}
		c.Engine = func(host channel.Engine) channel.Engine { return cards.Engine(host) }
	}
	if os.Getenv("KOLO_TEST_DIES") != "" && os.Getenv("KOLO_RANKS") == "1" { // with its first message
		c.Wrap = func(d channel.Driver) (channel.Driver, error) { return dying{d}, nil }
	}
	timeout := patience
	if n, err := strconv.Atoi(os.Getenv("KOLO_TEST_SECONDS")); err == nil {
		timeout = time.Duration(n) * time.Second
	}
	p, err := Open(ctx, Config{Timeout: timeout, Transport: os.Getenv("KOLO_TEST_TRANSPORT"), Rank: c})
	if err != nil {
		fmt.Println("JOIN", strings.ReplaceAll(err.Error(), "\n", "|"))
		return 1
	}
	w := p.Worlds()[0]
	fmt.Println("JOINED")
	fmt.Println("LISTENS", p.Members()[p.self].Port)
	switch what {
	case "join":
		err = joinAndMeet(ctx, p.Worlds())
	case "collectives":
		err = everyCollective(ctx, p.Worlds())
	case "window":
		err = windowRank(ctx, w, device)
	case "loop":
		err = loopUntilLost(ctx, w)
	case "health":
		err = watchOneCall(ctx, w)
	case "tune":
		err = tuneAndUse(ctx, p)
	case "table":
		err = tellTable(ctx, p)
	}
	if err != nil {
		fmt.Println("FAILED", err)
		return 1
	}
	for _, w := range p.Worlds() {
		if err := w.Close(ctx); err != nil {
			fmt.Println("CLOSE", err)
			return 1
		}
	}
	fmt.Println("DONE")
	return 0
}

// dying is a driver with which a process ends when it first uses it.
type dying struct{ channel.Driver }

func (d dying) Open(kolo.Rank) (channel.Endpoint, error) { return dyingEnd{}, nil }

type dyingEnd struct{}

func (dyingEnd) Close()                                  {}
func (dyingEnd) Connect(kolo.Rank) (channel.Conn, error) { os.Exit(3); return nil, nil }

// tellTable tells what the join has measured, and which algorithm it leads to.
func tellTable(ctx context.Context, p *Process) error {
	fmt.Printf("TABLE %016x %v\n", p.Topology().Digest(), p.Topology())
	fmt.Printf("WARNINGS %q\n", p.Warnings())
	ch, err := p.Worlds()[0].Group().Explain(kolo.Call{Collective: kolo.AllReduce, DType: kolo.Float32, Op: kolo.Sum, Count: 8 << 10})
	if err != nil {
		return err
	}
	fmt.Println("CHOICE", ch.Algorithm)
	return joinAndMeet(ctx, p.Worlds())
}

// joinAndMeet makes one call with all ranks.
func joinAndMeet(ctx context.Context, worlds []*rank.World) error {
	var works []rank.Work
	for _, w := range worlds {
		works = append(works, rank.BarrierAsync(w.Group()))
	}
	for _, w := range works {
		if err := w.Wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// loopUntilLost makes large AllReduces, or other calls, until one fails, and goes on with who is left.
func loopUntilLost(ctx context.Context, w *rank.World) error {
	count := 16 << 20
	if n, err := strconv.Atoi(os.Getenv("KOLO_TEST_COUNT")); err == nil {
		count = n
	}
	buf := make([]float32, count)
	for i := 0; ; i++ {
		var err error
		switch os.Getenv("KOLO_TEST_CALL") {
		case "AllGather": // whose vectors shm reads where they are
			err = rank.AllGather(ctx, w.Group(), buf, buf[int(w.Rank())*count/w.Size():][:count/w.Size()])
		case "Broadcast":
			err = rank.Broadcast(ctx, w.Group(), buf, kolo.Rank(i%w.Size()))
		default:
			err = rank.AllReduce(ctx, w.Group(), buf, kolo.Sum)
		}
		if err == nil && os.Getenv("KOLO_TEST_MESH") != "" { // by the links of all pairs
			err = rank.AllToAll(ctx, w.Group(), make([]float32, w.Size()), make([]float32, w.Size()))
		}
		if err != nil {
			fmt.Println("LOST", time.Now().UnixNano(), strings.ReplaceAll(err.Error(), "\n", " "))
			break
		}
		if i == 1 {
			fmt.Println("LOOPING")
		}
	}
	return goOn(ctx, w)
}

// watchOneCall makes an AllReduce and tells how it looks: that bytes of a step move, that
// nothing does, and that it was lost.
func watchOneCall(ctx context.Context, w *rank.World) error {
	work := rank.AllReduceAsync(w.Group(), make([]float32, 16<<20), kolo.Sum)
	var before []rank.Progress
	moved, stuck := false, false
	for tick := time.Tick(300 * time.Millisecond); ; {
		select {
		case <-work.Done():
			fmt.Println("LOST", time.Now().UnixNano(), work.Wait(ctx))
			return nil
		case <-tick:
		}
		now, err := w.Progress(ctx)
		if err != nil {
			return err
		}
		list := rank.Stuck(before, now)
		switch {
		case len(before) != 1 || len(now) != 1:
		case len(list) > 0 && moved && !stuck:
			fmt.Println("STUCK", time.Now().UnixNano(), list[0])
			stuck = true
		case len(list) == 0 && !moved && now[0].StepsDone == before[0].StepsDone:
			fmt.Println("MOVES", now[0])
			moved = true
		}
		before = now
	}
}

// everyCollective makes each collective, and AllReduces of some sizes, and looks at the answers.
func everyCollective(ctx context.Context, worlds []*rank.World) error {
	largest := 300000
	if n, err := strconv.Atoi(os.Getenv("KOLO_TEST_COUNT")); err == nil {
		largest = n
	}
	return errors.Join(each(worlds, func(w *rank.World) error {
		me, n := w.Rank(), w.Group().Size()
		for _, k := range kolo.Collectives() {
			q := request(k, me, n)
			want := ranktest.Want(n, me, func(r kolo.Rank) rank.Request { return request(k, r, n) })
			if err := rank.Do(ctx, w.Group(), q); err != nil {
				return err
			}
			if !bytes.Equal(want, q.Out.Memory.Host) {
				return fmt.Errorf("%v: wrong answer on rank %d", k, int(me))
			}
		}
		for _, count := range []int{1, 1000, largest} {
			if err := allReduce(ctx, w.Group(), allRanks(n), count); err != nil {
				return err
			}
		}
		return nil
	})...)
}

// goOn makes a group of those who are left.
func goOn(ctx context.Context, w *rank.World) error {
	g, err := w.Shrink(ctx)
	if err != nil {
		return err
	}
	var ranks []kolo.Rank
	for r := range g.Size() {
		ranks = append(ranks, g.WorldRank(kolo.Rank(r)))
	}
	if err := allReduce(ctx, g, ranks, 100000); err != nil {
		return err
	}
	fmt.Println("SHRUNK", kolo.RankList(ranks))
	return nil
}

// offspring is a child that runs.
type offspring struct {
	cmd   *exec.Cmd
	mu    sync.Mutex
	lines []string
	more  chan struct{}
	ended chan struct{}
}

// spawn starts n children that join one world, of a rank each.
func spawn(t *testing.T, what string, n int, env ...string) []*offspring {
	return spawnRanks(t, what, n, n, env...)
}

// spawnRanks starts children that share the ranks of one world.
func spawnRanks(t *testing.T, what string, n, ranks int, env ...string) []*offspring {
	at := standing(t)
	exe, err := os.Executable()
	require.NoError(t, err)
	var list []*offspring
	for i := range n {
		var mine []string
		for r := i * ranks / n; r < (i+1)*ranks/n; r++ {
			mine = append(mine, strconv.Itoa(r))
		}
		list = append(list, spawnOne(t, exec.Command(exe), append([]string{"KOLO_TEST_CHILD=" + what, "KOLO_RANKS=" + strings.Join(mine, ","),
			fmt.Sprintf("WORLD_SIZE=%d", ranks), "KOLO_RENDEZVOUS=" + at}, env...)))
	}
	return list
}

// spawnOne starts a child.
func spawnOne(t *testing.T, c *exec.Cmd, env []string) *offspring {
	o := &offspring{cmd: c, more: make(chan struct{}, 1), ended: make(chan struct{})}
	o.cmd.Env = env
	o.cmd.Stderr = os.Stderr
	out, err := o.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, o.cmd.Start())
	go func() { // ends with the child
		defer close(o.ended)
		for s := bufio.NewScanner(out); s.Scan(); {
			o.mu.Lock()
			o.lines = append(o.lines, s.Text())
			o.mu.Unlock()
			select {
			case o.more <- struct{}{}:
			default:
			}
		}
		_ = o.cmd.Wait() // how it ended is in its lines
	}()
	t.Cleanup(func() {
		_ = o.cmd.Process.Kill() // it may have ended
		<-o.ended
	})
	return o
}

// wait returns the rest of the child's line that begins with a word.
func (o *offspring) wait(t *testing.T, word string, patience time.Duration) string {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for ended := false; ; {
		o.mu.Lock()
		lines := append([]string(nil), o.lines...)
		o.mu.Unlock()
		for _, l := range lines {
			if rest, ok := strings.CutPrefix(l, word); ok {
				return strings.TrimSpace(rest)
			}
		}
		if ended {
			t.Fatalf("child %d has ended without %q: %q", o.cmd.Process.Pid, word, lines)
		}
		select {
		case <-o.more:
		case <-o.ended:
			ended = true
		case <-timer.C:
			t.Fatalf("child %d has not said %q in %v: %q", o.cmd.Process.Pid, word, patience, lines)
		}
	}
}
