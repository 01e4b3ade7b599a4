package pipeline

import (
	"fmt"
	"io"
	"time"
)

// Times are the moments of one chunk, counted from the begin of the step.
type Times struct {
	Part  int           // the chunk or bucket that it is, or a slice of
	Ready time.Duration // it was computed
	Begun time.Duration // it went on the wire: all ranks had it, and the chunks before it were done
	Ended time.Duration // it was reduced
	// Exposed is the part of Begun to Ended in which nothing was computed any more.
	Exposed time.Duration
}

// Report is what a step took on this rank.
type Report struct {
	Compute    time.Duration // until the last chunk was computed
	Comm       time.Duration // of all chunks together, each from Begun to Ended
	Serial     time.Duration // what it would have taken one after the other: Compute + Comm
	Overlapped time.Duration // what it took
	// Efficiency is the longer of Compute and Comm, which is the least that is possible,
	// by Overlapped.
	Efficiency float64
	// Hidden is the part of the shorter of Compute and Comm that cost no time.
	Hidden  float64
	Exposed time.Duration // of all chunks
	// Chunks are the chunks or the buckets; with Priority the slices of all buckets, in the
	// order in which they were sent.
	Chunks []Times
	// Staged is how many bytes were copied to bring tensors together for calls, and back.
	Staged int64
	// Unused are the parameters of a Reducer that the step had no gradient for.
	Unused []string
}

// measure makes the report of a step from the moments of its chunks.
func measure(chunks []Times) Report {
	r := Report{Chunks: chunks}
	for _, c := range chunks {
		r.Compute = max(r.Compute, c.Ready)
		r.Overlapped = max(r.Overlapped, c.Ended)
		r.Comm += c.Ended - c.Begun
	}
	r.Serial = r.Compute + r.Comm
	for i := range chunks {
		c := &chunks[i]
		c.Exposed = max(0, c.Ended-max(c.Begun, r.Compute))
		r.Exposed += c.Exposed
	}
	if r.Overlapped > 0 {
		r.Efficiency = float64(max(r.Compute, r.Comm)) / float64(r.Overlapped)
	}
	if least := min(r.Compute, r.Comm); least > 0 {
		r.Hidden = float64(r.Serial-r.Overlapped) / float64(least)
	}
	return r
}

// Bound is the least that k equal chunks can take: all of the longer side, and one
// chunk of the shorter.
func Bound(compute, comm time.Duration, k int) time.Duration {
	return max(compute, comm) + min(compute, comm)/time.Duration(k)
}

// Print writes the numbers as a few lines.
func (r Report) Print(w io.Writer) error {
	_, err := fmt.Fprintf(w, "compute %v, communication %v, one after the other %v, overlapped %v\nefficiency %.3f, hidden %.0f %%, exposed %v\n",
		r.Compute, r.Comm, r.Serial, r.Overlapped, r.Efficiency, 100*r.Hidden, r.Exposed)
	for _, c := range r.Chunks {
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(w, "chunk %2d: computed at %v, on the wire %v to %v, exposed %v\n", c.Part, c.Ready, c.Begun, c.Ended, c.Exposed)
	}
	return err
}
