package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/kolo-ccl/kolo"
)

// Contest finds the fastest algorithm for one collective and size by timing. It has no
// clock: Next names who is to be timed, and Add takes what that took. Where all ranks
// give it the same times, such as the slowest rank's, all come to the same Winner.
//
// Who may take part is said by the model: all that Choose believes to be within Within
// of the best. They are timed in turn, round after round, so that a change of the
// machine's mood meets all alike; what counts is the median. Since a model errs, the
// rest, as far as Fringe, get a chance after that: who comes within Promote of
// the best median with the better of two timings then takes part like the others. In
// the end those within Final of the best are timed twice as often once more.
type Contest struct {
	Entrants []Entrant // in the order of their cost
	config   ContestConfig
	turn     int // index in order
	order    []int
	phase    int
}

// ContestConfig are the limits of a Contest; a zero field stands for its default.
type ContestConfig struct {
	Rounds  int     // timings of each; default 7
	Within  float64 // of the least cost, to take part; default DefaultWithin
	Fringe  float64 // of the least cost, to get a chance; default 6
	Promote float64 // of the best median, to earn more of them; default 1.3
	Final   float64 // of the best median, to be timed once more; default 1.2
	// Hysteresis is how much faster than the incumbent another must be to take its
	// place; default 0.05.
	Hysteresis float64
}

// DefaultWithin is how many times the least cost an algorithm may be believed to cost, to
// take part in a Contest.
const DefaultWithin = 1.5

func (c ContestConfig) withDefaults() ContestConfig {
	c.Rounds = cmp.Or(max(c.Rounds, 0), 7)
	c.Within, c.Fringe = cmp.Or(c.Within, DefaultWithin), cmp.Or(c.Fringe, 6)
	c.Promote, c.Final, c.Hysteresis = cmp.Or(c.Promote, 1.3), cmp.Or(c.Final, 1.2), cmp.Or(c.Hysteresis, 0.05)
	return c
}

// Entrant is an algorithm in a Contest.
type Entrant struct {
	Name  string
	Model time.Duration // what Choose believes it costs
	Times []time.Duration
}

// Median is the median of the times; NoCost without any.
func (e *Entrant) Median() time.Duration {
	if len(e.Times) == 0 {
		return NoCost
	}
	times := slices.Sorted(slices.Values(e.Times))
	return (times[(len(times)-1)/2] + times[len(times)/2]) / 2
}

// NewContest is the contest among those algorithms of a choice that serve and have a
// cost. An algorithm that is forced or named by a Tuning is no reason to leave others
// out: make the choice without.
func NewContest(ch Choice, config ContestConfig) *Contest {
	c := &Contest{config: config.withDefaults()}
	for _, r := range ch.Rows {
		if r.Serves && r.Cost != NoCost {
			c.Entrants = append(c.Entrants, Entrant{Name: r.Name, Model: r.Cost})
		}
	}
	slices.SortStableFunc(c.Entrants, func(a, b Entrant) int { return cmp.Compare(a.Model, b.Model) })
	c.enlist(0, c.config.Within, c.config.Rounds)
	return c
}

// Rivals is how many algorithms are timed at least once. With one there is nothing to
// find out.
func (c *Contest) Rivals() int {
	n := 0
	for _, e := range c.Entrants {
		if float64(e.Model) <= max(c.config.Within, c.config.Fringe)*float64(max(c.Entrants[0].Model, 1)) {
			n++
		}
	}
	return n
}

// enlist puts those whose cost is between two multiples of the least into the order,
// so many times each, round after round.
func (c *Contest) enlist(from, to float64, rounds int) {
	c.order, c.turn = nil, 0
	for range rounds {
		for i, e := range c.Entrants {
			if x := float64(e.Model) / float64(max(c.Entrants[0].Model, 1)); x > from && x <= to || i == 0 && from == 0 {
				c.order = append(c.order, i)
			}
		}
	}
}

// Next is who is to be timed next, and false when the contest is over.
func (c *Contest) Next() (string, bool) {
	for c.turn == len(c.order) {
		switch c.phase++; c.phase {
		case 1:
			c.enlist(c.config.Within, c.config.Fringe, chances)
		case 2:
			best := c.best()
			c.again(c.config.Rounds-chances, func(e *Entrant) bool {
				return len(e.Times) == chances && c.config.Rounds > chances && float64(slices.Min(e.Times)) <= c.config.Promote*float64(best)
			})
		case 3:
			best := c.best()
			c.again(2*c.config.Rounds, func(e *Entrant) bool {
				return len(e.Times) >= c.config.Rounds && float64(e.Median()) <= c.config.Final*float64(best)
			})
			if len(c.order) == 2*c.config.Rounds {
				c.order = nil // it has won already
			}
		default:
			return "", false
		}
	}
	return c.Entrants[c.order[c.turn]].Name, true
}

// chances is how often those are timed that the model thinks little of.
const chances = 2

// again puts some into the order, so many times each.
func (c *Contest) again(rounds int, whom func(*Entrant) bool) {
	c.order, c.turn = nil, 0
	for range rounds {
		for i := range c.Entrants {
			if whom(&c.Entrants[i]) {
				c.order = append(c.order, i)
			}
		}
	}
}

// Add is what the algorithm took that Next named last.
func (c *Contest) Add(took time.Duration) {
	e := &c.Entrants[c.order[c.turn]]
	e.Times = append(e.Times, max(took, 1))
	c.turn++
}

// best is the least median of those who were timed in all rounds.
func (c *Contest) best() time.Duration {
	best := NoCost
	for i := range c.Entrants {
		if e := &c.Entrants[i]; len(e.Times) >= c.config.Rounds {
			best = min(best, e.Median())
		}
	}
	return best
}

// Winner is the algorithm of the least median, or the incumbent, if it took part and
// none is faster by more than the hysteresis. regret is how much longer the winner's
// median is than the best one, as a fraction.
func (c *Contest) Winner(incumbent string) (name string, took time.Duration, regret float64) {
	best := c.best()
	for i := range c.Entrants {
		e := &c.Entrants[i]
		if len(e.Times) < c.config.Rounds {
			continue
		}
		m := e.Median()
		if m == best && name == "" {
			name, took = e.Name, m
		}
		if e.Name == incumbent && float64(m) <= float64(best)*(1+c.config.Hysteresis) {
			return e.Name, m, float64(m)/float64(best) - 1
		}
	}
	return name, took, 0
}

// Settled is the choice after a contest of its rows that is over. The incumbent is as in
// Winner. How long each has taken is in Why.
func (ch Choice) Settled(c *Contest, incumbent string) Choice {
	name, took, regret := c.Winner(incumbent)
	ch.Rows = slices.Clone(ch.Rows)
	for i := range ch.Rows {
		r := &ch.Rows[i]
		at := slices.IndexFunc(c.Entrants, func(e Entrant) bool { return e.Name == r.Name })
		if at < 0 || len(c.Entrants[at].Times) == 0 {
			continue
		}
		r.Why = fmt.Sprintf("timed: median of %d is %s", len(c.Entrants[at].Times), duration(c.Entrants[at].Median()))
		if r.Name == name {
			r.Why += fmt.Sprintf("; regret %.1f %%", 100*regret)
			ch.Algorithm, ch.Cost, ch.Why = name, took, r.Why
		}
	}
	slices.SortStableFunc(ch.Rows, func(x, y Row) int { return trueFirst(x.Name == name, y.Name == name) })
	return ch
}

// Timing is the outcome of a contest: who won for a collective and a size.
type Timing struct {
	Collective kolo.Collective
	Size       int64
	Algorithm  string
	Median     time.Duration
	Regret     float64 // against the best median, by hysteresis
	Contest    *Contest
}

// TuningOf makes the table of contests of the ranks of t: for each collective rules
// from the least size to the largest, neighbours of one winner joined. Between two
// sizes with different winners the limit is their geometric mean; beyond the sizes that
// were timed there is no rule, and the model decides.
func TuningOf(timings []Timing, t *Topology) *Tuning {
	list := slices.Clone(timings)
	slices.SortStableFunc(list, func(a, b Timing) int {
		return cmp.Or(cmp.Compare(a.Collective, b.Collective), cmp.Compare(a.Size, b.Size))
	})
	out := &Tuning{}
	servers := distinct(t.Server)
	for _, x := range list {
		r := Rule{Collective: x.Collective, MinBytes: x.Size, MaxBytes: max(x.Size, 1), MinRanks: t.Ranks(), MaxRanks: t.Ranks(),
			MinServers: servers, MaxServers: servers, Algorithm: x.Algorithm, Measured: x.Median}
		if last := len(out.Rules) - 1; last >= 0 && out.Rules[last].Collective == x.Collective {
			before := &out.Rules[last]
			if before.Algorithm == x.Algorithm {
				before.MaxBytes, before.Measured = r.MaxBytes, x.Median
				continue
			}
			limit := int64(math.Sqrt(float64(before.MaxBytes) * float64(max(x.Size, 1))))
			before.MaxBytes, r.MinBytes = limit, limit+1
		}
		out.Rules = append(out.Rules, r)
	}
	return out
}

// Watch tells when an algorithm has become slower, or faster, than when it was chosen,
// so that it is time for another contest. The zero Watch is not usable; Reference is
// what was measured then.
type Watch struct {
	Reference time.Duration
	recent    [watchWindow]time.Duration
	n         int
}

const (
	watchWindow = 16  // timings that are looked at together
	watchRatio  = 0.8 // of the reference's throughput, or of the time, that is a change
)

// Add takes a timing, and says true when the majority of the last 16 has less than
// 0.8 of the throughput that the reference stands for, or takes less than 0.8 of its
// time. After that it begins afresh.
func (w *Watch) Add(took time.Duration) bool {
	w.recent[w.n%watchWindow] = took
	if w.n++; w.n < watchWindow {
		return false
	}
	slow, fast := 0, 0
	for _, t := range w.recent {
		switch {
		case float64(w.Reference) < watchRatio*float64(t):
			slow++
		case float64(t) < watchRatio*float64(w.Reference):
			fast++
		}
	}
	if max(slow, fast) <= watchWindow/2 {
		return false
	}
	w.n = 0
	return true
}
