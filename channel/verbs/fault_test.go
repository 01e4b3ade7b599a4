//go:build linux && (amd64 || arm64) && !noverbs

package verbs

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/actor"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/channel/hccs"
	"github.com/kolo-ccl/kolo/channel/roce"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// What is not here is said in one error: what was looked for, and where.
func TestLibrary(t *testing.T) {
	c := channel.Config{Job: "library"}
	_, err := New(c, Config{Library: "/nowhere/libibverbs.so.1"})
	require.ErrorIs(t, err, kolo.ErrUnsupported)
	require.ErrorContains(t, err, "/nowhere/libibverbs.so.1")
	require.ErrorContains(t, err, "rdma-core")
	libc := ""
	for m := range mappings() {
		if filepath.Base(m.path) == "libc.so.6" {
			libc = m.path
		}
	}
	_, err = New(c, Config{Library: libc})
	require.ErrorIs(t, err, kolo.ErrUnsupported)
	require.ErrorContains(t, err, "has no ibv_get_device_list, ")
	if _, err := load([]string{libraryName}); err != nil {
		t.Skip(err)
	}
	_, err = New(c, Config{Device: "none", Sys: t.TempDir()})
	require.ErrorIs(t, err, kolo.ErrUnsupported)
	require.ErrorContains(t, err, "device none")
	r := Inspect(Config{})
	require.NoError(t, r.Err)
	require.Contains(t, r.Library, libraryName)
	t.Logf("%v", r)
}

// A device that cannot be had, or is not what is understood, is not used, and nothing of
// it is kept.
func TestOpenFails(t *testing.T) {
	s := newStandin(t)
	for _, f := range []fn{fnGetDeviceList, fnOpenDevice, fnQueryDevice, fnQueryPort, fnQueryGID, fnAllocPD, fnCreateChannel, fnCreateCQ, fnRegMR, fnCreateQP, fnModifyQP} {
		s.fail(symbols[f], int(syscall.EPERM), 0)
		_, err := New(channel.Config{Job: "fails"}, s.config())
		require.ErrorIs(t, err, syscall.EPERM, symbols[f])
		require.ErrorContains(t, err, symbols[f])
		require.ErrorContains(t, err, "standin0 port 1")
	}
	for what, text := range map[string]string{"layout 1": "3 of 4 functions", "layout 2": "a memory region", "mtu 9": "its MTU is 9", "layer 1": "speaks RoCE v2"} {
		name, value := "", 0
		_, err := fmt.Sscan(what, &name, &value)
		require.NoError(t, err)
		s.put(name, value)
		_, err = New(channel.Config{Job: "fails"}, s.config())
		require.ErrorIs(t, err, kolo.ErrUnsupported, what)
		require.ErrorContains(t, err, text)
		s.put("layout", 0)
		s.put("mtu", 3)
		s.put("layer", layerEthernet)
	}
	c := s.config()
	writePort(t, c.Sys, "other0", "1", "4: ACTIVE", map[string][2]string{"0": {"0000:0000:0000:0000:0000:ffff:0a00:0001", typeV2}})
	c.Device = "other0"
	_, err := New(channel.Config{Job: "fails"}, c)
	require.ErrorContains(t, err, "the system has this device and libibverbs does not")
	c.Device, c.Addr = "", netip.MustParseAddr("10.0.0.9")
	_, err = New(channel.Config{Job: "fails"}, c)
	require.ErrorContains(t, err, "no port of an RDMA device is as wanted: ACTIVE, with the RoCE v2 GID of 10.0.0.9 (HCCL_IF_IP)")
	require.ErrorContains(t, err, "standin0 port 1 ACTIVE")
}

func TestChoose(t *testing.T) {
	sys := t.TempDir()
	writePort(t, sys, "a", "1", "1: DOWN", map[string][2]string{"0": {"fd00:0000:0000:0000:0000:0000:0000:0001", typeV2}})
	writePort(t, sys, "b", "1", "4: ACTIVE", map[string][2]string{"0": {"fe80:0000:0000:0000:0000:0000:0000:0002", typeV2}, "1": {"0000:0000:0000:0000:0000:ffff:0a00:0002", "IB/RoCE v1"},
		"2": {"0000:0000:0000:0000:0000:ffff:0a00:0002", typeV2}, "3": {"fd00:0000:0000:0000:0000:0000:0000:0002", typeV2}})
	writePort(t, sys, "b", "2", "4: ACTIVE", map[string][2]string{"0": {"0000:0000:0000:0000:0000:ffff:0a00:0003", typeV2}})
	ports, err := Ports(sys)
	require.NoError(t, err)
	require.Len(t, ports, 3)
	require.Equal(t, "100 Gb/sec (4X EDR)", ports[1].Rate)
	for _, row := range []struct {
		c    Config
		port int
		gid  int // -1: none
	}{
		{Config{}, 1, 3},
		{Config{Config: roce.Config{Addr: netip.MustParseAddr("10.0.0.2")}}, 1, 2},
		{Config{Config: roce.Config{Addr: netip.MustParseAddr("::ffff:10.0.0.3")}}, 2, 0},
		{Config{DevicePort: 2}, 2, 0},
		{Config{Device: "a"}, 0, -1},
		{Config{Config: roce.Config{Addr: netip.MustParseAddr("fe80::2")}}, 0, -1},
	} {
		p, g, err := row.c.choose(ports)
		if row.gid < 0 {
			require.ErrorIs(t, err, kolo.ErrUnsupported)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, []int{row.port, row.gid}, []int{p.Number, g.Index}, "%+v", row.c)
	}
}

func TestConfigFromEnv(t *testing.T) {
	env := map[string]string{"HCCL_RDMA_SL": "0", "HCCL_RDMA_TC": "100", "HCCL_RDMA_TIMEOUT": "14", "HCCL_RDMA_RETRY_CNT": "3", "HCCL_RDMA_QPS_PER_CONNECTION": "4",
		"KOLO_VERBS_DEVICE": "mlx5_2:2", "HCCL_IF_IP": "10.0.0.1"}
	c, err := ConfigFromEnv(func(k string) string { return env[k] })
	require.NoError(t, err)
	require.Equal(t, "mlx5_2", c.Device)
	require.Equal(t, 2, c.DevicePort)
	require.Equal(t, 4, c.QPs)
	c = c.withDefaults()
	require.Equal(t, uint8(14), c.exponent())
	require.Equal(t, []int{0, 100, 3}, []int{c.ServiceLevel, c.TrafficClass, c.Retries})
	require.Equal(t, 4, Config{}.withDefaults().ServiceLevel)
	for k, v := range map[string]string{"HCCL_RDMA_SL": "8", "KOLO_VERBS_DEVICE": "a:0", "HCCL_RDMA_TC": "x"} {
		_, err := ConfigFromEnv(func(name string) string { return map[string]string{k: v}[name] })
		require.ErrorIs(t, err, kolo.ErrArgument)
		require.ErrorContains(t, err, k)
	}
}

// side is a rank with a driver of its own and its channel to the other.
type side struct {
	t     testing.TB
	d     *roce.Driver
	shard *actor.Shard
	to    *channel.Channel
	do    actor.Ref[*call]
	ended chan *channel.Op
}

type call struct{ f func() }

// Handle does the call on the side's shard.
func (s *side) Handle(c *call) error { c.f(); return nil }

// Complete hears of completions.
func (s *side) Complete(op *channel.Op) { s.ended <- op }

// newPair makes two sides, as in two processes.
func newPair(t testing.TB, c Config) (sides [2]*side) {
	sys := actor.NewSystem(actor.Config{})
	engine := hccs.NewEngine(1)
	t.Cleanup(engine.Close)
	t.Cleanup(func() { require.NoError(t, sys.Close(t.Context())) })
	var addresses [2][]byte
	for i := range sides {
		s := &side{t: t, ended: make(chan *channel.Op, 64), shard: sys.NewShard(fmt.Sprint("rank ", i))}
		var err error
		s.d, err = New(channel.Config{Job: t.Name(), Engine: engine}, c)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.d.Close()) })
		addresses[i], err = s.d.Address()
		require.NoError(t, err)
		s.do, err = actor.Spawn[*call](s.shard, actor.Props{Name: "side", Limit: 64}, s)
		require.NoError(t, err)
		sides[i] = s
	}
	for i, s := range sides {
		me, peer := kolo.Rank(i), kolo.Rank(1-i)
		require.NoError(t, s.d.Meet([]channel.Peer{{Rank: peer, Address: addresses[peer]}}))
		e, err := s.d.Open(me)
		require.NoError(t, err)
		conn, err := e.Connect(peer)
		require.NoError(t, err)
		s.to, err = channel.Spawn(s.shard, "to", peer, conn, nil)
		require.NoError(t, err)
		t.Cleanup(func() {
			require.NoError(t, s.do.Tell(&call{func() { s.to.Close(errors.New("the test is over")); s.do.Stop() }}))
		})
	}
	return sides
}

func (s *side) post(kind channel.Kind, number uint64, b []byte) *channel.Op {
	op := &channel.Op{Kind: kind, Key: channel.Key{Call: number, Class: channel.Message}, Size: int64(len(b)), Sink: s, Mem: []kolo.Memory{kolo.HostMemory(b)}}
	done := make(chan struct{})
	require.NoError(s.t, s.do.Tell(&call{func() { s.to.Post(op); close(done) }}))
	<-done
	return op
}

func (s *side) wait() *channel.Op {
	select {
	case op := <-s.ended:
		return op
	case <-time.After(20 * time.Second):
		require.Fail(s.t, "nothing has completed")
		return nil
	}
}

// pattern is n bytes that differ per stream and index.
func pattern(n, stream int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*131 + stream*29 + (i>>8)*7)
	}
	return b
}

// exchange is one large message in each direction.
func exchange(t *testing.T, sides [2]*side, call uint64, n int) {
	var bufs [2][]byte
	for i, s := range sides {
		bufs[i] = make([]byte, n)
		s.post(channel.Recv, call, bufs[i])
		s.post(channel.Send, call, pattern(n, i+int(call)))
	}
	for i, s := range sides {
		for range 2 {
			require.NoError(t, s.wait().Err)
		}
		require.Equal(t, pattern(n, 1-i+int(call)), bufs[i])
	}
}

// What fails under way ends the link at both ends, with the text of the library.
func TestFaults(t *testing.T) {
	for name, f := range map[string]struct {
		fault func(s *standin)
		text  string
	}{
		"a send cannot be posted":          {func(s *standin) { s.fail("ibv_post_send", int(syscall.ENOMEM), 0) }, "ibv_post_send: cannot allocate memory"},
		"a receive cannot be posted":       {func(s *standin) { s.fail("ibv_post_recv", int(syscall.EINVAL), 0) }, "ibv_post_recv: invalid argument"},
		"memory cannot be registered once": {func(s *standin) { s.fail("ibv_reg_mr", int(syscall.ENOMEM), 0) }, ""},
		"completions cannot be polled":     {func(s *standin) { s.fail("ibv_poll_cq", 1, 0) }, "ibv_poll_cq"},
		"an event of a queue pair":         {func(s *standin) { s.fatal(0, eventQPFatal) }, "local work queue catastrophic error"},
		"the device has failed":            {func(s *standin) { s.fatal(0, eventDeviceFatal) }, "local catastrophic error"},
		"the peer has gone out of reach":   {func(s *standin) { s.put("lost", 1) }, "transport retry counter exceeded (status 12, vendor 0x42)"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStandin(t)
			sides := newPair(t, s.config())
			exchange(t, sides, 1, 100_000)
			if f.text == "" { // it is tried again
				f.fault(s)
				exchange(t, sides, 2, 300_000)
				return
			}
			texts := ""
			var lone [2]*channel.Op
			for i, x := range sides {
				lone[i] = x.post(channel.Recv, 99, make([]byte, 8))
			}
			f.fault(s)
			sides[0].post(channel.Recv, 2, make([]byte, 100_000))
			sides[1].post(channel.Send, 2, make([]byte, 100_000))
			for i, x := range sides {
				op := x.wait()
				for op != lone[i] {
					op = x.wait()
				}
				require.ErrorIs(t, op.Err, kolo.ErrLost)
				texts += line(op.Err)
			}
			require.Contains(t, texts, f.text)
		})
	}
}

// Memory of the heap stays registered, other memory does not, and what is over the limit
// goes.
func TestCache(t *testing.T) {
	s := newStandin(t)
	c := s.config()
	c.Cache = 1 << 20
	a, err := open(c.withDefaults())
	require.NoError(t, err)
	defer func() { require.NoError(t, a.Close()) }()
	b := make([]byte, 600_000)
	r, err := a.Register(b, true)
	require.NoError(t, err)
	a.Release(r)
	again, err := a.Register(b[1000:5000], false)
	require.NoError(t, err)
	require.Equal(t, r.Local, again.Local, "a part of what is registered for more")
	require.Equal(t, r.VA+1000, again.VA)
	a.Release(again)
	mapped, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(mapped)) }()
	require.False(t, a.cache.heap.has(mapped), "memory that may be unmapped")
	require.True(t, a.cache.heap.has(b))
	var keys [2]uint32
	for i := range keys {
		r, err := a.Register(mapped, true)
		require.NoError(t, err)
		keys[i] = r.Remote
		a.Release(r)
	}
	require.NotEqual(t, keys[0], keys[1])
	r2, err := a.Register(make([]byte, 700_000), true) // the first one makes room
	require.NoError(t, err)
	a.Release(r2)
	require.LessOrEqual(t, a.cache.bytes, int64(1<<20))
	r3, err := a.Register(b, true)
	require.NoError(t, err)
	require.NotEqual(t, r.Local, r3.Local)
	a.Release(r3)
	require.Len(t, a.cache.list, 1)
}

// The heap is known as it grows.
func TestHeap(t *testing.T) {
	var h heap
	var keep [][]byte
	for range 20 {
		b := make([]byte, 8<<20)
		keep = append(keep, b)
		require.True(t, h.has(b))
	}
	require.Len(t, keep, 20)
}

// Without cgo the binding is the same.
func TestWithoutCgo(t *testing.T) {
	if os.Getenv("CGO_ENABLED") == "0" || testing.Short() {
		t.Skip("it is what runs")
	}
	newStandin(t)
	cmd := exec.CommandContext(t.Context(), "go", "test", "-short", "-count=1", "-vet=off", "-run", "^(TestOpenFails|TestCache)$", ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}
