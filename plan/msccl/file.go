package msccl

import (
	"fmt"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/plan"
)

// File is one MSCCL algorithm: for each rank (gpu) thread blocks, which work at the same
// time, each doing its steps one after the other.
type File struct {
	Name       string
	Protocol   string // Simple, LL or LL128; nothing here depends on it
	Collective kolo.Collective
	Root       kolo.Rank // 0 where the collective has none. MSCCL has no word for it; ours is root
	Channels   int
	Chunks     int // nchunksperloop: equal pieces of the larger one of input and output
	// InPlace and OutOfPlace are the forms of a call that the file may serve.
	InPlace, OutOfPlace bool
	// MinBytes and MaxBytes are the sizes of the whole vector that the file is meant for;
	// MaxBytes 0: no limit.
	MinBytes, MaxBytes int64
	GPUs               []GPU
}

// GPU is one rank.
type GPU struct {
	In, Out, Scratch int // chunks of its buffers, as the file says
	Blocks           []Block
}

// Block is a thread block: a worker that sends to at most one peer and receives from at
// most one, on one channel.
type Block struct {
	Send, Recv kolo.Rank // kolo.NoRank: none
	Channel    int
	Steps      []Step
}

// Step is what a thread block does in one go.
type Step struct {
	Op       Op
	Src, Dst Place
	Count    int // neighbouring chunks
	// DepBlock and DepStep name a step of the same GPU that must have ended first; -1: none.
	DepBlock, DepStep int
	HasDep            bool // some step waits for this one
}

// Place is a chunk of a buffer; Offset is -1 where a step has none.
type Place struct {
	Buffer plan.Buffer
	Offset int
}

// Op is what a Step does.
type Op uint8

// The ops, with MSCCL's names. The local operand of those that reduce what they
// receive is Src.
const (
	Nop                Op = iota // nop: one more dependency for the next step
	Send                         // s: Src
	Recv                         // r: into Dst
	RecvCopySend                 // rcs: into Dst, and on
	RecvReduceSend               // rrs: with Src, and on; nothing is stored
	RecvReduceCopy               // rrc: with Src into Dst
	RecvReduceCopySend           // rrcs: with Src into Dst, and on
	Copy                         // cpy: Src to Dst
	Reduce                       // re: Src into Dst
	numOps
)

var opNames = [numOps]string{"nop", "s", "r", "rcs", "rrs", "rrc", "rrcs", "cpy", "re"}

// String is MSCCL's name.
func (o Op) String() string {
	if o < numOps {
		return opNames[o]
	}
	return fmt.Sprintf("Op(%d)", uint8(o))
}

func opOf(name string) (Op, bool) {
	for o, n := range opNames {
		if n == name {
			return Op(o), true
		}
	}
	return 0, false
}

func (o Op) sends() bool {
	return o == Send || o == RecvCopySend || o == RecvReduceSend || o == RecvReduceCopySend
}

func (o Op) receives() bool { return o >= Recv && o <= RecvReduceCopySend }

func (o Op) reads() bool {
	return o == Send || o >= RecvReduceSend
}

func (o Op) writes() bool { return o.receives() && o != RecvReduceSend || o >= Copy }

// Steps is the number of steps of all GPUs.
func (f *File) Steps() int {
	n := 0
	for _, g := range f.GPUs {
		for _, b := range g.Blocks {
			n += len(b.Steps)
		}
	}
	return n
}

// name is how errors call a step: "gpu 3, tb 1, step 4 (rrc)".
func (f *File) name(gpu, block, step int) string {
	return fmt.Sprintf("gpu %d, tb %d, step %d (%v)", gpu, block, step, f.GPUs[gpu].Blocks[block].Steps[step].Op)
}

// collectives are MSCCL's names.
var collectives = []struct {
	name string
	is   kolo.Collective
}{
	{"allreduce", kolo.AllReduce}, {"allgather", kolo.AllGather}, {"reducescatter", kolo.ReduceScatter},
	{"reduce_scatter", kolo.ReduceScatter}, {"alltoall", kolo.AllToAll}, {"broadcast", kolo.Broadcast},
	{"reduce", kolo.Reduce}, {"gather", kolo.Gather}, {"scatter", kolo.Scatter},
}

func collectiveOf(name string) (kolo.Collective, error) {
	for _, c := range collectives {
		if c.name == name {
			return c.is, nil
		}
	}
	return 0, fmt.Errorf("%w: msccl: a plan for %q; Kolo runs plans for allreduce, allgather, reducescatter, alltoall, broadcast, reduce, gather and scatter",
		kolo.ErrUnsupported, name)
}

func collectiveName(c kolo.Collective) string {
	for _, x := range collectives {
		if x.is == c {
			return x.name
		}
	}
	return c.String()
}
