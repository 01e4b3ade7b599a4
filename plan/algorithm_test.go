package plan

import (
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kolo-ccl/kolo"
)

// topologies are groups of many sizes on one server and on several.
func topologies(t *testing.T) []*Topology {
	sizes := []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 32, 33}
	shapes := [][2]int{{2, 1}, {5, 1}, {2, 2}, {3, 2}, {2, 4}, {4, 4}, {5, 3}, {3, 7}, {8, 4}, {11, 3}}
	if !long {
		sizes, shapes = []int{1, 2, 3, 4, 5, 7, 8, 12, 17}, [][2]int{{2, 1}, {3, 2}, {2, 4}, {5, 3}}
	}
	var out []*Topology
	for _, n := range sizes {
		out = append(out, OneServer(n))
	}
	rng := rand.New(rand.NewPCG(3, 4))
	for _, s := range shapes {
		place := make([]int, 0, s[0]*s[1])
		for g := range s[0] {
			place = append(place, slices.Repeat([]int{g}, s[1])...)
		}
		rng.Shuffle(len(place), func(i, j int) { place[i], place[j] = place[j], place[i] })
		topo, err := Places(place, nil)
		require.NoError(t, err)
		out = append(out, topo)
	}
	return out
}

// payloads are how much data: none, one element, fewer than ranks, odd, many.
func payloads(n int) []payload {
	var out []payload
	for i, count := range []int64{0, 1, int64(n - 1), 37, int64(64*n + 5)} {
		out = append(out, payload{count: count, gaps: i%2 == 1, cuts: []int{0, 4, 1, 3}[i%4], scaled: i%2 == 0})
	}
	return out
}

// Every algorithm must give what the collective says, whatever the order of events.
func TestAlgorithmsAgainstNaive(t *testing.T) {
	topos := topologies(t)
	for _, a := range Algorithms() {
		if a == fabric {
			continue // the medium's work, not a choreography
		}
		t.Run(a.Name, func(t *testing.T) {
			t.Parallel()
			for _, topo := range topos {
				for _, c := range kolo.Collectives() {
					if a.Serves(c, topo) == nil {
						tryAll(t, a, c, topo)
					}
				}
			}
		})
	}
}

// tryAll runs the ways to call c: all of them with -tags long, else one of the payloads
// of data for each.
func tryAll(t *testing.T, a *Algorithm, c kolo.Collective, topo *Topology) {
	t.Helper()
	for i, k := range keys(a, c, topo.Ranks()) {
		list := payloads(topo.Ranks())
		if !long {
			list = list[(i+topo.Ranks())%len(list):][:1]
		}
		if k.Scale {
			continue // by shape
		}
		for _, s := range list {
			seed := uint64(crc32.ChecksumIEEE(fmt.Appendf(nil, "%+v %+v %v", k, s, topo)))
			if err := newPerformance(k, topo, s, rand.New(rand.NewPCG(seed, 1))).run(); err != nil {
				t.Fatalf("%+v, %+v, %v, seed %d: %v", k, s, topo, seed, err)
			}
		}
	}
}

// A copy of the steps, not only of their meaning, is what makes sharing cheap.
func TestSharedProgramHasOneListOfSteps(t *testing.T) {
	for _, name := range []string{"ring", "ring-bidir", "mesh-oneshot", "mesh", "nhr", "nb", "pairwise", "bruck"} {
		a, err := Lookup(name)
		require.NoError(t, err)
		for _, c := range kolo.Collectives() {
			if c.Rooted() || a.Serves(c, OneServer(6)) != nil {
				continue
			}
			first, shared, err := Compile(Key{Algorithm: name, Collective: c}, OneServer(6), 0)
			require.NoError(t, err)
			require.True(t, shared, "%s %v", name, c)
			other := first.For(4)
			require.Equal(t, kolo.Rank(4), other.Rank)
			require.Same(t, &first.Steps[0], &other.Steps[0])
		}
	}
}

func TestTableOrder(t *testing.T) {
	var names []string
	for _, a := range Algorithms() {
		names = append(names, a.Name)
		require.NotEmpty(t, a.Source, a.Name)
	}
	golden(t, "algorithms.golden", strings.Join(names, "\n")+"\n")
}

func TestServesSaysWhyNot(t *testing.T) {
	uneven, err := Servers(2, 3)
	require.NoError(t, err)
	even, err := Servers(2, 2)
	require.NoError(t, err)
	for _, tc := range []struct {
		name, why string
		c         kolo.Collective
		t         *Topology
	}{
		{"ring", "it does", kolo.AllToAll, even},
		{"bruck", "must be equal", kolo.AllToAllV, even},
		{"hier:ring+nhr", "only one server", kolo.AllReduce, OneServer(4)},
		{"hier:ring+nhr", "servers of equal size, not of 2, 3", kolo.AllReduce, uneven},
		{"hier:nhr+recursive-doubling", "recursive-doubling has no ReduceScatter", kolo.ReduceScatter, even},
		{"hier:nhr+ring", "it does AllReduce", kolo.Gather, even},
		{"fabric", "share no medium", kolo.AllReduce, even},
		{"ring", "0 ranks", kolo.AllReduce, OneServer(0)},
	} {
		t.Run(tc.name+" "+tc.c.String(), func(t *testing.T) {
			a, err := Lookup(tc.name)
			require.NoError(t, err)
			require.ErrorContains(t, a.Serves(tc.c, tc.t), tc.why)
		})
	}
}

func TestCompileRefusesBadKeys(t *testing.T) {
	topo := OneServer(4)
	for name, k := range map[string]Key{
		"algorithm": {Algorithm: "rung", Collective: kolo.AllReduce},
		"root":      {Algorithm: "ring", Collective: kolo.Broadcast, Root: 4},
		"cuts":      {Algorithm: "tree", Collective: kolo.Broadcast, Cuts: maxCuts + 1},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := Compile(k, topo, 0)
			require.ErrorIs(t, err, kolo.ErrArgument)
		})
	}
	_, _, err := Compile(Key{Algorithm: "ring", Collective: kolo.AllReduce}, topo, 4)
	require.ErrorIs(t, err, kolo.ErrArgument)
	_, _, err = Compile(Key{Algorithm: "ring", Collective: kolo.AllToAll}, topo, 0)
	require.ErrorIs(t, err, kolo.ErrUnsupported)
}

func TestKeyOfCutsLargeTrees(t *testing.T) {
	call := func(count int64) *kolo.Call {
		return &kolo.Call{Collective: kolo.AllReduce, DType: kolo.Float32, Count: count, Root: 3}
	}
	require.Equal(t, Key{Algorithm: "tree", Collective: kolo.AllReduce, Cuts: 1}, KeyOf(call(100), "tree"))
	require.Equal(t, 16, KeyOf(call(1<<20), "double-tree").Cuts)
	require.Zero(t, KeyOf(call(1<<20), "ring").Cuts)
}

// The programs as text, to be read.
func TestGoldenPrograms(t *testing.T) {
	two, err := Servers(2, 2)
	require.NoError(t, err)
	for _, tc := range []struct {
		k    Key
		t    *Topology
		rank kolo.Rank
	}{
		{Key{Algorithm: "ring", Collective: kolo.AllReduce}, OneServer(4), 1},
		{Key{Algorithm: "ring", Collective: kolo.ReduceScatter, InPlace: true}, OneServer(4), 1},
		{Key{Algorithm: "mesh", Collective: kolo.AllReduce}, OneServer(4), 1},
		{Key{Algorithm: "mesh-oneshot", Collective: kolo.AllReduce, InPlace: true}, OneServer(3), 1},
		{Key{Algorithm: "tree", Collective: kolo.AllReduce, Cuts: 2}, OneServer(6), 1},
		{Key{Algorithm: "double-tree", Collective: kolo.Broadcast, Root: 2, InPlace: true}, OneServer(7), 5},
		{Key{Algorithm: "recursive-doubling", Collective: kolo.AllReduce}, OneServer(6), 2},
		{Key{Algorithm: "halving-doubling", Collective: kolo.ReduceScatter}, OneServer(6), 2},
		{Key{Algorithm: "nhr", Collective: kolo.AllReduce}, OneServer(6), 1},
		{Key{Algorithm: "nhr", Collective: kolo.Scatter, Root: 1}, OneServer(7), 6},
		{Key{Algorithm: "pairwise", Collective: kolo.AllToAll, InPlace: true}, OneServer(4), 1},
		{Key{Algorithm: "bruck", Collective: kolo.AllToAll}, OneServer(6), 1},
		{Key{Algorithm: "hier:mesh+nhr", Collective: kolo.AllReduce, Scale: true}, two, 3},
		{Key{Algorithm: "hier:ring+ring", Collective: kolo.AllGather}, two, 3},
		{Key{Algorithm: "fabric", Collective: kolo.AllReduce, Scale: true}, OneProcess(4), 3},
	} {
		name := strings.NewReplacer(":", "-", "+", "-").Replace(tc.k.Algorithm) + "-" + tc.k.Collective.String()
		t.Run(name, func(t *testing.T) {
			c, _, err := Compile(tc.k, tc.t, tc.rank)
			require.NoError(t, err)
			golden(t, "programs/"+name+".golden", c.String())
		})
	}
}

func BenchmarkCompile(b *testing.B) {
	servers := slices.Repeat([]int{8}, 128)
	topo, err := Servers(servers...)
	require.NoError(b, err)
	for _, tc := range []struct {
		name string
		c    kolo.Collective
	}{
		{"ring", kolo.AllReduce}, {"nhr", kolo.AllReduce}, {"mesh", kolo.AllReduce}, {"tree", kolo.AllReduce},
		{"double-tree", kolo.AllReduce}, {"halving-doubling", kolo.AllReduce}, {"recursive-doubling", kolo.AllReduce},
		{"nhr", kolo.AllGather}, {"nhr", kolo.Broadcast}, {"bruck", kolo.AllToAll}, {"pairwise", kolo.AllToAll},
		{"hier:ring+ring", kolo.AllReduce}, {"hier:mesh+nhr", kolo.AllReduce}, {"hier:ring+double-tree", kolo.AllReduce},
	} {
		b.Run(fmt.Sprintf("n=1024/%v/%s", tc.c, tc.name), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := Compile(Key{Algorithm: tc.name, Collective: tc.c}, topo, 5); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
