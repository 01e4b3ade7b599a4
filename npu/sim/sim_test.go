package sim_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/npu/sim"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// us and ms make expectations short to read.
const (
	us = time.Microsecond
	ms = time.Millisecond
)

// rig is a cluster in a bubble.
type rig struct {
	*testing.T
	c       *sim.Cluster
	devices []npu.Device
}

// bubble runs f with a cluster whose devices are all open.
func bubble(t *testing.T, cfg sim.Config, f func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c, err := sim.New(cfg)
		require.NoError(t, err)
		r := &rig{T: t, c: c}
		for i := range c.Devices() {
			d, err := c.Open(i)
			require.NoError(t, err)
			r.devices = append(r.devices, d)
		}
		f(r)
		require.NoError(t, c.Close(t.Context()))
	})
}

func (r *rig) ok(err error) {
	r.Helper()
	require.NoError(r, err)
}

func (r *rig) stream(device int) npu.Stream {
	r.Helper()
	s, err := r.devices[device].NewStream(npu.StreamConfig{})
	r.ok(err)
	return s
}

func (r *rig) alloc(device int, size int64) kolo.Memory {
	r.Helper()
	m, err := r.devices[device].Alloc(size)
	r.ok(err)
	return m
}

func (r *rig) event(device int) npu.Event {
	r.Helper()
	e, err := r.devices[device].NewEvent("e")
	r.ok(err)
	return e
}

func (r *rig) notify(device int) npu.Notify {
	r.Helper()
	n, err := r.devices[device].NewNotify("n")
	r.ok(err)
	return n
}

// took waits for the streams and compares the time since start.
func (r *rig) took(start time.Time, want time.Duration, streams ...npu.Stream) {
	r.Helper()
	for _, s := range streams {
		r.ok(s.Sync(r.Context()))
	}
	require.Equal(r, want, time.Since(start))
}

func TestTimesOfOneTask(t *testing.T) {
	none := sim.Config{Servers: 2, Devices: 2, Launch: -1}
	const mb = 1e6
	for _, c := range []struct {
		name string
		cfg  sim.Config
		do   func(r *rig, s npu.Stream) error
		want time.Duration
	}{
		{"56 MB over HCCS", none, func(r *rig, s npu.Stream) error { return s.Copy(r.alloc(1, 56*mb), r.alloc(0, 56*mb)) }, ms + 2*us},
		{"from the peer", none, func(r *rig, s npu.Stream) error { return s.Copy(r.alloc(0, 56*mb), r.alloc(1, 56*mb)) }, ms + 2*us},
		{"25 MB over RoCE", none, func(r *rig, s npu.Stream) error { return s.Copy(r.alloc(2, 25*mb), r.alloc(0, 25*mb)) }, ms + 5*us},
		{"32 MB over PCIe", none, func(r *rig, s npu.Stream) error {
			return s.Copy(r.alloc(0, 32*mb), kolo.HostMemory(make([]byte, 32*mb)))
		}, ms + 5*us},
		{"1 byte rounds up", none, func(r *rig, s npu.Stream) error { return s.Copy(r.alloc(1, 1), r.alloc(0, 1)) }, 1 + 2*us},
		{"inside the device", sim.Config{}, func(r *rig, s npu.Stream) error { return s.Copy(r.alloc(0, 12*mb), r.alloc(0, 12*mb)) }, 20*us + 5*us},
		{"reduce", sim.Config{}, func(r *rig, s npu.Stream) error {
			return s.Reduce(r.alloc(0, 12*mb), r.alloc(0, 12*mb), kolo.Float32, kolo.Sum)
		}, 30*us + 5*us},
		{"reduce from the peer", none, func(r *rig, s npu.Stream) error {
			return s.Reduce(r.alloc(0, 5.6*mb), r.alloc(1, 5.6*mb), kolo.Float32, kolo.Sum)
		}, 100*us + 2*us + 14*us},
		{"kernel bound by arithmetic", sim.Config{}, func(_ *rig, s npu.Stream) error {
			return s.Launch(npu.Kernel{FLOPs: 320e9, Bytes: 12 * mb})
		}, ms + 5*us},
		{"kernel bound by memory", none, func(_ *rig, s npu.Stream) error { return s.Launch(npu.Kernel{FLOPs: 320e6, Bytes: 12 * mb}) }, 10 * us},
		{"kernel of a stated time", sim.Config{}, func(_ *rig, s npu.Stream) error {
			return s.Launch(npu.Kernel{Time: 3 * ms, FLOPs: 1e18})
		}, 3*ms + 5*us},
		{"own rates", sim.Config{Devices: 2, HCCS: sim.Line{Bandwidth: 1e9, Latency: -1}}, func(r *rig, s npu.Stream) error {
			return s.Copy(r.alloc(1, mb), r.alloc(0, mb))
		}, ms},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, c.cfg, func(r *rig) {
				s, start := r.stream(0), time.Now()
				r.ok(c.do(r, s))
				require.Equal(r, start, time.Now(), "the call returns at once")
				r.took(start, c.want, s)
			})
		})
	}
}

func TestStreamIsOneAfterTheOther(t *testing.T) {
	bubble(t, sim.Config{Devices: 2, Launch: -1}, func(r *rig) {
		s, start := r.stream(0), time.Now()
		a, b := r.alloc(0, 56e6), r.alloc(1, 56e6)
		r.ok(s.Launch(npu.Kernel{Time: ms}))
		r.ok(s.Copy(b, a))
		r.ok(s.Launch(npu.Kernel{Time: ms}))
		r.took(start, 3*ms+2*us, s)
	})
}

func TestCopyHidesBehindCompute(t *testing.T) {
	bubble(t, sim.Config{Devices: 2}, func(r *rig) {
		s, p, start := r.stream(0), r.stream(0), time.Now()
		a, b := r.alloc(0, 56e6), r.alloc(1, 56e6)
		r.ok(s.Launch(npu.Kernel{Name: "matmul", Time: ms}))
		r.ok(p.Copy(b, a))
		r.took(start, ms+5*us, s, p)
		spans, dropped := r.c.Timeline()
		require.Zero(r, dropped)
		require.Equal(r, []sim.Span{
			{Lane: "npu0/compute", Name: "matmul", Begin: 0, End: ms + 5*us},
			{Lane: "hccs 0>1", Name: "copy", Bytes: 56e6, Begin: 0, End: ms},
		}, spans)
	})
}

func TestOneComputeEngineForAllStreams(t *testing.T) {
	bubble(t, sim.Config{Devices: 1, Launch: -1}, func(r *rig) {
		s, p, start := r.stream(0), r.stream(0), time.Now()
		r.ok(s.Launch(npu.Kernel{Time: ms}))
		r.ok(p.Launch(npu.Kernel{Time: ms}))
		r.took(start, ms, s)
		r.took(start, 2*ms, p)
	})
}

func TestContentionHalvesTheRate(t *testing.T) {
	const n = 5.6e6
	for _, c := range []struct {
		name     string
		from, to [2]int // of two transfers
		want     time.Duration
	}{
		{"one link", [2]int{0, 0}, [2]int{1, 1}, 200*us + 2*us},
		{"two directions", [2]int{0, 1}, [2]int{1, 0}, 100*us + 2*us},
		{"two links of one device", [2]int{0, 0}, [2]int{1, 2}, 100*us + 2*us},
		{"two ports", [2]int{0, 1}, [2]int{4, 5}, 224*us + 5*us},
		{"one port out", [2]int{0, 0}, [2]int{4, 5}, 448*us + 5*us},
		{"one port in", [2]int{0, 1}, [2]int{4, 4}, 448*us + 5*us},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, sim.Config{Servers: 2, Devices: 4}, func(r *rig) {
				start := time.Now()
				var streams []npu.Stream
				for i := range 2 {
					s := r.stream(c.from[i])
					r.ok(s.Copy(r.alloc(c.to[i], n), r.alloc(c.from[i], n)))
					streams = append(streams, s)
				}
				r.took(start, c.want, streams...)
			})
		})
	}
}

func TestEventTiesStreams(t *testing.T) {
	bubble(t, sim.Config{Devices: 1, Launch: -1}, func(r *rig) {
		s, p, start := r.stream(0), r.stream(0), time.Now()
		e, f := r.event(0), r.event(0)
		r.ok(s.Record(f))
		r.ok(s.Launch(npu.Kernel{Time: ms}))
		r.ok(s.Record(e))
		a := r.alloc(0, 6e6)
		r.ok(p.Wait(e))
		r.ok(p.Copy(a.Slice(0, 3e6), a.Slice(3e6, 3e6))) // 5 us
		r.took(start, ms+5*us, p)
		d, err := e.Since(f)
		r.ok(err)
		require.Equal(r, ms, d)
	})
}

// What reads a buffer too soon finds old bytes: the effect of a task is at its end.
func TestReadingTooSoonShows(t *testing.T) {
	for _, waits := range []bool{false, true} {
		bubble(t, sim.Config{Devices: 2}, func(r *rig) {
			s, p := r.stream(0), r.stream(0)
			from, to, e := r.alloc(1, 1e6), r.alloc(0, 1e6), r.event(0)
			fill := func(s npu.Stream, m kolo.Memory, v byte) {
				host := make([]byte, m.Size)
				for i := range host {
					host[i] = v
				}
				r.ok(s.Copy(m, kolo.HostMemory(host)))
				r.ok(s.Sync(r.Context()))
			}
			fill(s, to, 1)
			fill(r.stream(1), from, 2)
			sum := 0
			r.ok(s.Copy(to, from))
			r.ok(s.Record(e))
			if waits {
				r.ok(p.Wait(e))
			}
			r.ok(p.Launch(npu.Kernel{Name: "sum", Args: []kolo.Memory{to}, Time: us, Host: func(args [][]byte) error {
				for _, x := range args[0] {
					sum += int(x)
				}
				return nil
			}}))
			r.ok(p.Sync(r.Context()))
			want := 1e6
			if waits {
				want = 2e6
			}
			require.EqualValues(r, want, sum)
		})
	}
}

func TestNotifyFromTheHost(t *testing.T) {
	bubble(t, sim.Config{Devices: 1, Launch: -1}, func(r *rig) {
		s, n, start := r.stream(0), r.notify(0), time.Now()
		r.ok(s.Await(n))
		r.ok(s.Launch(npu.Kernel{Time: ms}))
		time.Sleep(7 * ms) // in a bubble
		r.ok(n.Set())
		r.took(start, 8*ms, s)
	})
}

// A collective on the host between two streams, and nobody blocks.
func TestHostCompletionReleasesAStream(t *testing.T) {
	bubble(t, sim.Config{Devices: 1, Launch: -1}, func(r *rig) {
		s, n, start := r.stream(0), r.notify(0), time.Now()
		r.ok(s.Launch(npu.Kernel{Name: "produce", Time: ms}))
		r.ok(s.Callback(func(err error) {
			if err != nil {
				_ = n.Fail(err)
				return
			}
			time.AfterFunc(5*ms, func() { _ = n.Set() })
		}))
		r.ok(s.Await(n))
		r.ok(s.Launch(npu.Kernel{Name: "consume", Time: ms}))
		require.Equal(r, start, time.Now())
		r.took(start, 7*ms, s)
	})
}

func TestFaults(t *testing.T) {
	broken := errors.New("bit flipped")
	bubble(t, sim.Config{Devices: 2, Launch: -1}, func(r *rig) {
		s, p, e, start := r.stream(0), r.stream(0), r.event(0), time.Now()
		m := r.alloc(0, 8)
		r.c.Fail(0, 2, broken)
		ran := 0
		k := npu.Kernel{Name: "step", Time: ms, Args: []kolo.Memory{m}, Host: func([][]byte) error { ran++; return nil }}
		for range 3 {
			r.ok(s.Launch(k))
		}
		r.ok(s.Record(e))
		r.ok(p.Wait(e))
		r.ok(p.Launch(k))
		err := p.Sync(r.Context())
		require.ErrorIs(r, err, broken)
		require.ErrorIs(r, err, npu.ErrFault)
		require.Equal(r, 2*ms, time.Since(start))
		require.Equal(r, 1, ran)
		require.ErrorIs(r, s.Launch(k), broken)
		require.ErrorContains(r, s.Launch(k), `step on stream "stream 0" of device 0`)
		r.ok(r.devices[0].Free(m)) // what was dropped holds nothing
	})
}

func TestLosingADevice(t *testing.T) {
	bubble(t, sim.Config{Devices: 3, Launch: -1}, func(r *rig) {
		s, p, q, start := r.stream(0), r.stream(1), r.stream(2), time.Now()
		r.ok(s.Launch(npu.Kernel{Time: 10 * ms}))
		r.ok(p.Copy(r.alloc(0, 56e6), r.alloc(1, 56e6)))
		r.ok(q.Launch(npu.Kernel{Time: ms}))
		time.Sleep(ms / 2) // in a bubble
		r.c.Lose(0)
		require.ErrorIs(r, s.Sync(r.Context()), npu.ErrLost)
		require.ErrorIs(r, p.Sync(r.Context()), kolo.ErrLost, "who was talking to it fails too")
		require.Equal(r, ms/2, time.Since(start))
		r.took(start, ms, q)
		require.ErrorIs(r, r.devices[0].Health().Err, npu.ErrLost)
		_, err := r.devices[0].Alloc(1)
		require.ErrorIs(r, err, npu.ErrLost)
		r.ok(r.devices[0].Close(r.Context()))
		_, err = r.c.Open(0)
		require.ErrorIs(r, err, npu.ErrLost)
		// the link is free again, and the peer goes on after an abort
		p.Abort(errors.New("go on"))
		r.ok(p.Copy(r.alloc(2, 56e6), r.alloc(1, 56e6)))
		r.took(start, 2*ms+2*us, p)
	})
}

func TestSlowLink(t *testing.T) {
	bubble(t, sim.Config{Devices: 2}, func(r *rig) {
		s, start := r.stream(0), time.Now()
		r.ok(r.c.Slow(0, 1, 4))
		a, b := r.alloc(0, 56e6), r.alloc(1, 56e6)
		r.ok(s.Copy(b, a))
		r.took(start, 4*ms+2*us, s)
		r.ok(r.c.Slow(0, 1, 1))
		r.ok(s.Copy(b, a))
		r.took(start, 5*ms+4*us, s)
		require.ErrorIs(r, r.c.Slow(0, 0, 2), kolo.ErrArgument)
	})
}

func TestAbortBetweenEngineAndQueue(t *testing.T) {
	bubble(t, sim.Config{Devices: 1, Launch: -1}, func(r *rig) {
		s, p, start := r.stream(0), r.stream(0), time.Now()
		r.ok(s.Launch(npu.Kernel{Time: 2 * ms}))
		r.ok(p.Launch(npu.Kernel{Time: ms})) // waits for the engine
		stop, got := errors.New("stop"), error(nil)
		r.ok(p.Callback(func(err error) { got = err }))
		p.Abort(stop)
		r.ok(p.Sync(r.Context()))
		require.ErrorIs(r, got, stop)
		require.Equal(r, start, time.Now(), "what has not begun takes no time")
		r.ok(p.Launch(npu.Kernel{Time: ms}))
		r.took(start, 3*ms, p)
	})
}

func TestPrioritiesCompete(t *testing.T) {
	bubble(t, sim.Config{Devices: 1, Launch: -1}, func(r *rig) {
		var order []string
		start := time.Now()
		launch := func(name string, priority int) npu.Stream {
			s, err := r.devices[0].NewStream(npu.StreamConfig{Name: name, Priority: priority})
			r.ok(err)
			r.ok(s.Launch(npu.Kernel{Time: ms, Host: func([][]byte) error { order = append(order, name); return nil }}))
			return s
		}
		r.took(start, 4*ms, launch("first", 0), launch("low", 0), launch("urgent", 2), launch("high", 1))
		require.Equal(r, []string{"first", "urgent", "high", "low"}, order)
	})
}

func TestPanicsAreFailures(t *testing.T) {
	bubble(t, sim.Config{Devices: 1}, func(r *rig) {
		s := r.stream(0)
		r.ok(s.Launch(npu.Kernel{Name: "bad", Host: func([][]byte) error { panic("oops") }}))
		err := s.Sync(r.Context())
		require.ErrorIs(r, err, kolo.ErrPanic)
		require.ErrorContains(r, err, "oops")
		s.Abort(errors.New("again"))
		r.ok(s.Callback(func(error) { panic("oops") }))
		require.ErrorIs(r, s.Sync(r.Context()), kolo.ErrPanic)
	})
}

func TestOptions(t *testing.T) {
	d, err := npu.Open("sim", npu.Config{Options: "servers=2 devices=3 memory=1048576 fast"})
	require.NoError(t, err)
	require.Equal(t, 6, d.Devices())
	x, err := d.Open(5)
	require.NoError(t, err)
	require.Equal(t, 1, x.Info().Server)
	require.EqualValues(t, 1<<20, x.Info().Memory)
	require.NoError(t, d.Close(t.Context()))
	_, err = d.Open(0)
	require.ErrorIs(t, err, kolo.ErrClosed)
	for _, bad := range []string{"servers", "devices=0", "devices=x", "colour=1", "devices=1000"} {
		_, err := npu.Open("sim", npu.Config{Options: bad})
		require.ErrorIs(t, err, kolo.ErrArgument, bad)
	}
	_, err = npu.Open("none", npu.Config{})
	require.ErrorIs(t, err, kolo.ErrUnsupported)
}

// Opening while the cluster closes leaves nothing that Close would wait for.
func TestOpenWhileTheClusterCloses(t *testing.T) {
	for range 300 {
		c, err := sim.New(sim.Config{Devices: 2, Fast: true})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		var open sync.WaitGroup
		for i := range 2 {
			open.Go(func() {
				if _, err := c.Open(i); err != nil && !errors.Is(err, kolo.ErrClosed) {
					t.Error(err)
				}
			})
		}
		open.Go(func() {
			if err := c.Close(ctx); err != nil {
				t.Error(err)
			}
		})
		open.Wait()
		cancel()
	}
}
