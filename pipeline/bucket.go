package pipeline

import (
	"fmt"
	"hash/fnv"
	"slices"

	"github.com/kolo-ccl/kolo"
)

// bucketsOf packs parameters, in an order, into buckets. The first takes what comes
// until the next would make it larger than its limit. The others are as few as their
// limit allows, and as equal as the parameters are, the larger ones last: a short
// bucket at the end would be on the wire only after the long one before it, which has
// then nothing to hide behind. A bucket is of one element type; a parameter beyond the
// limit is a bucket alone.
func bucketsOf(params []Param, order []int, first, limit int64) (buckets [][]int) {
	size := func(p int) int64 { return params[p].Gradient.Memory.Len() }
	n, total := 1, size(order[0])
	for n < len(order) && total+size(order[n]) <= first && params[order[n]].Gradient.DType == params[order[0]].Gradient.DType {
		total += size(order[n])
		n++
	}
	buckets = append(buckets, order[:n:n])
	for order = order[n:]; len(order) > 0; order = order[n:] {
		n = 1
		for n < len(order) && params[order[n]].Gradient.DType == params[order[0]].Gradient.DType {
			n++
		}
		buckets = append(buckets, spread(order[:n:n], size, limit)...)
	}
	return buckets
}

// spread cuts a list into parts of at most a limit, from the end: each takes its
// equal share of what is left, or the first more than that.
func spread(list []int, size func(int) int64, limit int64) (parts [][]int) {
	few, open, left := 1, int64(0), int64(0)
	for _, p := range list {
		if open > 0 && open+size(p) > limit {
			few, open = few+1, 0
		}
		open += size(p)
		left += size(p)
	}
	for ; len(list) > 0; few-- {
		n, sum := len(list)-1, size(list[len(list)-1])
		for n > 0 && sum*int64(max(few, 1)) < left && sum+size(list[n-1]) <= limit {
			n--
			sum += size(list[n])
		}
		parts = append(parts, list[n:])
		list, left = list[:n:n], left-sum
	}
	slices.Reverse(parts)
	return parts
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
