//go:build linux && (amd64 || arm64) && !noacl

package ascend

import (
	"context"
	"os"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/npu/ascend/standin"

	"github.com/stretchr/testify/require"
)

// bound is the stand-in's binding, with device 0 set on the test's thread.
func bound(t *testing.T) *library {
	t.Helper()
	s := standin.Open(t)
	l, err := load([]string{s.Path})
	require.NoError(t, err)
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	require.NoError(t, l.init())
	require.NoError(t, l.call(fnSetDevice, 0))
	t.Cleanup(func() { require.NoError(t, l.call(fnResetDevice, 0)) })
	return l
}

func (l *library) synced(t *testing.T, stream uintptr) {
	t.Helper()
	require.NoError(t, l.call(fnSynchronizeStreamWithTimeout, stream, 10_000))
}

// TestBinding says that the table names what the stand-in has, and that
// what the driver does not use works through the binding too.
func TestBinding(t *testing.T) {
	l := bound(t)
	require.Empty(t, l.missing)
	var d int32
	require.NoError(t, l.call(fnGetDevice, uintptr(unsafe.Pointer(&d))))
	require.Zero(t, d)
	var attr int64
	require.NoError(t, l.call(fnGetDeviceInfo, 0, infoSuperPod, uintptr(unsafe.Pointer(&attr))))
	require.NoError(t, l.call(fnDeviceTaskAbort, 0, 100))
	ok, err := l.deviceNormal(0)
	require.NoError(t, err)
	require.True(t, ok)

	s, err := l.newStream(3)
	require.NoError(t, err)
	defer func() { require.NoError(t, l.call(fnDestroyStream, s)) }()
	p, err := l.made(fnMalloc, 4096, hugeFirst)
	require.NoError(t, err)
	defer func() { require.NoError(t, l.call(fnFree, p)) }()
	h, err := l.made(fnMallocHost, 4096, 0)
	require.NoError(t, err)
	defer func() { require.NoError(t, l.call(fnFreeHost, h)) }()
	require.NoError(t, l.call(fnMemset, p, 4096, 0x5a, 4096))
	require.NoError(t, l.call(fnMemcpy, h, 4096, p, 4096, deviceToHost))
	require.Equal(t, byte(0x5a), bytesAt(h, 4096)[4095])

	e, err := l.newEvent()
	require.NoError(t, err)
	require.NoError(t, l.call(fnRecordEvent, e, s))
	require.NoError(t, l.call(fnSynchronizeEventWithTimeout, e, 10_000))
	var status int32
	require.NoError(t, l.call(fnQueryEventStatus, e, uintptr(unsafe.Pointer(&status))))
	require.EqualValues(t, 1, status, "1 is complete")
	require.NoError(t, l.call(fnDestroyEvent, e))

	require.NoError(t, l.call(fnEnablePeerAccess, 1, 0))
	require.NoError(t, l.call(fnDisablePeerAccess, 1))
	err = l.call(fnDisablePeerAccess, 1)
	require.ErrorIs(t, err, kolo.ErrArgument)
	require.ErrorContains(t, err, "stand-in: peer 1", "the library's words on this thread")
}

func TestNotifiesOfTheLibrary(t *testing.T) {
	l := bound(t)
	s, err := l.newStream(0)
	require.NoError(t, err)
	p, err := l.newStream(0)
	require.NoError(t, err)
	n, err := l.newNotify()
	require.NoError(t, err)
	defer func() {
		require.NoError(t, l.call(fnDestroyNotify, n))
		require.NoError(t, l.call(fnDestroyStream, s))
		require.NoError(t, l.call(fnDestroyStreamForce, p))
	}()
	_, err = l.notifyID(n)
	require.NoError(t, err)
	key, err := l.exportNotify(n, int32(os.Getpid()))
	require.NoError(t, err)
	_, err = l.exportNotify(n)
	require.NoError(t, err)
	same, err := l.importNotify(key)
	require.NoError(t, err)
	require.NoError(t, l.waitNotify(same, p, 10*time.Second))
	idle, err := l.streamIdle(p)
	require.NoError(t, err)
	require.False(t, idle)
	require.NoError(t, l.recordNotify(n, s))
	l.synced(t, s)
	l.synced(t, p)
	require.NoError(t, l.waitNotify(n, p, time.Millisecond))
	err = l.call(fnSynchronizeStreamWithTimeout, p, 10_000)
	require.ErrorIs(t, err, kolo.ErrDeadline, "the bit was taken")
}

func TestEventsOfOtherProcesses(t *testing.T) {
	l := bound(t)
	e, h, err := l.exportEvent()
	require.NoError(t, err)
	defer func() { require.NoError(t, l.call(fnDestroyEvent, e)) }()
	same, err := l.importEvent(h) // 64 bytes by value
	require.NoError(t, err)
	require.Equal(t, e, same)
}

// The library of this process gives back its own memory; nothing else is shared here.
func TestMemoryOfOtherProcesses(t *testing.T) {
	s := standin.Open(t)
	v, err := New(Config{Library: s.Path, DCMI: "none"})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	defer func() { require.NoError(t, v.Close(ctx)) }()
	d, err := v.Open(0)
	require.NoError(t, err)
	other, err := v.Open(1)
	require.NoError(t, err)
	m, err := d.Alloc(4096)
	require.NoError(t, err)
	_, err = v.Export(kolo.HostMemory(make([]byte, 8)))
	require.ErrorIs(t, err, npu.ErrForeign)
	for _, pids := range [][]int{nil, {os.Getpid()}} {
		key, err := v.Export(m, pids...)
		require.NoError(t, err)
		_, err = v.Import(d, key, 4096)
		require.ErrorIs(t, err, kolo.ErrArgument, "its own")
		_, err = v.Import(other, key[:0], 4096)
		require.ErrorIs(t, err, kolo.ErrArgument)
		_, err = v.Import(other, []byte("nonsense"), 4096)
		require.ErrorIs(t, err, kolo.ErrArgument)
		in, err := v.Import(other, key, 4096)
		require.NoError(t, err)
		require.Equal(t, m.Addr, in.Addr)
		require.Equal(t, other.Info().Space, in.Space)
		require.ErrorIs(t, other.Free(in), kolo.ErrArgument)
		require.NoError(t, v.Unimport(in))
		require.ErrorIs(t, v.Unimport(in), kolo.ErrArgument)
	}
}

func TestCallsAfterTheEndAreSeen(t *testing.T) {
	s := standin.Open(t)
	l, err := load([]string{s.Path})
	require.NoError(t, err)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	require.NoError(t, l.init())
	require.NoError(t, l.call(fnFinalize))
	_, err = l.devices()
	require.ErrorIs(t, err, kolo.ErrArgument)
	require.Contains(t, s.Violations(), "before aclInit")
	require.NoError(t, l.call(fnInit, 0))
	require.ErrorIs(t, l.call(fnInit, 0), kolo.ErrArgument, "again")
	_, err = l.made(fnCreateStream, 0, 0)
	require.ErrorIs(t, err, kolo.ErrArgument, "no device on this thread")
	// what the thread was before, in another test, stays with it
	require.Regexp(t, "aclrtCreateStream on a (thread without a device|report thread)", s.Violations())
	s.Forget() // they were made on purpose
}

func TestPathOfBits(t *testing.T) {
	for bits, want := range map[uint64]Path{0: PathUnknown, 0x80: PathUnknown, topoHCCS: PathHCCS, topoSIO | topoSYS: PathSIO,
		topoSwitch | topoPHB: PathSwitch, topoPIX | topoSYS: PathPIX, topoPHB: PathPHB, topoSYS: PathSYS, topoHCCS | topoPIX: PathHCCS} {
		require.Equal(t, want, pathOf(bits), "bits %#x", bits)
	}
}
