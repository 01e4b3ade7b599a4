package ranktest

import (
	"fmt"
	"slices"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/rank"
)

// Answer is what the Out memory of each rank must hold after a call: calls[r] is
// what rank r asks for, with its input still in place. Bytes that the call leaves alone
// are those that are there. The calls must agree; nothing is checked.
func Answer(calls []rank.Request) [][]byte {
	a := answer{calls: calls, dtype: dtypeOf(calls)}
	for _, c := range calls {
		a.out = append(a.out, slices.Clone(c.Out.Memory.Host))
	}
	switch c := &calls[0]; c.Collective {
	case kolo.AllReduce, kolo.Reduce:
		sum := fold(a.dtype, c.Op, a.inputs())
		for r := range calls {
			if c.Collective == kolo.AllReduce || r == int(c.Root) {
				copy(a.out[r], sum)
			}
		}
	case kolo.Broadcast:
		for r := range calls {
			copy(a.out[r], calls[c.Root].Out.Memory.Host)
		}
	case kolo.AllGather, kolo.AllGatherV, kolo.Gather, kolo.GatherV:
		a.gather(c)
	case kolo.ReduceScatter, kolo.ReduceScatterV:
		for r := range calls {
			var parts [][]byte
			for i := range calls {
				parts = append(parts, a.part(calls[i].In.Memory.Host, calls[i].Send, r))
			}
			copy(a.out[r], fold(a.dtype, c.Op, parts))
		}
	case kolo.Scatter, kolo.ScatterV:
		root := &calls[c.Root]
		for r := range calls {
			copy(a.out[r], a.part(root.In.Memory.Host, root.Send, r))
		}
	case kolo.AllToAll, kolo.AllToAllV, kolo.AllToAllVC:
		a.allToAll()
	case kolo.Barrier:
	default:
		panic(fmt.Sprintf("ranktest: no answer for %v", c.Collective))
	}
	return a.out
}

// Want is the Answer for one rank of n, where call says what each rank asks for.
func Want(n int, me kolo.Rank, call func(r kolo.Rank) rank.Request) []byte {
	calls := make([]rank.Request, n)
	for r := range calls {
		calls[r] = call(kolo.Rank(r))
	}
	return Answer(calls)[me]
}

// answer is one on its way.
type answer struct {
	calls []rank.Request
	dtype kolo.DType
	out   [][]byte
}

// dtypeOf is the element type of the first buffer that has memory.
func dtypeOf(calls []rank.Request) kolo.DType {
	for _, c := range calls {
		for _, b := range []rank.Buffer{c.In, c.Out} {
			if b.Memory.Len() > 0 {
				return b.DType
			}
		}
	}
	return kolo.Uint8
}

func (a *answer) inputs() [][]byte {
	var in [][]byte
	for _, c := range a.calls {
		in = append(in, c.In.Memory.Host)
	}
	return in
}

func (a *answer) gather(c *rank.Request) {
	for to := range a.calls {
		if (c.Collective == kolo.Gather || c.Collective == kolo.GatherV) && to != int(c.Root) {
			continue
		}
		for from := range a.calls {
			copy(a.part(a.out[to], a.calls[to].Recv, from), a.calls[from].In.Memory.Host)
		}
	}
}

func (a *answer) allToAll() {
	n := len(a.calls)
	for from := range a.calls {
		for to := range a.calls {
			send, recv := a.calls[from].Send, a.calls[to].Recv
			if a.calls[0].Collective == kolo.AllToAllVC {
				matrix := a.calls[0].Send.Counts
				send, recv = rank.Vector{Counts: matrix[from*n : (from+1)*n]}, rank.Vector{Counts: make([]int64, n)}
				for i := range n {
					recv.Counts[i] = matrix[i*n+to]
				}
			}
			copy(a.part(a.out[to], recv, from), a.part(a.calls[from].In.Memory.Host, send, to))
		}
	}
}

// part is part i of memory that has one for each rank: equal ones without counts.
func (a *answer) part(b []byte, v rank.Vector, i int) []byte {
	size := int64(a.dtype.Size())
	if v.Counts == nil {
		n := len(b) / len(a.calls)
		return b[i*n : (i+1)*n]
	}
	off := int64(0)
	for _, k := range v.Counts[:i] {
		off += k
	}
	if v.Displs != nil {
		off = v.Displs[i]
	}
	return b[off*size : (off+v.Counts[i])*size]
}
