package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/channel/roce"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/npu/sim"
	"github.com/kolo-ccl/kolo/rank"
	"github.com/kolo-ccl/kolo/rank/ranktest"

	"github.com/stretchr/testify/require"
)

// cards is a world of several processes whose rank i has device i. Ranks of different
// processes reach each other by the transport only.
type cards struct {
	c       *sim.Cluster
	devices []npu.Device
	worlds  []*rank.World
}

func withCards(t *testing.T, transport string, config rank.Config, sizes ...int) *cards {
	_, n := split(sizes...)
	c, err := sim.New(sim.Config{Devices: n, Fast: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close(context.Background())) })
	config.Engine, config.Timeout = func(host channel.Engine) channel.Engine { return c.Engine(host) }, patience
	s := &cards{c: c, worlds: worldsOf(together(t, Config{Transport: transport, Rank: config}, sizes...))}
	for i := range n {
		d, err := c.Open(i)
		require.NoError(t, err)
		s.devices = append(s.devices, d)
	}
	return s
}

// on is a buffer of a rank's device with the bytes of b.
func (s *cards) on(r kolo.Rank, b rank.Buffer) (rank.Buffer, error) {
	if b.Memory.Len() == 0 {
		return b, nil
	}
	d := s.devices[r]
	m, err := d.Alloc(b.Memory.Len())
	if err == nil {
		b.Memory, err = m, s.move(d, m, b.Memory)
	}
	return b, err
}

// bytes are those of a buffer.
func (s *cards) bytes(r kolo.Rank, m kolo.Memory) ([]byte, error) {
	b := make([]byte, m.Len())
	if len(b) == 0 {
		return b, nil
	}
	return b, s.move(s.devices[r], kolo.HostMemory(b), m)
}

func (s *cards) move(d npu.Device, dst, src kolo.Memory) error {
	stream, err := d.NewStream(npu.StreamConfig{})
	if err != nil {
		return err
	}
	if err := stream.Copy(dst, src); err != nil {
		return err
	}
	if err := stream.Sync(context.Background()); err != nil {
		return err
	}
	return stream.Close()
}

// do makes a call with memory of the rank's device and checks what is in it.
func (s *cards) do(ctx context.Context, g *rank.Group, k kolo.Collective) error {
	me, n := g.Rank(), g.Size()
	want := ranktest.Want(n, me, func(r kolo.Rank) rank.Request { return request(k, r, n) })
	q := request(k, me, n)
	var err error
	if q.In, err = s.on(me, q.In); err != nil {
		return err
	}
	if q.Out, err = s.on(me, q.Out); err != nil {
		return err
	}
	if err = rank.Do(ctx, g, q); err != nil {
		return err
	}
	got, err := s.bytes(me, q.Out.Memory)
	if err == nil && !bytes.Equal(want, got) {
		err = fmt.Errorf("%v: wrong answer on %v", k, me)
	}
	for _, b := range []rank.Buffer{q.In, q.Out} {
		if e := s.devices[me].Free(b.Memory); err == nil && b.Memory.Len() > 0 {
			err = e
		}
	}
	return err
}

// Every collective of the memory of devices is right between processes, by whatever joins
// them; also where the medium in shared memory does it.
func TestDevicesOfSeveralProcesses(t *testing.T) {
	for _, transport := range []string{"shm", "tcp", "roce"} {
		t.Run(transport, func(t *testing.T) {
			s := withCards(t, transport, rank.Config{}, 2, 1, 1)
			for _, k := range kolo.Collectives() {
				for r, err := range each(s.worlds, func(w *rank.World) error { return s.do(t.Context(), w.Group(), k) }) {
					require.NoError(t, err, "%v on rank %d", k, r)
				}
			}
			closeAll(t, s.worlds)
		})
	}
}

// Messages of one tag keep their order, though those of the host have no way to a buffer.
func TestMessagesOfDevicesKeepTheirOrder(t *testing.T) {
	s := withCards(t, "tcp", rank.Config{}, 1, 1)
	const count = 12
	for r, err := range each(s.worlds, func(w *rank.World) error {
		var works []rank.Work
		var list []rank.Buffer
		kind := [...]kolo.Collective{kolo.Send, kolo.Recv}[w.Rank()]
		for i := range count {
			b := rank.Of(data(kolo.Rank(i+10*int(w.Rank())), 5000))
			if i%3 != 1 {
				var err error
				if b, err = s.on(w.Rank(), b); err != nil {
					return err
				}
			}
			list = append(list, b)
			q := rank.Request{Collective: kind, Peer: 1 - w.Rank(), Tag: 7}
			if kind == kolo.Send {
				q.In = b
			} else {
				q.Out = b
			}
			works = append(works, rank.DoAsync(w.Group(), q))
		}
		for i, work := range works {
			if err := work.Wait(t.Context()); err != nil {
				return err
			}
			got, err := s.host(w.Rank(), list[i].Memory)
			if err != nil {
				return err
			}
			if !bytes.Equal(got, rank.Of(data(kolo.Rank(i), 5000)).Memory.Host) {
				return fmt.Errorf("message %d is another one on %v", i, w.Rank())
			}
		}
		return nil
	}) {
		require.NoError(t, err, "rank %d", r)
	}
	closeAll(t, s.worlds)
}

// host is bytes of memory wherever it is.
func (s *cards) host(r kolo.Rank, m kolo.Memory) ([]byte, error) {
	if m.Space == kolo.HostSpace {
		return m.Host, nil
	}
	return s.bytes(r, m)
}

// A device that is lost fails the group on all ranks, and the error says so.
func TestLostDeviceOfAnotherProcess(t *testing.T) {
	for _, transport := range []string{"shm", "tcp", "roce"} {
		t.Run(transport, func(t *testing.T) {
			s := withCards(t, transport, rank.Config{}, 1, 1)
			lists := [2]rank.Buffer{}
			for i := range lists {
				var err error
				lists[i], err = s.on(kolo.Rank(i), rank.Of(data(kolo.Rank(i), 5000)))
				require.NoError(t, err)
			}
			s.c.Lose(1)
			for r, err := range each(s.worlds, func(w *rank.World) error {
				b := lists[w.Rank()]
				return rank.Do(t.Context(), w.Group(), rank.Request{Collective: kolo.AllReduce, Op: kolo.Sum, In: b, Out: b})
			}) {
				require.ErrorIs(t, err, kolo.ErrLost, "rank %d", r)
				require.ErrorContains(t, err, "device 1")
			}
			closeAll(t, s.worlds)
		})
	}
}

// HCCL's variables reach the roce driver of a world, and what is wrong with one ends the
// join with its name.
func TestSettingsOfRoCE(t *testing.T) {
	env := map[string]string{"HCCL_RDMA_TC": "100", "HCCL_RDMA_TIMEOUT": "17", "HCCL_RDMA_RETRY_CNT": "3", "HCCL_RDMA_QPS_PER_CONNECTION": "2",
		"HCCL_MULTI_QP_THRESHOLD": "64"}
	c := Config{Transport: "roce", Getenv: func(name string) string { return env[name] }}
	list := together(t, c, 1, 1)
	for _, p := range list {
		d, ok := p.drivers.drivers[1].(*roce.Driver)
		require.True(t, ok)
		got := d.Config()
		require.Equal(t, []any{100, 4096 * time.Nanosecond << 17, 3, 2, int64(64 << 10)}, []any{got.TrafficClass, got.Timeout, got.Retries, got.QPs, got.MultiQP})
	}
	worlds := worldsOf(list)
	for _, err := range each(worlds, func(w *rank.World) error {
		return rank.AllReduce(t.Context(), w.Group(), make([]float32, 300_000), kolo.Sum) // on both queue pairs
	}) {
		require.NoError(t, err)
	}
	closeAll(t, worlds)
	env = map[string]string{"HCCL_RDMA_RETRY_CNT": "8"}
	c.Timeout = 2 * time.Second
	_, errs := tryTogether(t, withRendezvous(t, c), 1, 1)
	for _, err := range errs {
		require.ErrorIs(t, err, kolo.ErrArgument)
		require.ErrorContains(t, err, "HCCL_RDMA_RETRY_CNT")
	}
}

// HCCL's variables reach the control plane and the tcp driver, also under TLS.
func TestSettingsOfTCP(t *testing.T) {
	env := map[string]string{"HCCL_IF_IP": "127.0.0.1"}
	c := Config{Transport: "tcp", Getenv: func(name string) string { return env[name] }}
	list := together(t, c, 1, 1)
	require.Equal(t, []string{"127.0.0.1"}, list[0].Members()[1].Addresses)
	closeAll(t, worldsOf(list))
	env = map[string]string{"HCCL_SOCKET_IFNAME": "nosuch"}
	for _, advertise := range [][]string{nil, {"127.0.0.1"}} { // of the control plane; the driver has its own choice
		for _, secret := range []*tls.Config{nil, certificates(t)} {
			w := tlsWorld(t, secret)
			w.Advertise, w.Getenv = advertise, c.Getenv
			_, errs := tryTogether(t, w, 1, 1)
			for _, err := range errs {
				require.ErrorIs(t, err, kolo.ErrArgument)
				require.ErrorContains(t, err, `HCCL_SOCKET_IFNAME) "nosuch"`)
			}
		}
	}
}

func withRendezvous(t *testing.T, c Config) Config {
	c.Rendezvous = standing(t)
	return c
}
