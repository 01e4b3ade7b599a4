package plan

import (
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kolo-ccl/kolo"
)

// bytesCall is a call of c over size bytes of the whole vector.
func bytesCall(c kolo.Collective, size int64, n int) *kolo.Call {
	if chunked(c) {
		size /= int64(n)
	}
	return &kolo.Call{Collective: c, DType: kolo.Int8, Count: size}
}

// simulated is the Timeline of an algorithm for a call.
func simulated(t *testing.T, name string, topo *Topology, call *kolo.Call) Timeline {
	t.Helper()
	programs, err := Programs(KeyOf(call, name), topo)
	require.NoError(t, err)
	line, err := Simulate(programs, topo, call)
	require.NoError(t, err)
	return line
}

// The times are those of an independent simulation, in us: 5 us a message, 25 GB/s,
// folding at 100 GB/s, one latency for each round. With 33 ranks, the first two rounds
// of NHR's all-gather carry one block each, the same one. They need not wait for each
// other, and so it is a latency faster than its rounds say.
func TestSimulateGivesTheGoldenTimes(t *testing.T) {
	for _, row := range []struct {
		size  int64
		ranks int
		want  map[string]float64
	}{
		{4 << 10, 8, map[string]float64{"ring": 70.32, "nhr": 30.32, "nb": 30.32, "halving-doubling": 30.32, "recursive-doubling": 15.61, "mesh-oneshot": 6.43, "mesh": 10.32}},
		{4 << 10, 33, map[string]float64{"ring": 320.36, "nhr": 60.36 - 5, "nb": 60.36 - 5, "halving-doubling": 60.73, "recursive-doubling": 36.39, "mesh-oneshot": 11.55, "mesh": 10.36}},
		{1 << 20, 7, map[string]float64{"ring": 140.89, "nhr": 110.89, "halving-doubling": 195.15, "recursive-doubling": 219.23, "mesh-oneshot": 319.57, "mesh": 90.89}},
		{1 << 20, 8, map[string]float64{"ring": 152.58, "nhr": 112.58, "halving-doubling": 112.58, "recursive-doubling": 172.29, "mesh-oneshot": 372.00, "mesh": 92.58}},
		{1 << 20, 64, map[string]float64{"ring": 722.90, "nhr": 152.90, "halving-doubling": 152.90, "recursive-doubling": 344.57, "mesh-oneshot": 3308.01, "mesh": 102.90}},
		{64 << 20, 8, map[string]float64{"ring": 5354.82, "nhr": 5314.82, "halving-doubling": 5314.82, "recursive-doubling": 10081.33, "mesh-oneshot": 23493.1, "mesh": 5294.82}},
		{64 << 20, 33, map[string]float64{"ring": 6176.77, "nhr": 5916.77 - 5, "halving-doubling": 11950.85, "recursive-doubling": 22852.01, "mesh-oneshot": 107379, "mesh": 5866.77}},
	} {
		for name, want := range row.want {
			got := float64(simulated(t, name, flatNet(row.ranks), bytesCall(kolo.AllReduce, row.size, row.ranks)).Total) / 1000
			if math.Abs(got-want) > 0.02 && math.Abs(got-want) > 1e-4*want {
				t.Errorf("%s over %d bytes by %d ranks: %.2f us, want %.2f", name, row.size, row.ranks, got, want)
			}
		}
	}
}

const us = time.Microsecond

// slowNet is n ranks with 10 us a message, 1 GB/s, and folding at 2 GB/s.
func slowNet(n int) *Topology {
	t := OneServer(n)
	t.Levels[0] = kolo.Edge{Link: kolo.LinkTCP, Latency: 10 * us, Bandwidth: 1e9}
	t.Reduce = 2e9
	return t
}

func TestPortsAreUsedByOneMessageAtATime(t *testing.T) {
	// Three ranks send 1000 bytes each to rank 0, whose port takes them in turn.
	gather := Key{Collective: kolo.Gather}
	toRoot := byHand(gather, 4, 1, 0, func(r kolo.Rank) []Step {
		if r > 0 {
			return []Step{{Op: Send, Peers: to(0), Src: one(In, 0)}}
		}
		return []Step{
			{Op: Copy, Src: one(In, 0), Dst: one(Out, 0)},
			{Op: Recv, Peers: to(1), Dst: one(Out, 1)},
			{Op: Recv, Peers: to(2), Dst: one(Out, 2)},
			{Op: Recv, Peers: to(3), Dst: one(Out, 3)},
		}
	})
	line, err := Simulate(toRoot, slowNet(4), bytesCall(kolo.Gather, 4000, 4))
	require.NoError(t, err)
	require.Equal(t, []time.Duration{13 * us, 11 * us, 12 * us, 13 * us}, line.Finish)
	require.Equal(t, 13*us, line.Total)
	require.Equal(t, []Leg{{1, 0, 0, 0, us, ""}, {2, 0, 0, us, 2 * us, ""}, {3, 0, 0, 2 * us, 13 * us, ""}}, line.Critical)
	require.Equal(t, [3]Traffic{{3, 3000}}, line.Levels)

	// Two ranks swap: sending and receiving go together.
	line, err = Simulate(gatherTwo(), slowNet(2), bytesCall(kolo.AllGather, 2000, 2))
	require.NoError(t, err)
	require.Equal(t, 11*us, line.Total)
}

func TestFoldsAndCopiesOfARankTakeTurns(t *testing.T) {
	// Four copies of 1000 bytes at 2 GB/s.
	k := Key{Collective: kolo.AllToAll}
	p := byHand(k, 1, 4, 0, func(kolo.Rank) (out []Step) {
		for i := range 4 {
			out = append(out, Step{Op: Copy, Src: one(In, i), Dst: one(Out, i)})
		}
		return out
	})
	line, err := Simulate(p, slowNet(1), bytesCall(kolo.AllToAll, 4000, 1))
	require.NoError(t, err)
	require.Equal(t, 2*us, line.Total)
	require.Len(t, line.Critical, 4)

	// One pass over two messages reads 2000 bytes from others; both must have come.
	call := bytesCall(kolo.AllReduce, 1000, 3)
	line, err = Simulate(reduceThree(), slowNet(3), call)
	require.NoError(t, err)
	require.Equal(t, (2+10+1)*us, line.Total)
	last := line.Critical[len(line.Critical)-1]
	require.Equal(t, Leg{last.Rank, 1, kolo.NoRank, 12 * us, 13 * us, ""}, last)
}

func TestLevelsHaveTheirEdgesAndTheirTraffic(t *testing.T) {
	topo, err := Places([]int{0, 0, 1, 2}, []int{0, 0, 0, 1})
	require.NoError(t, err)
	for l := range topo.Levels {
		topo.Levels[l] = kolo.Edge{Latency: time.Duration(1+l) * 10 * us, Bandwidth: 1e9 / float64(1+l)}
	}
	for to, want := range map[kolo.Rank]time.Duration{1: 11 * us, 2: 22 * us, 3: 33 * us} {
		k := Key{Collective: kolo.Broadcast, InPlace: true}
		p := byHand(k, 4, 1, 0, func(r kolo.Rank) []Step {
			switch r {
			case 0:
				return []Step{{Op: Send, Peers: []kolo.Rank{to}, Src: one(Out, 0)}}
			case to:
				return []Step{{Op: Recv, Peers: []kolo.Rank{0}, Dst: one(Out, 0)}}
			}
			return nil
		})
		line, err := Simulate(p, topo, bytesCall(kolo.Broadcast, 1000, 4))
		require.NoError(t, err)
		require.Equal(t, want, line.Total)
		var traffic [3]Traffic
		traffic[to-1] = Traffic{1, 1000}
		require.Equal(t, traffic, line.Levels)
	}
}

func TestSimulateCountsTheBytesOfUnevenParts(t *testing.T) {
	call := &kolo.Call{Collective: kolo.AllGatherV, DType: kolo.Int32, Counts: []int64{0, 7, 100}}
	line := simulated(t, "ring", slowNet(3), call)
	require.Equal(t, Traffic{6, 2 * 4 * 107}, line.Levels[0])
	call = &kolo.Call{Collective: kolo.AllToAllVC, DType: kolo.Int8, Counts: []int64{1, 2, 3, 4, 5, 6, 7, 8, 9}}
	line = simulated(t, "pairwise", slowNet(3), call)
	require.Equal(t, Traffic{6, 2 + 3 + 4 + 6 + 7 + 8}, line.Levels[0])
}

func TestCriticalPathFillsTheWholeTime(t *testing.T) {
	for _, topo := range []*Topology{flatNet(6), mustServers(t, 3, 3), mustServers(t, 4, 4)} {
		for _, a := range Algorithms() {
			for _, c := range kolo.Collectives() {
				if c != c.Base() || a.Serves(c, topo) != nil {
					continue
				}
				call := bytesCall(c, 12000, topo.Ranks())
				line := simulated(t, a.Name, topo, call)
				require.Equal(t, line, simulated(t, a.Name, topo, call), "the same again")
				require.Equal(t, slices.Max(line.Finish), line.Total)
				at := time.Duration(0)
				for _, leg := range line.Critical {
					require.Equal(t, at, leg.Start, "%s %v: %+v", a.Name, c, line.Critical)
					at = leg.End
				}
				require.Equal(t, line.Total, at, "%s %v", a.Name, c)
			}
		}
	}
}

// On equal links, what Simulate finds and what Choose believes must be alike. Choose
// charges a latency for each round although those of pieces in a pipeline overlap,
// and thinks that the ranks of a tree never wait for each other's ports.
func TestSimulateAgreesWithTheEstimate(t *testing.T) {
	for _, n := range []int{2, 7, 8, 16, 33} {
		topo := flatNet(n)
		for _, c := range kolo.Collectives() {
			const size = 1 << 20
			if c != c.Base() || c == kolo.Barrier {
				continue
			}
			choice, err := ChooseSize(c, size, topo, Policy{})
			require.NoError(t, err)
			for _, row := range choice.Rows {
				a, err := Lookup(row.Name)
				require.NoError(t, err)
				if a.Serves(c, topo) != nil || row.Cost == NoCost {
					continue
				}
				got := simulated(t, row.Name, topo, bytesCall(c, size, n)).Total
				low := 0.45
				if a == chain { // many pieces
					low = 0.2
				}
				if ratio := float64(got) / float64(row.Cost); ratio < low || ratio > 1.6 {
					t.Errorf("%s %v of %d ranks: %v, estimated %v", row.Name, c, n, got, row.Cost)
				}
			}
		}
	}
}

func TestSimulatedOrderOfAlgorithms(t *testing.T) {
	order := func(topo *Topology, c kolo.Collective, size int64, names ...string) {
		t.Helper()
		best := time.Duration(0)
		for _, name := range names {
			got := simulated(t, name, topo, bytesCall(c, size, topo.Ranks())).Total
			if got < best {
				t.Errorf("%v of %d bytes, %v: %s takes %v, one before it in %v takes %v", c, size, topo, name, got, names, best)
			}
			best = max(best, got)
		}
	}
	order(flatNet(16), kolo.AllReduce, 64, "mesh-oneshot", "mesh", "recursive-doubling", "nhr", "ring")
	order(flatNet(16), kolo.AllReduce, 256<<20, "mesh", "nhr", "ring", "recursive-doubling", "mesh-oneshot")
	order(flatNet(15), kolo.AllReduce, 256<<20, "nhr", "ring", "halving-doubling")
	order(flatNet(32), kolo.Broadcast, 64, "tree", "ring")
	order(flatNet(32), kolo.AllToAll, 1<<10, "bruck", "pairwise")
	order(flatNet(32), kolo.AllToAll, 64<<20, "pairwise", "bruck")
	servers := mustServers(t, 8, 8, 8, 8)
	order(servers, kolo.AllReduce, 64<<20, "hier:mesh+nhr", "ring", "nhr", "recursive-doubling")
	order(servers, kolo.AllReduce, 1<<10, "hier:mesh+nhr", "hier:ring+nhr", "ring")
}

func TestSimulateTakesTheMediumsWord(t *testing.T) {
	topo := OneProcess(8)
	call := bytesCall(kolo.AllReduce, 1<<20, 8)
	choice, err := Choose(call, topo, Policy{})
	require.NoError(t, err)
	for _, row := range choice.Rows {
		if row.Name == "fabric" {
			require.Equal(t, row.Cost, simulated(t, "fabric", topo, call).Total)
		}
	}
}

func TestSimulateRefusesWhatCannotRun(t *testing.T) {
	call := bytesCall(kolo.AllGather, 2, 2)
	_, err := Simulate(gatherTwo(), slowNet(3), call)
	require.ErrorIs(t, err, kolo.ErrArgument)
	_, err = Simulate(gatherTwo(), slowNet(2), &kolo.Call{Collective: kolo.AllToAllV})
	require.ErrorIs(t, err, kolo.ErrUnsupported)
	_, err = Simulate(gatherTwo(), slowNet(2), bytesCall(kolo.AllReduce, 2, 2))
	require.ErrorContains(t, err, "collective AllGather instead of AllReduce")
	p := gatherTwo()
	p[0].Steps = p[0].Steps[:2]
	_, err = Simulate(p, slowNet(2), call)
	var f *Fault
	require.True(t, errors.As(err, &f) && f.Check == CheckMatch, "%v", err)
	p = gatherTwo()
	for _, q := range p {
		q.Steps[1], q.Steps[2] = q.Steps[2], q.Steps[1]
		q.Steps[2].After = []int32{1}
	}
	_, err = Simulate(p, slowNet(2), call)
	require.ErrorContains(t, err, "stands still at rank 0, step 1 (recv out[1] from rank 1)")
}
