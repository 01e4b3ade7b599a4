package ascend

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/plan"

	"github.com/stretchr/testify/require"
)

func fixture(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name)
	require.NoError(t, err)
	return string(b)
}

func TestTopo(t *testing.T) {
	for _, c := range []struct {
		file     string
		devices  int
		path     func(i, k int) Path
		affinity string // of the last
		edges    int
	}{
		{"topo-8-mesh.txt", 8, func(i, k int) Path { return PathHCCS }, "48-71", 28},
		{"topo-16-sio.txt", 16, func(i, k int) Path {
			if i/2 == k/2 {
				return PathSIO
			}
			return PathSwitch
		}, "240-319", 120},
		{"topo-4-pcie.txt", 4, func(i, k int) Path {
			if i/2 == k/2 {
				return PathPIX
			}
			return PathSYS
		}, "32-63,96-127", 6},
	} {
		m, err := ParseTopo(fixture(t, c.file))
		require.NoError(t, err, c.file)
		require.Len(t, m.Devices, c.devices)
		for i := range c.devices {
			require.Equal(t, i, m.Devices[i])
			for k := range c.devices {
				want := PathSelf
				if i != k {
					want = c.path(i, k)
				}
				require.Equal(t, want, m.Paths[i][k], "%s: %d to %d", c.file, i, k)
			}
		}
		require.Equal(t, c.affinity, m.Affinity[c.devices-1])
		pairs := m.Pairs()
		require.Len(t, pairs, c.edges)
		link, _ := c.path(0, 1).Link()
		require.Equal(t, plan.Pair{A: 0, B: 1, Edge: npu.Nominal(link)}, pairs[0])
	}
}

// A matrix that is cut anywhere is refused, or is that of fewer processors in the
// last row's affinity.
func TestTopoCutAtEveryByte(t *testing.T) {
	text := fixture(t, "topo-4-pcie.txt")
	whole, err := ParseTopo(text)
	require.NoError(t, err)
	last := strings.Index(text, "NPU3       ") // in the header
	last += strings.Index(text[last+1:], "\nNPU3") + 1
	end := last + strings.Index(text[last:], " X") + 2
	for n := range len(text) {
		m, err := ParseTopo(text[:n])
		if n < end {
			require.ErrorIs(t, err, kolo.ErrArgument, "at byte %d", n)
			continue
		}
		require.NoError(t, err, "at byte %d", n)
		require.Equal(t, whole.Paths, m.Paths)
	}
}

func TestTopoThatIsNone(t *testing.T) {
	for name, text := range map[string]string{
		"nothing":       "",
		"no row":        "NPU0 NPU1 CPU Affinity\n",
		"odd word":      "NPU0 NPU1\nNPU0 X NVLINK\nNPU1 NVLINK X\n",
		"wrong row":     "NPU0 NPU1\nNPU1 HCCS X\nNPU0 X HCCS\n",
		"one way":       "NPU0 NPU1\nNPU0 X HCCS\nNPU1 SYS X\n",
		"no self":       "NPU0 NPU1\nNPU0 HCCS HCCS\nNPU1 HCCS HCCS\n",
		"device twice":  "NPU0 NPU0\nNPU0 X X\nNPU0 X X\n",
		"short row":     "NPU0 NPU1\nNPU0 X\nNPU1 HCCS X\n",
		"endless line":  "NPU0 NPU1\n" + strings.Repeat("x", maxLine+1),
		"many devices":  strings.Repeat("NPU1", 1) + manyDevices(),
		"command error": "npu-smi: command not found\n",
	} {
		_, err := ParseTopo(text)
		require.ErrorIs(t, err, kolo.ErrArgument, name)
	}
}

func manyDevices() string {
	var b strings.Builder
	for i := range maxDevices + 1 {
		b.WriteString(" NPU")
		b.WriteString(strings.TrimLeft(string(rune('0'+i/1000%10))+string(rune('0'+i/100%10))+string(rune('0'+i/10%10))+string(rune('0'+i%10)), "0") + "0")
	}
	return b.String()
}

func FuzzParseTopo(f *testing.F) {
	for _, name := range []string{"topo-8-mesh.txt", "topo-16-sio.txt", "topo-4-pcie.txt"} {
		f.Add(fixture(f, name))
	}
	f.Fuzz(func(t *testing.T, text string) {
		m, err := ParseTopo(text)
		if err != nil {
			return
		}
		if len(m.Paths) != len(m.Devices) || len(m.Affinity) != len(m.Devices) {
			t.Fatalf("%d devices, %d rows", len(m.Devices), len(m.Paths))
		}
		for _, p := range m.Pairs() {
			if p.A >= p.B || int(p.B) >= len(m.Devices) {
				t.Fatalf("pair %v", p)
			}
		}
	})
}

func TestPort(t *testing.T) {
	var p Port
	require.NoError(t, p.ParsePort(fixture(t, "port-up.txt")))
	require.Equal(t, "10.20.0.11", p.Address.String())
	p.Address = Port{}.Address
	require.Equal(t, Port{Mask: 16, MAC: "9e:1c:0a:00:20:0b", MTU: 4096, Up: true, Speed: 25e9, Switch: "leaf-3", Outlet: "200GE1/0/7"}, p)

	var q Port
	require.NoError(t, q.ParsePort(fixture(t, "port-down.txt")))
	require.Equal(t, "fd00:20::b", q.Address.String())
	require.Equal(t, 64, q.Mask)
	require.False(t, q.Up)
	require.Zero(t, q.Speed)
}

func TestPortEdge(t *testing.T) {
	var p, q Port
	for _, text := range []string{"ipaddr:10.20.0.11", "link status: UP", "Speed: 200000 Mb/s"} { // as single items give them
		require.NoError(t, p.ParsePort(text))
	}
	require.NoError(t, q.ParsePort("ipaddr:10.20.0.12\nlink status: UP\nSpeed: 100000 Mb/s\n"))
	e, ok := p.Edge(q)
	require.True(t, ok)
	require.Equal(t, kolo.Edge{Link: kolo.LinkRoCE, Bandwidth: 12.5e9}, e)
	require.NoError(t, q.ParsePort("link status: DOWN"))
	_, ok = p.Edge(q)
	require.False(t, ok)
}

func TestPortThatIsNone(t *testing.T) {
	for _, text := range []string{"ipaddr:10.20.0", "netmask:255.0.255.0", "Speed: fast", "Speed: x Mb/s", "MTU: many", "MAC Addr: 1:2", "netmask:no"} {
		var p Port
		require.ErrorIs(t, p.ParsePort(text), kolo.ErrArgument, text)
	}
	var p Port
	require.NoError(t, p.ParsePort("hccn_tool: no such device\n\nipaddr:\n"))
	require.Equal(t, Port{}, p)
}

func FuzzParsePort(f *testing.F) {
	text := fixture(f, "port-up.txt")
	for n := range len(text) {
		f.Add(text[:n])
	}
	f.Add(fixture(f, "port-down.txt"))
	f.Fuzz(func(t *testing.T, text string) {
		var p Port
		if p.ParsePort(text) == nil && (p.Mask < 0 || p.Mask > 128 || p.MTU < 0 || p.Speed < 0) {
			t.Fatalf("%+v", p)
		}
	})
}

func TestCodes(t *testing.T) {
	list := Codes()
	require.True(t, slices.IsSorted(list))
	require.Len(t, slices.Compact(slices.Clone(list)), len(list))
	for _, n := range list {
		e := &Error{Call: "aclrtX", Code: n, Text: "said"}
		require.NotEmpty(t, Name(n))
		require.NotEqual(t, Success, ClassOf(n))
		require.Error(t, e.Unwrap())
		require.Contains(t, e.Error(), ClassOf(n).String())
		require.Contains(t, e.Error(), "said")
	}
	for n, want := range map[int32]Class{0: Success, 107999: CallerBug, 207999: Resource, 507998: Fault, -1: Fault} {
		require.Equal(t, want, ClassOf(n), n)
	}
	require.ErrorIs(t, &Error{Code: 207018}, kolo.ErrLimit)
}
