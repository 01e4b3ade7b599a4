//go:build linux && (amd64 || arm64) && !noacl

package ascend

import (
	"context"
	"os"
	"runtime"
	"testing"
	"time"

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

// TestBinding says that the table names what the stand-in has, and how the library's
// errors come through the binding.
func TestBinding(t *testing.T) {
	l := bound(t)
	require.Empty(t, l.missing)
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
	e, err := l.newEvent()
	require.NoError(t, err)
	require.NoError(t, l.call(fnRecordEvent, e, s))
	for begin, idle := time.Now(), false; !idle; { // the library ends nothing that a stream still has
		idle, err = l.streamIdle(s)
		require.NoError(t, err)
		require.Less(t, time.Since(begin), 10*time.Second)
	}
	require.NoError(t, l.call(fnDestroyEvent, e))

	require.NoError(t, l.call(fnEnablePeerAccess, 1, 0))
	err = l.call(fnEnablePeerAccess, 0, 0) // itself
	require.ErrorIs(t, err, kolo.ErrArgument)
	require.ErrorContains(t, err, "stand-in: peer 0", "the library's words on this thread")
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
		for _, size := range []int64{4096, 8192, 64} {
			_, err = v.Import(d, key, size)
			require.ErrorIs(t, err, kolo.ErrOverlap, "%d bytes of its own", size)
		}
		_, err = v.Import(other, key[:0], 4096)
		require.ErrorIs(t, err, kolo.ErrArgument)
		_, err = v.Import(other, []byte("nonsense"), 4096)
		require.ErrorIs(t, err, kolo.ErrArgument)
		in, err := v.Import(other, key, 4096)
		require.NoError(t, err)
		require.Equal(t, m.Addr, in.Addr)
		_, err = v.Import(other, key, 8192)
		require.ErrorIs(t, err, kolo.ErrOverlap, "imported before")
		require.Equal(t, other.Info().Space, in.Space)
		require.ErrorIs(t, other.Free(in), kolo.ErrArgument)
		require.NoError(t, v.Unimport(in))
		require.ErrorIs(t, v.Unimport(in), kolo.ErrArgument)
	}
}

func TestPathOfBits(t *testing.T) {
	for bits, want := range map[uint64]Path{0: PathUnknown, 0x80: PathUnknown, topoHCCS: PathHCCS, topoSIO | topoSYS: PathSIO,
		topoSwitch | topoPHB: PathSwitch, topoPIX | topoSYS: PathPIX, topoPHB: PathPHB, topoSYS: PathSYS, topoHCCS | topoPIX: PathHCCS} {
		require.Equal(t, want, pathOf(bits), "bits %#x", bits)
	}
}
