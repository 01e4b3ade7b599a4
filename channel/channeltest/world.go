package channeltest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/actor"
	"github.com/kolo-ccl/kolo/channel"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// errEnd is the cause with which a world closes its channels.
var errEnd = errors.New("the check is over")

// world is some ranks that are joined by the driver under test.
type world struct {
	t   testing.TB
	kit Kit
	sys *actor.System
	// drivers are one for all ranks, or if they are Remote one for each
	drivers []channel.Driver
	ranks   []*rank
	posted  atomic.Int64
	ended   atomic.Int64
	closed  bool
	kick    chan struct{} // a completion has come
}

// jobs numbers the worlds, whose drivers must never meet.
var jobs atomic.Int64

// newWorld makes n ranks. At the end of the test it closes them and asks what must
// hold for every driver.
func newWorld(t testing.TB, k Kit, n int) *world {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
	e := &engine{}
	t.Cleanup(e.Close)
	w := &world{t: t, kit: k, kick: make(chan struct{}, 1)}
	w.openDrivers(n, channel.Config{Job: fmt.Sprintf("channeltest-%d", jobs.Add(1)), Engine: e})
	w.sys = actor.NewSystem(actor.Config{})
	t.Cleanup(w.close)
	for i := range n {
		r := &rank{w: w, id: kolo.Rank(i), shard: w.sys.NewShard(kolo.Rank(i).String()), links: map[kolo.Rank]*channel.Channel{}}
		var err error
		r.endpoint, err = w.drivers[i%len(w.drivers)].Open(r.id)
		require.NoError(t, err)
		r.ref, err = actor.Spawn[*task](r.shard, actor.Props{Name: r.id.String(), Limit: 1 << 20}, r)
		require.NoError(t, err)
		w.ranks = append(w.ranks, r)
	}
	return w
}

// close ends the world as package rank does: the channels, the endpoints, the
// actors, the driver. A check of several worlds closes each before it makes the next:
// then what a driver still begins belongs to nobody else. It may be called again.
func (w *world) close() {
	if w.closed {
		return
	}
	w.closed = true
	for _, r := range w.ranks {
		r.do(func() {
			for _, c := range r.links {
				c.Close(errEnd)
			}
			r.endpoint.Close()
		})
	}
	w.settle()
	ctx, cancel := context.WithTimeout(context.Background(), w.kit.Patience)
	defer cancel()
	if err := w.sys.Close(ctx); err != nil {
		w.t.Errorf("close the actors: %v", err)
	}
	for _, d := range w.drivers {
		if err := d.Close(); err != nil {
			w.t.Errorf("close the driver: %v", err)
		}
	}
}

// openDrivers opens the driver of n ranks, or one for each of them that is told of the
// others.
func (w *world) openDrivers(n int, c channel.Config) {
	w.drivers = append(w.drivers, w.kit.Open(w.t, c))
	if _, ok := w.drivers[0].(channel.Remote); !ok {
		return
	}
	var peers []channel.Peer
	for i := range n {
		if i > 0 {
			w.drivers = append(w.drivers, w.kit.Open(w.t, c))
		}
		address, err := w.drivers[i].(channel.Remote).Address()
		require.NoError(w.t, err)
		require.LessOrEqual(w.t, len(address), maxAddress)
		peers = append(peers, channel.Peer{Rank: kolo.Rank(i), Address: address})
	}
	for i, d := range w.drivers {
		others := slices.Delete(slices.Clone(peers), i, i+1)
		require.NoError(w.t, d.(channel.Remote).Meet(others))
	}
}

// maxAddress is the most bytes of what Remote.Address gives.
const maxAddress = 4 << 10

// settle waits until each op that was posted has completed.
func (w *world) settle() {
	late := time.NewTimer(w.kit.Patience)
	defer late.Stop()
	for w.ended.Load() != w.posted.Load() {
		select {
		case <-w.kick:
		case <-late.C:
			w.t.Errorf("%d ops were posted and %d have completed (seed %d)", w.posted.Load(), w.ended.Load(), w.kit.Seed)
			return
		}
	}
}

// rank is one rank: an actor that runs tasks, and its channels on the same shard.
type rank struct {
	w        *world
	id       kolo.Rank
	shard    *actor.Shard
	ref      actor.Ref[*task]
	endpoint channel.Endpoint
	links    map[kolo.Rank]*channel.Channel
	inTask   bool
	busy     atomic.Bool // a task or a completion runs
}

// task is what a rank is told to do on its shard.
type task struct {
	f    func()
	done chan struct{}
}

// Handle runs a task.
func (r *rank) Handle(m *task) error {
	r.enter()
	r.inTask = true
	m.f()
	r.inTask = false
	r.busy.Store(false)
	if m.done != nil {
		close(m.done)
	}
	return nil
}

// enter notes that the shard runs code of the rank, which nothing else may do now.
func (r *rank) enter() {
	if !r.busy.CompareAndSwap(false, true) {
		r.w.t.Errorf("%v: two completions or tasks at a time: a completion did not come on the shard of its rank", r.id)
	}
}

// do runs f on the rank's shard and waits for it.
func (r *rank) do(f func()) {
	m := &task{f: f, done: make(chan struct{})}
	if err := r.ref.Tell(m); err != nil {
		r.w.t.Errorf("%v: %v", r.id, err)
		return
	}
	select {
	case <-m.done:
	case <-time.After(r.w.kit.Patience):
		r.w.t.Errorf("%v is stuck in its driver", r.id)
	}
}

// tell runs f on the rank's shard, soon.
func (r *rank) tell(f func()) {
	if err := r.ref.Tell(&task{f: f}); err != nil {
		r.w.t.Errorf("%v: %v", r.id, err)
	}
}

// link is the channel to a peer, made at its first use. It is called on the shard.
func (r *rank) link(peer kolo.Rank) *channel.Channel {
	if c := r.links[peer]; c != nil {
		return c
	}
	conn, err := r.endpoint.Connect(peer)
	if err != nil {
		r.w.t.Errorf("%v: connect to %v: %v", r.id, peer, err)
		return nil
	}
	c, err := channel.Spawn(r.shard, fmt.Sprintf("%v to %v", r.id, peer), peer, conn, func(err error) {
		if err != nil {
			r.w.t.Errorf("%v: the channel to %v ended: %v", r.id, peer, err)
		}
	})
	if err != nil {
		r.w.t.Errorf("%v: %v", r.id, err)
		return nil
	}
	r.links[peer] = c
	return c
}

// carried is what rank a's end of the link to b has carried.
func (w *world) carried(a, b kolo.Rank) (n int64) {
	w.ranks[a].do(func() { n = w.ranks[a].link(b).Carried() })
	return n
}

// abort aborts a group on the link to a peer.
func (r *rank) abort(peer kolo.Rank, group uint64, cause error) {
	r.do(func() { r.link(peer).Abort(group, cause) })
}

// hangUp closes the link to a peer.
func (r *rank) hangUp(peer kolo.Rank, cause error) {
	r.do(func() { r.link(peer).Close(cause) })
}
