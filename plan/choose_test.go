package plan

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"math/rand"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kolo-ccl/kolo"
)

// paperTable is a small table with the textbook costs of AllReduce and a few more, so
// that the tests of the choice do not move with the table of the package.
func paperTable() []*Algorithm {
	terms := func(f func(p, lg, n float64) Level) func(kolo.Collective, *Topology, float64) Terms {
		return func(_ kolo.Collective, t *Topology, n float64) Terms {
			level := 0
			if distinct(t.Server) > 1 {
				level = 1
			}
			p := t.Ranks()
			var x Terms
			x[level] = f(float64(p), float64(bits.Len(uint(p-1))), n)
			return x
		}
	}
	all := doing(kolo.AllReduce)
	return []*Algorithm{
		{Name: "ring", serves: all, terms: terms(func(p, _, n float64) Level {
			return Level{2 * (p - 1), 2 * (p - 1) / p * n, (p - 1) / p * n}
		})},
		{Name: "nhr", serves: doing(kolo.AllReduce, kolo.Broadcast), terms: terms(func(p, lg, n float64) Level {
			return Level{2 * lg, 2 * (p - 1) / p * n, (p - 1) / p * n}
		})},
		{Name: "tree", serves: all, terms: terms(func(_, lg, n float64) Level { return Level{2 * lg, 3 * n, 2 * n} })},
		{Name: "mesh-oneshot", serves: all, terms: terms(func(p, _, n float64) Level {
			return Level{1, (p - 1) * n, (p - 1) * n}
		})},
		{Name: "mesh", serves: doing(kolo.AllReduce, kolo.AllToAll), terms: terms(func(p, _, n float64) Level {
			return Level{2, 2 * (p - 1) / p * n, (p - 1) / p * n}
		})},
		{Name: "pairwise", serves: doing(kolo.AllToAll, kolo.AllToAllV), terms: terms(func(p, _, n float64) Level {
			return Level{p - 1, (p - 1) / p * n, 0}
		})},
		fabric,
	}
}

func doing(list ...kolo.Collective) func(kolo.Collective, *Topology) error {
	return func(c kolo.Collective, _ *Topology) error {
		if slices.Contains(list, c) {
			return nil
		}
		return fmt.Errorf("it does %v only", list)
	}
}

// flatNet is the net of the golden times: 5 us, 25 GB/s, folding at 100 GB/s.
func flatNet(n int) *Topology {
	t := OneServer(n)
	t.Levels[0] = kolo.Edge{Link: kolo.LinkRoCE, Latency: 5 * time.Microsecond, Bandwidth: 25e9}
	t.Reduce = 100e9
	return t
}

// The times come from a separate symbolic simulation of the algorithms, in us. It
// charges a round once, however many messages a mesh has in it.
func TestEstimateGivesTheGoldenTimes(t *testing.T) {
	tables := map[string][]*Algorithm{"paper": paperTable(), "package": Algorithms()}
	for _, row := range []struct {
		size  int64
		ranks int
		want  map[string]float64
	}{
		{4 << 10, 8, map[string]float64{"ring": 70.32, "nhr": 30.32, "recursive-doubling": 15.61, "mesh-oneshot": 6.43, "mesh": 10.32}},
		{4 << 10, 33, map[string]float64{"ring": 320.36, "nhr": 60.36, "mesh-oneshot": 11.55, "mesh": 10.36}},
		{1 << 20, 7, map[string]float64{"ring": 140.89, "nhr": 110.89, "mesh-oneshot": 319.57, "mesh": 90.89}},
		{1 << 20, 64, map[string]float64{"ring": 722.90, "nhr": 152.90, "recursive-doubling": 344.57, "mesh-oneshot": 3308.01, "mesh": 102.90}},
		{64 << 20, 8, map[string]float64{"ring": 5354.82, "nhr": 5314.82, "recursive-doubling": 10081.33, "mesh": 5294.82}},
	} {
		for from, table := range tables {
			ch, err := chooseFrom(table, kolo.AllReduce, row.size, flatNet(row.ranks), Policy{})
			require.NoError(t, err)
			for _, r := range ch.Rows {
				want, ok := row.want[r.Name]
				if !ok || r.Cost == NoCost {
					continue
				}
				want += r.Rounds * (r.fan - 1) * 5 / messagesPerLatency
				if got := float64(r.Cost) / 1000; math.Abs(got-want) > 0.01 {
					t.Errorf("%s: %s over %d bytes by %d ranks: %.2f us, want %.2f", from, r.Name, row.size, row.ranks, got, want)
				}
			}
		}
	}
}

func TestMeasuredTakesTheLeast(t *testing.T) {
	for _, row := range []struct {
		name  string
		top   *Topology
		size  int64
		want  string
		cause string
	}{
		{"tiny", flatNet(8), 8, "mesh-oneshot", "least cost"},
		{"large", flatNet(8), 64 << 20, "mesh", "least cost"},
		{"tie", flatNet(1), 8, "ring", "a single rank"},
		{"two ranks, ring and nhr cost the same", flatNet(2), 64 << 20, "ring", "least cost"},
		{"in one process", OneProcess(8), 8, "fabric", "the medium does it in one pass"},
		{"in one process, large", OneProcess(8), 64 << 20, "fabric", "the medium does it in one pass"},
	} {
		t.Run(row.name, func(t *testing.T) {
			ch, err := chooseFrom(paperTable(), kolo.AllReduce, row.size, row.top, Policy{})
			require.NoError(t, err)
			require.Equal(t, row.want, ch.Algorithm, ch.Explain())
			require.Contains(t, ch.Why, row.cause)
			require.Equal(t, ch.Algorithm, ch.Rows[0].Name)
			for _, r := range ch.Rows {
				require.NotEmpty(t, r.Why, r.Name)
			}
		})
	}
}

func TestStaticRule(t *testing.T) {
	for _, row := range []struct {
		name       string
		collective kolo.Collective
		top        *Topology
		want, why  string
	}{
		{"8 ranks", kolo.AllReduce, OneServer(8), "ring", "static rule: ring for up to 15 ranks"},
		{"15 ranks", kolo.AllReduce, OneServer(15), "ring", "ring"},
		{"16 ranks", kolo.AllReduce, OneServer(16), "tree", "static rule: tree from 16 ranks"},
		{"uneven", kolo.AllReduce, mustServers(t, 4, 3), "mesh", "static rule: mesh for servers of unequal size"},
		{"uneven, many", kolo.AllReduce, mustServers(t, 20, 30), "mesh", "unequal"},
		{"no ring for it", kolo.AllToAll, OneServer(8), "pairwise", "ring cannot, pairwise is nearest"},
		{"no tree for it", kolo.Broadcast, OneServer(64), "nhr", "tree cannot, nhr is nearest"},
		{"in one process", kolo.AllReduce, OneProcess(4), "ring", "ring"},
		{"only the medium", kolo.Gather, OneProcess(4), "fabric", "ring cannot, fabric is nearest"},
	} {
		ch, err := chooseFrom(paperTable(), row.collective, 1<<20, row.top, Policy{Method: Static})
		require.NoError(t, err, row.name)
		require.Equal(t, row.want, ch.Algorithm, row.name)
		require.Contains(t, ch.Why, row.why, row.name)
	}
}

func TestReproducible(t *testing.T) {
	reproducible := Policy{Reproducible: true}
	for _, method := range []Method{Measured, Static} {
		for _, size := range []int64{8, 1 << 20, 1 << 30} {
			ch, err := chooseFrom(paperTable(), kolo.AllReduce, size, flatNet(16), Policy{Method: method, Reproducible: true})
			require.NoError(t, err)
			require.Contains(t, ordered, ch.Algorithm)
		}
	}
	ch, err := chooseFrom(paperTable(), kolo.AllToAll, 1<<20, OneServer(4), reproducible)
	require.NoError(t, err)
	require.True(t, ch.Rows[slices.IndexFunc(ch.Rows, func(r Row) bool { return r.Name == "pairwise" })].Serves, "nothing is folded")
	_, err = Choose(&kolo.Call{Collective: kolo.AllReduce, DType: kolo.Float32, Count: 9}, OneServer(4), Policy{Reproducible: true, Algorithm: "ring"})
	require.ErrorIs(t, err, kolo.ErrUnsupported)
	require.ErrorContains(t, err, "not reproducible")
}

func TestForced(t *testing.T) {
	choose := func(c kolo.Collective, p Policy) (Choice, error) {
		return chooseFrom(paperTable(), c, 1<<20, OneServer(16), p)
	}
	ch, err := choose(kolo.AllReduce, Policy{Algorithm: "ring"})
	require.NoError(t, err)
	require.Equal(t, "ring", ch.Algorithm)
	require.Equal(t, "forced for all collectives", ch.Why)
	require.Equal(t, "not asked: ring is forced", ch.Rows[1].Why)
	require.Less(t, ch.Cost, NoCost)

	ch, err = choose(kolo.AllToAllV, Policy{Algorithm: "ring", Per: map[kolo.Collective]string{kolo.AllToAll: "pairwise"}})
	require.NoError(t, err)
	require.Equal(t, "pairwise", ch.Algorithm)
	require.Equal(t, "forced for AllToAll", ch.Why)

	_, err = choose(kolo.AllToAll, Policy{Algorithm: "ring"})
	require.ErrorIs(t, err, kolo.ErrUnsupported)
	require.ErrorContains(t, err, "algorithm ring, forced for all collectives, cannot do AllToAll for 16 ranks in 1 server")
	require.ErrorContains(t, err, "what can: mesh, pairwise")

	_, err = choose(kolo.AllReduce, Policy{Algorithm: "fabric"})
	require.ErrorIs(t, err, kolo.ErrUnsupported)
	require.ErrorContains(t, err, "no medium")

	_, err = choose(kolo.AllReduce, Policy{Algorithm: "quadrille"})
	require.ErrorIs(t, err, kolo.ErrArgument)
	require.ErrorContains(t, err, "quadrille")

	_, err = choose(kolo.Gather, Policy{})
	require.ErrorIs(t, err, kolo.ErrUnsupported)
	require.ErrorContains(t, err, "no algorithm does Gather")

	ch, err = choose(kolo.AllReduce, Policy{HCCLAlgo: "allreduce=level0:NA;level1:ring"})
	require.NoError(t, err)
	require.Equal(t, "ring", ch.Algorithm)
	require.Equal(t, "forced by HCCL_ALGO allreduce=level0:NA;level1:ring", ch.Why)
	_, err = choose(kolo.AllToAll, Policy{HCCLAlgo: "level1:ring"})
	require.ErrorIs(t, err, kolo.ErrUnsupported)
}

func TestPolicyValidate(t *testing.T) {
	require.NoError(t, Policy{}.Validate())
	require.NoError(t, Policy{Method: Static, Algorithm: "ring", HCCLAlgo: "level0:NA"}.Validate())
	for _, p := range []Policy{{Method: 9}, {Algorithm: "x"}, {Per: map[kolo.Collective]string{kolo.Reduce: "x"}}, {HCCLAlgo: "x"}} {
		require.ErrorIs(t, p.Validate(), kolo.ErrArgument, "%+v", p)
	}
}

func TestChooseRefusesWhatMakesNoSense(t *testing.T) {
	call := func(c kolo.Collective, count int64, counts ...int64) *kolo.Call {
		return &kolo.Call{Collective: c, DType: kolo.Float32, Count: count, Counts: counts}
	}
	for name, row := range map[string]struct {
		call *kolo.Call
		top  *Topology
	}{
		"send":           {call(kolo.Send, 1), OneServer(2)},
		"none":           {call(kolo.NoCollective, 1), OneServer(2)},
		"negative":       {call(kolo.AllReduce, -1), OneServer(2)},
		"too many":       {call(kolo.AllGather, math.MaxInt64/4), OneServer(2)},
		"too many in V":  {call(kolo.AllGatherV, 0, math.MaxInt64, 1), OneServer(2)},
		"negative in V":  {call(kolo.AllGatherV, 0, 3, -1), OneServer(2)},
		"short list":     {call(kolo.GatherV, 0, 1), OneServer(2)},
		"short matrix":   {call(kolo.AllToAllVC, 0, 1, 2), OneServer(2)},
		"negative in VC": {call(kolo.AllToAllVC, 0, 1, 2, -3, 4), OneServer(2)},
		"no dtype":       {&kolo.Call{Collective: kolo.AllReduce, DType: 77, Count: 1}, OneServer(2)},
		"no rank":        {call(kolo.AllReduce, 1), OneServer(0)},
		"bad topology":   {call(kolo.AllReduce, 1), &Topology{Server: []int{0, 5}, Rack: []int{0, 0}}},
	} {
		_, err := Choose(row.call, row.top, Policy{})
		require.ErrorIs(t, err, kolo.ErrArgument, name)
	}
	_, err := Choose(call(kolo.AllReduce, 1), OneServer(2), Policy{Method: 7})
	require.ErrorIs(t, err, kolo.ErrArgument)
}

func TestVectorSize(t *testing.T) {
	for _, row := range []struct {
		collective kolo.Collective
		counts     []int64
		want       int64
	}{
		{kolo.AllReduce, nil, 40},
		{kolo.Broadcast, nil, 40},
		{kolo.AllGather, nil, 120},
		{kolo.AllToAll, nil, 120},
		{kolo.Barrier, nil, 0},
		{kolo.ReduceScatterV, []int64{1, 2, 3}, 24},
		{kolo.AllToAllVC, []int64{1, 1, 1, 5, 0, 0, 2, 2, 2}, 24},
		{kolo.AllToAllV, []int64{1, 1, 1}, 3 << 16},
	} {
		got, err := VectorSize(&kolo.Call{Collective: row.collective, DType: kolo.Float32, Count: 10, Counts: row.counts}, 3)
		require.NoError(t, err)
		require.Equal(t, row.want, got, "%v", row.collective)
	}
}

func TestClassesOfSizes(t *testing.T) {
	for c := range Class(64) {
		if got := ClassOf(c.Size()); got != c {
			t.Errorf("class %d: its size %d is of class %d", c, c.Size(), got)
		}
	}
	require.Equal(t, Class(63), ClassOf(math.MaxInt64))
	require.Equal(t, Class(0), ClassOf(0))
	require.Equal(t, ClassOf(1024), ClassOf(2047))
}

// trialTopologies are the shapes that a choice is tried on, for n ranks.
func trialTopologies(t testing.TB, n int) map[string]*Topology {
	out := map[string]*Topology{"process": OneProcess(n), "server": OneServer(n), "net": flatNet(n)}
	if n >= 4 {
		out["servers"] = mustServers(t, n/2, n/2)
		out["uneven"] = mustServers(t, n-1, 1)
	}
	if n >= 8 {
		out["racks"] = mustRacks(t, []int{n / 4, n / 4}, []int{n / 4, n / 4})
	}
	return out
}

// Over the whole table of the package: a choice is made, it serves, it is the least
// of its rows, twice the same, and never cheaper for more bytes.
func TestChoicesAreSane(t *testing.T) {
	for _, n := range []int{2, 3, 8, 33, 1024} {
		for name, top := range trialTopologies(t, n) {
			for _, c := range kolo.Collectives() {
				if top.Ranks() > 64 && c.Base() != c {
					continue
				}
				last := time.Duration(-1)
				for size := int64(8); size <= 1<<30; size *= 64 {
					ch, err := ChooseSize(c, size, top, Policy{})
					if errors.Is(err, kolo.ErrUnsupported) {
						break // no algorithm of the table does it yet
					}
					require.NoError(t, err)
					where := fmt.Sprintf("%v, %d bytes, %s of %d", c, size, name, n)
					a, err := Lookup(ch.Algorithm)
					require.NoError(t, err)
					require.NoError(t, a.Serves(c, top), where)
					for _, r := range ch.Rows {
						if r.Serves && (r.Cost < ch.Cost || r.Cost < 0) {
							t.Errorf("%s: %s takes %v but %s %v", where, ch.Algorithm, ch.Cost, r.Name, r.Cost)
						}
					}
					if ch.Cost < last {
						t.Errorf("%s: %v, less than %v for fewer bytes", where, ch.Cost, last)
					}
					if last < 0 {
						again, err := ChooseSize(c, size, top, Policy{})
						require.NoError(t, err)
						require.Equal(t, ch.Explain(), again.Explain(), where)
					}
					last = ch.Cost
					if _, err := Lookup("fabric"); err == nil && name == "process" && ch.Algorithm != "fabric" {
						t.Errorf("%s: the medium loses\n%s", where, ch.Explain())
					}
				}
			}
		}
	}
}

func TestChoiceTables(t *testing.T) {
	var b strings.Builder
	show := func(title string, table []*Algorithm, c kolo.Collective, size int64, top *Topology, p Policy) {
		ch, err := chooseFrom(table, c, size, top, p)
		fmt.Fprintf(&b, "# %s\n", title)
		if err != nil {
			fmt.Fprintf(&b, "%v\n\n", err)
			return
		}
		fmt.Fprintf(&b, "%s%v\n\n", ch.Explain(), ch)
	}
	show("one process", paperTable(), kolo.AllReduce, 8, OneProcess(8), Policy{})
	show("one process, large", paperTable(), kolo.AllReduce, 64<<20, OneProcess(2), Policy{})
	show("a flat net", paperTable(), kolo.AllReduce, 1<<20, flatNet(33), Policy{})
	show("two servers", paperTable(), kolo.AllReduce, 4096, mustServers(t, 4, 4), Policy{})
	show("reproducible", paperTable(), kolo.AllReduce, 4096, flatNet(8), Policy{Reproducible: true})
	show("the static rule", paperTable(), kolo.AllReduce, 1<<20, OneServer(16), Policy{Method: Static})
	show("the static rule, not served", paperTable(), kolo.AllToAll, 1<<20, mustServers(t, 3, 1), Policy{Method: Static})
	show("forced", paperTable(), kolo.AllReduce, 1<<20, OneServer(8), Policy{Algorithm: "tree"})
	show("forced, not served", paperTable(), kolo.Broadcast, 1<<20, OneServer(8), Policy{Algorithm: "tree"})
	show("nothing serves", paperTable(), kolo.Scatter, 1<<20, OneServer(8), Policy{})
	golden(t, "choice.txt", b.String())
}

// Random figures: no cost is negative or NaN, and the choice does not depend on
// anything but its arguments.
func TestChooseWithAnyFigures(t *testing.T) {
	const seed = 3
	rng := rand.New(rand.NewSource(seed))
	for range 300 {
		top := OneServer(1 + rng.Intn(40))
		top.Medium = rng.Intn(2) == 0
		for l := range top.Levels {
			top.Levels[l] = kolo.Edge{Latency: time.Duration(rng.Int63() >> rng.Intn(63)), Bandwidth: math.Exp(rng.NormFloat64() * 30)}
		}
		top.Reduce = math.Exp(rng.NormFloat64() * 30)
		ch, err := chooseFrom(paperTable(), kolo.AllReduce, rng.Int63()>>rng.Intn(63), top, Policy{})
		require.NoError(t, err, "seed %d", seed)
		for _, r := range ch.Rows {
			if r.Cost < 0 || r.Serves && r.Cost < ch.Cost {
				t.Fatalf("seed %d: %s", seed, ch.Explain())
			}
		}
	}
}

func BenchmarkChoose(b *testing.B) {
	for _, n := range []int{8, 1024} {
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
			top, c := OneProcess(n), &kolo.Call{Collective: kolo.AllReduce, DType: kolo.Float32, Count: 1024}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Choose(c, top, Policy{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestForceTakesANameOrAnExpression(t *testing.T) {
	base := Policy{Reproducible: true, Algorithm: "ring", HCCLAlgo: "level0:NA"}
	for setting, want := range map[string]Policy{
		"":                              {Reproducible: true},
		"nhr":                           {Reproducible: true, Algorithm: "nhr"},
		"rign":                          {Reproducible: true, Algorithm: "rign"},
		"hier:mesh+nhr":                 {Reproducible: true, Algorithm: "hier:mesh+nhr"},
		"level0:NA;level1:ring":         {Reproducible: true, HCCLAlgo: "level0:NA;level1:ring"},
		"Level1:NHR":                    {Reproducible: true, HCCLAlgo: "Level1:NHR"},
		"allreduce=level0:NA/others=NA": {Reproducible: true, HCCLAlgo: "allreduce=level0:NA/others=NA"},
	} {
		require.Equal(t, want, base.Force(setting), setting)
	}
}
