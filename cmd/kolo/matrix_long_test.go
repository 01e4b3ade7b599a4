//go:build long

package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kolo-ccl/kolo/cmd/kolo/internal/perf"
)

// Every operator over each transport between 2, 4 and 8 processes, of a rank each and of two, which
// are joined by hccs: sizes that divide, sizes that do not, and such as take several slices.
func TestEveryOperatorByEveryTransport(t *testing.T) {
	for _, transport := range []string{"shm", "tcp"} {
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
