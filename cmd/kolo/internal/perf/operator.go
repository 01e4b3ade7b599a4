package perf

import (
	"slices"

	"github.com/kolo-ccl/kolo"
)

// Operator is a collective under the name of hccl_test's program for it.
type Operator struct {
	Name       string
	Collective kolo.Collective
	About      string // one line: what it does, and what its size is
}

// Operators lists all of them, in hccl_test's order.
func Operators() []Operator {
	return []Operator{
		{"all_reduce", kolo.AllReduce, "Fold all ranks' buffers and give everyone the result; the size is one rank's buffer"},
		{"all_gather", kolo.AllGather, "Give everyone the parts of all ranks; the size is all parts together"},
		{"all_gatherv", kolo.AllGatherV, "all_gather with a count per rank; the size is all parts together"},
		{"broadcast", kolo.Broadcast, "Copy the root's buffer to everyone; the size is that buffer"},
		{"reduce", kolo.Reduce, "Fold all ranks' buffers at the root; the size is one rank's buffer"},
		{"reduce_scatter", kolo.ReduceScatter, "Fold all ranks' buffers and give everyone a part of the result; the size is one rank's input"},
		{"reduce_scatterv", kolo.ReduceScatterV, "reduce_scatter with a count per rank; the size is one rank's input"},
		{"scatter", kolo.Scatter, "Give everyone a part of the root's buffer; the size is that buffer"},
		{"alltoall", kolo.AllToAll, "Give each rank its part of everyone's buffer; the size is what one rank sends"},
		{"alltoallv", kolo.AllToAllV, "alltoall with counts that each rank knows for itself; the size is what one rank sends"},
		{"alltoallvc", kolo.AllToAllVC, "alltoall with the matrix of all counts; the size is what one rank sends"},
	}
}

// Placement says whether input and output are different memory.
type Placement uint8

// The placements.
const (
	OutOfPlace Placement = iota
	InPlace
)

// String is "out-of-place" or "in-place".
func (p Placement) String() string {
	if p == InPlace {
		return "in-place"
	}
	return "out-of-place"
}

// Placements are those that the operator has. A broadcast has one buffer, and an
// exchange with counts needs two.
func (o Operator) Placements() []Placement {
	switch o.Collective {
	case kolo.Broadcast:
		return []Placement{InPlace}
	case kolo.AllToAllV, kolo.AllToAllVC:
		return []Placement{OutOfPlace}
	}
	return []Placement{OutOfPlace, InPlace}
}

// Has says whether the operator can be done so.
func (o Operator) Has(p Placement) bool { return slices.Contains(o.Placements(), p) }

// Counted says whether the operator takes a count per rank.
func (o Operator) Counted() bool { return o.Collective != o.Collective.Base() }

// split says whether the size is divided by the number of ranks.
func (o Operator) split() bool {
	switch o.Collective.Base() {
	case kolo.AllReduce, kolo.Broadcast, kolo.Reduce:
		return false
	}
	return true
}

// busFactor makes bus bandwidth of algorithm bandwidth: the bytes that the slowest
// link must carry at least, as a part of the size. It is that of nccl-tests.
func (o Operator) busFactor(ranks int) float64 {
	n := float64(ranks)
	switch o.Collective.Base() {
	case kolo.AllReduce:
		return 2 * (n - 1) / n
	case kolo.Broadcast, kolo.Reduce:
		return 1
	}
	return (n - 1) / n
}
