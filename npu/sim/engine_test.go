package sim_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/actor"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/channel/hccs"
	"github.com/kolo-ccl/kolo/internal/kernel"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/npu/sim"

	"github.com/stretchr/testify/require"
)

// do runs a job and waits for it.
func (r *rig) do(e channel.Engine, j *channel.Job) error {
	done := make(chan error, 1)
	j.Done = func(t channel.Turn, err error) { done <- err }
	e.Start(nil, j)
	return <-done
}

// floats brings float32s to a device, or to the host with device -1.
func (r *rig) floats(device int, x []float32) kolo.Memory {
	r.Helper()
	b := make([]byte, 4*len(x))
	for i, v := range x {
		binary.NativeEndian.PutUint32(b[4*i:], math.Float32bits(v))
	}
	if device < 0 {
		return kolo.HostMemory(b)
	}
	s, m := r.stream(device), r.alloc(device, int64(len(b)))
	r.ok(s.Copy(m, kolo.HostMemory(b)))
	r.ok(s.Sync(r.Context()))
	r.ok(s.Close())
	return m
}

func (r *rig) values(device int, m kolo.Memory) (x []float32) {
	r.Helper()
	b := m.Host
	if device >= 0 {
		b = make([]byte, m.Size)
		s := r.stream(device)
		r.ok(s.Copy(kolo.HostMemory(b), m))
		r.ok(s.Sync(r.Context()))
		r.ok(s.Close())
	}
	for i := 0; i < len(b); i += 4 {
		x = append(x, math.Float32frombits(binary.NativeEndian.Uint32(b[i:])))
	}
	return x
}

var sum = kernel.OpOf(kolo.Float32, kolo.Sum, 8)

func TestEngineTimes(t *testing.T) {
	const n = 5.6e6
	part := func(p *channel.Part, dst, src []kolo.Memory) {
		p.Dst, p.Src = append(p.Dst, dst...), append(p.Src, src...)
	}
	for _, c := range []struct {
		name string
		job  func(r *rig, j *channel.Job)
		want time.Duration
	}{
		{"move to a peer", func(r *rig, j *channel.Job) {
			j.AddMove([]kolo.Memory{r.alloc(1, n)}, []kolo.Memory{r.alloc(0, n)})
		}, 100*us + 2*us},
		{"parts of one way are one transfer", func(r *rig, j *channel.Job) {
			a, b := r.alloc(1, n), r.alloc(0, n)
			j.AddMove([]kolo.Memory{a.Slice(0, 1e6), a.Slice(1e6, n-1e6)}, []kolo.Memory{b})
		}, 100*us + 2*us},
		{"move to itself is nothing", func(r *rig, j *channel.Job) {
			a := r.alloc(0, n)
			j.AddMove([]kolo.Memory{a}, []kolo.Memory{a})
		}, 0},
		{"broadcast takes three links at once", func(r *rig, j *channel.Job) {
			part(j.Add(), []kolo.Memory{r.alloc(1, n), r.alloc(2, n), r.alloc(3, n)}, []kolo.Memory{r.alloc(0, n)})
		}, 100*us + 2*us},
		{"from the host", func(r *rig, j *channel.Job) {
			j.AddMove([]kolo.Memory{r.alloc(0, 3.2e6)}, []kolo.Memory{kolo.HostMemory(make([]byte, 3.2e6))})
		}, 100*us + 5*us},
		{"fold on the device", func(r *rig, j *channel.Job) {
			j.Op = sum
			a := r.alloc(0, 12e6)
			j.AddFold([]kolo.Memory{a}, []kolo.Memory{a}, []kolo.Memory{r.alloc(0, 12e6)})
		}, 30 * us},
		{"fold what a peer has", func(r *rig, j *channel.Job) {
			j.Op = sum
			a := r.alloc(0, n)
			j.AddFold([]kolo.Memory{a}, []kolo.Memory{a}, []kolo.Memory{r.alloc(1, n)})
		}, 100*us + 2*us + 14*us},
		{"all of four devices", func(r *rig, j *channel.Job) { // a quarter each: pulled, folded, pushed
			j.Op = sum
			var all []kolo.Memory
			for i := range 4 {
				all = append(all, r.alloc(i, n))
			}
			part(j.Add(), all, all)
		}, 27*us + 5_834 + 27*us}, // 5 quarters read and written at 1200 GB/s
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, sim.Config{Devices: 4, Launch: -1}, func(r *rig) {
				e, j := r.c.Engine(nil), &channel.Job{}
				c.job(r, j)
				start := time.Now()
				r.ok(r.do(e, j))
				require.Equal(r, c.want, time.Since(start))
				e.Close()
			})
		})
	}
}

// Parts over memory of random places give what the kernel gives on the host.
func TestEngineComputes(t *testing.T) {
	const n, places = 300, 5
	for seed := range uint64(20) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 3))
			bubble(t, sim.Config{Servers: 2, Devices: 2}, func(r *rig) {
				e, j := r.c.Engine(nil), &channel.Job{Op: sum}
				p, want := j.Add(), make([]float32, n)
				for range 1 + rng.IntN(places) {
					x := make([]float32, n)
					for i := range x {
						x[i] = float32(rng.IntN(1000))
						want[i] += x[i]
					}
					p.Src = append(p.Src, r.floats(rng.IntN(places)-1, x))
				}
				var at []int
				for range 1 + rng.IntN(places) {
					d := rng.IntN(places) - 1
					at = append(at, d)
					p.Dst = append(p.Dst, r.floats(d, make([]float32, n)))
				}
				if rng.IntN(2) == 0 && len(p.Src) > 1 {
					p.Dst[0], at[0] = p.Src[0], r.placeOf(p.Src[0])
				}
				r.ok(r.do(e, j))
				for i, m := range p.Dst {
					require.Equal(r, want, r.values(at[i], m), "destination %d on device %d", i, at[i])
				}
				e.Close()
			})
		})
	}
}

// A job that is partly of a device may have parts that are the host's alone: they take no way.
func TestEngineFoldsHostPartsBesideThoseOfDevices(t *testing.T) {
	for _, first := range []int{-1, 0} {
		bubble(t, sim.Config{Devices: 1}, func(r *rig) {
			e, j := r.c.Engine(nil), &channel.Job{Op: sum}
			places := []int{first, -1 - first}
			var out []kolo.Memory
			for i, d := range places {
				p := j.Add()
				p.Src = append(p.Src, r.floats(d, []float32{1, 2}), r.floats(d, []float32{10, float32(i)}))
				p.Dst = append(p.Dst, r.floats(d, make([]float32, 2)))
				out = append(out, p.Dst[0])
			}
			r.ok(r.do(e, j))
			for i, d := range places {
				require.Equal(r, []float32{11, 2 + float32(i)}, r.values(d, out[i]))
			}
			e.Close()
		})
	}
}

func (r *rig) placeOf(m kolo.Memory) int {
	for i, d := range r.devices {
		if d.Info().Space == m.Space {
			return i
		}
	}
	return -1
}

func TestEngineTrouble(t *testing.T) {
	bubble(t, sim.Config{Devices: 3}, func(r *rig) {
		e := r.c.Engine(nil)
		a, b, c := r.alloc(0, 56e6), r.alloc(1, 56e6), r.alloc(2, 56e6)
		require.True(r, e.Reaches(a.Space))
		require.True(r, e.Reaches(kolo.HostSpace))
		move := func(dst, src kolo.Memory) error {
			j := &channel.Job{}
			j.AddMove([]kolo.Memory{dst}, []kolo.Memory{src})
			return r.do(e, j)
		}
		broken := errors.New("bad cable")
		r.c.Fail(0, 1, broken)
		require.ErrorIs(r, move(b, a), broken)
		r.ok(move(b, a))
		j, done := &channel.Job{}, make(chan error, 1)
		j.AddMove([]kolo.Memory{b}, []kolo.Memory{a})
		j.Done = func(_ channel.Turn, err error) { done <- err }
		e.Start(nil, j)
		require.ErrorIs(r, r.devices[0].Free(a), npu.ErrBusy)
		r.c.Lose(1)
		require.ErrorIs(r, <-done, npu.ErrLost)
		require.ErrorIs(r, move(a, b), npu.ErrLost)
		r.ok(r.devices[2].Free(c))
		require.ErrorIs(r, move(a, c), npu.ErrFreed)
		r.ok(r.devices[2].Close(r.Context()))
		require.False(r, e.Reaches(c.Space))
		require.ErrorIs(r, move(a, c), npu.ErrForeign)
		r.ok(r.devices[0].Free(a))
		e.Close()
	})
}

func TestEngineGivesHostJobsToTheHost(t *testing.T) {
	c, err := sim.New(sim.Config{Devices: 1, Fast: true})
	require.NoError(t, err)
	host := hccs.NewEngine(1)
	e := c.Engine(host)
	r := &rig{T: t, c: c}
	for _, n := range []int{8, 4 << 20} {
		a, b := make([]byte, n), make([]byte, n)
		a[n-1] = 7
		j := &channel.Job{}
		j.AddMove([]kolo.Memory{kolo.HostMemory(b)}, []kolo.Memory{kolo.HostMemory(a)})
		r.ok(r.do(e, j))
		require.Equal(t, a, b)
	}
	require.Zero(t, c.Now())
	e.Close()
	host.Close()
	r.ok(c.Close(t.Context()))
}

// sink tells of a completion.
type sink chan error

func (s sink) Complete(op *channel.Op) { s <- op.Err }

// poster is a rank: it posts the ops that it is told, on its shard. An empty op closes.
type poster struct{ link *channel.Channel }

func (p *poster) Handle(op *channel.Op) error {
	if op.Size == 0 {
		p.link.Close(kolo.ErrClosed)
		return nil
	}
	p.link.Post(op)
	return nil
}

// Two ranks send device memory to each other by the hccs driver, in exact time.
func TestDeviceMemoryOverHCCS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := sim.New(sim.Config{Devices: 2})
		require.NoError(t, err)
		r := &rig{T: t, c: c}
		for i := range 2 {
			d, err := c.Open(i)
			r.ok(err)
			r.devices = append(r.devices, d)
		}
		engine := c.Engine(nil)
		driver, err := channel.Open("hccs", channel.Config{Job: "t", Engine: engine})
		r.ok(err)
		sys := actor.NewSystem(actor.Config{})
		var ranks [2]actor.Ref[*channel.Op]
		for i := range 2 {
			end, err := driver.Open(kolo.Rank(i))
			r.ok(err)
			conn, err := end.Connect(kolo.Rank(1 - i))
			r.ok(err)
			shard := sys.NewShard(fmt.Sprint("rank ", i))
			link, err := channel.Spawn(shard, fmt.Sprint("link of ", i), kolo.Rank(1-i), conn, func(error) {})
			r.ok(err)
			ranks[i], err = actor.Spawn(shard, actor.Props{Name: fmt.Sprint(i)}, actor.Handler[*channel.Op](&poster{link}))
			r.ok(err)
		}
		x := make([]float32, 56e3/4)
		for i := range x {
			x[i] = float32(i)
		}
		src, dst := r.floats(0, x), r.alloc(1, 56e3)
		done := make(sink, 2)
		start := time.Now()
		r.ok(ranks[0].Tell(&channel.Op{Kind: channel.Send, Mem: []kolo.Memory{src}, Size: 56e3, Sink: done}))
		r.ok(ranks[1].Tell(&channel.Op{Kind: channel.Recv, Mem: []kolo.Memory{dst}, Size: 56e3, Sink: done}))
		r.ok(<-done)
		r.ok(<-done)
		require.Equal(t, us+2*us, time.Since(start))
		require.Equal(t, x, r.values(1, dst))
		for _, rank := range ranks {
			r.ok(rank.Tell(&channel.Op{}))
		}
		r.ok(sys.Close(t.Context()))
		r.ok(driver.Close())
		engine.Close()
		r.ok(c.Close(t.Context()))
	})
}
