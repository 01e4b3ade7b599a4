package plan

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/kolo-ccl/kolo"
)

// Tuning is a table of choices that were measured, or written by hand: what a tuner
// file holds. Choose takes the first rule that matches a call and names an algorithm
// that serves it. All ranks of a group must have the same Tuning; see Digest.
type Tuning struct {
	Rules []Rule
}

// Rule is a line of a Tuning. A zero limit is none; limits are inclusive.
type Rule struct {
	Collective         kolo.Collective // a base collective
	MinBytes, MaxBytes int64           // of the whole vector; see VectorSize
	MinRanks, MaxRanks int
	MinServers         int
	MaxServers         int
	MinEach, MaxEach   int // ranks of a server: of the smallest and of the largest
	Algorithm          string
	Disabled           bool          // the algorithm must not be taken
	Measured           time.Duration // 0: not known
}

// matches says whether the rule speaks of c over size bytes by the ranks of t.
func (r *Rule) matches(c kolo.Collective, size int64, t *Topology) bool {
	within := func(x, low, high int) bool { return x >= low && (high == 0 || x <= high) }
	if r.Collective != c.Base() || size < r.MinBytes || r.MaxBytes > 0 && size > r.MaxBytes ||
		!within(t.Ranks(), r.MinRanks, r.MaxRanks) || !within(distinct(t.Server), r.MinServers, r.MaxServers) {
		return false
	}
	if r.MinEach > 0 || r.MaxEach > 0 {
		each := tally(t.Server)
		return slices.Min(each) >= r.MinEach && (r.MaxEach == 0 || slices.Max(each) <= r.MaxEach)
	}
	return true
}

// Steps are the sizes, ascending, from each of which on other rules may speak of c than
// below it.
func (t *Tuning) Steps(c kolo.Collective) []int64 {
	if t == nil {
		return nil
	}
	var out []int64
	for _, r := range t.Rules {
		if r.Collective != c.Base() {
			continue
		}
		if r.MinBytes > 0 {
			out = append(out, r.MinBytes)
		}
		if r.MaxBytes > 0 && r.MaxBytes < math.MaxInt64 {
			out = append(out, r.MaxBytes+1)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Validate says what is wrong with the table, or nil.
func (t *Tuning) Validate() error {
	if len(t.Rules) > maxRules {
		return fmt.Errorf("%w: a tuning of %d rules; the most is %d", kolo.ErrLimit, len(t.Rules), maxRules)
	}
	for i, r := range t.Rules {
		bad := func(why string) error {
			return fmt.Errorf("%w: tuning rule %d, %v: %s", kolo.ErrArgument, i, r, why)
		}
		if err := planned(r.Collective); err != nil || r.Collective != r.Collective.Base() {
			return bad("it must name a collective that has a plan, without V")
		}
		if _, err := Lookup(r.Algorithm); err != nil {
			return bad(err.Error())
		}
		if r.MinBytes < 0 || r.MinRanks < 0 || r.MinServers < 0 || r.MinEach < 0 || r.Measured < 0 ||
			r.MaxBytes != 0 && r.MaxBytes < r.MinBytes || r.MaxRanks != 0 && r.MaxRanks < r.MinRanks ||
			r.MaxServers != 0 && r.MaxServers < r.MinServers || r.MaxEach != 0 && r.MaxEach < r.MinEach {
			return bad("a limit is negative, or the least is more than the most")
		}
	}
	return nil
}

// maxRules is the largest number of rules of a Tuning.
const maxRules = 1 << 16

// String is the rule in a line, as "AllReduce of 1024 to 65536 bytes by 8 ranks: nhr".
func (r Rule) String() string {
	s := r.Collective.String()
	if r.MinBytes > 0 || r.MaxBytes > 0 {
		s += " of " + limits(r.MinBytes, r.MaxBytes) + " bytes"
	}
	for _, k := range []struct {
		low, high int
		what      string
	}{{r.MinRanks, r.MaxRanks, " by %s ranks"}, {r.MinServers, r.MaxServers, " in %s servers"}, {r.MinEach, r.MaxEach, " of %s ranks"}} {
		if k.low > 0 || k.high > 0 {
			s += fmt.Sprintf(k.what, limits(int64(k.low), int64(k.high)))
		}
	}
	if r.Disabled {
		return s + ": not " + r.Algorithm
	}
	s += ": " + r.Algorithm
	if r.Measured > 0 {
		s += " (" + duration(r.Measured) + ")"
	}
	return s
}

func limits(low, high int64) string {
	switch {
	case low == high:
		return fmt.Sprint(low)
	case high == 0:
		return fmt.Sprintf("%d or more", low)
	}
	return fmt.Sprintf("%d to %d", low, high)
}

// Digest is a number that two tables share only if they choose alike. What was
// measured is not part of it.
func (t *Tuning) Digest() uint64 {
	h := fnv(fnvOffset)
	h.add(uint64(len(t.Rules)))
	for _, r := range t.Rules {
		disabled := uint64(0)
		if r.Disabled {
			disabled = 1
		}
		h.add(uint64(r.Collective), uint64(r.MinBytes), uint64(r.MaxBytes), uint64(r.MinRanks), uint64(r.MaxRanks),
			uint64(r.MinServers), uint64(r.MaxServers), uint64(r.MinEach), uint64(r.MaxEach), disabled, uint64(len(r.Algorithm)))
		for _, c := range []byte(r.Algorithm) {
			h.add(uint64(c))
		}
	}
	return uint64(h)
}

// tuned takes the row that the policy's Tuning names, -1 if it names none that serves.
func (ch *Choice) tuned() int {
	if ch.Policy.Tuning == nil {
		return -1
	}
	for i := range ch.Policy.Tuning.Rules {
		r := &ch.Policy.Tuning.Rules[i]
		if r.Disabled || !r.matches(ch.Collective, ch.Size, ch.topology) {
			continue
		}
		at := slices.IndexFunc(ch.Rows, func(row Row) bool { return row.Name == r.Algorithm && row.Serves })
		if at < 0 {
			continue
		}
		ch.rest("not the tuning's")
		ch.Rows[at].Why = fmt.Sprintf("tuning rule %d: %v", i, r)
		return at
	}
	return -1
}

// disabled is why the tuning forbids an algorithm, or "".
func (t *Tuning) disabled(name string, c kolo.Collective, size int64, topo *Topology) string {
	if t == nil {
		return ""
	}
	for i := range t.Rules {
		if r := &t.Rules[i]; r.Disabled && r.Algorithm == name && r.matches(c, size, topo) {
			return fmt.Sprintf("disabled by tuning rule %d", i)
		}
	}
	return ""
}
