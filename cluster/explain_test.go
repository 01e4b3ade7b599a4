package cluster

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/kolo-ccl/kolo"

	"github.com/stretchr/testify/require"
)

// Which driver joins two processes, why, and what is to be checked, by what is there.
func TestDriverOfAPairIsChosenByWhatIsThere(t *testing.T) {
	host := func(machine, network string, user int, rdma ...string) Host {
		return Host{Name: machine, Machine: machine, Network: machine + network, User: user, RDMA: rdma}
	}
	all := []string{"shm", "tcp", "verbs"}
	for name, c := range map[string]struct {
		a, b               Host
		hasA, hasB         []string
		driver, why, check string
	}{
		"one host":           {host("m", "", 1), host("m", "", 1), all, all, "shm", "the best that both have", ""},
		"one host with RoCE": {host("m", "", 1, "mlx5_0"), host("m", "", 1, "mlx5_0"), all, all, "shm", "the best", ""},
		"two namespaces":     {host("m", "a", 1, "r0"), host("m", "b", 1, "r0"), all, all, "tcp", "not shm: they are in different network namespaces, not verbs: they are on one host", "one machine"},
		"two users":          {host("m", "", 1), host("m", "", 2), all, all, "tcp", "not shm: they run as different users (1 and 2)", "one machine"},
		"two hosts":          {host("m", "", 1), host("n", "", 1), []string{"shm", "tcp"}, []string{"shm", "tcp"}, "tcp", "not shm: they are on different hosts, not verbs: not both hosts have an active RoCE port", ""},
		"RoCE":               {host("m", "", 1, "mlx5_0"), host("n", "", 1, "mlx5_0"), all, all, "verbs", "not shm: they are on different hosts", ""},
		"RoCE at one end":    {host("m", "", 1, "mlx5_0"), host("n", "", 1), all, []string{"shm", "tcp"}, "tcp", "not both hosts have", "on n check the adapter"},
		"RoCE not linked in": {host("m", "", 1, "mlx5_0"), host("n", "", 1, "mlx5_1"), all, []string{"shm", "tcp"}, "tcp", "not verbs: rank 1 has not opened it", "both have RoCE ports (mlx5_0; mlx5_1)"},
		"nothing in common":  {host("m", "", 1), host("n", "", 1), []string{"shm"}, []string{"tcp"}, "nothing", "tcp: rank 0 has not opened it", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := &roster{Size: 2, Members: []Member{{Ranks: []kolo.Rank{0}, Host: c.a}, {Ranks: []kolo.Rank{1}, Host: c.b}}}
			m := &channelMap{auto: true, has: [][]string{c.hasA, c.hasB}}
			list := m.pairings(r)
			require.Len(t, list, 1)
			g := list[0]
			require.Equal(t, c.driver, g.driver)
			require.Contains(t, g.why, c.why)
			if c.check == "" {
				require.Empty(t, g.check)
			} else {
				require.Contains(t, g.check, c.check)
			}
		})
	}
}

func TestRoCEPorts(t *testing.T) {
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s + "\n")} }
	require.Equal(t, []string{"mlx5_0"}, rocePorts(fstest.MapFS{
		"mlx5_0/ports/1/state": file("4: ACTIVE"), "mlx5_0/ports/1/link_layer": file("Ethernet"),
		"mlx5_0/ports/2/state": file("4: ACTIVE"), "mlx5_0/ports/2/link_layer": file("Ethernet"),
		"mlx5_1/ports/1/state": file("1: DOWN"), "mlx5_1/ports/1/link_layer": file("Ethernet"),
		"mlx5_2/ports/1/state": file("4: ACTIVE"), "mlx5_2/ports/1/link_layer": file("InfiniBand"),
		"mlx5_3/ports/1/state": file("4: ACTIVE"),
	}))
	require.Empty(t, rocePorts(fstest.MapFS{}))
}

func TestChannelMapIsExplained(t *testing.T) {
	list := together(t, Config{Measure: MeasureOff}, 2, 1, 1)
	text := list[0].Explain()
	require.Equal(t, text, list[2].Explain(), "all say the same")
	require.Equal(t, "hccs within each process\nshm between rank 0 and 1 with 2, 0 and 1 with 3, 2 with 3: the best that both have\n", text)
	closeAll(t, worldsOf(list))
	list = together(t, Config{Transport: "tcp"}, 1, 1)
	require.Contains(t, list[1].Explain(), "tcp between rank 0 with 1: Config.Transport says so\n")
	closeAll(t, worldsOf(list))
}

// What Explain warns of is logged at a join: each kind once, however many pairs it is of, and
// by one process.
func TestWarningsAreLoggedAtAJoin(t *testing.T) {
	r := &roster{Job: "warned"}
	m := &channelMap{auto: true}
	for q := range 8 { // two per machine, of different networks
		machine := fmt.Sprint("m", q/2)
		r.Members = append(r.Members, Member{Ranks: []kolo.Rank{kolo.Rank(q)}, Host: Host{Name: machine, Machine: machine, Network: fmt.Sprint(q)}})
		m.has = append(m.has, []string{"shm", "tcp"})
	}
	r.Members[7].Host.RDMA = []string{"mlx5_0"}
	for self, want := range []int{2, 0} { // one machine; RoCE at one end
		var out bytes.Buffer
		p := &Process{self: self, roster: r, drivers: m, cfg: Config{Ranks: r.Members[self].Ranks, Log: slog.New(slog.NewTextHandler(&out, nil))}}
		p.warn()
		text := out.String()
		if self == 0 {
			require.Equal(t, 1, strings.Count(text, "its memory is not shared"), text)
			require.Contains(t, text, `pairs="tcp between rank 0 with 1, 2 with 3, 4 with 5, 6 with 7"`)
			require.Contains(t, text, "job=warned")
			require.Contains(t, text, "level=WARN")
			require.Contains(t, text, "on m0, m1, m2 check the adapter")
		}
		require.Equal(t, want, strings.Count(text, "\n"), text)
		for _, w := range p.Warnings() {
			require.Contains(t, p.Explain(), w.Check)
			require.Contains(t, p.Explain(), w.Pairs+": ")
		}
	}
}
