package nputest

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/actor"
	"github.com/kolo-ccl/kolo/npu"

	"github.com/stretchr/testify/require"
)

// checkTimes asks for the times that simulated devices declare: with everything
// accepted before a gate opens, they are exact on any clock.
func checkTimes(r *rig) {
	if !r.d.Info().Simulated {
		r.Skip("hardware has the time it has")
	}
	s := r.stream(r.d)
	from, to := r.event(r.d), r.event(r.d)
	const n = 1 << 20
	measure := func(what string, times int, e kolo.Edge, do func() error) {
		r.Helper()
		gate := r.gate(s)
		r.ok(s.Record(from))
		for range times {
			r.ok(do())
		}
		r.ok(s.Record(to))
		r.ok(gate.Set())
		r.sync(s)
		got, err := to.Since(from)
		r.ok(err)
		one := e.Latency + time.Duration(math.Ceil(n/e.Bandwidth*1e9))
		if d := got - time.Duration(times)*one; d < -time.Duration(times) || d > time.Duration(times) { // the arithmetic here is less exact
			r.Errorf("%s: %d times %d bytes took %v, want %v each", what, times, n, got, one)
		}
	}
	host := kolo.HostMemory(make([]byte, n))
	a, b := r.alloc(r.d, n), r.alloc(r.d, n)
	e, ok := r.d.Edge(kolo.HostSpace)
	require.True(r, ok)
	measure("to the device", 1, e, func() error { return s.Copy(a, host) })
	measure("to the device", 3, e, func() error { return s.Copy(a, host) })
	measure("to the host", 1, e, func() error { return s.Copy(host, a) })
	e, ok = r.d.Edge(r.d.Info().Space)
	require.True(r, ok)
	require.Equal(r, kolo.LinkSelf, e.Link)
	measure("within the device", 2, e, func() error { return s.Copy(b, a) })
	for i := 1; i < r.driver.Devices(); i++ {
		peer := r.open(i)
		if e, ok := r.d.Edge(peer.Info().Space); ok {
			m := r.alloc(peer, n)
			measure(fmt.Sprint("to device ", i), 2, e, func() error { return s.Copy(m, a) })
			measure(fmt.Sprint("from device ", i), 2, e, func() error { return s.Copy(a, m) })
		}
	}
}

// system is a set of actors for one check.
func (r *rig) system() *actor.System {
	sys := actor.NewSystem(actor.Config{})
	r.Cleanup(func() {
		if err := sys.Close(r.ctx); err != nil {
			r.Errorf("close the actors: %v", err)
		}
	})
	return sys
}

func checkActor(r *rig) {
	sys := r.system()
	shard, exit := sys.NewShard("device"), make(chan error, 1)
	a, err := npu.Spawn(shard, r.d, func(err error) { exit <- err })
	r.ok(err)
	m, err := a.Alloc(r.ctx, 1000)
	r.ok(err)
	s, err := a.Stream(r.ctx, npu.StreamConfig{Name: "main"})
	r.ok(err)
	event, notify, health := &npu.OpenEvent{Name: "e"}, &npu.OpenNotify{Name: "n"}, &npu.CheckHealth{}
	r.ok(a.Ask(r.ctx, event))
	r.ok(a.Ask(r.ctx, notify))
	r.ok(a.Ask(r.ctx, health))
	require.Equal(r, 1, health.Health.Buffers)
	require.Equal(r, 1, health.Health.Streams)
	r.write(m, s, pattern(1000, 1))
	r.ok(s.Await(notify.Notify))
	r.is(a.Ask(r.ctx, &npu.CloseHandle{Handle: s}), npu.ErrBusy)
	r.ok(s.Copy(m, kolo.HostMemory(pattern(1000, 2))))
	r.is(a.Free(r.ctx, m), npu.ErrBusy)
	r.ok(notify.Notify.Set())
	r.sync(s)
	r.ok(a.Free(r.ctx, m))
	r.is(a.Free(r.ctx, m), npu.ErrFreed)
	for _, h := range []npu.Handle{s, event.Event, notify.Notify} {
		r.ok(a.Ask(r.ctx, &npu.CloseHandle{Handle: h}))
	}
	left, err := a.Close(r.ctx)
	r.ok(err)
	require.Zero(r, left)
	r.ok(receive(r, exit))
	_, err = a.Alloc(r.ctx, 8)
	r.is(err, kolo.ErrClosed)
	_, err = a.Close(r.ctx)
	r.ok(err)
}

func checkActorForgets(r *rig) {
	sys := r.system()
	a, err := npu.Spawn(sys.NewShard("device"), r.d, nil)
	r.ok(err)
	_, err = a.Alloc(r.ctx, 1000)
	r.ok(err)
	s, err := a.Stream(r.ctx, npu.StreamConfig{})
	r.ok(err)
	n := &npu.OpenNotify{}
	r.ok(a.Ask(r.ctx, n))
	ends := make(chan error, 1)
	r.ok(s.Await(n.Notify))
	r.callback(s, func(err error) { ends <- err })
	left, err := a.Close(r.ctx)
	r.ok(err)
	require.Equal(r, npu.Left{Buffers: 1, Bytes: 1000, Handles: 2}, left)
	r.is(receive(r, ends), kolo.ErrClosed)
	r.open(0) // all was given back
}

// checkGoroutines has streams used by a goroutine each, and handles by all.
func checkGoroutines(r *rig) {
	const users, rounds = 4, 30
	var wg sync.WaitGroup
	for i := range users {
		s, e := r.stream(r.d), r.event(r.d)
		wg.Go(func() { // ends when its rounds are over
			for k := range rounds {
				m, err := r.d.Alloc(int64(100 + k))
				if err != nil {
					r.Errorf("alloc: %v", err)
					return
				}
				want, got := pattern(100+k, i*rounds+k), make([]byte, 100+k)
				err = errors.Join(s.Copy(m, kolo.HostMemory(want)), s.Record(e), s.Copy(kolo.HostMemory(got), m),
					e.Sync(r.ctx), s.Sync(r.ctx), r.d.Free(m), r.d.Health().Err)
				if err != nil || string(got) != string(want) {
					r.Errorf("user %d, round %d: wrong bytes or %v", i, k, err)
				}
			}
		})
	}
	wg.Wait()
	require.Zero(r, r.d.Health().Buffers)
}

// checkRandom runs random programs of copies and reductions over some streams, tied
// by events where they touch the same memory, and compares with one after the other.
func checkRandom(r *rig) {
	rng := r.kit.rng(1)
	for i := range 10 {
		randomProgram(r, rng)
		if r.Failed() {
			r.Fatalf("seed %d, program %d", r.kit.Seed, i)
		}
	}
}

// cell is a buffer of a random program, with what holds for whoever comes next.
type cell struct {
	device kolo.Memory
	want   []byte
	last   npu.Event // behind the last task that used it
}

func randomProgram(r *rig, rng *rand.Rand) {
	const size = 64
	streams, cells := make([]npu.Stream, 3), make([]*cell, 5)
	for i := range streams {
		streams[i] = r.stream(r.d)
	}
	for i := range cells {
		c := &cell{device: r.alloc(r.d, size), want: pattern(size, rng.IntN(1000)), last: r.event(r.d)}
		r.write(c.device, streams[0], c.want)
		cells[i] = c
	}
	var gates []npu.Notify
	for range 60 {
		s := streams[rng.IntN(len(streams))]
		at := rng.Perm(len(cells))
		dst, src := cells[at[0]], cells[at[1]]
		r.ok(s.Wait(dst.last))
		r.ok(s.Wait(src.last))
		switch rng.IntN(5) {
		case 0:
			bytes := pattern(size, rng.IntN(1000))
			r.ok(s.Copy(dst.device, kolo.HostMemory(bytes)))
			copy(dst.want, bytes)
		case 1:
			gates = append(gates, r.gate(s))
		case 2, 3:
			r.ok(s.Reduce(dst.device, src.device, kolo.Uint8, kolo.Sum))
			for i, x := range src.want {
				dst.want[i] += x
			}
		default:
			r.ok(s.Copy(dst.device, src.device))
			copy(dst.want, src.want)
		}
		r.ok(s.Record(dst.last))
		r.ok(s.Record(src.last))
	}
	rng.Shuffle(len(gates), func(i, j int) { gates[i], gates[j] = gates[j], gates[i] })
	for _, g := range gates {
		r.ok(g.Set())
	}
	for _, s := range streams {
		r.sync(s)
	}
	for i, c := range cells {
		if string(r.read(c.device, streams[0])) != string(c.want) {
			r.Errorf("buffer %d differs from what one stream would have made", i)
		}
		r.ok(r.d.Free(c.device))
		r.ok(c.last.Close())
	}
	for _, s := range streams {
		r.ok(s.Close())
	}
}

// checkRandomFailures runs streams that wait for each other, fail, and are aborted,
// in random order. Nothing hangs, each callback is called once (which every check
// asks at its end), and nothing is held in the end.
func checkRandomFailures(r *rig) {
	rng := r.kit.rng(2)
	for range 10 {
		randomFailures(r, rng)
	}
	h := r.d.Health()
	r.ok(h.Err)
	require.Zero(r, h.Buffers+h.Streams+h.Tasks, "seed %d: %+v", r.kit.Seed, h)
}

func randomFailures(r *rig, rng *rand.Rand) {
	var streams [3]npu.Stream
	var events [3]npu.Event
	var notifies [3]npu.Notify
	for i := range streams {
		streams[i], events[i], notifies[i] = r.stream(r.d), r.event(r.d), r.notify(r.d)
	}
	a, b := r.alloc(r.d, 4096), r.alloc(r.d, 4096)
	for range 100 {
		s, e, n := streams[rng.IntN(3)], events[rng.IntN(3)], notifies[rng.IntN(3)]
		if _, err := s.Query(); err != nil {
			r.is(err, errWanted)
			s.Abort(errWanted)
		}
		// a stream may fail at any moment: what it is asked for is taken or refused
		var err error
		switch rng.IntN(9) {
		case 0:
			err = s.Record(e)
		case 1:
			err = s.Wait(e)
		case 2:
			err = s.Signal(n)
		case 3:
			err = s.Await(n)
		case 4:
			err = n.Set()
		case 5:
			err = errors.Join(n.Fail(errWanted), n.Reset())
		case 6:
			s.Abort(errWanted)
		case 7:
			r.attempt(s)
		default:
			err = s.Copy(a, b)
		}
		if err != nil {
			r.is(err, errWanted)
		}
	}
	for _, s := range streams {
		s.Abort(errWanted)
	}
	for _, s := range streams {
		r.sync(s)
	}
	for i, s := range streams {
		r.ok(s.Close())
		r.ok(events[i].Close())
		r.ok(notifies[i].Close())
	}
	r.ok(r.d.Free(a))
	r.ok(r.d.Free(b))
}
