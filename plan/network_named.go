package plan

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/kolo-ccl/kolo"
)

// Figures of networks by name. HCCS and the cards have the bandwidths of HCCL's table for
// 910B (18.3e9 B/s for each HCCS link; 25e9 B/s for a card, of which 0.8 are reckoned);
// the latencies, and the figures of PCIe and uplinks, are rules of thumb.
var (
	namedWire   = Wire{time.Microsecond, 25e9}
	namedHCCS   = Wire{time.Microsecond, 18.3e9}
	namedPCIe   = Wire{2 * time.Microsecond, 32e9}
	namedNIC    = Wire{2500 * time.Nanosecond, 20e9}
	namedUplink = Wire{time.Microsecond, 80e9}
)

// namedReduce is how many bytes per second an NPU of a network by name folds.
const namedReduce = 200e9

// NetworkNamed is a network with usual figures: "ring:16", "mesh:8", "switch:16",
// "torus:8x8" (any number of dimensions), "fat-tree:4x16" (racks x servers with one
// NPU each), "hccs:4x8" (racks x servers with a board of 8 NPUs) or "hccs:4x8x2"
// (with 2 boards per server).
func NetworkNamed(name string) (*Network, error) {
	kind, shape, _ := strings.Cut(name, ":")
	var sizes []int
	for word := range strings.SplitSeq(shape, "x") {
		k, err := strconv.Atoi(word)
		if err != nil || k < 1 || k > maxNPUs || len(sizes) == maxDims {
			return nil, unknownNetwork(name)
		}
		sizes = append(sizes, k)
	}
	n := &Network{Name: name, Model: CutThrough, Reduce: namedReduce}
	flat := map[string]Shape{"ring": Ring, "mesh": Mesh, "switch": Switch}
	switch shape, ok := flat[kind]; {
	case ok && len(sizes) == 1:
		n.Dims = []Dim{{shape, sizes[0], namedWire}}
	case kind == "torus":
		for _, k := range sizes {
			n.Dims = append(n.Dims, Dim{Ring, k, namedWire})
		}
	case kind == "fat-tree" && len(sizes) == 2:
		n.Cluster = &Cluster{Racks: sizes[0], Servers: sizes[1], Boards: 1, NPUs: 1}
	case kind == "hccs" && (len(sizes) == 2 || len(sizes) == 3):
		n.Cluster = &Cluster{Racks: sizes[0], Servers: sizes[1], Boards: 1, NPUs: 8}
		if len(sizes) == 3 {
			n.Cluster.Boards = sizes[2]
		}
	default:
		return nil, unknownNetwork(name)
	}
	if c := n.Cluster; c != nil {
		// As many uplinks as carry all cards of a rack at half their speed.
		c.Board, c.HCCS, c.PCIe, c.NIC, c.Uplink = Mesh, namedHCCS, namedPCIe, namedNIC, namedUplink
		c.Uplinks = max(1, c.Servers*c.Boards*c.NPUs/8)
	}
	return n, n.Validate()
}

func unknownNetwork(name string) error {
	return fmt.Errorf("%w: no network %.40q; want ring:N, mesh:N, switch:N, torus:AxB, fat-tree:RACKSxSERVERS, hccs:RACKSxSERVERS or hccs:RACKSxSERVERSxBOARDS", kolo.ErrArgument, name)
}
