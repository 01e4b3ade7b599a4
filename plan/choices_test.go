package plan

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kolo-ccl/kolo"
)

// TestChoicesOfTheTable records what the package chooses, one line per case.
func TestChoicesOfTheTable(t *testing.T) {
	var b strings.Builder
	for _, c := range kolo.Collectives() {
		if c.Base() != c {
			continue
		}
		sizes := []int64{8, 4 << 10, 256 << 10, 16 << 20, 1 << 30}
		if c == kolo.Barrier {
			sizes = []int64{0}
		}
		fmt.Fprintf(&b, "# %v of", c)
		for _, size := range sizes {
			fmt.Fprintf(&b, " %s,", amount(float64(size)))
		}
		b.WriteByte('\n')
		for _, n := range []int{2, 8, 12, 64} {
			tops := trialTopologies(t, n)
			for _, name := range []string{"process", "server", "net", "servers", "uneven", "racks"} {
				top, ok := tops[name]
				if !ok {
					continue
				}
				fmt.Fprintf(&b, "%3d %-8s", n, name)
				for _, size := range sizes {
					ch, err := ChooseSize(c, size, top, Policy{})
					if err != nil {
						fmt.Fprintf(&b, " %36s", "-")
						continue
					}
					fmt.Fprintf(&b, " %27s %8s", ch.Algorithm, duration(ch.Cost))
				}
				b.WriteByte('\n')
			}
		}
	}
	golden(t, "choices.txt", b.String())
}
