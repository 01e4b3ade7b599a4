//go:build long

package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/cmd/kolo/internal/perf"
)

// Every operator over each transport between 2, 4 and 8 processes, of a rank each and of two, which
// are joined by hccs: sizes that divide, sizes that do not, and such as take several slices.
func TestEveryOperatorByEveryTransport(t *testing.T) {
	for _, transport := range []string{"shm", "tcp", "roce"} {
		for _, n := range []int{2, 4, 8} {
			for _, each := range []int{1, 2} {
				t.Run(fmt.Sprintf("%s/n=%d/p=%d", transport, n, each), func(t *testing.T) {
					for _, o := range perf.Operators() {
						r := processes(t, fmt.Sprint(n), fmt.Sprintf("test %s -p %d -b 52 -e 1100K -f 145 -n 2 -w 1 -r 1 --transport %s --inplace %s", o.Name, each, transport, buffers(o)))
						require.Zero(t, r.code, "%s: %s", o.Name, r.err)
						require.GreaterOrEqual(t, strings.Count(r.out, "success"), 3, "%s: %s", o.Name, r.out)
						require.NotContains(t, r.out, "failed", o.Name)
					}
				})
			}
		}
	}
}

// sampled are command lines of every operator for each of some element types and operations:
// 1, 265 and 70,225 elements.
func sampled(t *testing.T) (list []string) {
	seed := rand.Uint64()
	t.Log("seed", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	types := kolo.ReducibleDTypes()
	for _, o := range perf.Operators() {
		for range 2 {
			d, op := types[rng.IntN(len(types))], []string{"sum", "prod", "max", "min", "avg"}[rng.IntN(5)]
			list = append(list, fmt.Sprintf("test %s -b %d -e %d -f 265 -d %v -o %s -n 1 -w 0 -r 1 --inplace %s", o.Name, d.Size(), 70225*d.Size(), d, op, buffers(o)))
		}
	}
	return list
}

// Element types and operations between processes.
func TestElementTypesByEveryTransport(t *testing.T) {
	for _, transport := range []string{"shm", "tcp", "roce"} {
		t.Run(transport, func(t *testing.T) {
			for _, line := range sampled(t) {
				r := processes(t, "3", line+" --transport "+transport)
				require.Zero(t, r.code, "%s: %s", line, r.err)
				require.NotContains(t, r.out, "failed", line)
			}
		})
	}
}
