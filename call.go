package kolo

import (
	"fmt"
	"slices"
)

// Call is what one rank asks of its group: the part that all ranks must agree on,
// and (Counts, InPlace) what a plan needs to know besides. A Call is immutable.
type Call struct {
	Collective Collective
	DType      DType
	Op         ReduceOp // zero (Sum) where nothing is reduced
	Root       Rank     // group rank; 0 where there is no root
	Count      int64    // elements; see the Collective. 0 for the V forms

	// Counts are the elements per rank of a V form, nil elsewhere but for AllReduce. AllGatherV,
	// ReduceScatterV, GatherV and ScatterV: one per rank, the same on all ranks.
	// AllToAllV: what this rank sends to each. AllToAllVC: the matrix, row i being
	// what rank i sends, the same on all ranks. AllReduce of several tensors: the
	// elements of each, which are Count together.
	Counts []int64
	// RecvCounts are what this rank takes from each rank in AllToAllV.
	RecvCounts []int64

	InPlace bool // input and output are the same memory; not compared between ranks
}

// Signature is the part of a Call that must be equal on all ranks, in a form
// that compares with ==. Lists are in Digest.
type Signature struct {
	Collective Collective
	DType      DType
	Op         ReduceOp
	Root       Rank
	Count      int64
	Digest     uint64 // FNV-1a over the length and the values of shared Counts; 0 without
}

// Signature makes the comparable part of c.
func (c *Call) Signature() Signature {
	s := Signature{Collective: c.Collective, DType: c.DType, Op: c.Op, Root: c.Root, Count: c.Count}
	if len(c.Counts) > 0 && c.Collective != AllToAllV {
		s.Digest = digest(c.Counts)
	}
	return s
}

func digest(list []int64) uint64 {
	h := uint64(14695981039346656037)
	mix := func(v uint64) {
		for range 8 {
			h = (h ^ v&0xff) * 1099511628211
			v >>= 8
		}
	}
	mix(uint64(len(list)))
	for _, v := range list {
		mix(uint64(v))
	}
	return h
}

// Diff names each field in which c and d differ, with both values, as
// "count 256000 instead of 512000". It is empty when the two agree.
func (c *Call) Diff(d *Call) []string {
	var out []string
	add := func(what string, got, want any) {
		out = append(out, fmt.Sprintf("%s %v instead of %v", what, got, want))
	}
	if c.Collective != d.Collective {
		add("collective", c, d)
		return out
	}
	if c.DType != d.DType {
		add("element type", c.DType, d.DType)
	}
	if c.Op != d.Op {
		add("reduce operation", c.Op, d.Op)
	}
	if c.Root != d.Root {
		add("root", c.Root, d.Root)
	}
	if c.Count != d.Count {
		add("count", c.Count, d.Count)
	}
	if c.Collective != AllToAllV && !slices.Equal(c.Counts, d.Counts) {
		diffCounts(c.Counts, d.Counts, add)
	}
	return out
}

// diffCounts names the first count in which the lists differ: whole lists would be
// the square of the group's size.
func diffCounts(c, d []int64, add func(what string, got, want any)) {
	if len(c) != len(d) {
		add("number of counts", len(c), len(d))
		return
	}
	first, more := -1, 0
	for i := range c {
		if c[i] == d[i] {
			continue
		}
		if more++; first < 0 {
			first = i
		}
	}
	what := fmt.Sprintf("counts[%d]", first)
	if more > 1 {
		what = fmt.Sprintf("%d counts, the first of them %s", more, what)
	}
	add(what, c[first], d[first])
}

// String is the call in a line, as "AllReduce(1024 fp32, sum)".
func (c *Call) String() string {
	s := c.Collective.String()
	if c.Collective == Barrier || c.Collective == NoCollective {
		return s
	}
	if len(c.Counts) > 0 && c.Collective == AllReduce {
		s += fmt.Sprintf("(%d %v in %d tensors", c.Count, c.DType, len(c.Counts))
	} else if len(c.Counts) > 0 {
		s += fmt.Sprintf("(%d counts of %v", len(c.Counts), c.DType)
	} else {
		s += fmt.Sprintf("(%d %v", c.Count, c.DType)
	}
	if c.Collective.Reduces() {
		s += ", " + c.Op.String()
	}
	if c.Collective.Rooted() {
		s += fmt.Sprintf(", root %d", int(c.Root))
	}
	return s + ")"
}
