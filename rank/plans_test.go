package rank

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/plan"
)

// anyCall is some call of a group of n ranks.
func anyCall(rng *rand.Rand, n int) kolo.Call {
	all := kolo.Collectives()
	c := kolo.Call{Collective: all[rng.IntN(len(all))], DType: []kolo.DType{kolo.Int8, kolo.Float32, kolo.Float64}[rng.IntN(3)]}
	size := func() int64 { return rng.Int64N(1 << (1 + rng.IntN(22))) }
	if c.Collective.Reduces() {
		c.Op = []kolo.ReduceOp{kolo.Sum, kolo.Avg, kolo.PreMulSum(3)}[rng.IntN(3)]
	}
	if c.Collective.Rooted() {
		c.Root = kolo.Rank(rng.IntN(n))
	}
	c.InPlace = rng.IntN(2) == 0
	counts := func(k int) (list []int64) {
		for range k {
			if list = append(list, size()); rng.IntN(2) == 0 { // some are much alike, some are not
				list[len(list)-1] = 0
			}
		}
		return list
	}
	switch c.Collective {
	case kolo.Barrier:
		c.DType = kolo.Int8
	case kolo.AllToAllV:
		c.Counts, c.RecvCounts = counts(n), counts(n)
	case kolo.AllToAllVC:
		c.Counts = counts(n * n)
	case kolo.AllGatherV, kolo.ReduceScatterV, kolo.GatherV, kolo.ScatterV:
		c.Counts = counts(n)
	default:
		c.Count = size()
	}
	if c.Collective == kolo.AllReduce && rng.IntN(3) == 0 && c.Count > 1 { // of two tensors
		c.Counts = []int64{1, c.Count - 1}
	}
	return c
}

// anyTuning is a table whose limits are not powers of two.
func anyTuning(rng *rand.Rand) *plan.Tuning {
	t := &plan.Tuning{}
	table := plan.Algorithms()
	for range 30 {
		k := kolo.Collectives()[rng.IntN(len(kolo.Collectives()))].Base()
		low := rng.Int64N(1 << (1 + rng.IntN(24)))
		t.Rules = append(t.Rules, plan.Rule{Collective: k, MinBytes: low, MaxBytes: low + 1 + rng.Int64N(low+1),
			Algorithm: table[rng.IntN(len(table)-1)].Name, Disabled: rng.IntN(4) == 0})
	}
	return t
}

// What is chosen and compiled for a call depends on nothing that was called before, and
// is what Explain says.
func TestPlansDoNotDependOnEarlierCalls(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	two, err := plan.Servers(4, 4)
	require.NoError(t, err)
	for name, topo := range map[string]*plan.Topology{"process": plan.OneProcess(4), "server": plan.OneServer(5), "servers": two, "board": plan.OneServer(4)} {
		for _, tuning := range []*plan.Tuning{nil, anyTuning(rng), anyTuning(rng)} {
			n := topo.Ranks()
			fresh := func() *plans {
				p := &plans{}
				p.init(topo, nil, &Config{Tuning: tuning}, "")
				if name == "board" {
					p.useBoard()
				}
				return p
			}
			var calls []kolo.Call
			for range 150 {
				calls = append(calls, anyCall(rng, n))
			}
			used := fresh()
			for range 2 {
				rng.Shuffle(len(calls), func(i, j int) { calls[i], calls[j] = calls[j], calls[i] })
				for _, c := range calls {
					want := madePlans(t, fresh(), c, n)
					require.Equal(t, want, madePlans(t, used, c, n), "%s, %+v, tuning %v", name, c, tuning)
					explained, err := (&hub{plans: *fresh()}).choose(&c)
					require.NoError(t, err)
					require.Equal(t, explained.Algorithm, want[0], "%s, %+v, tuning %v", name, c, tuning)
				}
			}
		}
	}
}

// madePlans is the algorithm and the Programs that p takes for a call.
func madePlans(t *testing.T, p *plans, c kolo.Call, n int) (out []string) {
	rd := &round{}
	for r := range n {
		tk := &ticket{group: &Group{rank: kolo.Rank(r)}}
		tk.call = c
		rd.tickets = append(rd.tickets, tk)
	}
	name, err := p.algorithm(rd)
	require.NoError(t, err)
	out = append(out, name)
	for _, tk := range rd.tickets {
		if name == fabricName {
			break
		}
		got, err := p.program(tk, name)
		require.NoError(t, err)
		out = append(out, got.String())
	}
	return out
}
