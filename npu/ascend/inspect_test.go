//go:build linux && (amd64 || arm64) && !noacl

package ascend_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/npu/ascend"
	"github.com/kolo-ccl/kolo/npu/ascend/standin"

	"github.com/stretchr/testify/require"
)

// tools stands for npu-smi and hccn_tool with what fixtures hold.
func tools(t *testing.T, topo, port string) func(context.Context, string, ...string) ([]byte, error) {
	return func(_ context.Context, name string, arg ...string) ([]byte, error) {
		file := port
		if strings.HasSuffix(name, "npu-smi") {
			file = topo
		}
		if file == "" {
			return nil, exec.ErrNotFound
		}
		b, err := os.ReadFile("testdata/" + file)
		require.NoError(t, err)
		return b, nil
	}
}

func TestInspect(t *testing.T) {
	lib := standin.Open(t)
	lib.Health(2, uint32(ascend.Major), 3)
	r := ascend.Inspect(t.Context(), ascend.Config{Library: lib.Path, DCMI: lib.DCMI, Run: tools(t, "topo-8-mesh.txt", "port-up.txt")})
	require.NoError(t, errors.Join(r.Library.Err, r.DCMI.Err, r.NPUSMI.Err, r.HCCNTool.Err))
	require.Equal(t, 4, r.Devices)
	require.Len(t, r.Topology.Devices, 8)
	require.Len(t, r.Ports, 8)
	require.Equal(t, []ascend.Condition{ascend.Normal, ascend.Normal, ascend.Major, ascend.Normal}, r.Health)
	for _, w := range r.Ways() {
		require.Empty(t, w.Missing, w.Link)
		require.NotEmpty(t, w.Has, w.Link)
	}
	text := r.String()
	for _, want := range []string{lib.Path + ", version 1.17.0", lib.DCMI, "device 2: major fault", "port of device 2: not reachable", "MTU 4096", "between 28 pairs"} {
		require.Contains(t, text, want)
	}
	require.NotContains(t, text, "missing")
}

// Without npu-smi, DCMI gives the topology.
func TestInspectAsksDCMI(t *testing.T) {
	lib := standin.Open(t)
	r := ascend.Inspect(t.Context(), ascend.Config{Library: lib.Path, DCMI: lib.DCMI, Run: tools(t, "", "")})
	require.ErrorIs(t, r.NPUSMI.Err, exec.ErrNotFound)
	require.ErrorIs(t, r.HCCNTool.Err, exec.ErrNotFound)
	require.Equal(t, [][]ascend.Path{
		{ascend.PathSelf, ascend.PathSIO, ascend.PathHCCS, ascend.PathHCCS},
		{ascend.PathSIO, ascend.PathSelf, ascend.PathHCCS, ascend.PathHCCS},
		{ascend.PathHCCS, ascend.PathHCCS, ascend.PathSelf, ascend.PathSIO},
		{ascend.PathHCCS, ascend.PathHCCS, ascend.PathSIO, ascend.PathSelf},
	}, r.Topology.Paths)
	ways := r.Ways()
	require.Empty(t, ways[0].Missing)
	require.NotEmpty(t, ways[1].Missing)
	require.Contains(t, r.String(), "roce              missing: what hccn_tool says of the ports")
}

func TestInspectWhereNothingIs(t *testing.T) {
	r := ascend.Inspect(t.Context(), ascend.Config{Library: "/nowhere/libascendcl.so", DCMI: "/nowhere/libdcmi.so"})
	if r.NPUSMI.Err == nil {
		t.Skip("npu-smi is installed here")
	}
	require.ErrorIs(t, r.Library.Err, kolo.ErrUnsupported)
	require.ErrorIs(t, r.DCMI.Err, kolo.ErrUnsupported)
	for _, w := range r.Ways() {
		require.Contains(t, w.Missing, "AscendCL", w.Link)
	}
	for _, want := range []string{"/nowhere/libascendcl.so", "/nowhere/libdcmi.so", "npu-smi", "hccn_tool", "pcie              missing: AscendCL, a device"} {
		require.Contains(t, r.String(), want)
	}
	t.Log("\n" + r.String())
}
