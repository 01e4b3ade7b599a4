package cluster

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"

	"github.com/stretchr/testify/require"
)

// hosts makes a world of processes, of which card says where each is and what it has.
func hosts(n int, card func(q int) (Host, []string)) (*roster, *channelMap) {
	r, m := &roster{Size: n, Job: "job"}, &channelMap{auto: true}
	for q := range n {
		h, has := card(q)
		r.Members = append(r.Members, Member{Ranks: []kolo.Rank{kolo.Rank(q)}, Host: h})
		m.has = append(m.has, has)
	}
	return r, m
}

// slowly is pairings by a look at every pair: of each kind, by its texts without names, the
// driver, how many pairs it has and the first of them.
func slowly(m *channelMap, r *roster) (list []string) {
	first, count := map[string][][2]int{}, map[string]int{}
	for a := range r.Members {
		for b := range a {
			x, y, at := m.profile(r, b), m.profile(r, a), nearnessOf(&r.Members[b].Host, &r.Members[a].Host)
			driver, not := "nothing", ""
			for _, name := range preferred() {
				reason := m.obstacle(name, &x, &y, at)
				if reason == "" {
					driver = name
					break
				}
				not += name + reason
			}
			k := driver + not + m.suspect(&x, &y, at, driver)
			if count[k]++; len(first[k]) < maxNotes {
				first[k] = append(first[k], [2]int{b, a})
			}
			if count[k] == 1 {
				list = append(list, k)
			}
		}
	}
	for i, k := range list {
		driver, _, _ := strings.Cut(k, "shm")
		list[i] = fmt.Sprint(driver, count[k], first[k])
		if strings.HasPrefix(k, "shm") {
			list[i] = fmt.Sprint("shm", count[k], first[k])
		}
	}
	return list
}

func TestPairsOfAKindAreThoseOfEveryPair(t *testing.T) {
	seed := rand.Uint64()
	t.Log("seed", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	for range 400 {
		n, machines, networks, users, lacking := 2+rng.IntN(60), 1+rng.IntN(6), 1+rng.IntN(3), 1+rng.IntN(2), rng.IntN(4)
		r, m := hosts(n, func(int) (Host, []string) {
			h := Host{Machine: fmt.Sprint("m", rng.IntN(machines)), User: rng.IntN(users)}
			h.Name, h.Network = h.Machine, fmt.Sprint(h.Machine, rng.IntN(networks))
			if rng.IntN(3) == 0 {
				h.RDMA = []string{"mlx5_0"}
			}
			has := []string{"shm", "tcp", "verbs"}
			if rng.IntN(10) < lacking {
				has = slices.Delete(has, 0, 1+rng.IntN(2))
			}
			return h, has
		})
		var got []string
		total := 0
		for _, g := range m.pairings(r) {
			got = append(got, fmt.Sprint(g.driver, g.count, g.pairs))
			total += g.count
			require.NotContains(t, g.why+g.check, "%")
		}
		require.Equal(t, n*(n-1)/2, total)
		require.Equal(t, slowly(m, r), got)
	}
}

// Who lacks something is named, each once, whatever pairs it is of.
func TestExplanationNamesWhoLacksWhat(t *testing.T) {
	r, m := hosts(40, func(q int) (Host, []string) {
		machine := fmt.Sprint("m", q/8)
		h := Host{Name: machine, Machine: machine, Network: machine, RDMA: []string{"mlx5_0", "mlx5_1"}}
		if q >= 32 {
			h.RDMA = nil
		}
		if q == 9 || q == 20 {
			return h, []string{"shm", "tcp"}
		}
		return h, []string{"shm", "tcp", "verbs"}
	})
	p := &Process{roster: r, drivers: m}
	text := p.Explain()
	require.Contains(t, text, "tcp between rank 0 with 9, ")
	require.Contains(t, text, ": the best that both have; not shm: they are on different hosts, not verbs: rank 9 and 20 have not opened it\n")
	require.Contains(t, text, "both have RoCE ports (mlx5_0, mlx5_1) and send by TCP")
	require.Contains(t, text, "only one end has an active RoCE port: on m4 check")
	require.Len(t, p.Warnings(), 2)
}

// A join of a thousand processes does not wait for its explanation.
func TestWarningsOfAThousandProcesses(t *testing.T) {
	for name, each := range map[string]int{"eight on a host": 8, "one on a host": 1, "all on one host": 1000} {
		for _, names := range []bool{false, true} { // each in a container of its own
			r, m := hosts(1000, func(q int) (Host, []string) {
				machine := fmt.Sprint("m", q/each)
				h := Host{Name: machine, Machine: machine, Network: machine, RDMA: []string{"mlx5_0"}}
				if names {
					h.Network = fmt.Sprint(machine, " ", q)
				}
				if q%100 == 99 {
					h.RDMA = nil
				}
				return h, []string{"shm", "tcp", "verbs"}
			})
			p := &Process{roster: r, drivers: m, cfg: Config{Ranks: []kolo.Rank{0}, Log: slog.New(slog.DiscardHandler)}}
			began := time.Now()
			p.warn()
			d := time.Since(began)
			t.Logf("%s, containers %v: %v, %d kinds", name, names, d, len(m.pairings(r)))
			require.Less(t, d, time.Second/2, name) // a look at every pair takes longer than that
		}
	}
}
