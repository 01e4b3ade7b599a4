package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/rank"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if what := os.Getenv("KOLO_TEST_CHILD"); what != "" {
		os.Exit(child(what))
	}
	goleak.VerifyTestMain(m)
}

// noEnv is an environment without anything in it.
func noEnv(string) string { return "" }

// standing is a rendezvous for a test.
func standing(t testing.TB) string {
	r, err := Serve("127.0.0.1:0", nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r.Address()
}

// split gives ranks to processes: sizes[i] of them to process i.
func split(sizes ...int) (lists [][]kolo.Rank, n int) {
	for _, size := range sizes {
		var list []kolo.Rank
		for range size {
			list = append(list, kolo.Rank(n))
			n++
		}
		lists = append(lists, list)
	}
	return lists, n
}

// together opens several processes of a world inside this one of the operating system.
func together(t testing.TB, c Config, sizes ...int) []*Process {
	if c.Rendezvous == "" {
		c.Rendezvous = standing(t)
	}
	list, errs := tryTogether(t, c, sizes...)
	require.NoError(t, errors.Join(errs...))
	return list
}

func tryTogether(t testing.TB, c Config, sizes ...int) ([]*Process, []error) {
	return tryEach(t, c, func(int, *Config) {}, sizes...)
}

// tryEach is tryTogether where set changes what is different in process i.
func tryEach(t testing.TB, c Config, set func(i int, c *Config), sizes ...int) ([]*Process, []error) {
	lists, n := split(sizes...)
	if c.Size = n; c.Getenv == nil {
		c.Getenv = noEnv
	}
	if c.Timeout == 0 {
		c.Timeout = patience
	}
	out, errs := make([]*Process, len(sizes)), make([]error, len(sizes))
	var wg sync.WaitGroup
	for i, ranks := range lists {
		c := c
		c.Ranks = ranks
		set(i, &c)
		wg.Go(func() { out[i], errs[i] = Open(t.Context(), c) }) // ends with the join
	}
	wg.Wait()
	return out, errs
}

// worldsOf are the Worlds of processes, by rank.
func worldsOf(list []*Process) []*rank.World {
	var worlds []*rank.World
	for _, p := range list {
		worlds = append(worlds, p.Worlds()...)
	}
	slices.SortFunc(worlds, func(a, b *rank.World) int { return int(a.Rank() - b.Rank()) })
	return worlds
}

// each runs f on all worlds and returns the errors by rank.
func each(worlds []*rank.World, f func(w *rank.World) error) []error {
	errs := make([]error, len(worlds))
	var wg sync.WaitGroup
	for i, w := range worlds {
		wg.Go(func() { errs[i] = f(w) }) // ends with f
	}
	wg.Wait()
	return errs
}

func closeAll(t testing.TB, worlds []*rank.World) {
	for r, err := range each(worlds, func(w *rank.World) error { return w.Close(context.Background()) }) {
		if err != nil {
			t.Errorf("close rank %d: %v", r, err)
		}
	}
}

func value(r kolo.Rank, i int) int32 { return int32(int(r)*1000003 + i*7 + 1) }

func data(r kolo.Rank, n int) []int32 {
	b := make([]int32, n)
	for i := range b {
		b[i] = value(r, i)
	}
	return b
}

func sum(ranks []kolo.Rank, n int) []int32 {
	b := make([]int32, n)
	for _, r := range ranks {
		for i := range b {
			b[i] += value(r, i)
		}
	}
	return b
}

func allRanks(n int) (list []kolo.Rank) {
	for r := range n {
		list = append(list, kolo.Rank(r))
	}
	return list
}

// allReduce is one right AllReduce of n elements.
func allReduce(ctx context.Context, g *rank.Group, ranks []kolo.Rank, n int) error {
	b := data(g.World().Rank(), n)
	if err := rank.AllReduce(ctx, g, b, kolo.Sum); err != nil {
		return err
	}
	if want := sum(ranks, n); !slices.Equal(b, want) {
		return fmt.Errorf("rank %d has a wrong sum", int(g.World().Rank()))
	}
	return nil
}

func TestJoinAndAllReduce(t *testing.T) {
	for _, transport := range []string{"tcp", "shm", ""} {
		for _, sizes := range [][]int{{1}, {1, 1}, {1, 1, 1, 1}, {2, 3}, {2, 1, 2}} {
			t.Run(fmt.Sprintf("%s/%v", transport, sizes), func(t *testing.T) {
				list := together(t, Config{Transport: transport}, sizes...)
				worlds := worldsOf(list)
				for r, err := range each(worlds, func(w *rank.World) error {
					for _, n := range []int{0, 1, 1000, 300000} {
						if err := allReduce(t.Context(), w.Group(), allRanks(len(worlds)), n); err != nil {
							return err
						}
					}
					return nil
				}) {
					require.NoError(t, err, "rank %d", r)
				}
				closeAll(t, worlds)
			})
		}
	}
}
