package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/internal/netlab"
	"github.com/kolo-ccl/kolo/rank"

	"github.com/stretchr/testify/require"
)

// onHosts starts a child for each list of ranks, on the host that is told with it. Rank 0
// serves the rendezvous on its host.
func onHosts(t *testing.T, l *netlab.Lab, what string, places []place, env ...string) []*offspring {
	exe, err := os.Executable()
	require.NoError(t, err)
	n := 0
	for _, p := range places {
		n += len(strings.Split(p.ranks, ","))
	}
	var list []*offspring
	for _, p := range places {
		list = append(list, spawnOne(t, l.Command(p.host, exe), append([]string{"PATH=" + os.Getenv("PATH"), "KOLO_TEST_CHILD=" + what,
			"KOLO_RANKS=" + p.ranks, fmt.Sprintf("WORLD_SIZE=%d", n), "KOLO_RENDEZVOUS=tcp://" + l.Join(places[0].host, 29500)}, env...)))
	}
	return list
}

// place is the ranks of a process and the host where it runs.
type place struct {
	host  int
	ranks string
}

// Three hosts: hccs in a process, shm between two of one host, tcp between hosts.
func mixed() []place { return []place{{0, "0,1"}, {1, "2"}, {1, "3"}, {2, "4"}} }

// a rank on each of three hosts.
func three() []place { return []place{{0, "0"}, {1, "1"}, {2, "2"}} }

// Whatever the network is like, as long as packets get through in the end, answers are right.
func TestHostsAreRightOnAnyNetwork(t *testing.T) {
	for _, c := range []struct {
		name   string
		lab    netlab.Config
		change func(l *netlab.Lab)
		count  int // elements of the largest AllReduce
	}{
		{name: "plain", count: 1 << 20},
		{name: "IPv6 only", lab: netlab.Config{IPv6: true, MTU: 9000}, count: 1 << 20},
		{name: "MTU 1500 among 9000", lab: netlab.Config{MTU: 9000}, change: func(l *netlab.Lab) { l.MTU(1, 1500) }, count: 1 << 20},
		{name: "a first interface that leads nowhere", lab: netlab.Config{Dead: true}, count: 1 << 16},
		{name: "one packet of a hundred lost", change: func(l *netlab.Lab) { l.Loss(10) }, count: 1 << 18},
		{name: "a slow link", change: func(l *netlab.Lab) { l.Rate(1, "50mbit") }, count: 1 << 18},
		{name: "20 ms", lab: netlab.Config{Delay: 20 * time.Millisecond}, count: 1 << 18},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := netlab.New(t, 3, c.lab)
			if c.change != nil {
				c.change(l)
			}
			begin := time.Now()
			for _, o := range onHosts(t, l, "collectives", mixed(), fmt.Sprint("KOLO_TEST_COUNT=", c.count)) {
				o.wait(t, "DONE", patience)
			}
			t.Logf("joined, ran and closed in %v", time.Since(begin))
		})
	}
}

// A host whose link is slow is found by the join, which all choose by then, and named, where its good
// link was measured too, for which a busy machine may leave no time; and so is a long way. (A quick join finds them too, where a test does not share the machine.)
func TestJoinFindsAHostOfSlowLinks(t *testing.T) {
	choices := map[string]string{}
	for _, c := range []struct {
		name         string
		lab          netlab.Config
		change       func(l *netlab.Lab)
		measure      Measure
		table, warns string // patterns
	}{
		{name: "plain", table: `between servers tcp `},
		{name: "slow", change: func(l *netlab.Lab) { l.Rate(1, "50mbit") }, measure: MeasureThorough, table: `between servers tcp \S+ (4.7|6.8|10) MB/s \(measured\)`, warns: `slow(, all of host [^:]*)?: (4.7|6.8|10) MB/s, expected`},
		{name: "20 ms", lab: netlab.Config{Delay: 20 * time.Millisecond}, measure: MeasureThorough, table: `between servers tcp (15|22|33)ms `, warns: `a long delay: (15|22|33)ms, expected (30|62)µs: check the speed`},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := netlab.New(t, 3, c.lab)
			if c.change != nil {
				c.change(l)
			}
			list := onHosts(t, l, "table", three(), "KOLO_MEASURE="+c.measure.String())
			table, warns := list[0].wait(t, "TABLE", patience), list[0].wait(t, "WARNINGS", patience)
			choices[c.name] = list[0].wait(t, "CHOICE", patience)
			t.Logf("%s\n%s\n%s", table, strings.ReplaceAll(warns, "one machine, and", ""), choices[c.name])
			require.Regexp(t, c.table, table)
			require.Regexp(t, c.warns, warns)
			for _, o := range list {
				require.Equal(t, table, o.wait(t, "TABLE", patience))
				require.Equal(t, warns, o.wait(t, "WARNINGS", patience))
				require.Equal(t, choices[c.name], o.wait(t, "CHOICE", patience))
				o.wait(t, "DONE", patience)
			}
		})
	}
	if len(choices) == 3 {
		require.NotEqual(t, choices["slow"], choices["20 ms"], "bytes cost there, and rounds here")
	}
}

// A host that is cut off in the middle of a collective, and one that is gone without a
// word, are found by their silence, and a process that is killed by its sockets: the others
// name its rank in time and go on.
func TestHostThatIsCutOffIsNamedInTime(t *testing.T) {
	kill := func(o *offspring) { require.NoError(t, o.cmd.Process.Kill()) }
	for name, c := range map[string]struct {
		strike func(l *netlab.Lab, o *offspring)
		silent bool // that is how it is missed
	}{
		"cut off":  {func(l *netlab.Lab, _ *offspring) { l.Cut(1) }, true},
		"vanished": {func(l *netlab.Lab, o *offspring) { l.Unplug(1); kill(o) }, true},
		"killed":   {func(_ *netlab.Lab, o *offspring) { kill(o) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := netlab.New(t, 3, netlab.Config{})
			list := onHosts(t, l, "loop", three(), fmt.Sprint("KOLO_TEST_COUNT=", 4<<20))
			for _, o := range list {
				o.wait(t, "LOOPING", patience)
			}
			at := time.Now()
			c.strike(l, list[1])
			for _, o := range []*offspring{list[0], list[2]} {
				said, d := o.lost(t, at)
				t.Logf("after %v: %s", d, said)
				require.Contains(t, said, "rank 1")
				require.Contains(t, said, "connection lost")
				require.Equal(t, c.silent, strings.Contains(said, "silent"))
				require.Less(t, d, inTime)
				require.Equal(t, "0 and 2", o.wait(t, "SHRUNK", patience))
				o.wait(t, "DONE", patience)
			}
			if name == "cut off" { // it has lost the others
				said, d := list[1].lost(t, at)
				require.Contains(t, said, "connection lost")
				require.Regexp(t, "rank [02]", said)
				require.Less(t, d, inTime)
			}
		})
	}
}

// Over a slow link a step of a call takes seconds, and what its driver carries shows that it
// moves. When a host is cut off, the calls stand, and the ranks that wait for it say so, long
// before the heartbeats have missed it.
func TestSlowCallMovesAndOneThatIsCutOffStands(t *testing.T) {
	t.Parallel()
	l := netlab.New(t, 2, netlab.Config{})
	l.Rate(1, "50mbit")
	list := onHosts(t, l, "health", []place{{0, "0"}, {1, "1"}})
	for _, o := range list {
		require.Contains(t, o.wait(t, "MOVES", 40*time.Second), "bytes carried so far")
	}
	at := time.Now()
	l.Cut(1)
	for r, o := range list {
		said := o.wait(t, "STUCK", 20*time.Second)
		var ns int64
		_, err := fmt.Sscan(said, &ns)
		require.NoError(t, err)
		t.Logf("%v: %s", time.Unix(0, ns).Sub(at), said)
		require.Less(t, time.Unix(0, ns).Sub(at), 2*time.Second)
		require.Contains(t, said, fmt.Sprintf("for rank %d, ", 1-r))
		o.wait(t, "LOST", 20*time.Second)
	}
}

// Only the way between two of three hosts is cut. Both name each other, the third hears of it,
// and all three are of one mind about who goes on.
func TestHostsThatOnlyMissEachOtherAgreeOnWhoIsLeft(t *testing.T) {
	t.Parallel()
	l := netlab.New(t, 3, netlab.Config{})
	list := onHosts(t, l, "loop", three(), fmt.Sprint("KOLO_TEST_COUNT=", 1<<20))
	for _, o := range list {
		o.wait(t, "LOOPING", patience)
	}
	at := time.Now()
	l.Part(0, 1)
	for _, o := range list {
		said, d := o.lost(t, at)
		t.Logf("after %v: %s", d, said)
		require.Contains(t, said, "connection lost")
		require.Less(t, d, inTime)
	}
	for _, o := range []*offspring{list[0], list[2]} {
		require.Equal(t, "0 and 2", o.wait(t, "SHRUNK", patience))
		t.Logf("shrunk after %v", time.Since(at))
		o.wait(t, "DONE", patience)
	}
	require.Contains(t, list[1].wait(t, "FAILED", patience), "this process was left out of the world by rank 2")
	require.Less(t, time.Since(at), inTime)
}

// Only data is cut between some pairs of hosts: all processes live and hear each other. The ends of
// the links report them, as few ranks as can be are left out, and the others go on.
func TestHostsWhoseDataIsCutGoOnWithoutAsFewAsCanBe(t *testing.T) {
	for name, c := range map[string]struct {
		hosts int
		cuts  [][2]int
		left  string
		out   map[int]string // with whom its link is broken
	}{
		"one pair":           {3, [][2]int{{0, 1}}, "0 and 2", map[int]string{1: "0"}},
		"two pairs of one":   {4, [][2]int{{1, 2}, {1, 3}}, "0, 2 and 3", map[int]string{1: "2 and 3"}},
		"two pairs of first": {4, [][2]int{{0, 1}, {0, 3}}, "1, 2 and 3", map[int]string{0: "1 and 3"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := netlab.New(t, c.hosts, netlab.Config{})
			var places []place
			for h := range c.hosts {
				places = append(places, place{h, fmt.Sprint(h)})
			}
			list := onHosts(t, l, "loop", places, fmt.Sprint("KOLO_TEST_COUNT=", 1<<18), "KOLO_TEST_MESH=1")
			ports := []string{"29500"}
			for _, o := range list {
				o.wait(t, "LOOPING", patience)
				ports = append(ports, o.wait(t, "LISTENS", patience))
			}
			at := time.Now()
			for _, cut := range c.cuts {
				l.PartBut(cut[0], cut[1], ports...)
			}
			for r, o := range list {
				said, d := o.lost(t, at)
				t.Logf("rank %d after %v: %s", r, d, said)
				require.Contains(t, said, "connection lost")
				require.Less(t, d, inTime)
			}
			for r, o := range list {
				ends, out := c.out[r]
				if !out {
					require.Equal(t, c.left, o.wait(t, "SHRUNK", patience))
					t.Logf("rank %d has shrunk after %v", r, time.Since(at))
					o.wait(t, "DONE", patience)
					continue
				}
				said := o.wait(t, "FAILED", patience)
				t.Log(said)
				require.Contains(t, said, "left out")
				require.Contains(t, said, fmt.Sprintf("the data link of rank %d to rank %s is broken though both live", r, ends))
			}
			require.Less(t, time.Since(at), 2*inTime)
		})
	}
}

// A network falls in two. Each part finds the other silent, one goes on, and the other is told
// that it does not: the larger, or of equal ones that with rank 0.
func TestOnePartOfANetworkInTwoGoesOn(t *testing.T) {
	for name, c := range map[string]struct {
		hosts, cut int // those below cut are one part
		left       []int
	}{
		"larger": {5, 2, []int{2, 3, 4}},
		"equal":  {4, 2, []int{0, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := netlab.New(t, c.hosts, netlab.Config{})
			var places []place
			for h := range c.hosts {
				places = append(places, place{h, fmt.Sprint(h)})
			}
			list := onHosts(t, l, "loop", places, fmt.Sprint("KOLO_TEST_COUNT=", 1<<20))
			for _, o := range list {
				o.wait(t, "LOOPING", patience)
			}
			at := time.Now()
			for a := range c.cut {
				for b := c.cut; b < c.hosts; b++ {
					l.Part(a, b)
				}
			}
			var left []kolo.Rank
			for _, h := range c.left {
				left = append(left, kolo.Rank(h))
			}
			for h, o := range list {
				said, d := o.lost(t, at)
				t.Logf("rank %d after %v: %s", h, d, said)
				require.Contains(t, said, "connection lost")
				require.Less(t, d, inTime)
				if slices.Contains(c.left, h) {
					require.Equal(t, kolo.RankList(left), o.wait(t, "SHRUNK", patience))
					o.wait(t, "DONE", patience)
				} else {
					why := o.wait(t, "FAILED", patience) // another of the part may have ended before
					require.Contains(t, why, "this process was left out of the world")
					require.Contains(t, why, "fallen silent")
				}
			}
			require.Less(t, time.Since(at), inTime)
		})
	}
}

// lost is what the child has said of a loss, and how long after a moment.
func (o *offspring) lost(t *testing.T, since time.Time) (string, time.Duration) {
	said := o.wait(t, "LOST", patience)
	var ns int64
	_, err := fmt.Sscan(said, &ns)
	require.NoError(t, err)
	return said, time.Unix(0, ns).Sub(since)
}

// Two network namespaces of a machine, such as two containers, share no memory: they are
// two hosts to who chooses a plan.
func TestNetworksOfAMachineAreHosts(t *testing.T) {
	member := func(network string, r kolo.Rank) Member {
		return Member{Host: Host{Machine: "m", Network: network}, Ranks: []kolo.Rank{r}}
	}
	r := &roster{Size: 3, Members: []Member{member("m a", 0), member("m a", 1), member("m b", 2)}}
	topo, err := r.topology("")
	require.NoError(t, err)
	require.Equal(t, []int{0, 0, 1}, topo.Server)
}

// The way between some hosts is cut before they join, and all reach the rendezvous. Every rank
// says which pairs cannot connect, how that was tried, and that the others have.
func TestHostsThatCannotConnectAreNamedByAll(t *testing.T) {
	for name, c := range map[string]struct {
		hosts int
		cuts  [][2]int
		says  []string
	}{
		"one pair": {4, [][2]int{{1, 2}}, []string{"1 of 6 pairs of processes cannot connect, 5 have", "|  rank 1 with rank 2: rank 2 on ", "has dialled rank 1 on ", " at 10.77.0.2:"}},
		"one host": {5, [][2]int{{1, 2}, {2, 3}, {2, 4}}, []string{"3 of 10 pairs", "|  rank 2 with rank "}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := netlab.New(t, c.hosts, netlab.Config{})
			var places []place
			for h := range c.hosts {
				places = append(places, place{h, fmt.Sprint(h)})
			}
			for _, cut := range c.cuts {
				l.Part(cut[0], cut[1])
			}
			begin := time.Now()
			for r, o := range onHosts(t, l, "join", places, "KOLO_TEST_SECONDS=12") {
				said := o.wait(t, "JOIN", patience)
				if r == 0 {
					t.Logf("after %v: %s", time.Since(begin), said)
				}
				for _, want := range c.says {
					require.Contains(t, said, want, "rank %d", r)
				}
				require.ElementsMatch(t, c.cuts, pairsIn(t, said), "rank %d: %s", r, said)
				require.Regexp(t, `no route to host \(EHOSTUNREACH\)|no answer to the request for a connection in 3s`, said)
			}
		})
	}
}

// pairsIn are the pairs of processes that an error says cannot connect, whichever of them it tells of
// together: those with one cause, and what a host hears of one that is cut off differs from try to try.
func pairsIn(t *testing.T, said string) (pairs [][2]int) {
	for _, line := range regexp.MustCompile(`\|  rank (\d+) with rank ([\d, -]+)`).FindAllStringSubmatch(said, -1) {
		one, err := strconv.Atoi(line[1])
		require.NoError(t, err)
		for _, part := range strings.Split(strings.TrimSpace(line[2]), ", ") {
			from, to, several := strings.Cut(part, "-")
			if !several {
				to = from
			}
			first, err := strconv.Atoi(from)
			require.NoError(t, err)
			last, err := strconv.Atoi(to)
			require.NoError(t, err)
			for other := first; other <= last; other++ {
				pairs = append(pairs, [2]int{min(one, other), max(one, other)})
			}
		}
	}
	return pairs
}

// A host with nothing but a loopback, and one whose loopback is down: processes of one host join
// by the first, and where there is no way at all the join says so in its time.
func TestProcessesOfAHostWithoutANetworkJoin(t *testing.T) {
	if !netlab.Alone(t) {
		return
	}
	_, err := Join(t.Context(), Config{Rendezvous: "tcp://127.0.0.1:29500", Size: 2, Ranks: []kolo.Rank{1}, Timeout: time.Second, Getenv: noEnv})
	require.ErrorIs(t, err, kolo.ErrDeadline)
	require.ErrorContains(t, err, "unreachable")
	out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Empty(t, hostAddresses(nil, "127.0.0.1:29500"))
	worlds := worldsOf(together(t, Config{Rendezvous: "tcp://127.0.0.1:29500"}, 1, 1, 2))
	for r, err := range each(worlds, func(w *rank.World) error { return allReduce(t.Context(), w.Group(), allRanks(4), 1000) }) {
		require.NoError(t, err, "rank %d", r)
	}
	closeAll(t, worlds)
}
