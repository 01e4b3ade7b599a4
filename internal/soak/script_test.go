package soak

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/plan"
)

// script is what all ranks of a world do.
type script struct {
	seed  uint64
	world worldSpec
	lanes []lane
}

// lane is what one goroutine of each rank does, on groups of its own.
type lane struct {
	groups []groupSpec
	taste  taste
	steps  []step
}

// groupSpec is a group of a lane. That of all ranks in lane 0 is the world's.
type groupSpec struct {
	ranks     []kolo.Rank
	algorithm string
	priority  int
	ofWorld   bool
}

// taste is what the calls of a lane are made of: little, so that calls which differ in one
// thing only meet in the caches of a group.
type taste struct {
	collectives []kolo.Collective
	dtypes      []kolo.DType
	ops         []kolo.ReduceOp
	counts      []int64
	async       int // of 100 calls
	tensors     int // of 100 AllReduces
	onStreams   int // of 100 calls, where there are devices
}

// kind is what a step is.
type kind uint8

const (
	aCall kind = iota
	messages
	waitAll
	reopen
	transfers
	reducer
	refusals
	failure
	explain
	uneven
	split
	canceled
	numKinds
)

func (k kind) String() string {
	return [...]string{"call", "messages", "wait", "reopen", "transfers", "reducer", "refusals", "failure", "explain", "uneven", "split", "canceled"}[k]
}

// step is one thing that the members of a group do. What it is in detail comes from the
// seed of the script and its number alone, so that it stays when others are cut.
type step struct {
	id    int
	kind  kind
	group int
}

// rng is the source of the details of a step.
func (s *script) rng(id int) *rand.Rand { return rand.New(rand.NewPCG(s.seed, uint64(id)+1)) }

// ofSeed makes a script. A name of a kind of world may be given.
func ofSeed(seed uint64, world string) *script {
	rng := rand.New(rand.NewPCG(seed, 0))
	s := &script{seed: seed, world: randomWorld(rng, world)}
	weights := [numKinds]int{aCall: 70, messages: 10, waitAll: 8, reopen: 4, transfers: 2, reducer: 3, refusals: 2, failure: 2, explain: 2, uneven: 2, split: 3, canceled: 2}
	sum := 0
	for _, w := range weights {
		sum += w
	}
	id := 0
	for i := range 1 + rng.IntN(3) {
		l := lane{groups: s.randomGroups(rng, i), taste: s.randomTaste(rng)}
		for range 10 + rng.IntN(50) {
			st := step{id: id, group: rng.IntN(len(l.groups))}
			id++
			for k := rng.IntN(sum); k >= weights[st.kind]; st.kind++ {
				k -= weights[st.kind]
			}
			l.steps = append(l.steps, st)
		}
		s.lanes = append(s.lanes, l)
	}
	return s
}

func (s *script) randomGroups(rng *rand.Rand, lane int) []groupSpec {
	n := s.world.ranks()
	all := make([]kolo.Rank, n)
	for i := range all {
		all[i] = kolo.Rank(i)
	}
	list := []groupSpec{{ranks: all, ofWorld: lane == 0}}
	for range rng.IntN(4) {
		g := groupSpec{priority: rng.IntN(3)}
		for _, r := range rng.Perm(n)[:1+rng.IntN(n)] {
			g.ranks = append(g.ranks, kolo.Rank(r))
		}
		if rng.IntN(3) > 0 {
			slices.Sort(g.ranks)
		}
		if s.world.algorithm == "" && rng.IntN(3) == 0 {
			names := plan.Algorithms()
			g.algorithm = names[rng.IntN(len(names))].Name
		}
		list = append(list, g)
	}
	return list
}

func (s *script) randomTaste(rng *rand.Rand) taste {
	t := taste{async: rng.IntN(100), tensors: rng.IntN(60), onStreams: rng.IntN(100)}
	some := func(most int) int { return 1 + rng.IntN(most) }
	list := kolo.Collectives()
	rng.Shuffle(len(list), func(i, k int) { list[i], list[k] = list[k], list[i] })
	if rng.IntN(3) > 0 {
		list = append(list[:some(4)], kolo.AllReduce)
	}
	t.collectives = list
	types := kolo.ReducibleDTypes()
	for range some(2) {
		t.dtypes = append(t.dtypes, types[rng.IntN(len(types))])
	}
	ops := []kolo.ReduceOp{kolo.Sum, kolo.Prod, kolo.Max, kolo.Min, kolo.Avg, kolo.PreMulSum(2), kolo.PreMulSum(3)}
	if s.world.overflow {
		ops = ops[2:4]
	}
	for range some(3) {
		t.ops = append(t.ops, ops[rng.IntN(len(ops))])
	}
	for range some(4) {
		t.counts = append(t.counts, s.world.randomCount(rng))
	}
	return t
}

// only keeps the steps that keep says.
func (s *script) only(keep func(step) bool) *script {
	out := *s
	out.lanes = nil
	for _, l := range s.lanes {
		l.steps = slices.DeleteFunc(slices.Clone(l.steps), func(st step) bool { return !keep(st) })
		out.lanes = append(out.lanes, l)
	}
	return &out
}

// steps are the numbers of the steps.
func (s *script) steps() (ids []int) {
	for _, l := range s.lanes {
		for _, st := range l.steps {
			ids = append(ids, st.id)
		}
	}
	return ids
}

// String is the script in words, if it is short.
func (s *script) String() string {
	var b strings.Builder
	ids := s.steps()
	fmt.Fprintf(&b, "KOLO_SOAK_SEED=%d KOLO_SOAK_WORLD=%s KOLO_SOAK_STEPS=%s\n%v", s.seed, s.world.kind, joined(ids), &s.world)
	if len(ids) > 40 {
		return b.String()
	}
	for i, l := range s.lanes {
		for _, st := range l.steps {
			g := l.groups[st.group]
			fmt.Fprintf(&b, "\n  lane %d, step %d: %v on ranks %s %s", i, st.id, st.kind, kolo.RankList(g.ranks), g.algorithm)
			if st.kind == aCall {
				fmt.Fprintf(&b, ": %v", s.call(&l, st))
			}
		}
	}
	return b.String()
}
