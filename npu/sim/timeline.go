package sim

import (
	"slices"

	"github.com/kolo-ccl/kolo/trace"
)

// Span is one use of a lane, which is one of "npu0/compute", "npu0/vector", "npu0/copy",
// "hccs 0>1", "roce 0 out", "pcie 0 in". A link's latency comes on top of its End. Package
// trace draws them.
type Span = trace.Span

// Timeline are the spans so far, in the order in which they began to be certain: by
// lane they are in order. What runs is in it with the end that it will have. dropped
// is how many were not kept, by Config.Spans.
func (c *Cluster) Timeline() (spans []Span, dropped int) {
	c.core.Lock()
	defer c.core.Unlock()
	return slices.Clone(c.spans), c.lost
}

// note keeps a span. The lock is held.
func (c *Cluster) note(s Span) {
	if len(c.spans) < c.cfg.Spans {
		c.spans = append(c.spans, s)
	} else {
		c.lost++
	}
}
