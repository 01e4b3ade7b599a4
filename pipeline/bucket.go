package pipeline

import (
	"fmt"
	"hash/fnv"
	"slices"

	"github.com/kolo-ccl/kolo"
)

// bucketsOf packs parameters, in an order, into buckets: each takes what comes until
// the next would make it larger than its limit, or is of another element type. The
// first bucket has a limit of its own. A parameter beyond the limit is a bucket alone.
func bucketsOf(params []Param, order []int, first, limit int64) (buckets [][]int) {
	most, size := first, int64(0)
	var open []int
	for _, p := range order {
		g := params[p].Gradient
		if len(open) > 0 && (size+g.Memory.Len() > most || g.DType != params[open[0]].Gradient.DType) {
			buckets = append(buckets, open)
			open, size, most = nil, 0, limit
		}
		open = append(open, p)
		size += g.Memory.Len()
	}
	return append(buckets, open)
}

// backwards is the order in which gradients become ready, as long as nobody knows
// better: the last layer's first.
func backwards(n int) []int {
	order := make([]int, n)
	for i := range order {
		order[i] = n - 1 - i
	}
	return order
}

// completed is an order with the parameters that it lacks behind it.
func completed(order []int, n int) []int {
	order = slices.Clone(order)
	for _, p := range backwards(n) {
		if !slices.Contains(order, p) {
			order = append(order, p)
		}
	}
	return order
}

// digest is a number made of what all ranks must have in common.
func digest(params []Param) int64 {
	h := fnv.New64a()
	for _, p := range params {
		fmt.Fprintf(h, "%q %d %d\n", p.Name, p.Gradient.DType, p.Gradient.Memory.Len())
	}
	return int64(h.Sum64())
}

// message is what rank 0 tells the others: its order, behind the digest of its
// parameters.
func message(params []Param, order []int) []int64 {
	m := []int64{digest(params)}
	for _, p := range order {
		m = append(m, int64(p))
	}
	return m
}

// agreed reads what message has made.
func agreed(params []Param, m []int64) ([]int, error) {
	if m[0] != digest(params) {
		return nil, fmt.Errorf("%w: pipeline: the parameters of this rank are not those of rank 0: names, element types or sizes differ", kolo.ErrMismatch)
	}
	order := make([]int, 0, len(params))
	seen := make([]bool, len(params))
	for _, v := range m[1:] {
		if v < 0 || v >= int64(len(params)) || seen[v] {
			return nil, fmt.Errorf("%w: pipeline: rank 0 says that parameter %d comes next, of %d, each once", kolo.ErrMismatch, v, len(params))
		}
		seen[v] = true
		order = append(order, int(v))
	}
	return order, nil
}
