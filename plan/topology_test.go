package plan

import (
	"math"
	"math/rand"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kolo-ccl/kolo"
)

func mustServers(t testing.TB, sizes ...int) *Topology {
	t.Helper()
	top, err := Servers(sizes...)
	require.NoError(t, err)
	return top
}

func mustRacks(t testing.TB, list ...[]int) *Topology {
	t.Helper()
	top, err := Racks(list...)
	require.NoError(t, err)
	return top
}

func TestTopologyIsChecked(t *testing.T) {
	for _, row := range []struct {
		name         string
		server, rack []int
		text         string
	}{
		{"no ranks", nil, nil, "at least one rank"},
		{"other length", []int{0, 0}, []int{0}, "2 ranks with servers and 1 with racks"},
		{"gap", []int{0, 2, 2}, []int{0, 0, 0}, "no rank is in server 1"},
		{"negative", []int{0, -1}, []int{0, 0}, "rank 1 is in server -1"},
		{"too large", []int{0, 0}, []int{0, 7}, "rank 1 is in rack 7"},
		{"server in two racks", []int{0, 1, 0}, []int{0, 1, 1}, "server 0 is in rack 0 by rank 0 and in rack 1 by rank 2"},
	} {
		t.Run(row.name, func(t *testing.T) {
			_, err := Places(row.server, row.rack)
			require.ErrorIs(t, err, kolo.ErrArgument)
			require.ErrorContains(t, err, row.text)
		})
	}
	for name, call := range map[string]func() (*Topology, error){
		"no servers":      func() (*Topology, error) { return Servers() },
		"no racks":        func() (*Topology, error) { return Racks() },
		"empty server":    func() (*Topology, error) { return Servers(2, 0) },
		"empty rack":      func() (*Topology, error) { return Racks([]int{1}, nil) },
		"negative edge":   func() (*Topology, error) { return OneServer(2).With(Probe{Levels: [3]kolo.Edge{{Latency: -1}}}) },
		"not a number":    func() (*Topology, error) { return OneServer(2).With(Probe{Reduce: math.NaN()}) },
		"infinite memory": func() (*Topology, error) { return OneServer(2).With(Probe{Process: Process{Memory: math.Inf(1)}}) },
		"pair with self":  func() (*Topology, error) { return OneServer(2).WithEdges([]Pair{{1, 1, defaultLevels[0]}}) },
		"pair outside":    func() (*Topology, error) { return OneServer(2).WithEdges([]Pair{{0, 2, defaultLevels[0]}}) },
		"no bandwidth":    func() (*Topology, error) { return OneServer(2).WithEdges([]Pair{{0, 1, kolo.Edge{Latency: 1}}}) },
	} {
		_, err := call()
		require.ErrorIs(t, err, kolo.ErrArgument, name)
	}
	require.ErrorIs(t, OneServer(-1).Validate(), kolo.ErrArgument)
}

func TestEdgeByLevel(t *testing.T) {
	top := mustRacks(t, []int{2, 1}, []int{2})
	top.Medium = true
	for _, row := range []struct {
		a, b kolo.Rank
		want kolo.Edge
	}{
		{0, 0, kolo.Edge{Link: kolo.LinkSelf, Bandwidth: 25e9}},
		{0, 1, defaultLevels[0]},
		{1, 2, defaultLevels[1]},
		{2, 3, defaultLevels[2]},
		{4, 3, defaultLevels[0]},
	} {
		require.Equal(t, row.want, top.Edge(row.a, row.b), "%v to %v", row.a, row.b)
	}
	bare := &Topology{Server: []int{0, 0, 1}, Rack: []int{0, 0, 0}}
	require.Equal(t, defaultLevels[1], bare.Edge(0, 2), "a topology without figures has the defaults")
	require.Equal(t, "3 ranks in 2 servers of 2, 1: in a server hccs 300ns 10 GB/s; between servers tcp 30µs 1.2 GB/s; reduce 8 GB/s; servers of unequal size", bare.String())
}

func TestSubNumbersServersAnew(t *testing.T) {
	top := mustRacks(t, []int{2, 2}, []int{2, 3})
	top, err := top.WithEdges([]Pair{{0, 8, kolo.Edge{Link: kolo.LinkRoCE, Latency: 5 * time.Microsecond, Bandwidth: 10e9}}})
	require.NoError(t, err)
	sub := top.Sub([]kolo.Rank{8, 4, 0, 7})
	require.NoError(t, sub.Validate())
	require.Equal(t, []int{0, 1, 2, 0}, sub.Server)
	require.Equal(t, []int{0, 0, 1, 0}, sub.Rack)
	require.Equal(t, [][]kolo.Rank{{0, 3}, {1}, {2}}, sub.Groups())
	for i, a := range []kolo.Rank{8, 4, 0, 7} {
		for j, b := range []kolo.Rank{8, 4, 0, 7} {
			require.Equal(t, top.Edge(a, b), sub.Edge(kolo.Rank(i), kolo.Rank(j)), "%d to %d", a, b)
		}
	}
	require.Panics(t, func() { top.Sub([]kolo.Rank{1, 1}) })
	require.Panics(t, func() { top.Sub([]kolo.Rank{9}) })
}

func TestAsymmetric(t *testing.T) {
	edge := func(gb float64, lat time.Duration) kolo.Edge {
		return kolo.Edge{Link: kolo.LinkSHM, Latency: lat, Bandwidth: gb * 1e9}
	}
	measured := func(e ...kolo.Edge) *Topology {
		top, err := OneServer(3).WithEdges([]Pair{{0, 1, e[0]}, {1, 2, e[1]}, {2, 0, e[2]}})
		require.NoError(t, err)
		return top
	}
	for _, row := range []struct {
		name string
		top  *Topology
		want string
	}{
		{"one server", OneServer(5), ""},
		{"equal servers", mustServers(t, 3, 3), ""},
		{"unequal servers", mustServers(t, 3, 2), "servers of unequal size"},
		{"unequal racks", mustRacks(t, []int{2, 2}, []int{2}), "racks of unequal size"},
		{"pairs alike", measured(edge(1, 2000), edge(1.5, 1000), edge(2.9, 1500)), ""},
		{"slow pair", measured(edge(1, 1000), edge(8, 1000), edge(8, 1000)), "pairs of a server from 1 GB/s to 8.2 GB/s"},
		{"late pair", measured(edge(1, 1000), edge(1, 1000), edge(1, 9100)), "pairs of a server from 1µs to 9.1µs"},
	} {
		require.Equal(t, row.want, row.top.Asymmetric(), row.name)
	}
	late := measured(edge(1, 1000), edge(1, 1000), edge(1, 9100))
	require.Empty(t, late.Sub([]kolo.Rank{0, 1}).Asymmetric(), "the late pair is not in the group")
}

func TestProbeOrderAndDirectionDoNotMatter(t *testing.T) {
	rng := rand.New(rand.NewSource(1))
	var pairs []Pair
	for a := range kolo.Rank(6) {
		for b := range kolo.Rank(6) {
			if a != b {
				pairs = append(pairs, Pair{a, b, kolo.Edge{Link: kolo.LinkTCP,
					Latency: time.Duration(1000 + rng.Intn(9000)), Bandwidth: 1e9 + rng.Float64()*1e9}})
			}
		}
	}
	base := mustServers(t, 3, 3)
	want, err := base.WithEdges(pairs)
	require.NoError(t, err)
	require.Equal(t, want.Edge(1, 4), want.Edge(4, 1))
	for range 20 {
		rng.Shuffle(len(pairs), func(i, j int) { pairs[i], pairs[j] = pairs[j], pairs[i] })
		got, err := base.WithEdges(pairs)
		require.NoError(t, err)
		require.Equal(t, want.Digest(), got.Digest())
		require.Equal(t, want.Levels, got.Levels)
	}
}

func TestLevelTakesTheMiddleOfItsPairs(t *testing.T) {
	e := func(us, gb int) kolo.Edge {
		return kolo.Edge{Link: kolo.LinkTCP, Latency: time.Duration(us) * time.Microsecond, Bandwidth: float64(gb) * 1e9}
	}
	top, err := OneServer(3).WithEdges([]Pair{{0, 1, e(1, 3)}, {0, 2, e(500, 1)}, {1, 2, e(2, 2)}})
	require.NoError(t, err)
	require.Equal(t, e(2, 2), top.Levels[0])
	require.Equal(t, e(510, 1), top.Edge(0, 2), "500 us is not a preferred number")
	top, err = OneServer(3).With(Probe{Pairs: []Pair{{0, 1, e(1, 3)}}, Levels: [3]kolo.Edge{e(10, 1)}})
	require.NoError(t, err)
	require.Equal(t, e(10, 1), top.Levels[0], "what is stated counts")
}

func TestQuantise(t *testing.T) {
	for _, row := range [][2]float64{{0, 0}, {7, 7}, {9.6, 10}, {10, 10}, {14, 15}, {296, 300}, {1049, 1000}, {1051, 1100}, {95.4, 91}, {95.6, 100}, {9.56e9, 10e9}, {1.24e9, 1.2e9}, {2e18, 2e18}} {
		if got := Quantise(row[0]); got != row[1] {
			t.Errorf("Quantise(%v) = %v, want %v", row[0], got, row[1])
		}
	}
	rng := rand.New(rand.NewSource(2))
	last := 0.0
	for x := 100.0; x < 1e15; x *= 1 + rng.Float64()/50 {
		q := Quantise(x)
		if math.Abs(q/x-1) > 0.08 || Quantise(q) != q || q < last {
			t.Fatalf("Quantise(%v) = %v after %v", x, q, last)
		}
		last = q
	}
	require.Equal(t, int64(math.MaxInt64), preferred(math.MaxInt64))
}

func TestDigest(t *testing.T) {
	base := mustRacks(t, []int{2, 2}, []int{4})
	require.Equal(t, uint64(digestOfRacks), base.Digest(), "the form of the digest is part of the protocol between ranks")
	bare := &Topology{Server: base.Server, Rack: base.Rack}
	require.Equal(t, base.Digest(), bare.Digest(), "no figure is the default figure")
	fast := kolo.Edge{Link: kolo.LinkSHM, Latency: 1000, Bandwidth: 20e9}
	seen := map[uint64]string{base.Digest(): "base"}
	for name, p := range map[string]Probe{
		"level":   {Levels: [3]kolo.Edge{{}, fast}},
		"pair":    {Pairs: []Pair{{0, 5, fast}}, Levels: defaultLevels},
		"other":   {Pairs: []Pair{{0, 6, fast}}, Levels: defaultLevels},
		"reduce":  {Reduce: 1e9},
		"medium":  {Medium: true},
		"memory":  {Medium: true, Process: Process{Memory: 10e9}},
		"4 cores": {Medium: true, Process: Process{Cores: 4}},
	} {
		top, err := base.With(p)
		require.NoError(t, err)
		if other, ok := seen[top.Digest()]; ok {
			t.Errorf("%s and %s share a digest", name, other)
		}
		seen[top.Digest()] = name
	}
	same, err := base.With(Probe{Process: Process{Memory: 10e9}})
	require.NoError(t, err)
	require.Equal(t, base.Digest(), same.Digest(), "figures of a medium that is not there do not count")
}

// digestOfRacks is what every machine and version computes.
const digestOfRacks = 0x6877d38bb1472110

// Coarse takes the nearest of six steps per factor of ten by ratio, and leaves those alone.
func TestCoarse(t *testing.T) {
	for x, want := range map[float64]float64{0: 0, 3: 3, 9: 9, 9.6: 10, 11: 10, 12.2: 10, 13: 15, 18: 15, 19: 22, 99: 100, 1210: 1000, 1230: 1500,
		6799: 6800, 8.2e9: 6.8e9, 8.3e9: 10e9, 1e18: 1e18} {
		require.Equal(t, want, Coarse(x), "%v", x)
	}
	for x := 10.0; x < 1e12; x *= 1.013 {
		got := Coarse(x)
		require.Equal(t, got, Coarse(got))
		require.Equal(t, got, Quantise(got), "a step of the finer rounding too")
		require.Less(t, max(got/x, x/got), 1.26, "%v", x)
	}
	require.True(t, math.IsNaN(Coarse(math.NaN())))
}

// Where figures come from is said, and nothing depends on it.
func TestSourcesOfFigures(t *testing.T) {
	topo, err := Servers(2, 2)
	require.NoError(t, err)
	measured := *topo
	measured.Sources[1] = "measured"
	require.Equal(t, topo.Digest(), measured.Digest())
	require.Equal(t, "4 ranks in 2 servers of 2: in a server hccs 300ns 10 GB/s; between servers tcp 30µs 1.2 GB/s (measured); reduce 8 GB/s", measured.String())
	require.Contains(t, measured.Sub([]kolo.Rank{0, 2}).String(), "(measured)")
}
