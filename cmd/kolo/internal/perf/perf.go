package perf

import (
	"context"
	"fmt"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/plan"
	"github.com/kolo-ccl/kolo/rank"
)

// Config says what to measure. Fields without a default must be set.
type Config struct {
	Operator   Operator
	Placements []Placement // for each size, in this order
	Ranks      int
	Range      Range
	Repeat     bool // the sizes again and again, until the context ends
	DType      kolo.DType
	Op         kolo.ReduceOp // of operators that reduce
	Root       kolo.Rank     // of rooted operators
	Iterations int           // timed, 1 or more
	Warmup     int           // before that, not timed
	Check      bool          // do it once more, and compare
	Uneven     bool          // different counts, for operators that take counts
	Rank       rank.Config
	// Worlds are the ranks of this process where they are not all: of a world that was
	// opened with Rank without its Algorithm, and which has Ranks ranks. They are the caller's to close. nil: Run makes
	// Ranks ranks.
	Worlds []*rank.World

	Now func() time.Time
	// Begin is told before each trial, and Row after it, both by rank 0's goroutine
	// while the others wait; in a world of several processes only in that of rank 0. An error of Row ends the run. Begin may be nil.
	Begin func(Row)
	Row   func(Row) error
	// Tamper is for tests: it may change a rank's output before it is compared.
	Tamper func(r kolo.Rank, out []byte)
}

// Row is what one trial gave. Begin gets it without results.
type Row struct {
	Size      int64 // bytes; see the Operator
	Count     int64 // elements of the call; with a count per rank, their mean
	Placement Placement
	Time      float64 // microseconds per call, of the slowest rank
	AlgBW     float64 // 1e9 bytes of Size per second
	BusBW     float64 // 1e9 bytes per second
	Checked   bool
	Mistakes  []Mistake   // of the ranks whose output is wrong
	Choice    plan.Choice // how calls of this kind are done
}

// Verdict is hccl_test's word for the check: success, failed, or NULL if there was
// none.
func (r *Row) Verdict() string {
	switch {
	case !r.Checked:
		return "NULL"
	case len(r.Mistakes) > 0:
		return "failed"
	}
	return "success"
}

// Wrong is the number of wrong elements on all ranks.
func (r *Row) Wrong() int64 {
	n := int64(0)
	for _, m := range r.Mistakes {
		n += m.Wrong
	}
	return n
}

// Mistake says what is wrong with the output of a rank.
type Mistake struct {
	Rank      kolo.Rank
	Wrong, Of int64 // elements
	Index     int64 // the first wrong element
	Got, Want string
}

// String is the mistake in a line.
func (m Mistake) String() string {
	return fmt.Sprintf("%v: element %d of the output is %s instead of %s; %d of %d elements are wrong",
		m.Rank, m.Index, m.Got, m.Want, m.Wrong, m.Of)
}

// Validate says what is wrong with the configuration, or nil.
func (c *Config) Validate() error {
	switch {
	case c.Ranks < 1:
		return fmt.Errorf("%w: %d ranks; want 1 or more", kolo.ErrArgument, c.Ranks)
	case c.Root < 0 || int(c.Root) >= c.Ranks:
		return fmt.Errorf("%w: root %d; the ranks are 0 to %d", kolo.ErrArgument, int(c.Root), c.Ranks-1)
	case c.Iterations < 1:
		return fmt.Errorf("%w: %d iterations; want 1 or more", kolo.ErrArgument, c.Iterations)
	case c.Warmup < 0:
		return fmt.Errorf("%w: %d iterations before the timed ones", kolo.ErrArgument, c.Warmup)
	case len(c.Worlds) > 0 && c.Worlds[0].Size() != c.Ranks:
		return fmt.Errorf("%w: %d ranks, and a world of %d", kolo.ErrArgument, c.Ranks, c.Worlds[0].Size())
	case c.Uneven && !c.Operator.Counted():
		return fmt.Errorf("%w: %s takes no counts per rank, so they cannot be uneven", kolo.ErrArgument, c.Operator.Name)
	}
	for _, p := range c.Placements {
		if !c.Operator.Has(p) {
			return fmt.Errorf("%w: %s has no %v form, it is always %v", kolo.ErrArgument, c.Operator.Name, p, c.Operator.Placements()[0])
		}
	}
	if c.Operator.Collective.Reduces() {
		if err := c.Op.Check(c.DType); err != nil {
			return err
		}
	}
	if err := c.Range.Validate(); err != nil {
		return err
	}
	return c.Rank.Validate()
}

// Exact says whether results of the configured kind can be compared: whether there
// are inputs for which no order of folding rounds. Run does not check others.
func (c *Config) Exact() bool {
	v := newValues(c.DType, c.folds().Kind, c.Ranks)
	return v.exact
}

// folds is the operation that the values must suit.
func (c *Config) folds() kolo.ReduceOp {
	if c.Operator.Collective.Reduces() {
		return c.Op
	}
	return kolo.Max
}

// Memory is the bytes of all buffers of this process together.
func (c *Config) Memory() (int64, error) {
	counts, err := c.Range.Counts(c.Operator, c.Ranks, c.DType)
	if err != nil {
		return 0, err
	}
	total := int64(0)
	for _, r := range c.here() {
		total += c.most(r, counts)
	}
	return total, nil
}

// here are the ranks of this process.
func (c *Config) here() []int {
	var list []int
	for _, w := range c.Worlds {
		list = append(list, int(w.Rank()))
	}
	for r := 0; c.Worlds == nil && r < c.Ranks; r++ {
		list = append(list, r)
	}
	return list
}

// most is the bytes that a rank needs for the trial that needs most.
func (c *Config) most(me int, counts []int64) int64 {
	elements := int64(0)
	for _, p := range c.Placements {
		l := newTrial(c, p, counts[len(counts)-1]).lay(me)
		elements = max(elements, l.elements(p))
	}
	return elements*int64(c.DType.Size()) + 2*gap
}

// Run measures every size and calls Row for each. Errors are those of the ranks.
func (c *Config) Run(ctx context.Context) error {
	if err := c.Validate(); err != nil {
		return err
	}
	counts, err := c.Range.Counts(c.Operator, c.Ranks, c.DType)
	if err != nil {
		return err
	}
	s := &session{Config: c, counts: counts, pattern: newPattern(c.DType, c.folds(), c.Ranks)}
	if c.Worlds != nil {
		return s.part(ctx)
	}
	cfg := c.Rank
	cfg.Algorithm = "" // of the measured group only: what is forced need not know barriers
	return cfg.Run(ctx, c.Ranks, s.work)
}
