package survey

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/internal/golden"
)

// boards is hosts of so many ranks, a process each: hccs between ranks 2i and 2i+1, shm
// between the others of a host, roce between hosts; every figure differs a little.
func boards(hosts, each int) *Survey {
	s := &Survey{}
	for h := range hosts {
		for d := range each {
			s.Places = append(s.Places, Place{Process: h*each + d, Host: fmt.Sprintf("n%d", h), Rack: fmt.Sprintf("r%d", h/2), Addresses: []string{fmt.Sprintf("10.0.0.%d", h+1)}, Device: d})
		}
	}
	n := kolo.Rank(len(s.Places))
	for a := range n {
		for b := range n {
			e := kolo.Edge{Link: kolo.LinkSHM, Latency: 2000, Bandwidth: 8e9}
			switch {
			case a == b:
				continue
			case s.Places[a].Host != s.Places[b].Host:
				e = kolo.Edge{Link: kolo.LinkRoCE, Latency: 5000, Bandwidth: 20e9}
			case a/2 == b/2:
				e = kolo.Edge{Link: kolo.LinkHCCS, Latency: 1000, Bandwidth: 50e9}
			}
			e.Bandwidth += float64(a)*1e6 + float64(b)*1e3
			s.Ways = append(s.Ways, Way{From: a, To: b, Edge: e})
		}
	}
	return s
}

// change changes the way between two ranks, both ways.
func change(s *Survey, a, b kolo.Rank, f func(*Way)) {
	for i := range s.Ways {
		if w := &s.Ways[i]; pairOf(w.From, w.To) == pairOf(a, b) {
			f(w)
		}
	}
}

func to(l kolo.Link) func(*Way) { return func(w *Way) { w.Edge.Link = l } }

func TestJSONIsReadBack(t *testing.T) {
	s := boards(2, 4)
	change(s, 1, 6, func(w *Way) { w.Lost, w.Edge = "cut \"off\"", kolo.Edge{Link: kolo.LinkTCP} })
	text, err := s.JSON()
	require.NoError(t, err)
	got, err := Parse(text)
	require.NoError(t, err)
	require.Equal(t, s, got)
	one, err := s.Topology()
	require.NoError(t, err)
	two, err := got.Topology()
	require.NoError(t, err)
	require.Equal(t, one.Digest(), two.Digest())
	golden.Equal(t, "small.json", string(must(boards(1, 2).JSON())))
	for cut := range text {
		if _, err := Parse(text[:cut]); err == nil && strings.TrimSpace(string(text[cut:])) != "" {
			t.Fatalf("cut after %d bytes it can still be read", cut)
		}
	}
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}

func TestWhatIsNoTopology(t *testing.T) {
	rank := `{"rank": 0, "host": "a"}, {"rank": 1, "host": "b"}`
	for _, row := range []struct{ name, text, want string }{
		{"nothing", "", "EOF"},
		{"another version", `{"kolo_topology": 2}`, "kolo_topology is 2; want 1"},
		{"misspelt", `{"kolo_topology": 1, "rank": []}`, `unknown field "rank"`},
		{"more", `{"kolo_topology": 1, "ranks": [` + rank + `]} {}`, "something follows"},
		{"no ranks", `{"kolo_topology": 1}`, "0 ranks"},
		{"twice", `{"kolo_topology": 1, "ranks": [{"rank": 0}, {"rank": 0}]}`, "entry 1 of ranks"},
		{"gap", `{"kolo_topology": 1, "ranks": [{"rank": 1}]}`, "entry 0 of ranks"},
		{"no number", `{"kolo_topology": 1, "ranks": [{}]}`, "entry 0 of ranks"},
		{"kind", `{"kolo_topology": 1, "ranks": [` + rank + `], "links": [{"from": 0, "to": 1, "link": "ib", "bandwidth": 1}]}`, "no kind of link"},
		{"self", `{"kolo_topology": 1, "ranks": [` + rank + `], "links": [{"from": 1, "to": 1, "link": "tcp", "bandwidth": 1}]}`, "none has a link with itself"},
		{"outside", `{"kolo_topology": 1, "ranks": [` + rank + `], "links": [{"from": 0, "to": 2, "link": "tcp", "bandwidth": 1}]}`, "the ranks are 0 to 1"},
		{"negative", `{"kolo_topology": 1, "ranks": [` + rank + `], "links": [{"from": 0, "to": 1, "link": "tcp", "bandwidth": -1}]}`, "negative"},
		{"no bandwidth", `{"kolo_topology": 1, "ranks": [` + rank + `], "links": [{"from": 0, "to": 1, "link": "tcp"}]}`, "without bandwidth"},
		{"a link twice", `{"kolo_topology": 1, "ranks": [` + rank + `], "links": [{"from": 0, "to": 1, "link": "tcp", "bandwidth": 1}, {"from": 0, "to": 1, "link": "shm", "bandwidth": 1}]}`, "twice"},
		{"process on two hosts", `{"kolo_topology": 1, "ranks": [{"rank": 0, "host": "a", "process": 0}, {"rank": 1, "host": "b", "process": 0}]}`, "process 0 is on host"},
	} {
		t.Run(row.name, func(t *testing.T) {
			_, err := Parse([]byte(row.text))
			require.ErrorContains(t, err, row.want)
			if !errors.Is(err, kolo.ErrArgument) {
				t.Errorf("%v is no ErrArgument", err)
			}
		})
	}
}

func TestRankTables(t *testing.T) {
	s := boards(4, 2)
	for _, version := range TableVersions {
		text, err := s.RankTable(version)
		require.NoError(t, err)
		golden.Equal(t, "table-"+version+".json", string(text))
	}
	_, err := s.RankTable("3")
	require.ErrorIs(t, err, kolo.ErrArgument)
	s.Places[1], s.Places[2] = s.Places[2], s.Places[1]
	_, err = s.RankTable("1.0")
	require.ErrorIs(t, err, kolo.ErrUnsupported)
	require.ErrorContains(t, err, "ranks 0 and 2 are on host")
}

func TestTopologyStandsForOtherRanks(t *testing.T) {
	s := &Survey{Places: []Place{{Process: 0, Host: "a"}, {Process: 0, Host: "a"}, {Process: 0, Host: "a"}, {Process: 1, Host: "a"}, {Process: 1, Host: "a"}, {Process: 2, Host: "b"}}}
	s.Ways = []Way{
		{0, 1, kolo.Edge{Link: kolo.LinkHCCS, Latency: 300, Bandwidth: 10e9}, ""},
		{0, 3, kolo.Edge{Link: kolo.LinkSHM, Latency: 2000, Bandwidth: 5e9}, ""},
		{5, 0, kolo.Edge{Link: kolo.LinkTCP, Latency: 30000, Bandwidth: 1e9}, ""},
	}
	topology, err := s.Topology()
	require.NoError(t, err)
	require.Equal(t, kolo.LinkHCCS, topology.Edge(2, 1).Link)
	require.Equal(t, kolo.LinkSHM, topology.Edge(2, 4).Link)
	require.Equal(t, 5.1e9, topology.Edge(4, 1).Bandwidth, "rounded to a preferred number")
	require.Equal(t, kolo.LinkTCP, topology.Edge(5, 1).Link)
	require.Equal(t, 3, len(topology.Groups()), "servers are processes")
	require.Equal(t, []int{0, 0, 0, 0, 0, 1}, topology.Rack, "racks are hosts")
	one, err := boards(4, 1).Topology()
	require.NoError(t, err)
	require.Equal(t, []int{0, 1, 2, 3}, one.Server)
	require.Equal(t, []int{0, 0, 1, 1}, one.Rack)
}

// listed are findings as text.
func listed(l []Finding) string {
	var b strings.Builder
	for _, f := range l {
		fmt.Fprintln(&b, f)
	}
	return b.String()
}

func TestDiff(t *testing.T) {
	var all strings.Builder
	for _, row := range []struct {
		name string
		do   func(s *Survey)
	}{
		{"nothing", func(*Survey) {}},
		{"a little slower", func(s *Survey) { change(s, 0, 1, func(w *Way) { w.Edge.Bandwidth *= 0.8; w.Edge.Latency *= 3 }) }},
		{"better", func(s *Survey) { change(s, 0, 2, to(kolo.LinkHCCS)) }},
		{"crossed cables", func(s *Survey) {
			change(s, 0, 1, to(kolo.LinkPCIe))
			change(s, 2, 3, to(kolo.LinkPCIe))
			change(s, 0, 2, to(kolo.LinkHCCS))
			change(s, 1, 3, to(kolo.LinkHCCS))
		}},
		{"fell to PCIe", func(s *Survey) { change(s, 2, 3, to(kolo.LinkPCIe)) }},
		{"fell to TCP", func(s *Survey) { change(s, 1, 5, to(kolo.LinkTCP)) }},
		{"no shared memory", func(s *Survey) { change(s, 1, 2, to(kolo.LinkTCP)) }},
		{"a slow link", func(s *Survey) { change(s, 1, 5, func(w *Way) { w.Edge.Bandwidth *= 0.3 }) }},
		{"a late link", func(s *Survey) { change(s, 1, 5, func(w *Way) { w.Edge.Latency = 50 * time.Microsecond }) }},
		{"a slow rank", func(s *Survey) {
			for b := range kolo.Rank(8) {
				change(s, 6, b, func(w *Way) { w.Edge.Bandwidth *= 0.4 })
			}
		}},
		{"a lost link", func(s *Survey) { change(s, 3, 4, func(w *Way) { w.Lost = "deadline exceeded" }) }},
		{"exchanged hosts", func(s *Survey) { s.Places[3], s.Places[7] = s.Places[7], s.Places[3] }},
		{"another host", func(s *Survey) { s.Places[7].Host = "n9"; s.Places[7].Addresses = []string{"10.0.0.9"} }},
		{"fewer ranks", func(s *Survey) { *s = *boards(1, 4) }},
	} {
		s := boards(2, 4)
		row.do(s)
		fmt.Fprintf(&all, "--- %s\n%s", row.name, listed(s.Diff(boards(2, 4), Tolerance{})))
	}
	golden.Equal(t, "diff.txt", all.String())
}

func TestLint(t *testing.T) {
	var all strings.Builder
	for _, row := range []struct {
		name string
		do   func(s *Survey)
	}{
		{"nothing", func(*Survey) {}},
		{"unequal servers", func(s *Survey) {
			s.Places[3].Host = "n1"
			s.Places[3].Device = 4
			s.Places[3].Addresses = s.Places[4].Addresses
		}},
		{"interleaved", func(s *Survey) { s.Places[3], s.Places[4] = s.Places[4], s.Places[3] }},
		{"one address twice", func(s *Survey) {
			for r := range 4 {
				s.Places[4+r].Addresses = s.Places[0].Addresses
			}
		}},
		{"loopback", func(s *Survey) {
			for r := range 4 {
				s.Places[4+r].Addresses = []string{"127.0.1.1"}
			}
		}},
		{"families", func(s *Survey) {
			for r := range 4 {
				s.Places[4+r].Addresses = []string{"fd00::1"}
			}
		}},
		{"no address", func(s *Survey) { s.Places[0].Addresses = nil; s.Places[4].Addresses = []string{"n1"} }},
		{"a device twice", func(s *Survey) { s.Places[2].Device = 1 }},
		{"two racks", func(s *Survey) { s.Places[2].Rack = "r5" }},
		{"no way back", func(s *Survey) { s.Ways = append(s.Ways[:1], s.Ways[2:]...) }},
		{"lost one way", func(s *Survey) { s.Ways[1].Lost = "no route" }},
		{"lost", func(s *Survey) { change(s, 0, 7, func(w *Way) { w.Lost = "no route" }) }},
		{"other kinds", func(s *Survey) { s.Ways[3].Edge.Link = kolo.LinkTCP }},
		{"slower one way", func(s *Survey) { s.Ways[3].Edge.Bandwidth /= 2.5 }},
		{"uneven", func(s *Survey) { change(s, 0, 7, func(w *Way) { w.Edge.Bandwidth /= 4 }) }},
	} {
		s := boards(2, 4)
		row.do(s)
		fmt.Fprintf(&all, "--- %s\n%s", row.name, listed(s.Lint()))
	}
	golden.Equal(t, "lint.txt", all.String())
}

func TestString(t *testing.T) {
	s := boards(2, 2)
	change(s, 0, 3, func(w *Way) { w.Lost = "no route" })
	golden.Equal(t, "show.txt", s.String())
	if m := boards(2, 16).Matrix(); m != "" {
		t.Errorf("a matrix of 32 processes: %s", m)
	}
}

func TestSurveysAtRandomAreReadBack(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 1))
	for range 100 {
		s := boards(1+rng.IntN(3), 1+rng.IntN(4))
		for i := range s.Ways {
			s.Ways[i].Edge.Latency, s.Ways[i].Edge.Bandwidth = time.Duration(rng.IntN(1e6)), float64(1+rng.IntN(1e9))
		}
		rng.Shuffle(len(s.Ways), func(i, j int) { s.Ways[i], s.Ways[j] = s.Ways[j], s.Ways[i] })
		s.Ways = s.Ways[:rng.IntN(len(s.Ways)+1)]
		s.Sort()
		got, err := Parse(must(s.JSON()))
		require.NoError(t, err, "seed %d", seed)
		require.Equal(t, len(s.Ways), len(got.Ways), "seed %d", seed)
		if l := got.Diff(s, Tolerance{}); l != nil {
			t.Errorf("seed %d: it differs from itself: %v", seed, l)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(must(boards(2, 2).JSON()))
	f.Add([]byte(`{"kolo_topology": 1, "ranks": [{"rank": 0}], "links": []}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := Parse(text)
		if err != nil {
			if !errors.Is(err, kolo.ErrArgument) && !errors.Is(err, kolo.ErrLimit) {
				t.Fatalf("an error of no kind: %v", err)
			}
			return
		}
		again, err := Parse(must(s.JSON()))
		require.NoError(t, err)
		require.Len(t, again.Ways, len(s.Ways))
		_, _, _ = s.String(), s.Lint(), s.Diff(again, Tolerance{})
		if _, err := s.Topology(); err != nil && !errors.Is(err, kolo.ErrLimit) && len(s.Lint()) == 0 {
			t.Fatalf("it has no topology, and nothing is wrong with it: %v", err)
		}
		for _, v := range TableVersions {
			if table, err := s.RankTable(v); err == nil {
				require.True(t, json.Valid(table))
			}
		}
	})
}
