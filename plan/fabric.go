package plan

import (
	"errors"

	"github.com/kolo-ccl/kolo"
)

// The fabric: the medium between the ranks does the whole collective itself, as
// a switch with NVLink SHARP does. The medium of one process can: every rank's
// buffer is addressable, so each block is reduced from all buffers in one pass
// and written to all of them while it is in cache. The medium also multiplies for
// PreMulSum and divides for Avg.
var fabric = &Algorithm{
	Name:   "fabric",
	Source: "the medium's own; compare NVLink SHARP",
	serves: func(_ kolo.Collective, t *Topology) error {
		if t.Medium {
			return nil
		}
		return errors.New("the ranks share no medium that does collectives")
	},
	parts:  oneBlock,
	shared: unrooted,
	write: func(b *builder, _ *Topology) {
		b.step(Step{Op: Fabric}, nil, nil)
		copy(b.loc, b.home)
	},
}
