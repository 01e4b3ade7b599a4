package survey

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kolo-ccl/kolo"
)

// Finding is something that is not as it should be.
type Finding struct {
	Kind  string      // one word: miswired, slow, fallen, lost, moved, ...
	Ranks []kolo.Rank // whom it is about; nil: all
	What  string      // a sentence without a full stop
	Check []string    // what to look at
}

// String is the finding in lines, the first without indentation.
func (f Finding) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s", f.Kind, f.What)
	for _, c := range f.Check {
		fmt.Fprintf(&b, "\n    check %s", c)
	}
	return b.String()
}

// findings gathers them.
type findings []Finding

func (l *findings) add(kind string, ranks []kolo.Rank, check []string, format string, args ...any) {
	*l = append(*l, Finding{kind, ranks, fmt.Sprintf(format, args...), check})
}

// What to look at, by what went wrong. The items for PCIe are those of Huawei's and
// NVIDIA's guides: with an IOMMU that is on, or with ACS, peers go by way of the host.
var (
	checkPCIe = []string{
		"that the IOMMU is off, or in pass-through, in the BIOS and on the kernel's command line, and that ACS is off on PCIe switches",
		"the HCCS cables or bridges between the boards, and their state in npu-smi info -t topo",
	}
	checkTCP = []string{
		"that the RoCE port is up and has an address, on both hosts",
		"that the switch carries RoCE between the two: VLAN, PFC and ECN, and an MTU of 9000 from end to end",
	}
	checkHost = []string{
		"that both processes have one user, and one network and IPC name space (containers: one pod, or host IPC)",
	}
	checkSlowNet = []string{
		"the MTU: 9000 on both hosts and on every switch between them",
		"the speed and the error counters of both ports, and of the switch's",
		"what else uses the link",
	}
	checkSlowInside = []string{
		"power capping and thermal throttling of the host and its devices",
		"that memory and cores are of one NUMA node, and that nothing else runs there",
	}
	checkCable = []string{
		"which port each cable ends at, and which host has which address",
	}
	checkLost = []string{
		"that a ping with large frames (MTU 9000, not to be fragmented) passes both ways",
		"firewalls, the routes of both hosts, and the switch",
	}
)

// slowChecks are for a link of a kind.
func slowChecks(l kolo.Link) []string {
	if l == kolo.LinkRoCE || l == kolo.LinkTCP {
		return checkSlowNet
	}
	return checkSlowInside
}

// fallenChecks are for a pair that has a link in place of a better one.
func fallenChecks(from, to kolo.Link) []string {
	switch {
	case from == kolo.LinkSHM:
		return checkHost
	case to == kolo.LinkPCIe:
		return checkPCIe
	case from == kolo.LinkHCCS:
		return slices.Concat(checkPCIe, checkTCP)
	}
	return checkTCP
}
