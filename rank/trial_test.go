package rank

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/channel/faulty"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/plan"
)

// slowWays is a configuration of 4 ranks of one server whose messages take what a script
// says, and nothing else takes time.
func slowWays(script string) Config {
	return Config{Topology: plan.OneServer(4), Timeout: time.Hour, Wrap: func(inner channel.Driver) (channel.Driver, error) {
		return faulty.New(inner, script, 0)
	}}
}

// takes is how long the second of two calls takes with an algorithm forced.
func takes(t *testing.T, algorithm, script string, count int) (took time.Duration) {
	c := slowWays(script)
	c.Algorithm = algorithm
	for _, err := range inBubble(t, c, 4, func(ctx context.Context, w *World, age func() time.Duration) error {
		for range 2 {
			if err := Barrier(ctx, w.Group()); err != nil {
				return err
			}
			from := age()
			if err := AllReduce(ctx, w.Group(), fill(w.Rank(), count), kolo.Sum); err != nil {
				return err
			}
			if w.Rank() == 0 {
				took = age() - from
			}
		}
		return nil
	}) {
		require.NoError(t, err)
	}
	return took
}

// tried makes calls of AllReduce with Choice plan.Timed, of which every result must be right,
// and gives what Explain says before and after them.
func tried(t *testing.T, c Config, calls, count int) (before, after plan.Choice) {
	c.Choice = plan.Timed
	expect := sums(4, count)
	for _, err := range inBubble(t, c, 4, func(ctx context.Context, w *World, _ func() time.Duration) error {
		explain := func(to *plan.Choice) (err error) {
			if w.Rank() == 0 {
				*to, err = w.Group().Explain(kolo.Call{Collective: kolo.AllReduce, DType: kolo.Int32, Op: kolo.Sum, Count: int64(count)})
			}
			return err
		}
		if err := explain(&before); err != nil {
			return err
		}
		for k := range calls {
			b := fill(w.Rank(), count)
			if err := AllReduce(ctx, w.Group(), b, kolo.Sum); err != nil {
				return err
			}
			if !slices.Equal(b, expect) {
				t.Errorf("call %d is wrong on rank %d", k, w.Rank())
			}
		}
		return explain(&after)
	}) {
		require.NoError(t, err)
	}
	return before, after
}

// timedRows are the algorithms that Explain has times of.
func timedRows(ch plan.Choice) (names []string) {
	for _, r := range ch.Rows {
		if strings.HasPrefix(r.Why, "timed: ") {
			names = append(names, r.Name)
		}
	}
	return names
}

// What a driver with known delays makes the fastest is found, whatever the model believes,
// among all that the model leaves in.
func TestTimedFindsTheFastest(t *testing.T) {
	const count = 1000
	for _, row := range []struct {
		name, script string
		contest      plan.ContestConfig
	}{
		{"all ways alike", "delay * -> * 1ms", plan.ContestConfig{Within: 10}},
		{"a slow way", "delay * -> * 1ms\ndelay 0 -> 1 20ms", plan.ContestConfig{Within: 10}},
		{"a slow way, pruned", "delay * -> * 1ms\ndelay 1 -> 2 20ms", plan.ContestConfig{}},
		{"a chance for the fringe", "delay * -> * 1ms", plan.ContestConfig{Fringe: 10}},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := slowWays(row.script)
			c.Contest = row.contest
			before, after := tried(t, c, 500, count)
			require.Equal(t, "mesh", before.Algorithm, "by the model")
			names := timedRows(after)
			require.Greater(t, len(names), 3)
			best := time.Duration(1 << 62)
			took := map[string]time.Duration{}
			for _, name := range names {
				took[name] = takes(t, name, row.script, count)
				best = min(best, took[name])
			}
			require.Equal(t, best, took[after.Algorithm], "%s of %v", after.Algorithm, took)
			require.Less(t, best, took["mesh"], "the test has a point")
			require.Equal(t, best, after.Cost)
			require.Contains(t, after.Why, "regret 0.0 %")
			require.Equal(t, after.Algorithm, after.Rows[0].Name)
			require.Contains(t, after.Explain(), "(timed)")
		})
	}
}

// When the fastest becomes slow, another contest finds the one that is fastest then; before
// it is settled Explain says that others are being timed.
func TestTimedFollowsADrift(t *testing.T) {
	script := "delay * -> * 1ms\ndelay 1 -> 2 send 1000..1000000 20ms"
	c := slowWays(script)
	c.Contest.Within = 10
	_, during := tried(t, c, 40, 1000)
	require.Contains(t, during.Why, "others are being timed")
	_, first := tried(t, c, 500, 1000)
	require.Equal(t, "mesh-oneshot", first.Algorithm)
	require.Equal(t, time.Millisecond, first.Cost)
	_, second := tried(t, c, 2000, 1000)
	require.NotEqual(t, "mesh-oneshot", second.Algorithm)
	require.Equal(t, takes(t, second.Algorithm, "delay * -> * 1ms\ndelay 1 -> 2 20ms", 1000), second.Cost)
	require.Equal(t, 2*time.Millisecond, second.Cost, "the least of all there")
}

// Where the bits must not change they do not, and still some algorithms are timed.
func TestTimedAndReproducible(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	const n, count = 4, 257
	in := make([][]float32, n)
	for r := range in {
		rng := rand.New(rand.NewPCG(seed, uint64(r)))
		for range count {
			in[r] = append(in[r], float32(rng.NormFloat64()))
		}
	}
	want := slices.Clone(in[0])
	for _, x := range in[1:] { // in the order of the ranks
		for i := range want {
			want[i] += x[i]
		}
	}
	c := slowWays("delay * -> * 1ms")
	c.Choice, c.Reproducible, c.Contest.Within = plan.Timed, true, 10
	for _, err := range inBubble(t, c, n, func(ctx context.Context, w *World, _ func() time.Duration) error {
		for range 80 {
			b := slices.Clone(in[w.Rank()])
			if err := AllReduce(ctx, w.Group(), b, kolo.Sum); err != nil {
				return err
			}
			if !slices.Equal(b, want) {
				t.Error("other bits")
			}
		}
		ch, err := w.Group().Explain(kolo.Call{Collective: kolo.AllReduce, DType: kolo.Float32, Op: kolo.Sum, Count: count})
		require.ElementsMatch(t, []string{"mesh-oneshot", "mesh", "star"}, timedRows(ch))
		return err
	}) {
		require.NoError(t, err)
	}
}

// On real time, in place and not, small and large, and with collectives one after the other,
// all results are right while algorithms change.
func TestTimedOnRealTime(t *testing.T) {
	const n, calls = 4, 300
	c := Config{Choice: plan.Timed, Contest: plan.ContestConfig{Within: 100, Rounds: 3}}
	require.NoError(t, c.Run(t.Context(), n, func(ctx context.Context, w *World) error {
		me := w.Rank()
		for k := range calls {
			for _, count := range []int{8, 3000} {
				b := fill(me, count)
				if err := AllReduce(ctx, w.Group(), b, kolo.Sum); err != nil {
					return err
				}
				all := make([]int32, n*count)
				copy(all[int(me)*count:], fill(me, count))
				if err := AllGather(ctx, w.Group(), all, all[int(me)*count:][:count]); err != nil {
					return err
				}
				if !slices.Equal(b, sums(n, count)) {
					t.Errorf("call %d: AllReduce of %d is wrong on rank %d", k, count, me)
				}
				for r := range kolo.Rank(n) {
					if !slices.Equal(all[int(r)*count:][:count], fill(r, count)) {
						t.Errorf("call %d: AllGather of %d is wrong on rank %d", k, count, me)
					}
				}
			}
		}
		for _, k := range []kolo.Collective{kolo.AllReduce, kolo.AllGather} {
			for _, count := range []int64{8, 3000} {
				ch, err := w.Group().Explain(kolo.Call{Collective: k, DType: kolo.Int32, Op: kolo.Sum, Count: count})
				if err != nil {
					return err
				}
				require.Greater(t, len(timedRows(ch)), 3, ch.Explain())
				if me == 0 {
					t.Logf("%v of %d: %v", k, count, ch)
				}
			}
		}
		return nil
	}))
}

// onStreams makes calls behind and before streams, each of which must sum what was computed,
// and calls of as many elements of the host between them, which take no time.
func onStreams(v *fleet, calls int, between bool) (took time.Duration) {
	const n = 4
	b, streams := make([]Buffer, n), make([]npu.Stream, n)
	for i := range n {
		b[i], streams[i] = v.buffer(i, mb56), v.stream(i)
	}
	host := make([][]float32, n)
	for k := range calls {
		var sums [n]float32
		var works, others []Work
		from := v.age()
		for i := range n {
			v.put(streams[i], b[i], ms, float32(i+k))
			works = append(works, DoOn(v.group(i), sumOf(b[i]), Between{Producer: streams[i], Consumer: streams[i]}))
			v.look(streams[i], b[i], &sums[i])
		}
		for i := range n {
			v.ok(works[i].Wait(v.Context()))
			v.ok(streams[i].Sync(v.Context()))
			took = v.age() - from - ms
			require.Equal(v, float32(1400*(4*k+6)), sums[i], "call %d", k)
		}
		for i := range n {
			if host[i] == nil {
				host[i] = make([]float32, mb56/4)
			}
			if between {
				others = append(others, AllReduceAsync(v.group(i), host[i], kolo.Sum))
			}
		}
		for _, w := range others {
			v.ok(w.Wait(v.Context()))
		}
	}
	return took
}

// Calls of devices between streams are timed by themselves: what calls of the host take that
// have as many elements says nothing of them.
func TestTimedBetweenStreams(t *testing.T) {
	var found plan.Choice
	onFleet(t, 4, Config{Choice: plan.Timed, Contest: plan.ContestConfig{Within: 1000, Rounds: 2}}, func(v *fleet) {
		onStreams(v, 120, true)
		var err error
		found, err = v.group(0).Explain(kolo.Call{Collective: kolo.AllReduce, DType: kolo.Float32, Op: kolo.Sum, Count: mb56 / 4})
		v.ok(err)
	})
	require.Greater(t, len(timedRows(found)), 10, found.Explain())
	best := time.Duration(1 << 62)
	for _, r := range found.Rows {
		if !strings.HasPrefix(r.Why, "timed: ") {
			continue
		}
		onFleet(t, 4, Config{Algorithm: r.Name}, func(v *fleet) {
			took := onStreams(v, 2, false)
			if best = min(best, took); r.Name == found.Algorithm {
				require.Equal(v, took, found.Cost, found.Explain())
			}
		})
	}
	require.Equal(t, best, found.Cost, found.Explain())
}

// Each group has trials of its own, also when their calls run at the same time.
func TestTimedInSeveralGroups(t *testing.T) {
	const n, calls = 4, 250
	c := slowWays("delay * -> * 1ms\ndelay 0 -> 1 20ms\ndelay 1 -> 0 20ms")
	c.Choice, c.Contest = plan.Timed, plan.ContestConfig{Within: 10}
	var found [3]plan.Choice
	for _, err := range inBubble(t, c, n, func(ctx context.Context, w *World, _ func() time.Duration) error {
		me := w.Rank()
		groups := []*Group{w.Group()}
		for _, ranks := range [][]kolo.Rank{{0, 1, 2}, {1, 2, 3}} {
			if !slices.Contains(ranks, me) {
				continue
			}
			g, err := w.NewGroup(GroupConfig{Name: fmt.Sprint(ranks), Ranks: ranks})
			if err != nil {
				return err
			}
			groups = append(groups, g)
		}
		for range calls {
			var works []Work
			var data [][]int32
			for _, g := range groups {
				data = append(data, fill(g.Rank(), 1000))
				works = append(works, AllReduceAsync(g, data[len(data)-1], kolo.Sum))
			}
			for i, x := range works {
				if err := x.Wait(ctx); err != nil {
					return err
				}
				require.Equal(t, sums(groups[i].Size(), 1000), data[i])
			}
		}
		for _, g := range groups {
			ch, err := g.Explain(kolo.Call{Collective: kolo.AllReduce, DType: kolo.Int32, Op: kolo.Sum, Count: 1000})
			if err != nil {
				return err
			}
			if g.Rank() == 0 {
				at := 0
				if g != groups[0] {
					at = 1 + int(me)
				}
				found[at] = ch
			}
		}
		return nil
	}) {
		require.NoError(t, err)
	}
	for _, ch := range found {
		require.Greater(t, len(timedRows(ch)), 2, ch.Explain())
	}
	require.Greater(t, found[1].Cost, 19*time.Millisecond, "every way between the ranks 0, 1 and 2 but a chain from 0 by 2 to 1 is slow")
	require.Less(t, found[2].Cost, 19*time.Millisecond)
}

// A setting, a Tuning and one rival alone leave nothing to time.
func TestTimedOnlyWhereNothingElseDecides(t *testing.T) {
	tuning := &plan.Tuning{Rules: []plan.Rule{{Collective: kolo.AllReduce, Algorithm: "star"}}}
	for name, c := range map[string]Config{"ring": {Algorithm: "ring"}, "nhr": {Algorithm: "allreduce=level0:NA;level1:NHR"}, "star": {Tuning: tuning}, "mesh": {Contest: plan.ContestConfig{Within: 1.0001}}} {
		wrap := slowWays("delay * -> * 1ms")
		c.Topology, c.Wrap, c.Timeout = wrap.Topology, wrap.Wrap, wrap.Timeout
		before, after := tried(t, c, 60, 1000)
		require.Equal(t, name, before.Algorithm)
		require.Equal(t, before.Why, after.Why)
		require.Empty(t, timedRows(after))
	}
}

// Only calls of one size are compared; when it is no longer called, another takes its place.
func TestTrialComparesOneSize(t *testing.T) {
	ch, err := plan.ChooseSize(kolo.AllReduce, 4000, plan.OneServer(4), plan.Policy{Method: plan.Timed})
	require.NoError(t, err)
	p := &plans{topo: plan.OneServer(4), policy: ch.Policy, trials: map[class]*trial{}}
	x := p.newTrial(class{}, ch)
	var clock time.Time
	now := func() time.Time { return clock }
	call := func(volume int64) string {
		name := x.next(sample{volume: volume, collective: kolo.AllReduce})
		x.start(now)
		clock = clock.Add(time.Duration(volume)) // what is small would win by that alone
		if name == "nhr" {
			clock = clock.Add(-time.Duration(volume / 2))
		}
		x.end(now, nil)
		return name
	}
	for x.found.Load() == nil {
		call(1000)
		if name := call(600); x.found.Load() == nil {
			require.Equal(t, "mesh", name, "by the model")
		}
	}
	require.Equal(t, "nhr", x.algorithm)
	require.Equal(t, 500*time.Nanosecond, x.found.Load().Cost)
	require.Equal(t, "nhr", call(600))
	call(1000)
	for range maxStrays {
		require.Equal(t, "nhr", call(600))
	}
	require.Nil(t, x.contest)
	call(600)
	require.NotNil(t, x.contest)
	for x.contest != nil {
		call(600)
	}
	require.Equal(t, 300*time.Nanosecond, x.found.Load().Cost)
	require.Equal(t, 2*minPause, x.pause, "nothing has changed")

	for _, other := range []sample{{in: 1}, {out: 1}, {root: 1}, {tensors: 2}, {inPlace: true}, {fromStreams: true}} { // of another kind
		other.volume, other.collective = 600, kolo.AllReduce
		x.next(other)
		x.start(now)
		clock = clock.Add(time.Hour)
		x.end(now, nil)
		require.Equal(t, 0, x.calls)
	}
	x.next(sample{volume: 600, collective: kolo.AllReduce})
	x.start(now)
	clock = clock.Add(time.Hour)
	x.end(now, kolo.ErrLost) // no time of a call that failed
	require.Equal(t, 0, x.calls)
}
