package plan

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kolo-ccl/kolo"
)

const clusterFile = `# two racks
network  HCCS boards of 8
model    cut-through
cluster  racks 2 servers 4 boards 1 npus 8   # 64 in all
board    mesh 1us 30GB/s
nic      3us 25GB/s
uplink   8 1us 100GB/s
endpoint send 500ns recv 500ns eager 8192
reduce   200GB/s
slow     npu1>npu2 0.1
lost     npu3>leaf0
`

const torusFile = `model store-and-forward
dim ring 4 500ns 46.5GiB/s
dim ring 2 1.5us 12345678B/s
whole
place 7 6 5 4
`

const astraFile = `# comment
topology: [ Ring, FullyConnected, Switch ]  # [ Ring, ... ]
npus_count: [ 2, 8, 4 ]
bandwidth: [ 200.0, 100.0, 50.0 ]  # GB/s
latency:
  - 50
  - 500
  - 2000
`

func TestNetworkFilesAreReadBack(t *testing.T) {
	for _, file := range []string{clusterFile, torusFile} {
		n, err := ParseNetwork(file)
		require.NoError(t, err)
		again, err := ParseNetwork(n.String())
		require.NoError(t, err)
		require.Equal(t, n, again)
		require.Equal(t, n.String(), again.String())
	}
	n, err := ParseNetwork(clusterFile)
	require.NoError(t, err)
	require.Equal(t, 64, n.NPUs())
	require.Equal(t, "HCCS boards of 8", n.Name)
	require.Equal(t, Endpoint{Send: 500, Recv: 500, Eager: 8192}, n.Endpoint)
	require.Equal(t, &Cluster{Racks: 2, Servers: 4, Boards: 1, NPUs: 8, Board: Mesh, HCCS: Wire{us, 30e9},
		NIC: Wire{3 * us, 25e9}, Uplink: Wire{us, 100e9}, Uplinks: 8}, n.Cluster)
	n, err = ParseNetwork(torusFile)
	require.NoError(t, err)
	require.Equal(t, 4, n.Ranks())
}

func TestASTRAFile(t *testing.T) {
	n, err := ParseASTRA(astraFile)
	require.NoError(t, err)
	require.Equal(t, astra(0, dim(Ring, 2, 50, 200), dim(Mesh, 8, 500, 100), dim(Switch, 4, 2000, 50)), n)
}

func TestBadNetworkFiles(t *testing.T) {
	for file, want := range map[string]string{
		"":                               "either dimensions or a cluster",
		"dim":                            "line 1: dim: something is missing at the end",
		"model fast":                     `line 1: model: "fast" instead of store-and-forward, cut-through, uncontended`,
		"\n\ndim ring 4 5 1GB/s":         `line 3: dim: "5" instead of a time`,
		"dim ring 4 5us 1Gb/s":           `"1Gb/s" instead of a rate`,
		"dim ring 4 5us 1GB/s more":      `"more" is too much`,
		"dim ring -4 5us 1GB/s":          "instead of a whole number",
		"model cut-through\nmodel x":     "line 2: model for the second time",
		"nic 1us 1GB/s":                  "a cluster line must come before it",
		"cluster racks 2 racks 3":        `"racks" instead of a name that this line has, once`,
		"speed 3":                        "no such line; known: network",
		"dim ring 4 1us 1GB/s\nplace 9":  "rank 0 on NPU 9",
		"cluster racks 1 servers 1":      "boards 0",
		"dim ring 999999999 1us 1GB/s":   "at most 65536 NPUs",
		"dim ring 4 1us 1GB/s\nslow x y": `"y" instead of a number`,
	} {
		_, err := ParseNetwork(file)
		require.ErrorIs(t, err, kolo.ErrArgument, file)
		require.ErrorContains(t, err, want, file)
	}
	for file, want := range map[string]string{
		"":                   "0 entries of topology",
		"topology: [ Ring ]": "0 entries of npus_count and 1 of topology",
		"topology [ Ring ]":  "is no list with a name",
		"topology: [ Ring":   "without its ]",
		"a: [1]\na: [2]":     "for the second time",
		strings.Replace(astraFile, "Ring", "Star", 1):       `topology "Star"`,
		strings.Replace(astraFile, "200.0", "fast", 1):      `"fast" instead of a number`,
		strings.Replace(astraFile, "- 50\n", "- 1e99\n", 1): "latency 1e+99",
	} {
		_, err := ParseASTRA(file)
		require.ErrorContains(t, err, want, file)
	}
}

// What is read can be written and read again, and can be simulated or says why not;
// and nothing panics.
func FuzzNetworkFiles(f *testing.F) {
	for _, s := range []string{clusterFile, torusFile, astraFile} {
		for cut := 0; cut <= len(s); cut += 16 {
			f.Add(s[:cut])
		}
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if n, err := ParseASTRA(s); err == nil {
			require.NoError(t, n.Validate())
		}
		n, err := ParseNetwork(s)
		if err != nil {
			return
		}
		again, err := ParseNetwork(n.String())
		require.NoError(t, err, n.String())
		require.Equal(t, n.String(), again.String())
		if n.NPUs() > 64 || n.Ranks() < 2 {
			return
		}
		c := bytesCall(kolo.Broadcast, 1000, n.Ranks())
		line, err := SimulateOn(oneMessage(n.Ranks(), 0, kolo.Rank(n.Ranks()-1)), n, c, 3)
		if err == nil && line.Total < 0 {
			t.Errorf("%v of time", line.Total)
		}
	})
}

// Every file, cut at every byte, is read or refused, and nothing panics.
func TestNetworkFilesCutAtEveryByte(t *testing.T) {
	for _, s := range []string{clusterFile, torusFile, astraFile} {
		for cut := range len(s) {
			_, _ = ParseNetwork(s[:cut]) // an error is as good as none here
			_, _ = ParseASTRA(s[:cut])
		}
	}
}

func TestNetworksByName(t *testing.T) {
	for name, ranks := range map[string]int{"ring:16": 16, "mesh:8": 8, "switch:5": 5, "torus:4x3x2": 24, "fat-tree:4x16": 64, "hccs:2x4": 64, "hccs:1x2x2": 32} {
		n, err := NetworkNamed(name)
		require.NoError(t, err)
		require.Equal(t, ranks, n.NPUs(), name)
		again, err := ParseNetwork(n.String())
		require.NoError(t, err)
		require.Equal(t, n, again)
	}
	for _, name := range []string{"", "ring", "ring:0", "ring:2x2", "star:4", "hccs:3", "torus:x", "torus:999999", "hccs:1x1x1x1"} {
		_, err := NetworkNamed(name)
		require.ErrorIs(t, err, kolo.ErrArgument, name)
	}
}
