package plan

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kolo-ccl/kolo"
)

// A mutant is a right set of Programs with one thing changed. Verify must refuse
// it, or it must be no worse than the original: then the test proves that in its
// own, simple way.

// mutation is a kind of change. change makes one at step i of rank r, whose Program
// is a copy, and says what; "" if it does not apply to that step.
type mutation struct {
	name   string
	fatal  bool // it can never be harmless
	change func(rng *rand.Rand, all []*Program, r, i int) string
}

var mutations = []mutation{
	{"dependency dropped", false, func(rng *rand.Rand, all []*Program, r, i int) string {
		p := all[r]
		s := &p.Steps[i]
		if len(s.After) == 0 {
			return ""
		}
		k := rng.IntN(len(s.After))
		what := fmt.Sprintf("step %d no longer after %d", i, s.After[k])
		s.After = slices.Delete(s.After, k, k+1)
		return what
	}},
	{"reduce turned into store", true, func(_ *rand.Rand, all []*Program, r, i int) string {
		p := all[r]
		s := &p.Steps[i]
		if s.Op != RecvReduce || len(s.Peers) > 1 {
			return ""
		}
		s.Op, s.Src, s.Final = Recv, nil, false
		return fmt.Sprintf("step %d only stores", i)
	}},
	{"store turned into reduce", false, func(_ *rand.Rand, all []*Program, r, i int) string {
		p := all[r]
		s := &p.Steps[i]
		if s.Op != Recv {
			return ""
		}
		s.Op, s.Src = RecvReduce, s.Dst
		return fmt.Sprintf("step %d reduces", i)
	}},
	{"offset changed", false, func(rng *rand.Rand, all []*Program, r, i int) string {
		p := all[r]
		s := &p.Steps[i]
		list := &s.Src
		if len(s.Src) == 0 || len(s.Dst) > 0 && rng.IntN(2) == 0 {
			list = &s.Dst
		}
		x := &(*list)[rng.IntN(len(*list))]
		n := p.Blocks[x.Buf]
		if n < 2 {
			return ""
		}
		old := x.Off
		x.Off = (x.Off + 1 + int32(rng.IntN(n-1))) % int32(n)
		return fmt.Sprintf("step %d: offset %d instead of %d in %v", i, x.Off, old, x.Buf)
	}},
	{"step dropped", false, func(_ *rand.Rand, all []*Program, r, i int) string {
		p := all[r]
		what := fmt.Sprintf("step %d (%s) dropped", i, p.Describe(i))
		dropStep(p, i)
		return what
	}},
	{"message dropped", false, func(_ *rand.Rand, all []*Program, r, i int) string {
		p := all[r]
		s := &p.Steps[i]
		if s.Op != Send || len(s.Peers) > 1 {
			return ""
		}
		q, k := s.Peers[0], 0
		for j := range i {
			if o := &p.Steps[j]; o.Op == Send && o.Lane == s.Lane && slices.Contains(o.Peers, q) {
				k++
			}
		}
		all[q] = unshared(all[q])
		for j := range all[q].Steps {
			o := &all[q].Steps[j]
			if o.Op == Send || o.Lane != s.Lane || !slices.Contains(o.Peers, kolo.Rank(r)) {
				continue
			}
			if k--; k >= 0 {
				continue
			}
			if len(o.Peers) > 1 {
				return ""
			}
			what := fmt.Sprintf("step %d and its other end, step %d of rank %d", i, j, q)
			dropStep(all[q], j)
			dropStep(p, i)
			return what
		}
		panic("a send without a receive")
	}},
	{"peer changed", false, func(rng *rand.Rand, all []*Program, r, i int) string {
		p := all[r]
		s := &p.Steps[i]
		if len(s.Peers) == 0 || p.Ranks < 3 {
			return ""
		}
		k := rng.IntN(len(s.Peers))
		old := s.Peers[k]
		for s.Peers[k] == old || s.Peers[k] == p.Rank {
			s.Peers[k] = kolo.Rank(rng.IntN(p.Ranks))
		}
		return fmt.Sprintf("step %d: peer %d instead of %d", i, s.Peers[k], old)
	}},
	{"final changed", true, func(_ *rand.Rand, all []*Program, r, i int) string {
		p := all[r]
		s := &p.Steps[i]
		if s.Op != RecvReduce {
			return ""
		}
		s.Final = !s.Final
		return fmt.Sprintf("step %d: final %v", i, s.Final)
	}},
	{"steps exchanged", false, func(rng *rand.Rand, all []*Program, r, i int) string {
		p := all[r]
		j := rng.IntN(len(p.Steps))
		a, b := &p.Steps[i], &p.Steps[j]
		if i == j || a.Op != b.Op || len(a.Peers) != len(b.Peers) || len(a.Peers) == 0 {
			return ""
		}
		a.Src, a.Dst, b.Src, b.Dst = b.Src, b.Dst, a.Src, a.Dst
		return fmt.Sprintf("steps %d and %d have each other's blocks", i, j)
	}},
}

// dropStep takes step i out; what came after it comes after what it came after.
func dropStep(p *Program, i int) {
	old := p.Steps[i].After
	p.Steps = slices.Delete(p.Steps, i, i+1)
	for k := i; k < len(p.Steps); k++ {
		var after []int32
		for _, a := range p.Steps[k].After {
			switch {
			case int(a) == i:
				after = append(after, old...)
			case int(a) > i:
				after = append(after, a-1)
			default:
				after = append(after, a)
			}
		}
		slices.Sort(after)
		p.Steps[k].After = slices.Compact(after)
	}
}

// unshared is p with steps of its own, as they are for its rank.
func unshared(p *Program) *Program {
	q := *p
	q.shift, q.Steps = 0, make([]Step, len(p.Steps))
	own := func(list []Span) (out []Span) {
		for _, s := range list {
			out = append(out, p.Span(s))
		}
		return out
	}
	for i := range p.Steps {
		s := p.Steps[i]
		s.Src, s.Dst, s.After, s.Peers = own(s.Src), own(s.Dst), slices.Clone(s.After), slices.Clone(s.Peers)
		for k, r := range s.Peers {
			s.Peers[k] = p.Peer(r)
		}
		q.Steps[i] = s
	}
	return &q
}

// naive is the order of events by their definition: edges[e] are those that come
// directly after e, without credits.
func naive(programs []*Program) (first []int, edges [][]int) {
	type end struct {
		line
		send bool
	}
	ends := map[end][]int{}
	total := 0
	for r, p := range programs {
		first = append(first, total)
		for i, s := range p.Steps {
			for _, q := range s.Peers {
				l := line{kolo.Rank(r), p.Peer(q), s.Lane}
				if s.Op != Send {
					l.from, l.to = l.to, l.from
				}
				ends[end{l, s.Op == Send}] = append(ends[end{l, s.Op == Send}], total+i)
			}
		}
		total += len(p.Steps)
	}
	edges = make([][]int, 2*total)
	edge := func(a, b int) { edges[a] = append(edges[a], b) }
	for r, p := range programs {
		for i, s := range p.Steps {
			edge(2*(first[r]+i), 2*(first[r]+i)+1)
			for _, a := range s.After {
				edge(2*(first[r]+int(a))+1, 2*(first[r]+i))
			}
		}
	}
	for e, list := range ends {
		for k, step := range list {
			if k > 0 {
				edge(2*list[k-1], 2*step)
			}
			if e.send {
				edge(2*step, 2*ends[end{e.line, false}][k]+1)
			}
		}
	}
	return first, edges
}

// closure is, for each event, the bitset of those that come before it.
func closure(edges [][]int) [][]uint64 {
	n := len(edges)
	degree, before := make([]int, n), make([][]uint64, n)
	for e, list := range edges {
		before[e] = make([]uint64, (n+63)/64)
		for _, x := range list {
			degree[x]++
		}
	}
	var todo []int
	for e, d := range degree {
		if d == 0 {
			todo = append(todo, e)
		}
	}
	for len(todo) > 0 {
		e := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, x := range edges[e] {
			for w := range before[e] {
				before[x][w] |= before[e][w]
			}
			before[x][e/64] |= 1 << (e % 64)
			if degree[x]--; degree[x] == 0 {
				todo = append(todo, x)
			}
		}
	}
	return before
}

// conflict says whether two steps use a block that one of them writes.
func conflict(p *Program, a, b *Step) bool {
	uses := func(list []Span) map[place]bool {
		out := map[place]bool{}
		for _, s := range list {
			p.At(s, func(block int) { out[place{s.Buf, int32(block)}] = true })
		}
		return out
	}
	meet := func(x, y map[place]bool) bool {
		for at := range x {
			if y[at] {
				return true
			}
		}
		return false
	}
	read, write := uses(a.Src), uses(a.Dst)
	return meet(write, uses(b.Dst)) || meet(write, uses(b.Src)) || meet(read, uses(b.Dst))
}

// collision is two steps of a rank that are in each other's way and in no order, by
// looking at all pairs; "" if there are none.
func collision(programs []*Program) string {
	first, edges := naive(programs)
	before := closure(edges)
	ends := func(a, b int) bool { // the end of a before the begin of b
		return before[2*b][(2*a+1)/64]>>((2*a+1)%64)&1 == 1
	}
	for r, p := range programs {
		for j := range p.Steps {
			for i := range j {
				a, b := first[r]+i, first[r]+j
				if !ends(a, b) && !ends(b, a) && conflict(p, &p.Steps[i], &p.Steps[j]) {
					return fmt.Sprintf("rank %d: %s and %s", r, p.Describe(i), p.Describe(j))
				}
			}
		}
	}
	return ""
}

// unaware is a rank that may have left a barrier before another has come.
func unaware(programs []*Program) string {
	first, edges := naive(programs)
	before := closure(edges)
	for r, p := range programs {
		for q, o := range programs {
			knows := r == q
			for e := 2 * first[r]; e < 2*(first[r]+len(p.Steps)); e++ {
				for x := 2 * first[q]; x < 2*(first[q]+len(o.Steps)); x++ {
					knows = knows || before[e][x/64]>>(x%64)&1 == 1
				}
			}
			if !knows {
				return fmt.Sprintf("rank %d does not know of rank %d", r, q)
			}
		}
	}
	return ""
}

// fails says what is wrong with Programs, "" for nothing, by simpler means than
// Verify. If no two steps collide then all orders of events give the same values,
// and the events of one order can all happen if those of another can. So one run
// decides.
func fails(k Key, topo *Topology, programs []*Program, rng *rand.Rand) string {
	if why := collision(programs); why != "" {
		return why
	}
	if why := unaware(programs); why != "" && k.Collective == kolo.Barrier {
		return why
	}
	x := newPerformance(k, topo, payload{count: 37, cuts: k.Cuts, scaled: k.Scale}, rng)
	for q, p := range programs {
		x.compiled[q] = Compiled{Program: p, Successors: NewSuccessors(p)}
	}
	if err := x.run(); err != nil {
		return err.Error()
	}
	return ""
}

// mutantTopologies are groups on which every algorithm of the table serves something.
func mutantTopologies(t *testing.T) []*Topology {
	two, err := Servers(3, 3)
	require.NoError(t, err)
	square, err := Servers(4, 4)
	require.NoError(t, err)
	return []*Topology{OneServer(2), OneServer(5), OneServer(8), two, square}
}

func TestMutantsAreFound(t *testing.T) {
	perMutation := 3
	if long {
		perMutation = 40
	}
	made, survived := map[string]int{}, map[string]int{}
	for _, topo := range mutantTopologies(t) {
		for _, a := range Algorithms() {
			for _, c := range kolo.Collectives() {
				if a == fabric || a.Serves(c, topo) != nil || c != c.Base() {
					continue
				}
				for _, k := range keys(a, c, topo.Ranks()) {
					programs, err := Programs(k, topo)
					require.NoError(t, err)
					rng := rand.New(rand.NewPCG(uint64(topo.Ranks()), uint64(c)))
					for _, m := range mutations {
						for range perMutation {
							if what, ok := tryMutant(t, k, topo, programs, m, rng); what != "" {
								made[m.name]++
								if ok && c != kolo.Barrier {
									survived[m.name]++
								}
							}
						}
					}
				}
			}
		}
	}
	t.Logf("made: %v; no worse than the original, but for barriers: %v", made, survived)
}

// tryMutant makes a mutant and looks at what Verify says. ok: it is accepted, and
// was proven to be no worse.
func tryMutant(t *testing.T, k Key, topo *Topology, programs []*Program, m mutation, rng *rand.Rand) (what string, ok bool) {
	t.Helper()
	r := rng.IntN(len(programs))
	if len(programs[r].Steps) == 0 {
		return "", false
	}
	old := programs[r]
	spoilt := slices.Clone(programs)
	spoilt[r] = unshared(old)
	i := rng.IntN(len(old.Steps))
	if what = m.change(rng, spoilt, r, i); what == "" {
		return "", false
	}
	_, err := Verify(k, spoilt)
	what = fmt.Sprintf("%+v of %d ranks, rank %d, %s: %s", k, len(programs), r, m.name, what)
	if err == nil {
		if why := fails(k, topo, spoilt, rng); why != "" {
			t.Errorf("%s: accepted, but %s", what, why)
		}
		if m.fatal && k.Collective != kolo.Barrier { // no bytes there
			t.Errorf("%s: accepted", what)
		}
		return what, true
	}
	var f *Fault
	require.ErrorAs(t, err, &f, what)
	if f.Check == CheckRace && collision(spoilt) == "" {
		t.Errorf("%s: refused for a race that is none: %v", what, err)
	}
	return what, false
}

// What is concluded from rank 0 for all ranks that share its steps is what a look at each
// rank finds.
func TestSharedStepsAreJudgedLikeOwn(t *testing.T) {
	const perMutation = 4
	verdict := func(k Key, programs []*Program) string {
		report, err := Verify(k, programs)
		if f := (*Fault)(nil); errors.As(err, &f) {
			return f.Check.String()
		}
		return fmt.Sprint(report)
	}
	found := map[string]int{}
	for _, n := range []int{3, 6, 8} {
		topo := OneServer(n)
		for _, a := range Algorithms() {
			for _, c := range kolo.Collectives() {
				if a == fabric || a.Serves(c, topo) != nil || !a.shared(c.Base()) {
					continue
				}
				for _, k := range keys(a, c, n) {
					programs, err := Programs(k, topo)
					require.NoError(t, err)
					rng := rand.New(rand.NewPCG(uint64(n), uint64(c)))
					for _, m := range mutations {
						for range perMutation {
							p := unshared(programs[0])
							if m.name == "message dropped" || m.change(rng, []*Program{p}, 0, rng.IntN(len(p.Steps))) == "" {
								continue
							}
							shared, own := make([]*Program, n), make([]*Program, n)
							for r := range n {
								shared[r] = p.rotated(kolo.Rank(r))
								own[r] = unshared(shared[r])
							}
							want := verdict(k, own)
							kind, _, right := strings.Cut(want, "{")
							if right {
								kind = "none"
							}
							found[kind]++
							if got := verdict(k, shared); got != want {
								t.Errorf("%+v of %d ranks, %s: %s instead of %s", k, n, m.name, got, want)
							}
						}
					}
				}
			}
		}
	}
	t.Logf("%v", found)
	require.Len(t, found, 6, "too few kinds of faults")
}
