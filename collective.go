package kolo

import "fmt"

// Collective names an operation of a group. The values are HCCL's HcclCMDType
// where HCCL has the operation; GatherV and ScatterV are ours (from 200).
type Collective uint8

// The collectives. What Call.Count means is said at each; P is the group size.
const (
	NoCollective   Collective = 0
	Broadcast      Collective = 1   // Count: the whole vector
	AllReduce      Collective = 2   // Count: the whole vector
	Reduce         Collective = 3   // Count: the whole vector, result at the root
	Send           Collective = 4   // Count: the message; Root: the receiver
	Recv           Collective = 5   // Count: the message; Root: the sender
	AllGather      Collective = 6   // Count: what one rank gives; the result is P*Count
	ReduceScatter  Collective = 7   // Count: what one rank gets; the input is P*Count
	AllToAllV      Collective = 8   // counts per pair, each rank knows its own
	AllToAllVC     Collective = 9   // counts per pair, every rank knows the whole matrix
	AllToAll       Collective = 10  // Count: what one rank sends to one other; P*Count each way
	Gather         Collective = 11  // Count: what one rank gives; P*Count at the root
	Scatter        Collective = 12  // Count: what one rank gets; P*Count at the root
	BatchSendRecv  Collective = 13  // a list of sends and receives, progressing together
	AllGatherV     Collective = 16  // Counts: what each rank gives
	ReduceScatterV Collective = 17  // Counts: what each rank gets
	Barrier        Collective = 103 // no data
	GatherV        Collective = 200 // Counts: what each rank gives
	ScatterV       Collective = 201 // Counts: what each rank gets
)

// Collectives lists every collective that a plan can be compiled for, in the
// order of their numbers. Sends and receives have no plan.
func Collectives() []Collective {
	return []Collective{Broadcast, AllReduce, Reduce, AllGather, ReduceScatter, AllToAllV, AllToAllVC,
		AllToAll, Gather, Scatter, AllGatherV, ReduceScatterV, Barrier, GatherV, ScatterV}
}

// String is the usual name, as "AllReduce".
func (c Collective) String() string {
	switch c {
	case NoCollective:
		return "no collective"
	case Broadcast:
		return "Broadcast"
	case AllReduce:
		return "AllReduce"
	case Reduce:
		return "Reduce"
	case Send:
		return "Send"
	case Recv:
		return "Recv"
	case AllGather:
		return "AllGather"
	case ReduceScatter:
		return "ReduceScatter"
	case AllToAllV:
		return "AllToAllV"
	case AllToAllVC:
		return "AllToAllVC"
	case AllToAll:
		return "AllToAll"
	case Gather:
		return "Gather"
	case Scatter:
		return "Scatter"
	case BatchSendRecv:
		return "Batch"
	case AllGatherV:
		return "AllGatherV"
	case ReduceScatterV:
		return "ReduceScatterV"
	case Barrier:
		return "Barrier"
	case GatherV:
		return "GatherV"
	case ScatterV:
		return "ScatterV"
	}
	return fmt.Sprintf("Collective(%d)", uint8(c))
}

// Reduces says whether the collective combines elements with a ReduceOp.
func (c Collective) Reduces() bool {
	switch c {
	case AllReduce, Reduce, ReduceScatter, ReduceScatterV:
		return true
	}
	return false
}

// Rooted says whether one rank, Call.Root, plays a part of its own.
func (c Collective) Rooted() bool {
	switch c {
	case Broadcast, Reduce, Gather, Scatter, GatherV, ScatterV:
		return true
	}
	return false
}

// Base is the collective with the same choreography and equal counts: AllGather
// for AllGatherV, AllToAll for AllToAllV and AllToAllVC, and so on. A collective
// without a V form is its own base.
func (c Collective) Base() Collective {
	switch c {
	case AllGatherV:
		return AllGather
	case ReduceScatterV:
		return ReduceScatter
	case AllToAllV, AllToAllVC:
		return AllToAll
	case GatherV:
		return Gather
	case ScatterV:
		return Scatter
	}
	return c
}
