package sim

import (
	"slices"
	"time"
)

// Span is one use of a lane.
type Span struct {
	Lane  string // "npu0/compute", "npu0/vector", "npu0/copy", "hccs 0>1", "roce 0 out", "pcie 0 in"
	Name  string // the kernel's name, or "copy", "reduce"
	Bytes int64  // that were read and written, or that passed the link
	Begin time.Duration
	End   time.Duration // when the lane is free again; a link's latency comes on top
}

// Timeline are the spans so far, in the order in which they began to be certain: by
// lane they are in order. What runs is in it with the end that it will have. dropped
// is how many were not kept, by Config.Spans.
func (c *Cluster) Timeline() (spans []Span, dropped int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.spans), c.lost
}

// note keeps a span. c.mu is held.
func (c *Cluster) note(s Span) {
	if len(c.spans) < c.cfg.Spans {
		c.spans = append(c.spans, s)
	} else {
		c.lost++
	}
}
