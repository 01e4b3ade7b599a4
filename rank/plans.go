package rank

import (
	"fmt"
	"sync"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/plan"
)

// fabricName is the algorithm that the medium does itself.
const fabricName = "fabric"

// plans is the plan cache of a group: what was chosen for a kind of call, and the
// Programs that were compiled. It belongs to the hub.
type plans struct {
	topo    *plan.Topology
	costs   func() *plan.Topology // topo with the figures of the probe
	policy  plan.Policy
	choices map[class]choice
	steps   map[kolo.Collective][]int64 // of policy.Tuning; it does not change
	last    class                       // the class of lastOne
	lastOne choice
	shared  map[plan.Key]plan.Compiled
	own     map[ownKey]plan.Compiled
	library *plan.Library  // plans from outside, nil for none
	forced  *plan.Entry    // the one of them that was set by name
	board   *plan.Topology // topo with the medium between processes, nil if there is none
	blind   bool           // ranks of other processes: who of them is in place is not known

	trial   *trial // that the running round is part of; nil for none
	contest plan.ContestConfig
	mu      sync.Mutex
	trials  map[class]*trial
}

// class is a kind of call for which one choice is made. It holds all that the choice
// depends on.
type class struct {
	collective kolo.Collective
	dtype      kolo.DType // for the times of a trial, like op; a choice by cost looks at bytes
	op         kolo.OpKind
	inPlace    bool
	board      bool // the medium between processes may do it
	size       int64
}

type choice struct {
	algorithm string
	err       error
	trial     *trial // that says the algorithm in place of it; nil for none
}

type ownKey struct {
	plan.Key
	rank kolo.Rank
}

func (p *plans) init(t *plan.Topology, probe func() plan.Probe, c *Config, algorithm string) {
	forced := c.Plans.Get(algorithm)
	if forced != nil {
		algorithm = ""
	}
	costs := sync.OnceValue(func() *plan.Topology {
		if probe == nil {
			return t
		}
		measured, err := t.With(probe())
		if err != nil {
			return t // a figure that no topology takes says nothing
		}
		return measured
	})
	*p = plans{topo: t, costs: costs, policy: c.policy(algorithm), choices: map[class]choice{},
		shared: map[plan.Key]plan.Compiled{}, own: map[ownKey]plan.Compiled{}, library: c.Plans, forced: forced,
		contest: c.Contest, trials: map[class]*trial{}, steps: map[kolo.Collective][]int64{}}
	if p.policy.Tuning != nil {
		for _, k := range kolo.Collectives() {
			p.steps[k] = p.policy.Tuning.Steps(k)
		}
	}
}

// algorithm is the algorithm for a round. One choice is made for all ranks.
func (p *plans) algorithm(rd *round) (string, error) {
	c := rd.firstCall()
	p.trial = nil
	if p.library != nil {
		e, err := p.imported(func(yield func(*kolo.Call) bool) {
			for _, t := range rd.tickets {
				if t != nil && !yield(&t.call) {
					return
				}
			}
		})
		if e != nil || err != nil {
			return e.Name, err
		}
	}
	inPlace := false
	if c.Collective.Base() == kolo.AllToAll {
		for _, t := range rd.tickets {
			inPlace = inPlace || t != nil && t.call.InPlace
		}
	}
	k, _, err := p.class(c, inPlace)
	if err != nil {
		return "", err
	}
	if k != p.last {
		got, ok := p.choices[k]
		if !ok {
			var choice plan.Choice
			choice, got.err = p.choose(k)
			got.algorithm = choice.Algorithm
			got.trial = p.newTrial(k, choice)
			p.choices[k] = got
		}
		p.last, p.lastOne = k, got
	}
	if p.trial = p.lastOne.trial; p.trial != nil {
		return p.trial.next(sampleOf(rd.firstTicket())), nil
	}
	return p.lastOne.algorithm, p.lastOne.err
}

// class is the class of a call that is in place on some rank or not, and the sizes that are
// in it.
func (p *plans) class(c *kolo.Call, inPlace bool) (class, plan.Sizes, error) {
	size, err := plan.VectorSize(c, p.topo.Ranks())
	if err != nil {
		return class{}, plan.Sizes{}, err
	}
	sizes := plan.SizesOf(size, p.steps[c.Collective])
	return class{collective: c.Collective, dtype: c.DType, op: c.Op.Kind, size: sizes.Typical,
		board:   p.board != nil && p.boardDoes(c, sizes.Typical),
		inPlace: inPlace && c.Collective.Base() == kolo.AllToAll && p.topo.Medium}, sizes, nil // only the medium does it in another way
}

// choose asks plan, by the class alone. The medium moves blocks in any order, so an
// AllToAll in place, whose blocks trade places, is left to the choreographies, as if there
// were no medium.
func (p *plans) choose(k class) (plan.Choice, error) {
	t := p.costs()
	if k.board {
		return plan.ChooseSize(k.collective, k.size, p.board, p.policy)
	}
	if k.inPlace {
		without := *t
		without.Medium = false
		got, err := plan.ChooseSize(k.collective, k.size, &without, p.policy)
		if err != nil {
			err = fmt.Errorf("in place, which the medium cannot do: %w", err)
		}
		return got, err
	}
	return plan.ChooseSize(k.collective, k.size, t, p.policy)
}

// boardFigures are those of the medium between processes: on 2 cores it does AllReduce of 8
// bytes by 2 processes in 0.6 to 1 us. Memory is no measured rate: it lets the medium win at
// every size which boardDoes leaves to it, as it was measured to (AllReduce of 16 MiB by 4 and 8
// processes: 13 and 35 ms, and by messages 26 and 60 ms).
var boardFigures = plan.Process{Call: 200 * time.Nanosecond, Rank: 200 * time.Nanosecond, Memory: 200e9}

// useBoard lets the medium between processes do what it can.
func (p *plans) useBoard() {
	t := *p.topo
	t.Medium, t.Process = true, boardFigures
	p.board = &t
}

// The limits of what is left to the medium between processes.
const (
	maxBoardParts = 1024 // parts of a round: ranks, pairs of ranks in AllToAll, or tensors
)

// boardDoes says whether the medium between processes does a call whose class stands for a
// size. What each rank alone knows, as the counts of AllToAllV, it cannot make parts of.
func (p *plans) boardDoes(c *kolo.Call, size int64) bool {
	parts := p.topo.Ranks()
	switch c.Collective {
	case kolo.AllToAllV:
		return false
	case kolo.AllToAll, kolo.AllToAllVC:
		return parts*parts <= maxBoardParts
	case kolo.AllReduce:
		parts = len(c.Counts)
	}
	return parts <= maxBoardParts
}

// program is the Program of one rank's call.
func (p *plans) program(t *ticket, algorithm string) (plan.Compiled, error) {
	if e := p.library.Get(algorithm); e != nil {
		return e.Program(t.group.rank, t.call.InPlace), nil
	}
	k := plan.KeyOf(&t.call, algorithm)
	k.Scale = k.Scale && !p.scalesInFold()
	me := t.group.rank
	if c, ok := p.own[ownKey{k, me}]; ok {
		return c, nil
	}
	c, ok := p.shared[k]
	if ok {
		c = c.For(me)
	} else {
		var err error
		if c, ok, err = plan.Compile(k, p.topo, me); err != nil {
			return plan.Compiled{}, err
		}
		if ok {
			p.shared[k] = c
		}
	}
	p.own[ownKey{k, me}] = c
	return c, nil
}

// choose is the choice for a call, with its reasons.
func (h *hub) choose(c *kolo.Call) (plan.Choice, error) {
	p := &h.plans
	if p.library != nil {
		e, err := p.imported(func(yield func(*kolo.Call) bool) { yield(c) })
		if e != nil {
			return p.explain(e, c), err
		}
	}
	k, sizes, err := p.class(c, c.InPlace)
	if err != nil {
		return plan.Choice{}, err
	}
	got, err := p.choose(k)
	if err != nil {
		return got, err
	}
	if p.policy.Method == plan.Timed && got.ByCost {
		got = p.timed(k, got)
	}
	if sizes.Low < sizes.High {
		got.Why += fmt.Sprintf("; one choice for %d to %d bytes", sizes.Low, sizes.High)
	}
	return got, nil
}

// scalesInFold says that the fold which joins the elements of all ranks multiplies
// them for PreMulSum, as the medium does. A step of its own would round the products of
// 16-bit floats, which reproducible bits do not allow. The algorithms that the mode
// admits have one such fold.
func (p *plans) scalesInFold() bool { return p.policy.Reproducible && p.topo.Ranks() > 1 }
