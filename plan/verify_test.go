package plan

import (
	"fmt"
	"math/big"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kolo-ccl/kolo"
)

// keys are the ways in which collective c can be called in a group of n ranks:
// every root that may matter, in place and not, and multiplied or not.
func keys(a *Algorithm, c kolo.Collective, n int) []Key {
	roots := []kolo.Rank{0}
	if c.Rooted() && n > 1 {
		roots = append(roots, kolo.Rank(n-1))
		if n > 3 {
			roots = append(roots, kolo.Rank(n/2))
		}
	}
	var out []Key
	for _, root := range roots {
		k := Key{Algorithm: a.Name, Collective: c, Root: root, InPlace: c == kolo.Broadcast}
		out = append(out, k)
		if c.Reduces() {
			k.Scale = true
			out = append(out, k)
			k.Scale = false
		}
		if c != kolo.Broadcast && c != kolo.Barrier {
			k.InPlace = true
			out = append(out, k)
		}
	}
	return out
}

// stronger is the form of c whose proof holds for c too, as its counts are freer.
func stronger(c kolo.Collective) kolo.Collective {
	switch c {
	case kolo.AllGather:
		return kolo.AllGatherV
	case kolo.ReduceScatter:
		return kolo.ReduceScatterV
	case kolo.Gather:
		return kolo.GatherV
	case kolo.Scatter:
		return kolo.ScatterV
	case kolo.AllToAll, kolo.AllToAllVC:
		return kolo.AllToAllV
	}
	return c
}

// proveAll verifies everything that the table offers on t. For many ranks, or unless
// long, it leaves out what follows from something else, equal counts from any counts and
// what the same algorithm does on one server. Unless long, it takes a third of the keys.
func proveAll(t *testing.T, topo *Topology) {
	t.Helper()
	n := topo.Ranks()
	implied := long && n <= 33
	for _, a := range Algorithms() {
		for _, c := range kolo.Collectives() {
			if a.Serves(c, topo) != nil {
				continue
			}
			if s := stronger(c); !implied && s != c && a.Serves(s, topo) == nil {
				continue
			}
			if !implied && distinct(topo.Server) > 1 && a.Serves(c, OneServer(n)) == nil {
				continue
			}
			for i, k := range keys(a, c, n) {
				if !long && few(n) && i%3 != n%3 {
					continue
				}
				prove(t, k, topo)
				if a.cuts != nil && n <= 9 {
					k.Cuts = 3
					prove(t, k, topo)
				}
			}
		}
	}
}

func prove(t *testing.T, k Key, topo *Topology) {
	t.Helper()
	programs, err := Programs(k, topo)
	require.NoError(t, err, "%+v", k)
	report, err := Verify(k, programs)
	require.NoError(t, err, "%+v, %v", k, topo)
	require.Zero(t, report.Credits, "%+v, %v", k, topo)
	require.True(t, report.SameBits, "%+v, %v: ranks would round differently", k, topo)
	if k.Collective != kolo.Broadcast { // by scatter and all-gather, some come back to where they were
		require.Zero(t, report.Wasted, "%+v, %v: blocks sent to where they are", k, topo)
	}
}

// few says that a sample must do for n ranks.
func few(n int) bool { return n > 33 || n > 9 && !long }

// shapes are ways to put n ranks on servers.
func shapes(t *testing.T, n int) []*Topology {
	out := []*Topology{OneProcess(n)}
	add := func(sizes ...int) { out = append(out, mustServers(t, sizes...)) }
	for s := 2; s <= n; s++ {
		if n%s == 0 {
			add(slices.Repeat([]int{n / s}, s)...)
			if few(n) {
				break
			}
		}
	}
	if n > 2 {
		add(n-n/3, n/3)
	}
	if n > 2 && !few(n) {
		add(1, n-1)
	}
	if n > 5 && n%2 == 0 { // ranks dealt out in turn, in two racks
		server, rack := make([]int, n), make([]int, n)
		for r := range n {
			server[r] = r % (n / 2)
			rack[r] = server[r] % 2
		}
		topo, err := Places(server, rack)
		require.NoError(t, err)
		out = append(out, topo)
	}
	return out
}

func TestEveryProgramIsProven(t *testing.T) {
	sizes := []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 32, 33}
	if long {
		sizes = nil
		for n := 1; n <= 33; n++ {
			sizes = append(sizes, n)
		}
		sizes = append(sizes, 64, 100, 128, 256)
		for n := 35; n <= 127; n += 2 {
			if big.NewInt(int64(n)).ProbablyPrime(0) { // exact for small numbers
				sizes = append(sizes, n)
			}
		}
	}
	slices.SortFunc(sizes, func(a, b int) int { return b - a }) // what takes long begins first
	before := debug.SetGCPercent(400)                           // Programs are made and dropped
	t.Cleanup(func() { debug.SetGCPercent(before) })
	for _, n := range sizes {
		for _, topo := range shapes(t, n) {
			t.Run(fmt.Sprintf("%v", topo.shape()), func(t *testing.T) {
				t.Parallel()
				proveAll(t, topo)
			})
		}
	}
}

// A thousand ranks are proven in well under half a minute each. Without the tag long, or
// with the race detector, it is fewer ranks.
func TestManyRanksAreProven(t *testing.T) {
	servers := 128
	if !long {
		servers = 16
	}
	topo := mustServers(t, slices.Repeat([]int{8}, servers)...)
	for _, tc := range []struct {
		name string
		c    kolo.Collective
	}{
		{"nhr", kolo.AllReduce}, {"hier:mesh+nhr", kolo.AllReduce}, {"hier:ring+nhr", kolo.AllReduce},
		{"hier:mesh+recursive-doubling", kolo.AllReduce}, {"nhr", kolo.AllGatherV}, {"hier:mesh+nhr", kolo.AllGatherV},
		{"pipeline", kolo.AllReduce}, {"pat", kolo.AllReduce}, {"swing", kolo.AllReduce}, {"ahc", kolo.AllReduce},
		{"ring", kolo.AllReduce},
	} {
		k := Key{Algorithm: tc.name, Collective: tc.c}
		start := time.Now()
		programs, err := Programs(k, topo)
		require.NoError(t, err)
		compiled := time.Since(start)
		report, err := Verify(k, programs)
		require.NoError(t, err)
		took := time.Since(start)
		t.Logf("%s %v of %d ranks: compiled in %v, proven in %v: %+v", tc.name, tc.c, topo.Ranks(), compiled, took-compiled, report)
		if took > 30*time.Second {
			t.Errorf("%s %v of %d ranks took %v", tc.name, tc.c, topo.Ranks(), took)
		}
	}
}
