package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"

	"github.com/stretchr/testify/require"
)

// some are processes of a rank each, so many on a host.
func some(n, each int) (list []Member) {
	for q := range n {
		list = append(list, Member{Ranks: []kolo.Rank{kolo.Rank(q)}, Host: Host{Name: fmt.Sprint("host", q/each)}, Nonce: fmt.Sprint("nonce", q)})
	}
	return list
}

// rowsOf are what n processes tell of which pairs, the higher first, cannot connect.
func rowsOf(n int, blocked func(from, to int) string) map[int]*row {
	rows := map[int]*row{}
	for from := range n {
		p := &Process{self: from, roster: &roster{Epoch: 7, Members: some(n, 1)}}
		p.links = make([]atomic.Pointer[link], n)
		for to := range from {
			why := blocked(from, to)
			if why == "" {
				p.links[to].Store(&link{took: time.Duration(from) * time.Millisecond})
				continue
			}
			d := p.dialled(to, []string{fmt.Sprintf("10.0.0.%d:77", to), "172.17.0.1:77"})
			d.note(0, errors.New(why), time.Second, false)
			d.note(1, errors.New("another is there"), time.Second, false)
		}
		rows[from] = p.row()
	}
	return rows
}

// Pairs that cannot connect are told in few lines, which name who is at fault first.
func TestPairsThatCannotConnectAreTold(t *testing.T) {
	const n = 64
	for name, c := range map[string]struct {
		blocked func(from, to int) string
		lines   []string
		head    string
	}{
		"one pair": {func(from, to int) string {
			if from == 9 && to == 4 {
				return "refused"
			}
			return ""
		}, []string{"rank 4 with rank 9: rank 9 on host9 has dialled rank 4 on host4 at 10.0.0.4:77: refused in 1s; 172.17.0.1:77: another is there in 1s"},
			"1 of 2016 pairs of processes cannot connect, 2015 have (the slowest in 63ms)"},
		"one process": {func(from, to int) string {
			if from == 40 || to == 40 {
				return "refused"
			}
			return ""
		}, []string{"rank 40 with rank 0-39, 41-63 (63 pairs): rank "}, "63 of 2016"},
		"two of two kinds": {func(from, to int) string {
			switch {
			case to == 3:
				return "no answer"
			case to == 5:
				return "refused"
			}
			return ""
		}, []string{"rank 3 with rank 4-63 (60 pairs): rank 4 on host4 has dialled rank 3 on host3 at 10.0.0.3:77: no answer", "rank 5 with rank 6-63 (58 pairs): "}, "118 of 2016"},
		"all": {func(from, to int) string { return "refused" }, []string{"rank 0-63 with each other (2016 pairs): rank 1 on host1 has dialled rank 0 on host0 at "}, "2016 of 2016 pairs of processes cannot connect, 0 have"},
		"a network in two": {func(from, to int) string {
			if from%2 != to%2 {
				return "no answer"
			}
			return ""
		}, []string{"rank 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30 and 16 more with rank 1, 3, "}, "1024 of 2016"},
	} {
		t.Run(name, func(t *testing.T) {
			e := newConnectError(some(n, 1), rowsOf(n, c.blocked))
			lines := strings.Split(e.Error(), "\n  ")
			require.Contains(t, lines[0], c.head)
			require.Len(t, lines, len(c.lines)+2, "%v", e)
			for i, want := range c.lines {
				require.True(t, strings.HasPrefix(lines[i+1], want), lines[i+1])
			}
			require.Contains(t, lines[len(lines)-1], "check that a firewall")
			require.ErrorIs(t, e, kolo.ErrDeadline)
			var k *kolo.Error
			require.ErrorAs(t, e.joinError(), &k)
			require.NotEmpty(t, k.Ranks)
		})
	}
}

// Whatever is blocked, the error is of bounded length and counts every pair; and it survives
// its way over the wire.
func TestErrorOfManyPairsIsBounded(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	for range 20 {
		n, part := 2+rng.IntN(100), rng.Float64()
		total := 0
		rows := rowsOf(n, func(from, to int) string {
			if rng.Float64() >= part {
				return ""
			}
			total++
			return fmt.Sprint("reason ", rng.IntN(30), strings.Repeat("x", rng.IntN(1000)))
		})
		delete(rows, n) // nobody
		e := newConnectError(some(n, 3), rows)
		got := e.More
		for _, b := range e.Blocked {
			got += b.Pairs
		}
		require.Equal(t, total, got)
		require.Equal(t, e.Pairs, got+e.Linked)
		require.Less(t, len(e.Error()), 16<<10)
		var again *ConnectError
		require.NoError(t, json.Unmarshal(encode(e), &again))
		require.Equal(t, e.Error(), again.Error())
	}
}

// A member that cannot join tells whom it has reached, and all are asked; they hear the sum when
// all have told, or after a while of whom has not.
func TestRendezvousSumsWhomAllHaveReached(t *testing.T) {
	r := newRoom("job")
	size := func(h *hello) { h.Size = 3 }
	list := []*guest{r.come(size, 0), r.come(size, 1), r.come(size, 2)}
	w := list[0].told().World
	list[1].told()
	list[2].told()
	rows := rowsOf(3, func(from, to int) string { return map[[2]int]string{{2, 1}: "refused"}[[2]int{from, to}] })
	tell := func(q int, epoch uint64) {
		x := *rows[q]
		x.Epoch = epoch
		require.NoError(t, r.Handle(&tells{list[q], &x}))
	}
	tell(2, w.Epoch-1)
	require.Nil(t, list[0].told(), "of an older world")
	tell(2, w.Epoch)
	require.Nil(t, list[2].told())
	require.True(t, list[0].told().Tell)
	require.True(t, list[1].told().Tell)
	tell(0, w.Epoch)
	require.Nil(t, list[0].told())
	require.NoError(t, r.Handle(meetTick{}))
	require.Nil(t, list[0].told(), "there is time")
	r.at = r.at.Add(reachTime)
	require.NoError(t, r.Handle(meetTick{}))
	for q := range list {
		e := list[q].told().Reach
		require.Len(t, e.Blocked, 1)
		require.Equal(t, []kolo.Rank{1}, e.Silent)
		require.ErrorContains(t, e, "rank 1 has not told whom it reaches")
	}
	tell(1, w.Epoch)
	require.Empty(t, list[1].told().Reach.Silent, "it is late, and hears all")
	require.Nil(t, list[0].told())
	bad := &row{Epoch: w.Epoch, Process: 0, Failed: []failing{{To: []int{3}}}}
	require.NoError(t, r.Handle(&tells{list[0], bad}))
	require.Nil(t, list[0].told())
}

// Each job at a rendezvous has its time, whoever comes to another.
func TestEachJobHasItsTime(t *testing.T) {
	r := newRoom("")
	var wakes []time.Duration
	r.wake = func(d time.Duration) { wakes = append(wakes, d) }
	short := r.come(func(h *hello) { h.Wait = time.Second }, 0)
	long := r.come(func(h *hello) { h.Job, h.Wait = "other", time.Hour }, 0)
	require.Equal(t, []time.Duration{time.Second, time.Second}, wakes)
	r.at = r.at.Add(time.Second)
	require.NoError(t, r.Handle(meetTick{}))
	require.NotNil(t, short.told().Missing)
	require.Nil(t, long.told())
	require.Equal(t, time.Hour-time.Second, wakes[len(wakes)-1])
}

// Ports where nobody listens: one pair, and nearly all. Every rank has the same error, with the
// pairs, the addresses and the system's word for it.
func TestRefusedPortsAreInTheErrorOfAllRanks(t *testing.T) {
	for name, c := range map[string]struct {
		processes int
		refuse    []int // whose port
		says      []string
	}{
		"one pair": {4, []int{2}, []string{"1 of 6 pairs of processes cannot connect, 5 have", "\n  rank 2 with rank 3: rank 3 on "}},
		"many":     {12, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, []string{"66 of 66 pairs of processes cannot connect, 0 have", "\n  rank 0-11 with each other (66 pairs): rank 1 on "}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			port, err := strconv.Atoi(freePort(t))
			require.NoError(t, err)
			sizes := slices.Repeat([]int{1}, c.processes)
			began := time.Now()
			_, errs := tryEach(t, withRendezvous(t, Config{Timeout: 8 * time.Second}), func(i int, c2 *Config) {
				if slices.Contains(c.refuse, i) {
					c2.told = port
				}
			}, sizes...)
			t.Logf("after %v: %v", time.Since(began), errs[0])
			for r, err := range errs {
				var e *ConnectError
				require.ErrorAs(t, err, &e, "rank %d", r)
				require.ErrorIs(t, err, kolo.ErrDeadline, "rank %d", r)
				for _, want := range append(c.says, fmt.Sprintf("127.0.0.1:%d: connection refused (ECONNREFUSED), ", port)) {
					require.ErrorContains(t, err, want, "rank %d", r)
				}
				require.Less(t, len(err.Error()), 8<<10)
			}
		})
	}
}
