package rank

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/actor"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/npu/sim"
	"github.com/kolo-ccl/kolo/plan"

	"github.com/stretchr/testify/require"
)

const (
	us = time.Microsecond
	ms = time.Millisecond
	// What the medium takes to reduce 5.6 MB of two devices: each gets half of the
	// other's, folds it, and gives the result back, at 56 GB/s and 2 us a way.
	inMedium = 52*us + 7*us + 52*us
	mb56     = 5_600_000
)

// fleet is a world in a bubble whose rank i has device i. One goroutine makes the
// calls of all ranks: it could not if any of them waited.
type fleet struct {
	*testing.T
	c       *sim.Cluster
	devices []npu.Device
	worlds  []*World
	start   time.Time
}

func onFleet(t *testing.T, n int, cfg Config, f func(v *fleet)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c, err := sim.New(sim.Config{Devices: n, Launch: -1})
		require.NoError(t, err)
		v := &fleet{T: t, c: c}
		cfg.Engine = func(host channel.Engine) channel.Engine { return c.Engine(host) }
		cfg.Topology = plan.OneProcess(n)
		if cfg.Algorithm == "" && cfg.Choice != plan.Timed {
			cfg.Algorithm = fabricName
		}
		v.worlds, err = Open(n, cfg)
		v.ok(err)
		for i := range n {
			d, err := c.Open(i)
			v.ok(err)
			v.devices = append(v.devices, d)
		}
		v.start = time.Now()
		f(v)
		for _, w := range v.worlds {
			_ = w.Close(t.Context()) // a test that leaves calls behind looks at the error itself
		}
		v.ok(c.Close(t.Context()))
	})
}

func (v *fleet) ok(err error) {
	v.Helper()
	require.NoError(v, err)
}

func (v *fleet) group(i int) *Group { return v.worlds[i].Group() }

func (v *fleet) stream(i int) npu.Stream {
	v.Helper()
	s, err := v.devices[i].NewStream(npu.StreamConfig{})
	v.ok(err)
	return s
}

// buffer is device memory of n bytes, all zero bits.
func (v *fleet) buffer(i int, n int64) Buffer {
	v.Helper()
	m, err := v.devices[i].Alloc(n)
	v.ok(err)
	return Buffer{Memory: m, DType: kolo.Float32}
}

// put is a kernel that takes a time and then sets every 1000th element of b.
func (v *fleet) put(s npu.Stream, b Buffer, took time.Duration, x float32) {
	v.Helper()
	v.ok(s.Launch(npu.Kernel{Name: "put", Time: took, Args: []kolo.Memory{b.Memory}, Host: func(args [][]byte) error {
		for k := 0; k < len(args[0]); k += 4000 {
			binary.NativeEndian.PutUint32(args[0][k:], math.Float32bits(x))
		}
		return nil
	}}))
}

// look is a kernel that adds what put has set, in *sum.
func (v *fleet) look(s npu.Stream, b Buffer, sum *float32) {
	v.Helper()
	v.ok(s.Launch(npu.Kernel{Name: "look", Args: []kolo.Memory{b.Memory}, Host: func(args [][]byte) error {
		*sum = 0
		for k := 0; k < len(args[0]); k += 4000 {
			*sum += math.Float32frombits(binary.NativeEndian.Uint32(args[0][k:]))
		}
		return nil
	}}))
}

func (v *fleet) age() time.Duration { return time.Since(v.start) }

func sumOf(b Buffer) Request {
	return Request{Collective: kolo.AllReduce, In: b, Out: b, Op: kolo.Sum}
}

// watched notes the moments of the stages.
func (v *fleet) watched(log *[]string) func(*actor.Shard, Stage, error) {
	return func(_ *actor.Shard, s Stage, err error) {
		line := fmt.Sprint(s, " ", v.age())
		if err != nil {
			line += " failed"
		}
		*log = append(*log, line)
	}
}

func TestCallBetweenStreams(t *testing.T) {
	onFleet(t, 2, Config{}, func(v *fleet) {
		var sums [2]float32
		var stages [2][]string
		var works []Work
		var consumers []npu.Stream
		for i := range 2 {
			b, producer, consumer := v.buffer(i, mb56), v.stream(i), v.stream(i)
			v.put(producer, b, ms*time.Duration(i+1), 1)
			works = append(works, DoOn(v.group(i), sumOf(b), Between{Producer: producer, Consumer: consumer, Watch: v.watched(&stages[i])}))
			v.put(producer, v.buffer(i, 4), 10*ms, 1) // the next layer goes on beside the call
			v.look(consumer, b, &sums[i])
			consumers = append(consumers, consumer)
		}
		require.Zero(v, v.age(), "nobody has waited")
		for i, w := range works {
			v.ok(w.Wait(v.Context()))
			require.Equal(v, 2*ms+inMedium, v.age())
			end := fmt.Sprint("ended ", 2*ms+inMedium)
			require.Equal(v, []string{fmt.Sprint("ready ", ms*time.Duration(i+1)), "begun 2ms", end}, stages[i])
		}
		for i, s := range consumers {
			v.ok(s.Sync(v.Context()))
			require.Equal(v, float32(2*1400), sums[i])
			v.group(i).closeNotifies()
			require.Empty(v, v.group(i).notifies)
		}
		for _, w := range v.worlds {
			v.ok(w.Close(v.Context()))
		}
	})
}

// The two mistakes that the order between streams prevents, each of which gives a
// wrong sum.
func TestComputeThatDoesNotWaitReadsHalf(t *testing.T) {
	for _, c := range []struct {
		name        string
		waits, held bool
		sum         float32
	}{
		{"ordered", true, true, 2 * 1400},
		{"reads beside the call", true, false, 1400},
		{"reduces what is not computed", false, true, 1400},
	} {
		t.Run(c.name, func(t *testing.T) {
			onFleet(t, 2, Config{}, func(v *fleet) {
				var sums [2]float32
				var works []Work
				var consumers []npu.Stream
				for i := range 2 {
					b, producer, consumer := v.buffer(i, mb56), v.stream(i), v.stream(i)
					v.put(producer, b, ms, 1)
					at := Between{Producer: producer, Consumer: consumer}
					if !c.waits {
						at.Producer = nil
					}
					if !c.held {
						at.Consumer = nil
						e, err := v.devices[i].NewEvent("computed")
						v.ok(err)
						v.ok(producer.Record(e))
						v.ok(consumer.Wait(e))
					}
					works = append(works, DoOn(v.group(i), sumOf(b), at))
					v.look(consumer, b, &sums[i])
					consumers = append(consumers, consumer)
				}
				for i, w := range works {
					v.ok(w.Wait(v.Context()))
					v.ok(consumers[i].Sync(v.Context()))
				}
				require.Equal(v, [2]float32{c.sum, c.sum}, sums)
			})
		})
	}
}

func TestFailureOfAProducerFailsEveryConsumer(t *testing.T) {
	onFleet(t, 3, Config{}, func(v *fleet) {
		broken := errors.New("bit flipped")
		v.c.Fail(1, 1, broken)
		var works []Work
		var consumers []npu.Stream
		sums := make([]float32, 3)
		for i := range 3 {
			b, producer, consumer := v.buffer(i, mb56), v.stream(i), v.stream(i)
			v.put(producer, b, ms*time.Duration(i+1), 1)
			works = append(works, DoOn(v.group(i), sumOf(b), Between{Producer: producer, Consumer: consumer}))
			v.look(consumer, b, &sums[i])
			consumers = append(consumers, consumer)
		}
		for i, w := range works {
			e := want(v, w.Wait(v.Context()), kolo.Rank(i), []error{broken}, "the stream before the call on rank 1")
			require.Equal(v, kolo.Rank(1), e.Peer)
			require.ErrorIs(v, consumers[i].Sync(v.Context()), broken)
		}
		require.Equal(v, 2*ms, v.age(), "rank 2 still computes, and its consumer does not wait")
		require.Equal(v, make([]float32, 3), sums, "nobody has looked")
	})
}

// A device that fails while it reduces fails every rank's Work and Consumer.
func TestFailureOfTheEngineFailsEveryConsumer(t *testing.T) {
	onFleet(t, 2, Config{}, func(v *fleet) {
		broken := errors.New("link down")
		v.c.Fail(1, 2, broken) // after the kernel of device 1
		var works []Work
		var consumers []npu.Stream
		var stages [2][]string
		for i := range 2 {
			b, producer, consumer := v.buffer(i, mb56), v.stream(i), v.stream(i)
			v.put(producer, b, ms, 1)
			works = append(works, DoOn(v.group(i), sumOf(b), Between{Producer: producer, Consumer: consumer, Watch: v.watched(&stages[i])}))
			consumers = append(consumers, consumer)
		}
		for i, w := range works {
			want(v, w.Wait(v.Context()), kolo.Rank(i), []error{broken})
			require.ErrorIs(v, consumers[i].Sync(v.Context()), broken)
			require.Equal(v, []string{"ready 1ms", "begun 1ms", fmt.Sprint("ended ", ms+inMedium, " failed")}, stages[i])
		}
	})
}

// A stream that has failed before the call is one that fails at once.
func TestCallBehindAStreamThatHasFailed(t *testing.T) {
	onFleet(t, 2, Config{}, func(v *fleet) {
		broken := errors.New("bit flipped")
		v.c.Fail(0, 1, broken)
		b, s, consumer := v.buffer(0, 400), v.stream(0), v.stream(0)
		v.put(s, b, ms, 1)
		require.ErrorIs(v, s.Sync(v.Context()), broken)
		want(v, DoOn(v.group(0), sumOf(b), Between{Producer: s, Consumer: consumer}).Wait(v.Context()), 0, []error{broken})
		require.ErrorIs(v, consumer.Sync(v.Context()), broken)
		require.ErrorIs(v, v.group(1).Err(), broken)
		// And a Consumer that has failed refuses the call.
		w := v.worlds[0]
		g, err := w.NewGroup(GroupConfig{Ranks: []kolo.Rank{0}})
		v.ok(err)
		want(v, DoOn(g, sumOf(b), Between{Consumer: s}).Wait(v.Context()), 0, []error{broken})
		v.ok(g.Err())
		require.Zero(v, g.Calls())
	})
}

func TestAbortEndsCallsThatWaitForTheirStreams(t *testing.T) {
	stop := errors.New("stop")
	for _, how := range []string{"abort", "context", "leave"} {
		t.Run(how, func(t *testing.T) {
			onFleet(t, 2, Config{CloseTimeout: ms}, func(v *fleet) {
				var works []Work
				var consumers []npu.Stream
				for i := range 2 {
					b, producer, consumer := v.buffer(i, mb56), v.stream(i), v.stream(i)
					v.put(producer, b, time.Hour, 1)
					for range 3 {
						works = append(works, DoOn(v.group(i), sumOf(b), Between{Producer: producer, Consumer: consumer}))
					}
					consumers = append(consumers, consumer)
				}
				after, kind := time.Duration(0), kolo.ErrAborted
				switch how {
				case "abort":
					v.group(0).Abort(stop)
				case "context":
					ctx, cancel := context.WithCancelCause(v.Context())
					cancel(stop)
					require.ErrorIs(v, works[0].Wait(ctx), stop)
					kind = stop
				case "leave":
					require.ErrorIs(v, v.worlds[0].Close(v.Context()), kolo.ErrDeadline)
					after, kind = ms, kolo.ErrLeft
				}
				for _, w := range works {
					require.ErrorIs(v, w.Wait(v.Context()), kind)
				}
				for _, s := range consumers {
					require.ErrorIs(v, s.Sync(v.Context()), kind)
				}
				require.Equal(v, after, v.age())
				for _, d := range v.devices {
					d.Abort(stop)
				}
			})
		})
	}
}

// Calls keep their order though their streams come to them in another.
func TestCallsKeepTheirOrder(t *testing.T) {
	onFleet(t, 2, Config{}, func(v *fleet) {
		var stages [2][]string
		var works []Work
		for i := range 2 {
			slow, fast := v.stream(i), v.stream(i)
			v.ok(slow.Launch(npu.Kernel{Time: 3 * ms}))
			for k, s := range []npu.Stream{slow, fast} {
				at := Between{Producer: s}
				if i == 0 {
					at.Watch = v.watched(&stages[k])
				}
				works = append(works, DoOn(v.group(i), sumOf(v.buffer(i, mb56)), at))
			}
		}
		for _, w := range works {
			v.ok(w.Wait(v.Context()))
		}
		first := 3*ms + inMedium
		require.Equal(v, []string{"ready 3ms", "begun 3ms", fmt.Sprint("ended ", first)}, stages[0])
		require.Equal(v, []string{"ready 0s", fmt.Sprint("begun ", first), fmt.Sprint("ended ", first+inMedium)}, stages[1])
	})
}

// One stream before and after the call, many calls, in every order that is common.
func TestCallIsATaskOfOneStream(t *testing.T) {
	for _, algorithm := range []string{fabricName, "ring"} {
		onFleet(t, 2, Config{Algorithm: algorithm}, func(v *fleet) {
			const calls = 20
			var sums [2]float32
			var streams []npu.Stream
			var works []Work
			for i := range 2 {
				b, s := v.buffer(i, 4000*7), v.stream(i)
				v.put(s, b, us, float32(i+1))
				for range calls {
					works = append(works, DoOn(v.group(i), sumOf(b), Between{Producer: s, Consumer: s}))
				}
				v.look(s, b, &sums[i])
				streams = append(streams, s)
			}
			for _, s := range streams {
				v.ok(s.Sync(v.Context()))
			}
			for _, w := range works {
				v.ok(w.Wait(v.Context()))
			}
			require.Equal(v, [2]float32{7 * 3 << (calls - 1), 7 * 3 << (calls - 1)}, sums, algorithm)
		})
	}
}

// Tensors on devices are gathered too, behind their stream, by the medium and by messages.
func TestTensorsBetweenStreams(t *testing.T) {
	for _, algorithm := range []string{fabricName, "ring", "nhr"} {
		onFleet(t, 3, Config{Algorithm: algorithm}, func(v *fleet) {
			var works []Work
			var sums [3][3]float32
			var uses []npu.Stream
			for i := range 3 {
				s, use := v.stream(i), v.stream(i)
				list := []Buffer{v.buffer(i, 4000), v.buffer(i, 4*4000), v.buffer(i, 8)}
				for k, b := range list {
					v.put(s, b, ms, float32((1+i)*(1+k)))
				}
				works = append(works, DoOn(v.group(i), Request{Collective: kolo.AllReduce, Tensors: list, Op: kolo.Sum}, Between{Producer: s, Consumer: use}))
				for k, b := range list {
					v.look(use, b, &sums[i][k])
				}
				uses = append(uses, use)
			}
			for i, w := range works {
				v.ok(w.Wait(v.Context()))
				v.ok(uses[i].Sync(v.Context()))
			}
			for i := range 3 {
				require.Equal(v, [3]float32{6, 4 * 12, 18}, sums[i], algorithm)
			}
		})
	}
}

// A message follows what its sender's stream computes, and what the receiver's
// stream does later sees it; nothing waits on the host.
func TestMessagesBetweenStreams(t *testing.T) {
	for _, device := range []bool{true, false} { // the receiver has a stream of two uses, or two
		onFleet(t, 2, Config{}, func(v *fleet) {
			const n = 6 // what put sets
			b, c := v.buffer(0, 4000*n), v.buffer(1, 4000*n)
			out, in, use := v.stream(0), v.stream(1), v.stream(1)
			if device {
				use = in
			}
			v.put(out, b, 3*ms, 7)
			v.put(in, c, ms, 1)
			var stages []string
			send := Request{Collective: kolo.Send, In: b, Peer: 1, Tag: 9}
			recv := Request{Collective: kolo.Recv, Out: c, Peer: 0, Tag: 9}
			works := []Work{DoOn(v.group(0), send, Between{Producer: out, Consumer: out, Watch: v.watched(&stages)}),
				DoOn(v.group(1), recv, Between{Producer: in, Consumer: use})}
			v.put(out, b, ms, 5) // after the message
			var got, left float32
			v.look(use, c, &got)
			v.look(out, b, &left)
			require.Zero(v, v.age())
			for _, w := range works {
				v.ok(w.Wait(v.Context()))
			}
			v.ok(use.Sync(v.Context()))
			v.ok(out.Sync(v.Context()))
			require.Equal(v, []float32{7, 5}, []float32{got / n, left / n})
			require.Equal(v, []string{"ready 3ms", "begun 3ms"}, stages[:2])
			require.Len(v, stages, 3)
			require.Zero(v, v.group(0).Calls())
		})
	}
}

// A message whose stream fails before it, or never comes to it, ends with the group.
func TestMessageOfAStreamThatFails(t *testing.T) {
	stop := errors.New("stop")
	for _, how := range []string{"kernel", "abort"} {
		onFleet(t, 2, Config{}, func(v *fleet) {
			b, c, s, u := v.buffer(0, 4096), v.buffer(1, 4096), v.stream(0), v.stream(1)
			if how == "kernel" {
				v.ok(s.Launch(npu.Kernel{Time: ms, Host: func([][]byte) error { return stop }}))
			} else {
				v.ok(s.Launch(npu.Kernel{Time: time.Hour}))
			}
			works := []Work{DoOn(v.group(0), Request{Collective: kolo.Send, In: b, Peer: 1}, Between{Producer: s}),
				DoOn(v.group(1), Request{Collective: kolo.Recv, Out: c, Peer: 0}, Between{Consumer: u})}
			if how == "abort" {
				v.group(1).Abort(stop)
			}
			for _, w := range works {
				require.ErrorIs(v, w.Wait(v.Context()), stop)
			}
			require.ErrorIs(v, u.Sync(v.Context()), stop)
			v.devices[0].Abort(stop)
			v.ok(v.devices[1].Free(c.Memory))
		})
	}
}

// A stream that does not come to its call is what the deadline of the others names.
func TestDeadlineNamesTheStreamThatDoesNotCome(t *testing.T) {
	onFleet(t, 2, Config{Timeout: time.Second}, func(v *fleet) {
		var works []Work
		for i := range 2 {
			s := v.stream(i)
			if i == 1 {
				v.ok(s.Launch(npu.Kernel{Time: time.Hour}))
			}
			works = append(works, DoOn(v.group(i), sumOf(v.buffer(i, 400)), Between{Producer: s}))
		}
		for i, w := range works {
			want(v, w.Wait(v.Context()), kolo.Rank(i), []error{kolo.ErrDeadline}, "rank 1 has called, and its stream has not come to the call")
		}
		require.Equal(v, time.Second, v.age())
		v.devices[1].Abort(errors.New("stop"))
	})
}

func TestCallBetweenStreamsThatIsRefused(t *testing.T) {
	onFleet(t, 2, Config{}, func(v *fleet) {
		g, b, s := v.group(0), v.buffer(0, 4096), v.stream(0)
		half := b
		half.Memory = b.Memory.Slice(1024, 2048)
		odd := b
		odd.Memory = b.Memory.Slice(2, 8)
		foreign, err := v.devices[1].NewNotify("of device 1")
		v.ok(err)
		for _, c := range []struct {
			r    Request
			at   Between
			kind error
		}{
			{Request{Collective: kolo.Send, In: b, Peer: 2}, Between{Producer: s}, kolo.ErrArgument},
			{Request{Collective: kolo.AllReduce, In: b, Out: half, Op: kolo.Sum}, Between{Producer: s}, kolo.ErrArgument},
			{Request{Collective: kolo.AllGather, In: half, Out: b}, Between{Producer: s}, kolo.ErrOverlap},
			{sumOf(odd), Between{Producer: s}, kolo.ErrArgument},
			{sumOf(b), Between{Consumer: s, Released: foreign}, npu.ErrForeign},
		} {
			w := DoOn(g, c.r, c.at)
			want(v, w.Wait(v.Context()), 0, []error{c.kind})
			<-w.Done()
		}
		require.Zero(v, g.Calls())
		v.ok(s.Sync(v.Context()))
		v.ok(s.Close())
	})
}

func TestEngineOfTheConfiguration(t *testing.T) {
	_, err := Open(1, Config{Engine: func(channel.Engine) channel.Engine { return nil }})
	require.ErrorIs(t, err, kolo.ErrArgument)
	onFleet(t, 1, Config{}, func(v *fleet) {
		require.Contains(v, v.worlds[0].Settings(), Setting{"Engine", "host and devices", "Config"})
		b := []float32{1}
		v.ok(AllReduce(v.Context(), v.group(0), b, kolo.Sum)) // of host memory
	})
}
