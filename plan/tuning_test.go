package plan

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kolo-ccl/kolo"
)

var someTuning = &Tuning{Rules: []Rule{
	{Collective: kolo.AllReduce, MaxBytes: 65536, MinRanks: 8, MaxRanks: 8, Algorithm: "recursive-doubling", Measured: 1500},
	{Collective: kolo.AllReduce, MinBytes: 65537, MaxBytes: 1 << 20, MinRanks: 8, MaxRanks: 8, Algorithm: "double-tree"},
	{Collective: kolo.AllReduce, MinBytes: 1<<20 + 1, MinRanks: 8, MaxRanks: 8, MinServers: 2, MaxServers: 2, Algorithm: "hier:mesh+nhr"},
	{Collective: kolo.Broadcast, Algorithm: "tree"},
	{Collective: kolo.ReduceScatter, Algorithm: "mesh"},
}}

func TestTuningDecides(t *testing.T) {
	two := mustServers(t, 4, 4)
	for _, row := range []struct {
		c    kolo.Collective
		size int64
		topo *Topology
		want string
	}{
		{kolo.AllReduce, 0, flatNet(8), "recursive-doubling"},
		{kolo.AllReduce, 65536, flatNet(8), "recursive-doubling"},
		{kolo.AllReduce, 65537, flatNet(8), "double-tree"},
		{kolo.AllReduce, 1 << 21, two, "hier:mesh+nhr"},
		{kolo.ReduceScatterV, 1 << 21, flatNet(3), "mesh"},
	} {
		ch, err := ChooseSize(row.c, row.size, row.topo, Policy{Tuning: someTuning})
		require.NoError(t, err)
		require.Equal(t, row.want, ch.Algorithm)
		require.Contains(t, ch.Why, "tuning rule")
	}
	// Nothing matches, or what does cannot serve under the policy: the model decides.
	for _, p := range []Policy{{Tuning: someTuning}, {Tuning: someTuning, Reproducible: true}} {
		ch, err := ChooseSize(kolo.AllReduce, 64, flatNet(7), p)
		require.NoError(t, err)
		without, err := ChooseSize(kolo.AllReduce, 64, flatNet(7), Policy{Reproducible: p.Reproducible})
		require.NoError(t, err)
		require.Equal(t, without.Algorithm, ch.Algorithm)
	}
	ch, err := ChooseSize(kolo.AllReduce, 64, flatNet(8), Policy{Tuning: someTuning, Algorithm: "ring"})
	require.NoError(t, err)
	require.Equal(t, "ring", ch.Algorithm, "what is forced counts more")
}

func TestTuningDisables(t *testing.T) {
	off := &Tuning{Rules: []Rule{{Collective: kolo.AllReduce, Algorithm: "mesh-oneshot", Disabled: true}}}
	ch, err := ChooseSize(kolo.AllReduce, 64, flatNet(8), Policy{Tuning: off})
	require.NoError(t, err)
	require.NotEqual(t, "mesh-oneshot", ch.Algorithm)
	require.Contains(t, ch.Explain(), "disabled by tuning rule 0")
	ch, err = ChooseSize(kolo.AllReduce, 64, flatNet(8), Policy{Tuning: off, Algorithm: "mesh-oneshot"})
	require.NoError(t, err)
	require.Equal(t, "mesh-oneshot", ch.Algorithm)
}

func TestTuningIsChecked(t *testing.T) {
	for _, r := range []Rule{
		{Collective: kolo.Send, Algorithm: "ring"},
		{Collective: kolo.AllGatherV, Algorithm: "ring"},
		{Collective: kolo.AllReduce, Algorithm: "sing"},
		{Collective: kolo.AllReduce, Algorithm: "ring", MinBytes: 2, MaxBytes: 1},
		{Collective: kolo.AllReduce, Algorithm: "ring", MinRanks: -1},
	} {
		require.ErrorIs(t, Policy{Tuning: &Tuning{Rules: []Rule{r}}}.Validate(), kolo.ErrArgument, "%v", r)
	}
	require.NoError(t, Policy{Tuning: someTuning}.Validate())
	other := &Tuning{Rules: slices.Clone(someTuning.Rules)}
	require.Equal(t, someTuning.Digest(), other.Digest())
	other.Rules[1].MaxBytes++
	require.NotEqual(t, someTuning.Digest(), other.Digest())
}

func TestTunerFilesAreReadBack(t *testing.T) {
	again, skipped, err := ParseTuning(someTuning.HCCL())
	require.NoError(t, err)
	require.Empty(t, skipped)
	require.Equal(t, someTuning, again)
	data, skipped := someTuning.NCCL()
	require.Empty(t, skipped)
	again, skipped, err = ParseTuning(data)
	require.NoError(t, err)
	require.Empty(t, skipped)
	require.Equal(t, someTuning, again)
	_, skipped = (&Tuning{Rules: []Rule{{Collective: kolo.AllReduce, Algorithm: "ring", MinRanks: 2}}}).NCCL()
	require.Len(t, skipped, 1)
}

const hcclTunerFile = `{"version":1,"op_types":{"allreduce":{"rules":[
 {"match":{"min_ranks":8,"max_ranks":64,"min_bytes":0,"max_bytes":65536,"min_servers":2},"engine":"aicpu","executor":"sole","template":"meshtwoshot","cost":0},
 {"match":{"data_type":"fp16"},"engine":"aicpu","executor":"sole","template":"nhr","cost":0},
 {"match":{},"engine":"aiv","executor":"sequence","template":"mesh+nhr","cost":12.5},
 {"match":{"max_bytes":"many"},"engine":"aiv","executor":"sole","template":"nhr","cost":0},
 {"match":{},"engine":"ccums","executor":"concur","template":"mesh2die","cost":0},
 {"match":{},"engine":"aicpu","executor":"sole","template":"nhr","cost":-1}]},"hop":{"rules":[]}}}`

const ncclTunerFile = `# a comment
collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff
allreduce,0,65536,tree,ll,2,1,8,-1,-1
allreduce,65537,-1,ring,simple,4,-1,-1
broadcast,0,-1,nvls,simple,4,-1,-1   # not here
`

func TestTunerFilesOfOthers(t *testing.T) {
	got, skipped, err := ParseTuning([]byte(hcclTunerFile))
	require.NoError(t, err)
	require.Equal(t, []string{`allreduce rule 1: a match on "data_type"`, `allreduce rule 3: max_bytes is "many"`,
		`allreduce rule 4: executor "concur" with template "mesh2die" is no algorithm here`, `"hop": no such collective`}, skipped)
	require.Equal(t, []Rule{
		{Collective: kolo.AllReduce, MaxBytes: 65536, MinRanks: 8, MaxRanks: 64, MinServers: 2, Algorithm: "mesh"},
		{Collective: kolo.AllReduce, Algorithm: "hier:mesh+nhr"},
		{Collective: kolo.AllReduce, Algorithm: "nhr", Disabled: true},
	}, got.Rules)

	got, skipped, err = ParseTuning([]byte(ncclTunerFile))
	require.NoError(t, err)
	require.Equal(t, []string{`line 5: no algorithm "nvls" here`}, skipped)
	require.Equal(t, []Rule{
		{Collective: kolo.AllReduce, MaxBytes: 65536, MinServers: 1, MaxServers: 1, MinRanks: 8, MaxRanks: 8, Algorithm: "double-tree"},
		{Collective: kolo.AllReduce, MinBytes: 65537, Algorithm: "ring"},
	}, got.Rules)

	for file, want := range map[string]string{
		"":                                    "empty",
		" \n\t ":                              "empty",
		`{"version":2}`:                       "version 2; known is 1",
		`{"version":`:                         "HCCL tuner file",
		"allreduce,0,1,ring":                  "line 1: 4 fields",
		"allreduce,x,1,ring,simple,1,1,1":     `field 2 is "x"`,
		"allreduce,9,1,ring,simple,1,1,1,1,1": "the least is more than the most",
	} {
		_, _, err := ParseTuning([]byte(file))
		require.ErrorIs(t, err, kolo.ErrArgument, file)
		require.ErrorContains(t, err, want, file)
	}
}

func FuzzTunerFiles(f *testing.F) {
	for _, s := range []string{hcclTunerFile, ncclTunerFile, string(someTuning.HCCL())} {
		for cut := 0; cut <= len(s); cut += 24 {
			f.Add([]byte(s[:cut]))
		}
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got, _, err := ParseTuning(data)
		if err != nil {
			return
		}
		again, skipped, err := ParseHCCLTuning(got.HCCL())
		require.NoError(t, err)
		require.Empty(t, skipped)
		require.Equal(t, len(got.Rules), len(again.Rules))
		csv, _ := got.NCCL()
		_, skipped, err = ParseNCCLTuning(csv)
		require.NoError(t, err)
		require.Empty(t, skipped)
		_, err = ChooseSize(kolo.AllReduce, 100, flatNet(4), Policy{Tuning: got})
		require.NoError(t, err)
	})
}

// noisy is a time with noise: a spread of so much around it, and now and then much more.
func noisy(rng *rand.Rand, d time.Duration, spread float64) time.Duration {
	x := float64(d) * math.Exp(spread*rng.NormFloat64())
	if rng.IntN(20) == 0 {
		x *= 1 + 3*rng.Float64()
	}
	return time.Duration(x)
}

// hold runs a contest on given true times.
func hold(c *Contest, rng *rand.Rand, spread float64, truth map[string]time.Duration) {
	for {
		name, ok := c.Next()
		if !ok {
			return
		}
		c.Add(noisy(rng, truth[name], spread))
	}
}

// The true times are simulated ones, which the model does not know; each timing has a
// noise of 10 %, and one in twenty is up to four times as long. The regret is against
// the true best of all algorithms that serve.
func TestRegretOfContests(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	var regrets []float64
	timings, all := 0, 0
	for _, topo := range []*Topology{flatNet(4), flatNet(7), flatNet(16), mustServers(t, 4, 4), mustServers(t, 4, 4, 4)} {
		for _, col := range []kolo.Collective{kolo.AllReduce, kolo.AllGather, kolo.Broadcast, kolo.ReduceScatter, kolo.AllToAll} {
			for size := int64(64); size <= 16<<20; size *= 16 {
				ch, err := ChooseSize(col, size, topo, Policy{})
				require.NoError(t, err)
				truth := map[string]time.Duration{}
				best := NoCost
				for _, r := range ch.Rows {
					if r.Serves && r.Cost != NoCost {
						truth[r.Name] = simulated(t, r.Name, topo, bytesCall(col, size, topo.Ranks())).Total
						best = min(best, truth[r.Name])
					}
				}
				c := NewContest(ch, ContestConfig{})
				hold(c, rng, 0.1, truth)
				winner, _, _ := c.Winner("")
				regrets = append(regrets, float64(truth[winner])/float64(max(best, 1))-1)
				for _, e := range c.Entrants {
					timings, all = timings+len(e.Times), all+21
				}
			}
		}
	}
	slices.Sort(regrets)
	median, most := regrets[len(regrets)/2], regrets[len(regrets)-1]
	t.Logf("%d contests: regret median %.2f %%, maximum %.2f %%; %d timings; all 21 times would be %d", len(regrets), 100*median, 100*most, timings, all)
	require.Less(t, median, 0.03)
	require.Less(t, most, 0.15)
	require.Less(t, timings, all*3/4)
}

func TestContestIsFairAndEnds(t *testing.T) {
	ch := Choice{Rows: []Row{
		{Name: "a", Serves: true, Cost: 100}, {Name: "b", Serves: true, Cost: 140}, {Name: "c", Serves: true, Cost: 300},
		{Name: "d", Serves: true, Cost: 900}, {Name: "e", Serves: true, Cost: 400}, {Name: "f", Cost: 1}, {Name: "g", Serves: true, Cost: NoCost},
	}}
	c := NewContest(ch, ContestConfig{Rounds: 3})
	took := map[string]time.Duration{"a": 95, "b": 99, "c": 80, "e": 400}
	var order string
	for {
		name, ok := c.Next()
		if !ok {
			break
		}
		order += name
		c.Add(took[name])
	}
	require.Equal(t, "ababab"+"cece"+"c"+"acacacacacac", order, "a and b in turn; c and e have a chance, and c earns more; d has none; the best once more")
	name, m, regret := c.Winner("")
	require.Equal(t, "c", name)
	require.Equal(t, 80*ns, m)
	require.Zero(t, regret)
	name, _, _ = c.Winner("a")
	require.Equal(t, "c", name, "a is slower by more than 5 %")
	c = NewContest(ch, ContestConfig{Rounds: 1, Fringe: 1, Final: 1.01})
	for _, d := range []time.Duration{100, 96} {
		_, ok := c.Next()
		require.True(t, ok)
		c.Add(d)
	}
	name, _, regret = c.Winner("a")
	require.Equal(t, "a", name, "b is faster, but not by enough")
	require.InDelta(t, 100.0/96-1, regret, 1e-9)
}

func TestTuningOfContests(t *testing.T) {
	topo := flatNet(8)
	got := TuningOf([]Timing{
		{Collective: kolo.AllReduce, Size: 1 << 20, Algorithm: "ring", Median: 9},
		{Collective: kolo.AllReduce, Size: 64, Algorithm: "nhr", Median: 1},
		{Collective: kolo.AllReduce, Size: 1024, Algorithm: "nhr", Median: 2},
		{Collective: kolo.AllGather, Size: 64, Algorithm: "mesh", Median: 3},
	}, topo)
	require.Equal(t, []Rule{
		{Collective: kolo.AllReduce, MinBytes: 64, MaxBytes: 1 << 15, MinRanks: 8, MaxRanks: 8, MinServers: 1, MaxServers: 1, Algorithm: "nhr", Measured: 2},
		{Collective: kolo.AllReduce, MinBytes: 1<<15 + 1, MaxBytes: 1 << 20, MinRanks: 8, MaxRanks: 8, MinServers: 1, MaxServers: 1, Algorithm: "ring", Measured: 9},
		{Collective: kolo.AllGather, MinBytes: 64, MaxBytes: 64, MinRanks: 8, MaxRanks: 8, MinServers: 1, MaxServers: 1, Algorithm: "mesh", Measured: 3},
	}, got.Rules)
	require.NoError(t, got.Validate())
	ch, err := ChooseSize(kolo.AllReduce, 2<<20, topo, Policy{Tuning: got})
	require.NoError(t, err)
	require.NotContains(t, ch.Why, "tuning", "nothing is said beyond the largest size")
}

func TestWatchSeesDrift(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	w := Watch{Reference: 100 * us}
	for range 1000 {
		require.False(t, w.Add(noisy(rng, 100*us, 0.05)), "noise is no drift")
	}
	for _, drifted := range []time.Duration{200 * us, 50 * us} {
		n := 0
		for !w.Add(noisy(rng, drifted, 0.05)) {
			n++
			require.Less(t, n, 100)
		}
	}
}

// All sizes that are not told apart have the same Sizes, and the same rules speak of them.
func TestSizesOfOneChoice(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	topo := OneServer(4)
	for range 200 {
		table := &Tuning{}
		for range rng.IntN(6) {
			low := rng.Int64N(1 << rng.IntN(40))
			table.Rules = append(table.Rules, Rule{Collective: kolo.AllReduce, MinBytes: low, MaxBytes: low + rng.Int64N(low+2), Algorithm: "ring"})
		}
		steps := table.Steps(kolo.AllReduce)
		require.True(t, slices.IsSorted(steps))
		for range 50 {
			size := rng.Int64N(1 << rng.IntN(42))
			s := SizesOf(size, steps)
			require.True(t, s.Low <= size && size <= s.High, "%d: %+v", size, s)
			for _, other := range []int64{s.Low, s.High, s.Typical, s.Low + rng.Int64N(s.High-s.Low+1)} {
				require.Equal(t, s, SizesOf(other, steps), "%d and %d", size, other)
				require.Equal(t, ClassOf(size), ClassOf(other))
				for i := range table.Rules {
					r := &table.Rules[i]
					require.Equal(t, r.matches(kolo.AllReduce, size, topo), r.matches(kolo.AllReduce, other, topo), "%v: %d and %d", r, size, other)
				}
			}
		}
	}
	require.Equal(t, Sizes{}, SizesOf(0, nil))
	require.Equal(t, Sizes{Low: 1 << 62, High: math.MaxInt64, Typical: 3 << 61}, SizesOf(math.MaxInt64, nil))
}
