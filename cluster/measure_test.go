package cluster

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/channel/faulty"
	"github.com/kolo-ccl/kolo/plan"
	"github.com/kolo-ccl/kolo/rank"
)

// wrapped is a configuration whose drivers go wrong as a script says.
func wrapped(transport, script string) Config {
	return Config{Transport: transport, Rank: rank.Config{Timeout: patience, Wrap: func(d channel.Driver) (channel.Driver, error) { return faulty.New(d, script, 1) }}}
}

func explain(t *testing.T, w *rank.World, count int64) plan.Choice {
	ch, err := w.Group().Explain(kolo.Call{Collective: kolo.AllReduce, DType: kolo.Float32, Op: kolo.Sum, Count: count})
	require.NoError(t, err)
	return ch
}

// All processes have one table, whatever they have measured, and calls work by it.
func TestJoinGivesAllProcessesOneTable(t *testing.T) {
	for _, row := range []struct {
		transport string
		measure   Measure
		sizes     []int
	}{
		{"tcp", MeasureQuick, []int{1, 1, 1, 1}},
		{"shm", MeasureQuick, []int{1, 1, 1}},
		{"", MeasureQuick, []int{2, 1, 3}},
		{"tcp", MeasureThorough, []int{1, 2}},
		{"tcp", MeasureOff, []int{1, 1}},
	} {
		t.Run(fmt.Sprintf("%s/%v/%v", row.transport, row.measure, row.sizes), func(t *testing.T) {
			list := together(t, Config{Transport: row.transport, Measure: row.measure, Rank: rank.Config{Timeout: patience}}, row.sizes...)
			worlds := worldsOf(list)
			first := list[0]
			t.Log(first.Explain())
			for _, p := range list {
				require.Equal(t, first.Topology().Digest(), p.Topology().Digest())
				require.Equal(t, first.Topology().String(), p.Topology().String())
				require.Equal(t, first.Explain(), p.Explain())
				require.Equal(t, first.Warnings(), p.Warnings())
			}
			quick := row.measure == MeasureQuick && first.figures.topology == nil // on a machine that others use
			text := explain(t, worlds[0], 1000).Explain()
			source := slices.IndexFunc(worlds[0].Settings(), func(s rank.Setting) bool { return s.Name == "Topology" && s.Source == "measured at the join" })
			if row.measure == MeasureOff {
				require.NotContains(t, first.Explain(), "measured")
				require.NotRegexp(t, `GB/s \(.*measured`, text)
				require.Negative(t, source)
			} else if require.Contains(t, first.Explain(), "measured at the join: "); !quick {
				require.Regexp(t, `measured( within [23]x of it)?\)`, text)
				require.GreaterOrEqual(t, source, 0)
			}
			for r, err := range each(worlds, func(w *rank.World) error { return allReduce(t.Context(), w.Group(), allRanks(len(worlds)), 1000) }) {
				require.NoError(t, err, "rank %d", r)
			}
			for _, w := range worlds { // that of a meeting that has not ended in time a little later
				require.Eventually(t, func() bool { return len(w.Groups()) == 1 }, patience, time.Millisecond, "the meetings' groups are closed")
			}
			closeAll(t, worlds)
		})
	}
}

// A link that takes its time is found, named, and chosen by: where each message takes 3 ms
// what needs the fewest of them one after the other is best.
func TestJoinFindsALinkOfLongDelay(t *testing.T) {
	plain := together(t, Config{Transport: "tcp", Measure: MeasureOff}, 1, 1, 1, 1)
	usual := explain(t, plain[0].Worlds()[0], 256<<10)
	closeAll(t, worldsOf(plain))
	slow := wrapped("tcp", "delay * -> * 3ms")
	slow.Measure = MeasureThorough // which has the time on a machine that others use, too
	list := together(t, slow, 1, 1, 1, 1)
	worlds := worldsOf(list)
	for _, p := range list {
		e := p.Topology().Default(0)
		require.GreaterOrEqual(t, e.Latency, 3*time.Millisecond)
		require.Less(t, e.Latency, 50*time.Millisecond)
		require.Equal(t, "measured", p.Topology().Sources[0])
		ch := explain(t, p.Worlds()[0], 256<<10)
		require.NotEqual(t, usual.Algorithm, ch.Algorithm)
		require.Equal(t, explain(t, worlds[0], 256<<10).Algorithm, ch.Algorithm)
		require.True(t, slices.ContainsFunc(p.Warnings(), func(w Warning) bool {
			return strings.HasPrefix(w.Pairs, "tcp between rank 0 with 1") && strings.HasPrefix(w.Check, "a long delay: ") && strings.Contains(w.Check, "expected 6µs")
		}), "%v", p.Warnings())
	}
	for r, err := range each(worlds, func(w *rank.World) error { return allReduce(t.Context(), w.Group(), allRanks(4), 1000) }) {
		require.NoError(t, err, "rank %d", r)
	}
	closeAll(t, worlds)
}

// Where nothing passes the join takes its quarter of a second longer, and the defaults hold
// on all processes; where one link is dead the others count.
func TestJoinGoesOnWithoutWhatCannotBeMeasured(t *testing.T) {
	for name, c := range map[string]struct {
		script  string
		measure Measure
	}{
		"nothing passes":  {"lose * -> *", MeasureQuick},
		"one way is dead": {"lose 0 -> 2", MeasureThorough},
		"one breaks":      {"cut 0 -> 2 after 3", MeasureThorough},
	} {
		t.Run(name, func(t *testing.T) {
			broken := wrapped("tcp", c.script)
			broken.Measure = c.measure // thorough has the time on a machine that others use, too
			list := together(t, broken, 1, 1, 1)
			base, err := list[0].roster.topology("tcp")
			require.NoError(t, err)
			for _, p := range list {
				require.Equal(t, list[0].Topology().Digest(), p.Topology().Digest())
				require.Equal(t, list[0].Explain(), p.Explain())
				if c.measure == MeasureQuick {
					require.Equal(t, base.Digest(), p.Topology().Digest())
					require.Contains(t, p.Explain(), "the default figures hold: nothing was measured in time")
					require.Empty(t, p.Topology().Sources[0])
				} else {
					require.Contains(t, p.Explain(), "1 of 2 ways")
				}
			}
			for _, err := range each(worldsOf(list), func(w *rank.World) error { return w.Close(context.Background()) }) {
				require.NoError(t, err)
			}
		})
	}
}

// What measuring costs is bounded, though nothing answers.
func TestMeasuringIsBounded(t *testing.T) {
	took := func(c Config) time.Duration {
		best := time.Duration(0)
		for range 3 {
			begin := time.Now()
			list := together(t, c, 1, 1, 1, 1)
			if d := time.Since(begin); best == 0 || d < best {
				best = d
			}
			closeAll(t, worldsOf(list))
		}
		return best
	}
	off := took(Config{Transport: "tcp", Measure: MeasureOff})
	quick := took(Config{Transport: "tcp"})
	mute := took(wrapped("tcp", "lose * -> *"))
	t.Logf("without %v, quick %v, where nothing passes %v", off, quick, mute)
	require.Less(t, mute, off+time.Second) // a quarter of it, and what the machine has to do besides
	require.Less(t, quick, off+time.Second)
}

// A process that ends while links are measured ends the join of the others, who name it.
func TestProcessThatEndsWhileLinksAreMeasured(t *testing.T) {
	list := spawn(t, "join", 3, "KOLO_TEST_TRANSPORT=tcp", "KOLO_TEST_DIES=1")
	for _, r := range []int{0, 2} {
		begin := time.Now()
		said := list[r].wait(t, "JOIN", patience)
		require.Contains(t, said, "connection lost")
		require.Contains(t, said, "rank 1 (pid")
		require.Less(t, time.Since(begin), inTime)
	}
}

// All processes measure alike, or are told why they do not join.
func TestProcessesThatMeasureOtherwiseAreRefused(t *testing.T) {
	_, errs := tryEach(t, Config{Rendezvous: standing(t), Transport: "tcp", Timeout: 20 * time.Second}, func(i int, c *Config) {
		if i == 1 {
			c.Measure = MeasureOff
		}
	}, 1, 1, 1)
	for _, err := range errs {
		require.ErrorIs(t, err, kolo.ErrMismatch)
		require.ErrorContains(t, err, "measure off")
	}
	_, err := Config{Getenv: func(k string) string {
		return map[string]string{"KOLO_MEASURE": "some", "RANK": "0", "WORLD_SIZE": "1"}[k]
	}}.withDefaults()
	require.ErrorContains(t, err, "KOLO_MEASURE")
	c, err := Config{Rendezvous: "tcp://a:1", Getenv: func(k string) string {
		return map[string]string{"KOLO_MEASURE": "thorough", "RANK": "0", "WORLD_SIZE": "1"}[k]
	}}.withDefaults()
	require.NoError(t, err)
	require.Equal(t, MeasureThorough, c.Measure)
}

// population is a roster: the host of each process, with its rack behind a slash, and
// behind an x how many ranks it has.
func population(hosts ...string) *roster {
	r := &roster{Job: "j"}
	for _, h := range hosts {
		h, n, _ := strings.Cut(h, "x")
		name, rack, _ := strings.Cut(h, "/")
		m := Member{Host: Host{Name: name, Machine: name, Rack: rack}}
		for range max(len(n), 1) {
			m.Ranks = append(m.Ranks, kolo.Rank(r.Size))
			r.Size++
		}
		r.Members = append(r.Members, m)
	}
	return r
}

func (r *roster) driver(a, b int) string {
	if r.Members[a].place() == r.Members[b].place() {
		return "shm"
	}
	return "tcp"
}

func TestAppointments(t *testing.T) {
	quick := MeasureQuick.effort()
	for name, c := range map[string]struct {
		r    *roster
		want string
	}{
		"one host":       {population("a", "a", "a", "a"), "[{0 1} {0 3}]"},
		"two hosts":      {population("a", "a", "b"), "[{0 1} {0 2}]"},
		"three":          {population("a", "b", "c"), "[{1 2} {0 2} {0 1}]"},
		"racks":          {population("a/r", "b/r", "c/s", "d/s"), "[{0 1} {2 3} {0 2}]"},
		"several ranks":  {population("ax11", "a", "b", "b"), "[{0 0} {0 2} {3 4} {0 3}]"},
		"a single other": {population("a", "b"), "[{0 1}]"},
	} {
		t.Run(name, func(t *testing.T) {
			topo, err := c.r.topology("")
			require.NoError(t, err)
			require.Equal(t, c.want, fmt.Sprint(appointments(c.r, topo, c.r.driver, quick)))
		})
	}
	for hosts := 2; hosts < 40; hosts++ {
		var names []string
		for h := range hosts {
			names = append(names, fmt.Sprint("h", h))
		}
		r := population(names...)
		topo, err := r.topology("")
		require.NoError(t, err)
		list := appointments(r, topo, r.driver, quick)
		times, pairs := map[kolo.Rank]int{}, map[appointment]bool{}
		for _, a := range list {
			require.Less(t, a.a, a.b)
			require.False(t, pairs[a], "%v twice", a)
			pairs[a] = true
			times[a.a]++
			times[a.b]++
		}
		for h := range hosts {
			require.LessOrEqual(t, times[kolo.Rank(h)], quick.far)
			require.GreaterOrEqual(t, times[kolo.Rank(h)], min(hosts-1, quick.far-1))
		}
		if hosts+hosts%2 <= quick.far+1 {
			require.Len(t, list, hosts*(hosts-1)/2)
		}
	}
}

// told is what processes tell of the ways that the list names, by f.
func told(r *roster, list []appointment, f func(a appointment) report) [][]byte {
	of, by := r.processes(), make([][]report, len(r.Members))
	for _, a := range list {
		x := f(a)
		x.A, x.B = a.a, a.b
		by[of[a.a]] = append(by[of[a.a]], x)
	}
	var out [][]byte
	for _, x := range by {
		out = append(out, encode(x))
	}
	return out
}

func TestFigures(t *testing.T) {
	us := int64(time.Microsecond)
	r := population("a", "b", "c", "d", "e")
	base, err := r.topology("")
	require.NoError(t, err)
	list := appointments(r, base, r.driver, MeasureQuick.effort())
	slow := func(a appointment) bool { return a.a == 2 || a.b == 2 }
	for name, c := range map[string]struct {
		f        func(a appointment) report
		edge     kolo.Edge
		source   string
		warnings []string
	}{
		"as expected": {func(appointment) report { return report{Link: kolo.LinkTCP, Latency: 16 * us, Bandwidth: 2.3e9} },
			kolo.Edge{Link: kolo.LinkTCP, Latency: 30 * time.Microsecond, Bandwidth: 1.2e9}, "default, measured within 2x of it", nil},
		"fast": {func(appointment) report { return report{Link: kolo.LinkTCP, Latency: 9 * us, Bandwidth: 10.4e9} },
			kolo.Edge{Link: kolo.LinkTCP, Latency: 10 * time.Microsecond, Bandwidth: 10e9}, "measured", nil},
		"all slow": {func(appointment) report { return report{Link: kolo.LinkTCP, Latency: 31 * us, Bandwidth: 1e8} },
			kolo.Edge{Link: kolo.LinkTCP, Latency: 30 * time.Microsecond, Bandwidth: 1e8}, "measured", []string{"slow: 100 MB/s, expected 1.2 GB/s"}},
		"one host is slow": {func(a appointment) report {
			if slow(a) {
				return report{Link: kolo.LinkTCP, Latency: 35 * us, Bandwidth: 7e6}
			}
			return report{Link: kolo.LinkTCP, Latency: 33 * us, Bandwidth: 1.1e9}
		}, kolo.Edge{Link: kolo.LinkTCP, Latency: 30 * time.Microsecond, Bandwidth: 6.8e6}, "measured", []string{"slow, all of host c: 6.8 MB/s, expected 1.2 GB/s"}},
		"one way was disturbed": {func(a appointment) report {
			if a == (appointment{0, 1}) {
				return report{Link: kolo.LinkTCP, Latency: 7000 * us, Bandwidth: 7e6}
			}
			return report{Link: kolo.LinkTCP, Latency: 33 * us, Bandwidth: 1.1e9}
		}, kolo.Edge{Link: kolo.LinkTCP, Latency: 30 * time.Microsecond, Bandwidth: 1.2e9}, "default, measured within 2x of it",
			[]string{"slow: 6.8 MB/s, expected 1.2 GB/s", "a long delay: 6.8ms, expected 30µs"}},
		"RoCE": {func(appointment) report { return report{Link: kolo.LinkRoCE, Latency: 4 * us, Bandwidth: 24e9} },
			kolo.Edge{Link: kolo.LinkRoCE, Latency: 4700, Bandwidth: 22e9}, "measured", nil},
		"latency alone": {func(appointment) report { return report{Link: kolo.LinkTCP, Latency: 20000 * us} },
			kolo.Edge{Link: kolo.LinkTCP, Latency: 22 * time.Millisecond, Bandwidth: 1.2e9}, "measured", []string{"a long delay: 22ms, expected 30µs"}},
		"nothing": {func(appointment) report { return report{Link: kolo.LinkTCP, Failed: notCertain} },
			kolo.Edge{Link: kolo.LinkTCP, Latency: 30 * time.Microsecond, Bandwidth: 1.2e9}, "", nil},
		"nonsense": {func(appointment) report { return report{Link: kolo.LinkTCP, Latency: -1, Bandwidth: -5} },
			kolo.Edge{Link: kolo.LinkTCP, Latency: 30 * time.Microsecond, Bandwidth: 1.2e9}, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFigures(r, base, list, told(r, list, c.f))
			t.Log(f.explain())
			if c.source == "" {
				require.Nil(t, f.topology)
				require.Zero(t, f.digest())
				require.Contains(t, f.explain(), "nothing was measured")
				return
			}
			require.Equal(t, c.edge, f.topology.Levels[1])
			require.Equal(t, c.source, f.topology.Sources[1])
			require.Equal(t, c.source == "measured", f.digest() != base.Digest())
			warnings := f.warnings(r)
			require.Len(t, warnings, len(c.warnings), "%v", warnings)
			for i, w := range warnings {
				require.Contains(t, w.Check, c.warnings[i])
			}
			again := newFigures(r, base, list, told(r, list, c.f))
			require.Equal(t, f.digest(), again.digest())
		})
	}
}

// Noise of a fifth does not change the table, unless a figure lies where two steps meet.
func TestFiguresOfOneHostAndTheirSources(t *testing.T) {
	r := population("a", "a", "a")
	base, err := r.topology("tcp")
	require.NoError(t, err)
	list := appointments(r, base, r.driver, MeasureQuick.effort())
	f := newFigures(r, base, list, told(r, list, func(a appointment) report {
		if a.b == 2 { // one of two was disturbed
			return report{Link: kolo.LinkTCP, Latency: int64(time.Millisecond), Bandwidth: 1e6}
		}
		return report{Link: kolo.LinkTCP, Latency: int64(bySocket.Latency), Bandwidth: int64(bySocket.Bandwidth)}
	}))
	require.Equal(t, base.Digest(), f.digest())
	require.Empty(t, f.warnings(r))
	require.Contains(t, f.topology.String(), "(default, measured within 3x of it)")
}

// Where there is more to run than processors, what a scheduler takes is no reason to warn; Explain
// says that it is so. Where there is room it is, and so is what no scheduler takes.
func TestCrowdedHostsAreNoReasonToWarn(t *testing.T) {
	us := int64(time.Microsecond)
	for name, c := range map[string]struct {
		hosts   []string
		cores   int
		load    float64
		latency int64
		rate    int64
		warns   []string
		crowd   string
	}{
		"room":                 {[]string{"a", "a"}, 2, 0.4, 33 * us, 6e9, []string{"a long delay: 33µs, expected 2µs"}, ""},
		"not known":            {[]string{"a", "a", "a"}, 0, 9, 33 * us, 6e9, []string{"a long delay: 33µs"}, ""},
		"more processes":       {[]string{"a", "a", "a"}, 2, 0, 33 * us, 1e8, nil, "host a is crowded: 3 processes, and a load of 0.0 before, on 2 processors"},
		"others":               {[]string{"a", "a"}, 2, 1.3, 33 * us, 6e9, nil, "host a is crowded: 2 processes, and a load of 1.3 before, on 2 processors"},
		"longer than that":     {[]string{"a", "a", "a"}, 2, 0, 3000 * us, 6e9, []string{"a long delay: 3.3ms"}, "host a is crowded"},
		"hosts, not so long":   {[]string{"a", "b"}, 1, 2, 900 * us, 1.2e9, nil, "host a is crowded"},
		"hosts, of a slow way": {[]string{"a", "b"}, 1, 2, 900 * us, 1e7, []string{"slow: 10 MB/s, expected 1.2 GB/s"}, "host b is crowded"},
	} {
		t.Run(name, func(t *testing.T) {
			r := population(c.hosts...)
			for q := range r.Members {
				r.Members[q].Host.Cores, r.Members[q].Host.Load = c.cores, c.load
			}
			base, err := r.topology("")
			require.NoError(t, err)
			link := kolo.LinkSHM
			if c.hosts[0] != c.hosts[1] {
				link = kolo.LinkTCP
			}
			list := appointments(r, base, r.driver, MeasureQuick.effort())
			f := newFigures(r, base, list, told(r, list, func(appointment) report { return report{Link: link, Latency: c.latency, Bandwidth: c.rate} }))
			warnings := f.warnings(r)
			require.Len(t, warnings, len(c.warns), "%v", warnings)
			for i, w := range warnings {
				require.Contains(t, w.Check, c.warns[i])
			}
			if text := strings.Join(r.crowds(), "\n"); c.crowd == "" {
				require.Empty(t, text)
			} else {
				require.Contains(t, text, c.crowd)
			}
		})
	}
}

// Whoever has come to another table makes all keep the defaults.
func TestTablesThatDifferAreDropped(t *testing.T) {
	r := population("a", "b")
	base, err := r.topology("")
	require.NoError(t, err)
	list := appointments(r, base, r.driver, MeasureQuick.effort())
	of := func(bandwidth int64) *figures {
		return newFigures(r, base, list, told(r, list, func(appointment) report { return report{Link: kolo.LinkTCP, Latency: 1000, Bandwidth: bandwidth} }))
	}
	one, other := of(1e8), of(1e9)
	require.NotEqual(t, one.digest(), other.digest())
	word := func(x uint64) []byte { return binary.LittleEndian.AppendUint64(nil, x) }
	told := [][]byte{word(one.digest()), word(other.digest())}
	one.settle(told)
	other.settle(told)
	require.Nil(t, one.topology)
	require.Nil(t, other.topology)
	require.Contains(t, one.explain(), "have not come to one table")
	same := of(1e8)
	same.settle([][]byte{word(same.digest()), word(same.digest())})
	require.NotNil(t, same.topology)
}

// What processes tell is read without harm, whatever it is.
func FuzzFigures(f *testing.F) {
	r := population("ax11", "a", "b")
	base, err := r.topology("")
	if err != nil {
		f.Fatal(err)
	}
	list := appointments(r, base, r.driver, MeasureQuick.effort())
	whole := told(r, list, func(appointment) report { return report{Link: kolo.LinkTCP, Latency: 5000, Bandwidth: 1e9, Fold: 7e9} })
	for i := range whole[0] {
		f.Add(whole[0][:i])
	}
	f.Add(whole[0])
	f.Add([]byte(`[{"A":0,"B":3,"Link":9,"Latency":9223372036854775807,"Bandwidth":9223372036854775807}]`))
	f.Fuzz(func(t *testing.T, b []byte) {
		x := newFigures(r, base, list, [][]byte{b, whole[1], whole[2]})
		_, _ = x.explain(), x.warnings(r)
		if x.topology != nil {
			if err := x.topology.Validate(); err != nil {
				t.Error(err)
			}
		}
	})
}

// Two times that agree are evidence.
func TestFastest(t *testing.T) {
	var f fastest
	require.False(t, f.sure())
	f.add(30)
	require.False(t, f.sure(), "one time is no evidence")
	f.add(100)
	require.False(t, f.sure())
	f.add(40)
	require.True(t, f.sure())
	require.Equal(t, fastest{30, 40}, f)
	f.add(10)
	require.False(t, f.sure())
}
