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
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/npu/ascend"
	"github.com/kolo-ccl/kolo/npu/ascend/standin"
	"github.com/kolo-ccl/kolo/plan"

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
	for _, l := range r.Links() {
		require.Empty(t, l.Missing, l.Link)
		require.NotEmpty(t, l.Has, l.Link)
	}
	text := r.String()
	for _, want := range []string{lib.Path + ", version 1.17.0", lib.DCMI, "device 2: major fault", "port of device 2: not reachable", "MTU 4096", "between 28 pairs"} {
		require.Contains(t, text, want)
	}
	require.NotContains(t, text, "missing")
}

// What lies between devices becomes a topology: HCCS where the matrix has it, the ports
// where it has nothing, the host where there is no port either.
func TestPlanOfAReport(t *testing.T) {
	lib := standin.Open(t)
	r := ascend.Inspect(t.Context(), ascend.Config{Library: lib.Path, DCMI: lib.DCMI, Run: tools(t, "topo-8-mesh.txt", "port-up.txt")})
	top, err := r.Plan()
	require.NoError(t, err)
	require.Equal(t, 8, top.Ranks())
	require.Equal(t, plan.QuantiseEdge(npu.Nominal(kolo.LinkHCCS)), top.Edge(2, 7))
	require.Contains(t, top.String(), "28 pairs")
	require.Contains(t, r.String(), top.String())
	for _, p := range [][2]int{{2, 7}, {0, 1}, {3, 7}} {
		r.Topology.Paths[p[0]][p[1]], r.Topology.Paths[p[1]][p[0]] = ascend.PathNone, ascend.PathNone
	}
	r.Ports[1].Speed, r.Ports[7].Up = 0, false
	top, err = r.Plan()
	require.NoError(t, err)
	require.Equal(t, plan.QuantiseEdge(npu.NominalByHost()), top.Edge(7, 2))
	require.Equal(t, plan.QuantiseEdge(npu.NominalByHost()), top.Edge(3, 7))
	require.Equal(t, plan.QuantiseEdge(npu.Nominal(kolo.LinkRoCE)), top.Edge(0, 1), "a port of unknown speed")
	r.Ports[1].Speed = r.Ports[0].Speed
	top, err = r.Plan()
	require.NoError(t, err)
	require.Equal(t, plan.Quantise(r.Ports[0].Speed), top.Edge(0, 1).Bandwidth)
	_, err = (&ascend.Report{}).Plan()
	require.ErrorIs(t, err, kolo.ErrUnsupported)
	top, err = (&ascend.Report{Devices: 2}).Plan()
	require.NoError(t, err)
	require.Equal(t, kolo.LinkPCIe, top.Edge(0, 1).Link)
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
	links := r.Links()
	require.Empty(t, links[0].Missing)
	require.NotEmpty(t, links[1].Missing)
	require.Contains(t, r.String(), "roce              missing: what hccn_tool says of the ports")
}

func TestInspectWhereNothingIs(t *testing.T) {
	r := ascend.Inspect(t.Context(), ascend.Config{Library: "/nowhere/libascendcl.so", DCMI: "/nowhere/libdcmi.so"})
	if r.NPUSMI.Err == nil {
		t.Skip("npu-smi is installed here")
	}
	require.ErrorIs(t, r.Library.Err, kolo.ErrUnsupported)
	require.ErrorIs(t, r.DCMI.Err, kolo.ErrUnsupported)
	for _, l := range r.Links() {
		require.Contains(t, l.Missing, "AscendCL", l.Link)
	}
	for _, want := range []string{"/nowhere/libascendcl.so", "/nowhere/libdcmi.so", "npu-smi", "hccn_tool", "pcie              missing: AscendCL, a device"} {
		require.Contains(t, r.String(), want)
	}
	t.Log("\n" + r.String())
}
