package ascend

import (
	"bufio"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/plan"
)

// Path is what lies between two devices of a server, in the words of npu-smi.
type Path uint8

// The paths.
const (
	PathUnknown Path = iota
	PathSelf         // X: the device itself
	PathHCCS         // HCCS: links between the devices
	PathSwitch       // HCCS_SW: HCCS through a switch
	PathSIO          // SIO: two chips of one card
	PathUB           // UB: the unified bus of later chips
	PathPIX          // PIX: at most one PCIe switch
	PathPXB          // PXB: several PCIe switches
	PathPHB          // PHB: the PCIe host bridge
	PathSYS          // SYS: the links between the processors of the host
	PathNone         // NA: nothing
)

// pathNames are the words of npu-smi, by Path.
var pathNames = []string{"unknown", "X", "HCCS", "HCCS_SW", "SIO", "UB", "PIX", "PXB", "PHB", "SYS", "NA"}

// String is npu-smi's word.
func (p Path) String() string {
	if int(p) < len(pathNames) {
		return pathNames[p]
	}
	return fmt.Sprintf("Path(%d)", uint8(p))
}

// Link is the kind of link that a path is; false where there is none. Behind PCIe,
// devices may still have no access to each other's memory: Device.Edge knows.
func (p Path) Link() (kolo.Link, bool) {
	switch p {
	case PathSelf:
		return kolo.LinkSelf, true
	case PathHCCS, PathSwitch, PathSIO, PathUB:
		return kolo.LinkHCCS, true
	case PathPIX, PathPXB, PathPHB, PathSYS:
		return kolo.LinkPCIe, true
	}
	return 0, false
}

// Matrix is what npu-smi info -t topo prints.
type Matrix struct {
	Devices  []int    // the numbers of the rows and columns, as npu-smi has them
	Paths    [][]Path // by row and column
	Affinity []string // the processors near a device, as "144-167"; "" where not given
}

// limits of what is parsed.
const (
	maxDevices = 1 << 10 // rows of a matrix
	maxLine    = 1 << 20
)

// ParseTopo reads the output of npu-smi info -t topo: a header of NPU0, NPU1, ... and
// "CPU Affinity", a row for each device with a word for each column, and a legend,
// which is not read.
func ParseTopo(text string) (*Matrix, error) {
	m := &Matrix{}
	header := false
	lines := bufio.NewScanner(strings.NewReader(text))
	lines.Buffer(nil, maxLine)
	for at := 1; lines.Scan(); at++ {
		words := strings.Fields(lines.Text())
		if len(words) == 0 {
			continue
		}
		first, isDevice := deviceName(words[0])
		switch {
		case !header && isDevice:
			if err := m.columns(words); err != nil {
				return nil, fmt.Errorf("%w: line %d: %w", kolo.ErrArgument, at, err)
			}
			header = true
		case header && isDevice && len(m.Paths) < len(m.Devices):
			if err := m.row(first, words[1:]); err != nil {
				return nil, fmt.Errorf("%w: line %d: %w", kolo.ErrArgument, at, err)
			}
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%w: %w", kolo.ErrArgument, err)
	}
	if !header || len(m.Paths) != len(m.Devices) {
		return nil, fmt.Errorf("%w: %d of %d rows; this is no complete output of npu-smi info -t topo", kolo.ErrArgument, len(m.Paths), len(m.Devices))
	}
	return m, m.check()
}

// deviceName is the number in a word like NPU12.
func deviceName(word string) (int, bool) {
	digits, ok := strings.CutPrefix(word, "NPU")
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 31)
	return int(n), err == nil
}

func (m *Matrix) columns(words []string) error {
	for _, w := range words {
		n, ok := deviceName(w)
		switch {
		case !ok:
			return nil // "CPU Affinity"
		case slices.Contains(m.Devices, n):
			return fmt.Errorf("device %d twice", n)
		case len(m.Devices) == maxDevices:
			return fmt.Errorf("more than %d devices", maxDevices)
		}
		m.Devices = append(m.Devices, n)
	}
	return nil
}

func (m *Matrix) row(device int, words []string) error {
	i, n := len(m.Paths), len(m.Devices)
	if device != m.Devices[i] {
		return fmt.Errorf("the row of device %d where that of %d belongs", device, m.Devices[i])
	}
	if len(words) < n {
		return fmt.Errorf("%d words for %d devices", len(words), n)
	}
	row := make([]Path, n)
	for k, w := range words[:n] {
		at := slices.Index(pathNames[1:], w)
		if at < 0 {
			return fmt.Errorf("%q is no path that is known", w)
		}
		row[k] = Path(at + 1)
	}
	m.Paths = append(m.Paths, row)
	m.Affinity = append(m.Affinity, strings.Join(words[n:], " "))
	return nil
}

// check says where the matrix contradicts itself.
func (m *Matrix) check() error {
	for i := range m.Paths {
		for k := range m.Paths {
			switch {
			case (m.Paths[i][k] == PathSelf) != (i == k):
				return fmt.Errorf("%w: %v between devices %d and %d", kolo.ErrArgument, m.Paths[i][k], m.Devices[i], m.Devices[k])
			case m.Paths[i][k] != m.Paths[k][i]:
				return fmt.Errorf("%w: from device %d to %d it is %v, back %v", kolo.ErrArgument, m.Devices[i], m.Devices[k], m.Paths[i][k], m.Paths[k][i])
			}
		}
	}
	return nil
}

// Pairs are the edges between the devices, by their places in Devices, A before B, for a
// topology. The figures are npu.Nominal's, since npu-smi gives none. Pairs that do not
// reach each other are not among them.
func (m *Matrix) Pairs() (list []plan.Pair) {
	for i := range m.Paths {
		for k := i + 1; k < len(m.Paths); k++ {
			if l, ok := m.Paths[i][k].Link(); ok {
				list = append(list, plan.Pair{A: kolo.Rank(i), B: kolo.Rank(k), Edge: npu.Nominal(l)})
			}
		}
	}
	return list
}
