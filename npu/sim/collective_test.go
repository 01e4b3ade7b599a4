package sim_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/npu/sim"

	"github.com/stretchr/testify/require"
)

// allReduce is a collective of device buffers that orders itself behind a stream of
// each device and before another, as package rank would: the last producer starts
// the job, its completion releases the consumers.
type allReduce struct {
	engine   channel.Engine
	job      channel.Job
	missing  atomic.Int32
	failed   atomic.Pointer[error]
	released []npu.Notify
}

func newAllReduce(r *rig, buffers []kolo.Memory) *allReduce {
	a := &allReduce{engine: r.c.Engine(nil)}
	a.missing.Store(int32(len(buffers)))
	a.job.Op = sum
	p := a.job.Add()
	p.Src, p.Dst = append(p.Src, buffers...), append(p.Dst, buffers...)
	a.job.Done = func(_ channel.Turn, err error) { a.release(err) }
	for i := range buffers {
		a.released = append(a.released, r.notify(i))
	}
	return a
}

// call puts rank i's part between two streams and returns at once.
func (a *allReduce) call(r *rig, i int, producer, consumer npu.Stream) {
	r.Helper()
	r.ok(consumer.Await(a.released[i]))
	r.ok(producer.Callback(func(err error) {
		if err != nil {
			a.failed.CompareAndSwap(nil, &err)
		}
		if a.missing.Add(-1) > 0 {
			return
		}
		if err := a.failed.Load(); err != nil {
			a.release(*err)
			return
		}
		a.engine.Start(nil, &a.job)
	}))
}

func (a *allReduce) release(err error) {
	for _, n := range a.released {
		if err != nil {
			_ = n.Fail(err) // refused only where the device is closed: then nobody waits
			continue
		}
		_ = n.Set()
	}
}

func TestCollectiveBetweenTwoStreams(t *testing.T) {
	const devices, n = 2, 5.6e6
	for _, fails := range []bool{false, true} {
		bubble(t, sim.Config{Devices: devices, Launch: -1}, func(r *rig) {
			var buffers []kolo.Memory
			for i := range devices {
				buffers = append(buffers, r.floats(i, make([]float32, n/4)))
			}
			start, a := time.Now(), newAllReduce(r, buffers)
			broken := errors.New("bit flipped")
			if fails {
				r.c.Fail(1, 1, broken)
			}
			var consumers []npu.Stream
			var got [devices]byte
			var began, reduced [devices]npu.Event
			for i, m := range buffers {
				producer, consumer := r.stream(i), r.stream(i)
				r.ok(producer.Launch(npu.Kernel{Name: "backward", Time: ms * time.Duration(i+1), Args: []kolo.Memory{m},
					Host: func(args [][]byte) error { args[0][2], args[0][3] = 128, 63; return nil }})) // 1.0
				began[i], reduced[i] = r.event(i), r.event(i)
				r.ok(consumer.Record(began[i]))
				a.call(r, i, producer, consumer)
				r.ok(consumer.Record(reduced[i]))
				r.ok(producer.Launch(npu.Kernel{Name: "next layer", Time: 10 * ms})) // goes on beside the collective
				r.ok(consumer.Launch(npu.Kernel{Name: "optimizer", Args: []kolo.Memory{m.Slice(0, 4)},
					Host: func(args [][]byte) error { got[i] = args[0][3]; return nil }}))
				consumers = append(consumers, consumer)
			}
			require.Equal(r, start, time.Now(), "nobody has waited")
			for _, s := range consumers {
				err := s.Sync(r.Context())
				if fails {
					require.ErrorIs(r, err, broken)
				} else {
					r.ok(err)
				}
			}
			if fails {
				require.Zero(r, got)
				return
			}
			for i := range devices {
				took, err := reduced[i].Since(began[i])
				r.ok(err)
				// the later producer; half from the peer, folded, half to the peer
				require.Equal(r, 2*ms+52*us+7*us+52*us, took)
			}
			require.Equal(r, 12*ms, time.Since(start), "the next layer has the compute engine first")
			require.Equal(r, [devices]byte{64, 64}, got, "2.0")
			a.engine.Close()
		})
	}
}
