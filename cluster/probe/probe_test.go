package probe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/cluster"
	"github.com/kolo-ccl/kolo/plan/survey"
	"github.com/kolo-ccl/kolo/rank"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// together opens a world of processes with so many ranks each, inside this one, and
// probes it.
func together(t *testing.T, c Config, transport string, sizes ...int) []*Result {
	r, err := cluster.Serve("127.0.0.1:0", nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Close()) }()
	total := 0
	for _, n := range sizes {
		total += n
	}
	results, errs := make([]*Result, len(sizes)), make([]error, len(sizes))
	var wg sync.WaitGroup
	next := kolo.Rank(0)
	for i, n := range sizes {
		cfg := cluster.Config{Rendezvous: r.Address(), Size: total, Transport: transport, Timeout: 20 * time.Second, Getenv: func(string) string { return "" }}
		for range n {
			cfg.Ranks = append(cfg.Ranks, next)
			next++
		}
		// ends with the probe
		wg.Go(func() {
			p, err := cluster.Open(t.Context(), cfg)
			if err != nil {
				errs[i] = err
				return
			}
			results[i], errs[i] = c.OfProcess(p).Run(t.Context(), p.Worlds())
			for _, w := range p.Worlds() {
				errs[i] = errors.Join(errs[i], w.Close(context.Background()))
			}
		})
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	return results
}

func TestAllRanksGetOneSurvey(t *testing.T) {
	for _, row := range []struct {
		transport string
		thorough  bool
		sizes     []int
		ways      int
	}{
		{"tcp", false, []int{1, 1, 1}, 6},
		{"tcp", false, []int{2, 1, 3}, 6 + 4},
		{"shm", false, []int{2, 2}, 2 + 4},
		{"", true, []int{2, 1}, 6},
		{"", false, []int{1}, 0},
	} {
		t.Run(fmt.Sprintf("%s/%v/%v", row.transport, row.thorough, row.sizes), func(t *testing.T) {
			list := together(t, Config{Thorough: row.thorough}, row.transport, row.sizes...)
			first := list[0]
			require.Len(t, first.Survey.Ways, row.ways)
			for _, r := range list {
				require.Equal(t, first.Survey, r.Survey)
				require.Equal(t, first.Topology.Digest(), r.Topology.Digest())
			}
			for _, w := range first.Survey.Ways {
				if w.Lost != "" || w.Edge.Latency <= 0 || w.Edge.Bandwidth < 1e6 {
					t.Errorf("%+v", w)
				}
				same := first.Survey.Places[w.From].Process == first.Survey.Places[w.To].Process
				if same != (w.Edge.Link == kolo.LinkHCCS) || row.transport == "tcp" && !same && w.Edge.Link != kolo.LinkTCP {
					t.Errorf("rank %d to rank %d by %v", w.From, w.To, w.Edge.Link)
				}
			}
			met := map[kolo.Rank]bool{}
			for _, c := range first.Clocks {
				met[c.Rank] = true
				if c.Ahead > c.Give+time.Millisecond || -c.Ahead > c.Give+time.Millisecond {
					t.Errorf("the clock of rank %d, which is the same, is ahead by %v", c.Rank, c.Ahead)
				}
			}
			if row.ways > 0 && len(met) == 0 {
				t.Error("no clock was compared")
			}
		})
	}
}

// local probes ranks of one process.
func local(t *testing.T, c Config, n int) (*Result, error) {
	worlds, err := rank.Open(n, rank.Config{})
	require.NoError(t, err)
	for i := range n {
		c.Places = append(c.Places, survey.Place{Process: i, Host: "a"})
	}
	c.Link = func(kolo.Rank) kolo.Link { return kolo.LinkHCCS }
	r, err := c.Run(t.Context(), worlds)
	for _, w := range worlds {
		require.NoError(t, w.Close(context.Background()))
	}
	return r, err
}

func TestImpostorIsALostLink(t *testing.T) {
	m := &meeting{}
	require.NoError(t, rank.Run(t.Context(), 2, func(ctx context.Context, w *rank.World) error {
		m := *m
		m.g, m.first = w.Group(), w.Rank() == 0
		mine, want := [2]uint64{uint64(w.Rank()), 7}, [2]uint64{uint64(1 - w.Rank()), 7}
		if w.Rank() == 1 {
			mine[1] = 8 // of another process
		}
		err := m.handshake(ctx, mine, want)
		if w.Rank() == 0 && !errors.Is(err, kolo.ErrMismatch) || w.Rank() == 1 && err != nil {
			return fmt.Errorf("rank %d: %v", w.Rank(), err)
		}
		return nil
	}))
}

func TestRanksOfOneProcess(t *testing.T) {
	r, err := local(t, Config{Identities: []string{"a", "b", "c", "d"}}, 4)
	require.NoError(t, err)
	require.Len(t, r.Survey.Ways, 12)
	_, err = local(t, Config{Identities: []string{"a"}}, 2)
	require.ErrorIs(t, err, kolo.ErrArgument)
}

func TestEveryPairMeetsOnce(t *testing.T) {
	for n := range 20 {
		var list []kolo.Rank
		for r := range n {
			list = append(list, kolo.Rank(10*r))
		}
		met := map[[2]kolo.Rank]int{}
		for _, round := range tournament(list) {
			var busy []kolo.Rank
			for _, pair := range round {
				if pair[0] >= pair[1] || slices.Contains(busy, pair[0]) || slices.Contains(busy, pair[1]) {
					t.Errorf("%d ranks: a round of %v", n, round)
				}
				busy = append(busy, pair[0], pair[1])
				met[pair]++
			}
		}
		require.Len(t, met, n*(n-1)/2)
	}
}
