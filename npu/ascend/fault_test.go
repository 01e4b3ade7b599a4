//go:build linux && (amd64 || arm64) && !noacl

package ascend_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/internal/kernel"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/npu/ascend"
	"github.com/kolo-ccl/kolo/npu/ascend/standin"

	"github.com/stretchr/testify/require"
)

// rig is a driver over the stand-in with some devices open.
type rig struct {
	testing.TB
	lib     *standin.Library
	v       *ascend.Driver
	devices []npu.Device
	ctx     context.Context
}

func newRig(t testing.TB, devices int) *rig {
	t.Helper()
	r := &rig{TB: t, lib: standin.Open(t)}
	r.open(devices)
	return r
}

// open opens the driver; what the stand-in was set to before holds for it.
func (r *rig) open(devices int) {
	r.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	v, err := ascend.New(ascend.Config{Library: r.lib.Path, DCMI: r.lib.DCMI})
	require.NoError(r, err)
	r.v, r.ctx = v, ctx
	r.Cleanup(func() {
		defer cancel()
		if err := v.Close(ctx); err != nil {
			r.Errorf("close: %v", err)
		}
	})
	r.devices = nil
	for i := range devices {
		d, err := v.Open(i)
		require.NoError(r, err)
		r.devices = append(r.devices, d)
	}
}

func (r *rig) ok(err error) {
	r.Helper()
	require.NoError(r, err)
}

func (r *rig) stream(i int) npu.Stream {
	r.Helper()
	s, err := r.devices[i].NewStream(npu.StreamConfig{})
	r.ok(err)
	return s
}

func (r *rig) event(i int) npu.Event {
	r.Helper()
	e, err := r.devices[i].NewEvent("e")
	r.ok(err)
	return e
}

func (r *rig) alloc(i, size int) kolo.Memory {
	r.Helper()
	m, err := r.devices[i].Alloc(int64(size))
	r.ok(err)
	return m
}

// filled is memory of a device with bytes that differ by index and by seed.
func (r *rig) filled(i, size, seed int) (kolo.Memory, []byte) {
	r.Helper()
	m, b := r.alloc(i, size), make([]byte, size)
	for k := range b {
		b[k] = byte(k*7 + k>>8 + seed*31)
	}
	s := r.stream(i)
	r.ok(s.Copy(m, kolo.HostMemory(b)))
	r.ok(s.Sync(r.ctx))
	r.ok(s.Close())
	return m, b
}

func (r *rig) read(i int, m kolo.Memory) []byte {
	r.Helper()
	b, s := make([]byte, m.Size), r.stream(i)
	r.ok(s.Copy(kolo.HostMemory(b), m))
	r.ok(s.Sync(r.ctx))
	r.ok(s.Close())
	return b
}

func TestAbsentLibrarySaysWhereItWasLookedFor(t *testing.T) {
	_, err := npu.Open("ascend", npu.Config{Options: "lib=/nowhere/libascendcl.so"})
	require.ErrorIs(t, err, kolo.ErrUnsupported)
	require.ErrorContains(t, err, "/nowhere/libascendcl.so")
	require.ErrorContains(t, err, "CANN")
	_, err = ascend.New(ascend.Config{Getenv: func(name string) string {
		return map[string]string{"ASCEND_LIB": "/nowhere/own.so", "ASCEND_HOME_PATH": "/nowhere/cann"}[name]
	}})
	if err == nil {
		t.Skip("CANN is installed here")
	}
	require.ErrorIs(t, err, kolo.ErrUnsupported)
	at := 0
	for _, place := range []string{"/nowhere/own.so: ", "/nowhere/cann/lib64/libascendcl.so: ", "/usr/local/Ascend/ascend-toolkit/latest/lib64/libascendcl.so: ", "\n\tlibascendcl.so: "} {
		i := strings.Index(err.Error(), place)
		require.Greater(t, i, at, "%s in its order in %v", place, err)
		at = i
	}
}

func TestLibraryThatLacksFunctions(t *testing.T) {
	lib := standin.Open(t)
	_, err := ascend.New(ascend.Config{Library: lib.DCMI})
	require.ErrorIs(t, err, kolo.ErrUnsupported)
	require.ErrorContains(t, err, lib.DCMI)
	require.ErrorContains(t, err, "aclrtMemcpyAsync")
}

func TestBadOptions(t *testing.T) {
	for _, o := range []string{"lib", "speed=3", "patience=soon", "patience=-1s"} {
		_, err := npu.Open("ascend", npu.Config{Options: o})
		require.ErrorIs(t, err, kolo.ErrArgument, o)
	}
}

func TestNoDevice(t *testing.T) {
	lib := standin.Open(t)
	lib.Set("devices", 0)
	_, err := ascend.New(ascend.Config{Library: lib.Path})
	require.ErrorIs(t, err, kolo.ErrUnsupported)
	require.ErrorContains(t, err, "no device")
	lib.Set("devices", 4)
	lib.Inject("aclrtGetDeviceCount", 207006, 0)
	_, err = ascend.New(ascend.Config{Library: lib.Path})
	require.ErrorIs(t, err, kolo.ErrLimit)
	require.ErrorContains(t, err, "davinci")
	require.ErrorContains(t, err, "injected", "the library's own words")
}

// TestEveryCode has the calls of a stream and of a device fail with every documented
// number: each is the error of its class, with number and text, nothing hangs, and
// what is not lost works on.
func TestEveryCode(t *testing.T) {
	r := newRig(t, 1)
	for i, code := range ascend.Codes() {
		for _, function := range []string{"aclrtMalloc", "aclrtCreateEventExWithFlag", "aclrtMemcpyAsync", "aclrtRecordEvent", "aclrtReduceAsync", "aclrtLaunchCallback", "task"} {
			if function == "task" && i%4 != 0 {
				continue // the patrol finds it, which takes its time
			}
			if err := r.provoke(function, code); err == nil {
				t.Fatalf("%s with %d: no error", function, code)
			} else if err := judge(err, function, code); err != nil {
				t.Fatalf("%s with %d: %v", function, code, err)
			}
			if ascend.ClassOf(code) == ascend.DeviceLost {
				require.ErrorIs(t, r.devices[0].Health().Err, npu.ErrLost)
			} else {
				require.NoError(t, r.devices[0].Health().Err, "%s with %d", function, code)
			}
			if r.devices[0].Health().Err != nil {
				r.ok(r.devices[0].Close(r.ctx))
				d, err := r.v.Open(0)
				r.ok(err)
				r.devices[0] = d
			}
			m, want := r.filled(0, 100, int(code))
			require.Equal(t, want, r.read(0, m))
			r.ok(r.devices[0].Free(m))
		}
	}
}

// judge says what is wrong with the error of an injected code.
func judge(err error, function string, code int32) error {
	sentinels := map[ascend.Class][]error{
		ascend.CallerBug:  {kolo.ErrArgument, kolo.ErrUnsupported},
		ascend.Resource:   {kolo.ErrLimit},
		ascend.Timeout:    {kolo.ErrDeadline},
		ascend.Fault:      {npu.ErrFault},
		ascend.PeerLost:   {kolo.ErrLost},
		ascend.DeviceLost: {npu.ErrLost},
	}
	is := false
	for _, s := range sentinels[ascend.ClassOf(code)] {
		is = is || errors.Is(err, s)
	}
	var acl *ascend.Error
	switch {
	case !is:
		return fmt.Errorf("the error is not of class %v: %w", ascend.ClassOf(code), err)
	case !errors.As(err, &acl) || acl.Code != code:
		return fmt.Errorf("the error does not hold the code: %w", err)
	case function != "task" && (acl.Call != function || !strings.Contains(err.Error(), "injected into "+function)):
		return fmt.Errorf("the error does not name the function or not its text: %w", err)
	}
	return nil
}

// provoke has one call fail, on a stream of its own.
func (r *rig) provoke(function string, code int32) error {
	r.Helper()
	a, _ := r.filled(0, 512, 1)
	b := r.alloc(0, 512)
	s, e := r.stream(0), r.event(0)
	defer func() { // refused where the device is lost
		s.Abort(errors.New("end"))
		_, _, _, _ = s.Sync(r.ctx), s.Close(), e.Close(), errors.Join(r.devices[0].Free(a), r.devices[0].Free(b))
	}()
	if function == "task" {
		r.lib.Fault(0, code, 0)
	} else {
		r.lib.Inject(function, code, 0)
		defer r.lib.Inject(function, 0, 0)
	}
	switch function {
	case "aclrtMalloc":
		_, err := r.devices[0].Alloc(1)
		return err
	case "aclrtReduceAsync":
		return errors.Join(s.Reduce(b, a, kolo.Int32, kolo.Sum), s.Sync(r.ctx))
	case "aclrtCreateEventExWithFlag", "aclrtRecordEvent":
		hold := []npu.Event{r.event(0), r.event(0), r.event(0)} // more than there may be to be used again
		for _, x := range hold {
			if s.Record(x) != nil {
				break
			}
		}
		err := s.Sync(r.ctx)
		for _, x := range hold {
			_ = x.Close() // refused where the device is lost
		}
		return err
	}
	return errors.Join(s.Copy(b, a), s.Sync(r.ctx))
}

func TestTaskThatFailsOnTheDevice(t *testing.T) {
	r := newRig(t, 1)
	a, _ := r.filled(0, 512, 1)
	b, before := r.filled(0, 512, 2)
	s, p, e := r.stream(0), r.stream(0), r.event(0)
	called := make(chan error, 2)
	r.lib.Fault(0, 507015, 1)
	c := r.alloc(0, 512)
	r.ok(s.Copy(c, a)) // goes well
	// A stream may hear of the fault at any moment from here on: then it refuses.
	_ = s.Copy(b, a)
	_ = s.Record(e)
	_ = p.Wait(e)
	_ = p.Copy(b, c)
	if s.Callback(func(err error) { called <- err }) == nil {
		require.ErrorIs(t, <-called, npu.ErrFault)
	}
	err := s.Sync(r.ctx)
	require.ErrorIs(t, err, npu.ErrFault)
	require.ErrorContains(t, err, "507015")
	require.ErrorContains(t, err, "exception in an AI core")
	require.ErrorIs(t, s.Copy(b, a), npu.ErrFault)
	if err := p.Sync(r.ctx); err != nil {
		require.ErrorIs(t, err, npu.ErrFault, "what waited for the failed stream")
		require.True(t, string(before) == string(r.read(0, b)), "what was behind the wait has run")
	}
	r.ok(r.devices[0].Health().Err)
	s.Abort(errors.New("again"))
	p.Abort(errors.New("again"))
	r.ok(s.Copy(b, c))
	r.ok(s.Sync(r.ctx))
	require.Equal(t, r.read(0, a), r.read(0, b))
}

// A device that is held by an event which will not come is told.
func TestDeviceIsNotHeldByADeadStream(t *testing.T) {
	r := newRig(t, 1)
	a, _ := r.filled(0, 512, 1)
	b, before := r.filled(0, 512, 2)
	for i := range 20 {
		s, p, e := r.stream(0), r.stream(0), r.event(0)
		gate, err := r.devices[0].NewNotify("gate")
		r.ok(err)
		r.ok(s.Await(gate))
		r.ok(s.Copy(b, a))
		r.ok(s.Record(e))
		r.ok(p.Wait(e))
		r.ok(p.Copy(b, a))
		r.lib.Fault(0, 507018, 0)
		r.ok(gate.Set())
		require.ErrorIs(t, p.Sync(r.ctx), npu.ErrFault, "round %d", i)
		require.ErrorIs(t, s.Sync(r.ctx), npu.ErrFault)
		require.True(t, string(before) == string(r.read(0, b)), "what was behind the wait has run")
		for _, x := range []npu.Stream{s, p} {
			x.Abort(errors.New("over"))
			r.ok(x.Sync(r.ctx))
			r.ok(x.Close())
		}
		r.ok(errors.Join(e.Close(), gate.Close()))
	}
}

func TestLostDevice(t *testing.T) {
	r := newRig(t, 3)
	a, b, c := r.alloc(0, 1<<16), r.alloc(1, 1<<16), r.alloc(2, 1<<16)
	s0, s1, s2 := r.stream(0), r.stream(1), r.stream(2)
	gate, err := r.devices[1].NewNotify("gate")
	r.ok(err)
	r.ok(s1.Copy(b, kolo.HostMemory(make([]byte, 1<<16))))
	r.ok(s1.Sync(r.ctx))
	r.ok(s1.Await(gate))
	r.lib.Lose(1, 507901)
	ends := make(chan error, 1)
	r.ok(s1.Copy(b, kolo.HostMemory(make([]byte, 1<<16))))
	r.ok(s1.Callback(func(err error) { ends <- err }))
	r.ok(gate.Set())
	require.ErrorIs(t, <-ends, npu.ErrLost)
	require.ErrorIs(t, s1.Sync(r.ctx), npu.ErrLost)
	require.ErrorIs(t, r.devices[1].Health().Err, npu.ErrLost)
	_, err = r.devices[1].Alloc(8)
	require.ErrorIs(t, err, npu.ErrLost)
	require.ErrorIs(t, s0.Copy(a, b), npu.ErrLost, "nor may others use it")
	r.ok(s0.Copy(c, a))
	r.ok(s2.Copy(a, c))
	r.ok(errors.Join(s0.Sync(r.ctx), s2.Sync(r.ctx)))
	r.ok(r.devices[1].Close(r.ctx))
	_, err = r.v.Open(1)
	require.ErrorIs(t, err, npu.ErrLost)
	r.lib.Lose(1, 0) // a reset has helped
	r.devices[1], err = r.v.Open(1)
	r.ok(err)
	m, want := r.filled(1, 100, 3)
	require.Equal(t, want, r.read(1, m))
}

// A device that is lost in the middle calls nobody back: the patrol finds out.
func TestDeviceThatFallsSilent(t *testing.T) {
	r := newRig(t, 2)
	a, b := r.alloc(0, 1<<20), r.alloc(1, 1<<20)
	s, p := r.stream(0), r.stream(1)
	gate, err := r.devices[0].NewNotify("gate")
	r.ok(err)
	r.ok(s.Await(gate))
	r.ok(p.Copy(b, kolo.HostMemory(make([]byte, 1<<20))))
	r.ok(p.Sync(r.ctx))
	lost := make(chan struct{})
	r.ok(s.Callback(func(error) { r.lib.Lose(0, 507010); close(lost) }))
	for range 4 {
		r.ok(s.Copy(a, b))
	}
	r.ok(gate.Set())
	<-lost
	require.ErrorIs(t, s.Sync(r.ctx), npu.ErrLost)
	r.ok(p.Copy(b, kolo.HostMemory(make([]byte, 1<<20))))
	r.ok(p.Sync(r.ctx))
	r.ok(r.devices[1].Free(b)) // nobody holds it any more
}

func TestCriticalHealthIsALoss(t *testing.T) {
	r := newRig(t, 1)
	r.lib.Health(0, uint32(ascend.Minor), 0)
	s := r.stream(0)
	r.ok(s.Sync(r.ctx))
	gate, err := r.devices[0].NewNotify("gate")
	r.ok(err)
	r.ok(s.Await(gate))
	r.lib.Health(0, uint32(ascend.Critical), 0)
	err = s.Sync(r.ctx) // nobody sets the gate
	require.ErrorIs(t, err, npu.ErrLost)
	require.ErrorContains(t, err, "critical")
	r.lib.Health(0, 0, 0)
}

func TestMemoryAtOtherAddresses(t *testing.T) {
	lib := standin.Open(t)
	lib.Set("misalign", 1)
	r := &rig{TB: t, lib: lib}
	r.open(1)
	const n = 9 << 20 // more than goes through the bounce buffer at once
	m, want := r.filled(0, n, 3)
	require.Zero(t, m.Addr%npu.Alignment)
	s, dst := r.stream(0), r.alloc(0, n)
	r.ok(s.Copy(dst, m))
	r.ok(s.Copy(dst.Slice(1, n-10), m.Slice(3, n-10)))
	r.ok(s.Sync(r.ctx))
	copy(want[1:], want[3:n-7])
	require.Equal(t, want, r.read(0, dst))
}

func TestDevicesWithoutAccess(t *testing.T) {
	lib := standin.Open(t)
	lib.Set("no peers", 1)
	r := &rig{TB: t, lib: lib}
	r.open(2)
	_, ok := r.devices[0].Edge(r.devices[1].Info().Space)
	require.False(t, ok)
	a, b := r.alloc(0, 64), r.alloc(1, 64)
	s := r.stream(0)
	require.ErrorIs(t, s.Copy(a, b), kolo.ErrUnsupported)
	require.ErrorIs(t, s.Reduce(a, b, kolo.Int32, kolo.Sum), kolo.ErrUnsupported)
	r.ok(s.Sync(r.ctx))
}

func TestEdges(t *testing.T) {
	for bits, want := range map[int]kolo.Link{0x01: kolo.LinkHCCS, 0x20: kolo.LinkHCCS, 0x40: kolo.LinkHCCS, 0x08: kolo.LinkPCIe, 0x10: kolo.LinkPCIe} {
		lib := standin.Open(t)
		lib.Set("topology", bits)
		r := &rig{TB: t, lib: lib}
		r.open(2)
		e, ok := r.devices[0].Edge(r.devices[1].Info().Space)
		require.True(t, ok)
		require.Equal(t, want, e.Link)
		e, ok = r.devices[0].Edge(kolo.HostSpace)
		require.True(t, ok)
		require.Equal(t, kolo.LinkPCIe, e.Link)
		r.ok(r.v.Close(r.ctx))
	}
}

// TestReductions compares with the host's kernels: every type and operation, on the
// device's own memory and with a peer's, in one piece and in several.
func TestReductions(t *testing.T) {
	r := newRig(t, 2)
	s := r.stream(0)
	for _, d := range kolo.ReducibleDTypes() {
		for _, op := range []kolo.ReduceOp{kolo.Sum, kolo.Prod, kolo.Max, kolo.Min} {
			if op.Check(d) != nil {
				continue
			}
			for _, size := range []int{d.Size() * 101, 5 << 20} {
				if size > 1<<20 && (op.Kind != kolo.OpSum || d != kolo.Float32 && d != kolo.Uint16) {
					continue // the pieces are the same for all
				}
				for peer := range 2 {
					a, x := r.numbers(0, size, d, 1)
					b, y := r.numbers(peer, size, d, 2)
					r.ok(s.Reduce(a, b, d, op))
					r.ok(s.Sync(r.ctx))
					kernel.OpOf(d, op, 1).Accumulate(x, y)
					if string(x) != string(r.read(0, a)) {
						t.Errorf("%v of %v, %d bytes, source on device %d: not what the host computes", op, d, size, peer)
					}
					r.ok(errors.Join(r.devices[0].Free(a), r.devices[peer].Free(b)))
				}
			}
		}
	}
}

// numbers are small whole numbers of a type, on a device.
func (r *rig) numbers(i, size int, d kolo.DType, seed int) (kolo.Memory, []byte) {
	r.Helper()
	b, w := make([]byte, size), d.Size()
	for k := 0; k+w <= size; k += w {
		v := uint64((k/w*5 + seed*3) % 11)
		switch d {
		case kolo.Float32:
			v = uint64(math.Float32bits(float32(v)))
		case kolo.Float64:
			v = math.Float64bits(float64(v))
		case kolo.BFloat16:
			v = uint64(math.Float32bits(float32(v)) >> 16)
		case kolo.Float16:
			v = uint64([]uint16{0, 0x3c00, 0x4000, 0x4200, 0x4400, 0x4500, 0x4600, 0x4700, 0x4800, 0x4880, 0x4900}[v])
		}
		var word [8]byte
		binary.LittleEndian.PutUint64(word[:], v)
		copy(b[k:k+w], word[:w])
	}
	m, s := r.alloc(i, size), r.stream(i)
	r.ok(s.Copy(m, kolo.HostMemory(b)))
	r.ok(s.Sync(r.ctx))
	r.ok(s.Close())
	return m, b
}

func TestMoreTasksThanADeviceTakes(t *testing.T) {
	r := newRig(t, 1)
	s, e := r.stream(0), r.event(0)
	m := r.alloc(0, 8)
	const n = 3000
	out := make([]byte, n)
	for i := range n {
		r.ok(s.Copy(m.Slice(0, 1), kolo.HostMemory([]byte{byte(i * 13)})))
		r.ok(s.Copy(kolo.HostMemory(out[i:i+1]), m.Slice(0, 1)))
		r.ok(s.Record(e))
	}
	r.ok(e.Sync(r.ctx))
	for i := range n {
		if out[i] != byte(i*13) {
			t.Fatalf("byte %d is %d", i, out[i])
		}
	}
	if calls := r.lib.Calls("aclrtLaunchCallback"); calls > n {
		t.Errorf("%d markers for %d tasks: the device is fed task by task", calls, 3*n)
	}
	r.ok(s.Sync(r.ctx))
}

func TestLaunch(t *testing.T) {
	r := newRig(t, 1)
	s := r.stream(0)
	require.ErrorIs(t, s.Launch(npu.Kernel{Name: "host only"}), kolo.ErrUnsupported)
	var stream uintptr
	r.ok(s.Launch(npu.Kernel{Name: "k", Code: ascend.Launch(func(s uintptr) error { stream = s; return nil })}))
	r.ok(s.Sync(r.ctx))
	require.NotZero(t, stream)
	broken := errors.New("no such kernel")
	r.ok(s.Launch(npu.Kernel{Name: "k", Code: ascend.Launch(func(uintptr) error { return broken })}))
	require.ErrorIs(t, s.Sync(r.ctx), broken)
	s.Abort(broken)
	r.ok(s.Launch(npu.Kernel{Name: "k", Code: ascend.Launch(func(uintptr) error { panic("in a kernel") })}))
	require.ErrorIs(t, s.Sync(r.ctx), kolo.ErrPanic)
}

func TestDriverNamesItsLibrary(t *testing.T) {
	r := newRig(t, 1)
	path, version := r.v.Library()
	require.Equal(t, r.lib.Path, path)
	require.Equal(t, "1.17.0", version)
	require.Equal(t, "stand-in, no NPU", r.devices[0].Info().Name)
}

// TestRandomFaults has streams that wait for each other while their tasks fail on the
// device, calls are refused, and streams are aborted, at random. Nothing hangs, each
// callback that was taken is called once, nothing is held in the end, and the library
// is not called as it must not be.
func TestRandomFaults(t *testing.T) {
	r := newRig(t, 2)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	var taken, called atomic.Int64
	over := errors.New("over")
	for range 40 {
		var streams [4]npu.Stream
		var events [3]npu.Event
		for i := range streams {
			streams[i] = r.stream(0)
		}
		for i := range events {
			events[i] = r.event(0)
		}
		a, b, far := r.alloc(0, 4096), r.alloc(0, 4096), r.alloc(1, 4096)
		for range 60 {
			s, e := streams[rng.IntN(4)], events[rng.IntN(3)]
			switch rng.IntN(12) { // what a stream that has failed refuses
			case 0, 1:
				_ = s.Record(e)
			case 2, 3:
				_ = s.Wait(e)
			case 4:
				if s.Callback(func(error) { called.Add(1) }) == nil {
					taken.Add(1)
				}
			case 5:
				s.Abort(over)
			case 6:
				r.lib.Fault(0, 507015, rng.IntN(4))
			case 7:
				name := []string{"aclrtMemcpyAsync", "aclrtRecordEvent", "aclrtStreamWaitEvent", "aclrtLaunchCallback", "aclrtStreamAbort"}[rng.IntN(5)]
				r.lib.Inject(name, 507013, rng.IntN(3))
			case 8:
				_ = s.Reduce(a, b, kolo.Uint8, kolo.Sum) // by way of the host
			case 9:
				_ = s.Copy(far, a)
			default:
				_ = s.Copy(a, b)
			}
			if _, err := s.Query(); err != nil && rng.IntN(2) == 0 {
				s.Abort(over)
			}
		}
		r.lib.Fault(0, 0, 0)
		for _, name := range []string{"aclrtMemcpyAsync", "aclrtRecordEvent", "aclrtStreamWaitEvent", "aclrtLaunchCallback", "aclrtStreamAbort"} {
			r.lib.Inject(name, 0, 0)
		}
		for _, s := range streams {
			s.Abort(over)
		}
		for _, s := range streams {
			r.ok(s.Sync(r.ctx))
		}
		for _, s := range streams {
			r.ok(s.Copy(b, a)) // after an abort a stream is as good as new
			r.ok(s.Sync(r.ctx))
			r.ok(s.Close())
		}
		for _, e := range events {
			r.ok(e.Close())
		}
		r.ok(errors.Join(r.devices[0].Free(a), r.devices[0].Free(b), r.devices[1].Free(far)))
	}
	require.Equal(t, taken.Load(), called.Load(), "seed %d", seed)
	h := r.devices[0].Health()
	r.ok(h.Err)
	require.Zero(t, h.Buffers+h.Streams+h.Tasks, "seed %d: %+v", seed, h)
}
