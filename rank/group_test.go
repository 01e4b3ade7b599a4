package rank_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/plan"
	"github.com/kolo-ccl/kolo/rank"
	"github.com/kolo-ccl/kolo/rank/ranktest"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// newGroup makes a group, which the end of the World closes.
func newGroup(t *testing.T, w *rank.World, c rank.GroupConfig) *rank.Group {
	t.Helper()
	g, err := w.NewGroup(c)
	require.NoError(t, err)
	return g
}

// openWorlds is n ranks without goroutines, closed at the end.
func openWorlds(t *testing.T, n int, c rank.Config) []*rank.World {
	t.Helper()
	worlds, err := rank.Open(n, c)
	require.NoError(t, err)
	t.Cleanup(func() {
		for _, w := range worlds {
			require.NoError(t, w.Close(context.Background()))
		}
	})
	return worlds
}

func TestGroupNumbersItsRanksInTheOrderGiven(t *testing.T) {
	order := []kolo.Rank{5, 0, 3, 2}
	ranktest.Run(t, 6, func(t *testing.T, world *rank.Group) {
		w := world.World()
		me := kolo.Rank(slices.Index(order, w.Rank()))
		if me < 0 {
			return
		}
		g := newGroup(t, w, rank.GroupConfig{Name: "some", Ranks: order})
		require.Equal(t, "some", g.Name())
		require.Equal(t, me, g.Rank())
		require.Equal(t, 4, g.Size())
		require.Same(t, w, g.World())
		for i, r := range order {
			require.Equal(t, r, g.WorldRank(kolo.Rank(i)))
			require.Equal(t, kolo.Rank(i), g.RankOf(r))
		}
		for _, r := range []kolo.Rank{1, 4, 6, kolo.NoRank} {
			require.Equal(t, kolo.NoRank, g.RankOf(r))
		}
		for _, r := range []kolo.Rank{-1, 4} {
			require.Equal(t, kolo.NoRank, g.WorldRank(r))
		}
		for _, algorithm := range []string{"", "ring", "nhr", "fabric"} {
			g := newGroup(t, w, rank.GroupConfig{Name: "by " + algorithm, Ranks: order, Algorithm: algorithm})
			all := make([]int32, 4)
			require.NoError(t, rank.AllGather(t.Context(), g, all, []int32{int32(w.Rank())}))
			require.Equal(t, []int32{5, 0, 3, 2}, all)
			b := []int32{int32(w.Rank())}
			require.NoError(t, rank.Broadcast(t.Context(), g, b, 2)) // the group's rank 2
			require.Equal(t, []int32{3}, b)
			var got []int32
			if g.Rank() == 0 {
				got = make([]int32, 4)
			}
			require.NoError(t, rank.Gather(t.Context(), g, got, []int32{10 * int32(w.Rank())}, 0))
			if g.Rank() == 0 {
				require.Equal(t, []int32{50, 0, 30, 20}, got)
			}
		}
	})
}

func TestRootAndPeerAreGroupRanks(t *testing.T) {
	ranktest.Run(t, 6, func(t *testing.T, world *rank.Group) {
		if world.Rank() < 4 {
			return
		}
		g := newGroup(t, world.World(), rank.GroupConfig{Ranks: []kolo.Rank{4, 5}})
		err := rank.Broadcast(t.Context(), g, []int32{1}, 4) // a world rank
		require.ErrorIs(t, err, kolo.ErrArgument)
		require.ErrorContains(t, err, "a root is a group rank")
		require.ErrorIs(t, rank.Send(t.Context(), g, []int32{1}, 5, 0), kolo.ErrArgument)
		require.ErrorIs(t, rank.Recv(t.Context(), g, []int32{1}, -1, 0), kolo.ErrArgument)
		require.NoError(t, rank.Barrier(t.Context(), g), "a refused call is no call")
	})
}

func TestOverlappingGroupsMayBeUsedInAnyOrder(t *testing.T) {
	// a is ranks 0 1 2, b 2 1 3 and c all; blocking calls would deadlock in some orders, and
	// asynchronous ones must not in any.
	lists := [][]kolo.Rank{{0, 1, 2}, {2, 1, 3}, {0, 1, 2, 3}}
	seed := rand.Uint64()
	ranktest.Run(t, 4, func(t *testing.T, world *rank.Group) {
		w := world.World()
		var mine []*rank.Group
		for i, list := range lists {
			if slices.Contains(list, w.Rank()) {
				mine = append(mine, newGroup(t, w, rank.GroupConfig{Name: fmt.Sprint(i), Ranks: list, Algorithm: []string{"", "ring", "nhr"}[i]}))
			}
		}
		rng := rand.New(rand.NewPCG(seed, uint64(w.Rank()))) // another order on every rank
		for round := range 30 {
			var works []rank.Work
			bufs := map[*rank.Group][]int64{}
			for _, i := range rng.Perm(len(mine)) {
				g := mine[i]
				bufs[g] = []int64{int64(w.Rank()) + 1, int64(round)}
				works = append(works, rank.AllReduceAsync(g, bufs[g], kolo.Sum))
			}
			for _, i := range rng.Perm(len(works)) {
				require.NoError(t, works[i].Wait(t.Context()), "seed %d", seed)
			}
			for g, b := range bufs {
				want := int64(0)
				for r := range g.Size() {
					want += int64(g.WorldRank(kolo.Rank(r))) + 1
				}
				require.Equal(t, []int64{want, int64(round * g.Size())}, b, "seed %d", seed)
			}
		}
	})
}

func TestGridOfTensorAndDataParallelGroups(t *testing.T) {
	const tp, dp = 4, 3
	ranktest.Run(t, tp*dp, func(t *testing.T, world *rank.Group) {
		w := world.World()
		row, col := int(w.Rank())/tp, int(w.Rank())%tp
		var inRow, inCol []kolo.Rank
		for i := range tp {
			inRow = append(inRow, kolo.Rank(row*tp+i))
		}
		for i := range dp {
			inCol = append(inCol, kolo.Rank(i*tp+col))
		}
		rows := newGroup(t, w, rank.GroupConfig{Name: "tp", Ranks: inRow}) // one name for all rows
		cols := newGroup(t, w, rank.GroupConfig{Name: "dp", Ranks: inCol, Algorithm: "ring"})
		for range 20 {
			a, b, c := []int32{int32(col)}, []int32{int32(row)}, []int32{1}
			works := []rank.Work{
				rank.AllReduceAsync(cols, b, kolo.Sum), rank.AllReduceAsync(rows, a, kolo.Sum), rank.AllReduceAsync(world, c, kolo.Sum),
			}
			for _, work := range works {
				require.NoError(t, work.Wait(t.Context()))
			}
			require.Equal(t, []int32{0 + 1 + 2 + 3, 0 + 1 + 2, tp * dp}, []int32{a[0], b[0], c[0]})
		}
	})
}

func TestManyGroupsAreUsedAtTheSameTime(t *testing.T) {
	const groups, rounds = 128, 5
	ranktest.Run(t, 4, func(t *testing.T, world *rank.Group) {
		w := world.World()
		algorithms := []string{"", "ring", "fabric", "nhr", "mesh", "recursive-doubling"}
		var wg sync.WaitGroup
		errs := make([]error, groups)
		for i := range groups {
			g := newGroup(t, w, rank.GroupConfig{Name: fmt.Sprint("group ", i), Ranks: []kolo.Rank{0, 1, 2, 3}, Algorithm: algorithms[i%len(algorithms)]})
			wg.Go(func() { // ends after its rounds
				for k := range rounds {
					b := ranktest.Data[int32](w.Rank(), 300+i)
					if err := rank.AllReduce(t.Context(), g, b, kolo.Sum); err != nil {
						errs[i] = err
						return
					}
					if !slices.Equal(b, ranktest.Fold(kolo.Sum, ranktest.Inputs[int32](4, 300+i)...)) {
						errs[i] = fmt.Errorf("group %d, round %d: wrong sum", i, k)
					}
				}
			})
		}
		wg.Wait()
		for _, err := range errs {
			require.NoError(t, err)
		}
	})
}

func TestGroupsAreMadeConcurrently(t *testing.T) {
	const groups = 7
	ranktest.Run(t, 3, func(t *testing.T, world *rank.Group) {
		var wg sync.WaitGroup
		errs := make([]error, groups)
		for i := range groups {
			wg.Go(func() { // ends after a call of its group
				g, err := world.World().NewGroup(rank.GroupConfig{Name: fmt.Sprint(i), Ranks: []kolo.Rank{2, 0, 1}})
				if err == nil {
					b := []int32{int32(i)}
					if err = rank.AllReduce(t.Context(), g, b, kolo.Sum); err == nil && b[0] != int32(3*i) {
						err = fmt.Errorf("group %d has %d", i, b[0])
					}
				}
				errs[i] = err
			})
		}
		wg.Wait()
		for _, err := range errs {
			require.NoError(t, err)
		}
	})
}

func TestGroupWithoutANameIsNamedAfterItsRanks(t *testing.T) {
	worlds := openWorlds(t, 3, rank.Config{})
	g := newGroup(t, worlds[2], rank.GroupConfig{Ranks: []kolo.Rank{2, 0}})
	require.Equal(t, "ranks 2 and 0", g.Name())
	require.Equal(t, "world", worlds[1].Group().Name())
	same := newGroup(t, worlds[2], rank.GroupConfig{Ranks: []kolo.Rank{2, 0}})
	require.Equal(t, g.Name(), same.Name())
	other, third := newGroup(t, worlds[0], rank.GroupConfig{Ranks: []kolo.Rank{2, 0}}), newGroup(t, worlds[0], rank.GroupConfig{Ranks: []kolo.Rank{2, 0}})
	works := []rank.Work{rank.BarrierAsync(g), rank.BarrierAsync(other)} // first with first
	for _, w := range append(works, rank.BarrierAsync(third), rank.BarrierAsync(same)) {
		require.NoError(t, w.Wait(t.Context()))
	}
}

// Two groups of many ranks that differ in the last only must have different names.
func TestDefaultNamesOfLargeGroupsDiffer(t *testing.T) {
	first := make([]kolo.Rank, 17)
	for r := range first {
		first[r] = kolo.Rank(r)
	}
	second := slices.Clone(first)
	second[16] = 17
	ranktest.RunConfig(t, 18, rank.Config{Timeout: 5 * time.Second}, func(t *testing.T, world *rank.Group) {
		for _, list := range [][]kolo.Rank{first, second} {
			if slices.Contains(list, world.Rank()) {
				g := newGroup(t, world.World(), rank.GroupConfig{Ranks: list})
				require.NoError(t, rank.Barrier(t.Context(), g))
			}
		}
	})
}

func TestMismatchOfLongListsSaysWhereTheyDiffer(t *testing.T) {
	worlds := openWorlds(t, 20, rank.Config{})
	var a, b []kolo.Rank
	for r := range 20 {
		a, b = append(a, kolo.Rank(r)), append(b, kolo.Rank(r))
	}
	b[17], b[18] = 18, 17
	newGroup(t, worlds[0], rank.GroupConfig{Name: "g", Ranks: a})
	_, err := worlds[3].NewGroup(rank.GroupConfig{Name: "g", Ranks: b})
	require.ErrorIs(t, err, kolo.ErrMismatch)
	require.ErrorContains(t, err, "begin to differ at Ranks[17]")
}

func TestMembersThatMakeDifferentGroupsAreNamed(t *testing.T) {
	all := []kolo.Rank{0, 1, 2}
	for _, c := range []struct {
		name string
		odd  rank.GroupConfig
		says string
	}{
		{"ranks", rank.GroupConfig{Ranks: []kolo.Rank{0, 2, 1}}, "ranks [0, 2 and 1] instead of [0, 1 and 2]"},
		{"fewer ranks", rank.GroupConfig{Ranks: []kolo.Rank{0, 2}}, "ranks [0 and 2] instead of [0, 1 and 2]"},
		{"algorithm", rank.GroupConfig{Ranks: all, Algorithm: "ring"}, `algorithm "ring" instead of ""`},
		{"timeout", rank.GroupConfig{Ranks: all, Timeout: time.Second}, "timeout 1s instead of 5m0s"},
		{"priority", rank.GroupConfig{Ranks: all, Priority: 3}, "priority 3 instead of 0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			worlds := openWorlds(t, 3, rank.Config{})
			g := newGroup(t, worlds[0], rank.GroupConfig{Name: "g", Ranks: all})
			early := rank.BarrierAsync(g)
			c.odd.Name = "g"
			_, err := worlds[2].NewGroup(c.odd)
			for _, err := range []error{err, early.Wait(t.Context()), rank.Barrier(t.Context(), g)} {
				require.ErrorIs(t, err, kolo.ErrMismatch)
				require.ErrorContains(t, err, "world rank 2 makes the group with "+c.says)
				var e *kolo.Error
				require.ErrorAs(t, err, &e)
				require.Equal(t, []kolo.Rank{2}, e.Ranks)
			}
		})
	}
}

func TestGroupRefusesBadLists(t *testing.T) {
	w := openWorlds(t, 3, rank.Config{})[1]
	for _, c := range []struct {
		name  string
		ranks []kolo.Rank
		is    error
		says  string
	}{
		{"none", nil, kolo.ErrArgument, "GroupConfig.Ranks is empty"},
		{"not a member", []kolo.Rank{0, 2}, kolo.ErrNotMember, "the group is of world ranks 0 and 2"},
		{"too large", []kolo.Rank{1, 3}, kolo.ErrArgument, "Ranks[1] is 3; the world has ranks 0 to 2"},
		{"negative", []kolo.Rank{-1, 1}, kolo.ErrArgument, "Ranks[0] is -1"},
		{"twice", []kolo.Rank{1, 0, 1}, kolo.ErrArgument, "rank 1 is in the list twice"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := w.NewGroup(rank.GroupConfig{Ranks: c.ranks})
			require.ErrorIs(t, err, c.is)
			require.ErrorContains(t, err, c.says)
		})
	}
	_, err := w.NewGroup(rank.GroupConfig{Ranks: []kolo.Rank{1}, Algorithm: "rings"})
	require.ErrorIs(t, err, kolo.ErrArgument)
	require.ErrorContains(t, err, "rings")
}

func TestGroupOfOneAnswersAlone(t *testing.T) {
	worlds := openWorlds(t, 2, rank.Config{})
	for _, a := range plan.Algorithms() {
		if a.Serves(kolo.AllReduce, plan.OneProcess(1)) != nil {
			continue
		}
		g := newGroup(t, worlds[1], rank.GroupConfig{Name: a.Name, Ranks: []kolo.Rank{1}, Algorithm: a.Name})
		b := []float32{3}
		require.NoError(t, rank.AllReduce(t.Context(), g, b, kolo.PreMulSum(0.5)), a.Name)
		require.Equal(t, []float32{1.5}, b, a.Name)
	}
}

func TestGroupKeepsItsListToItself(t *testing.T) {
	list := []kolo.Rank{1, 0}
	worlds := openWorlds(t, 2, rank.Config{})
	a := newGroup(t, worlds[0], rank.GroupConfig{Name: "g", Ranks: list})
	list[0], list[1] = 0, 1
	b := newGroup(t, worlds[1], rank.GroupConfig{Name: "g", Ranks: []kolo.Rank{1, 0}})
	require.Equal(t, kolo.Rank(1), a.Rank())
	require.Equal(t, kolo.Rank(1), a.WorldRank(0))
	works := []rank.Work{rank.BarrierAsync(a), rank.BarrierAsync(b)}
	for _, w := range works {
		require.NoError(t, w.Wait(t.Context()))
	}
}

func TestCloseAfterItsContextHasEndedStillEndsEverything(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	worlds, err := rank.Open(3, rank.Config{})
	require.NoError(t, err)
	for _, w := range worlds {
		require.NoError(t, w.Close(ended))
	}
	goleak.VerifyNone(t)
}
