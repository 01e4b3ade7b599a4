package cluster

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/rank"

	"github.com/stretchr/testify/require"
)

// Links between single pairs break, and everybody goes on with the same members, or hears
// that it is left out.
func TestBrokenLinksOfSomePairsAreAgreedOn(t *testing.T) {
	for name, c := range map[string]struct {
		n    int
		cuts [][2]int
		left []kolo.Rank
	}{
		"one link":          {3, [][2]int{{0, 1}}, []kolo.Rank{0, 2}},
		"two of one":        {5, [][2]int{{1, 2}, {2, 3}}, []kolo.Rank{0, 1, 3, 4}},
		"two apart":         {5, [][2]int{{0, 1}, {2, 3}}, []kolo.Rank{0, 2, 4}},
		"rank 0 from three": {5, [][2]int{{0, 1}, {0, 2}, {0, 3}}, []kolo.Rank{1, 2, 3, 4}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			list := together(t, Config{Transport: "tcp", Rank: rank.Config{Timeout: patience}}, slices.Repeat([]int{1}, c.n)...)
			worlds := worldsOf(list)
			start := time.Now()
			for _, e := range c.cuts {
				list[e[0]].hurt(e[1], errors.New("cut by the test"))
			}
			groups := make([]*rank.Group, c.n)
			errs := each(worlds, func(w *rank.World) error {
				buf := make([]int32, 1000)
				for { // until somebody is missed
					if err := rank.AllReduce(t.Context(), w.Group(), buf, kolo.Sum); err != nil {
						break
					}
				}
				g, err := w.Shrink(t.Context())
				if groups[w.Rank()] = g; err == nil {
					var members []kolo.Rank
					for i := range g.Size() {
						members = append(members, g.WorldRank(kolo.Rank(i)))
					}
					t.Logf("rank %d goes on with %v after %v", w.Rank(), members, time.Since(start))
					err = allReduce(t.Context(), g, c.left, 1000)
				}
				return err
			})
			for r, err := range errs {
				if !slices.Contains(c.left, kolo.Rank(r)) {
					require.ErrorIs(t, err, kolo.ErrLeftOut, "rank %d", r)
					require.ErrorIs(t, err, kolo.ErrLost, "rank %d", r)
					require.ErrorContains(t, err, "was left out of the world by rank ", "rank %d", r)
					continue
				}
				require.NoError(t, err, "rank %d", r)
				require.Equal(t, len(c.left), groups[r].Size(), "rank %d", r)
			}
			closeAll(t, worlds)
		})
	}
}

// Of any two parts exactly one goes on.
func TestOnePartHasTheMajority(t *testing.T) {
	for set := 1; set < 1<<6-1; set++ {
		var a, b []kolo.Rank
		for r := range 6 {
			if set>>r&1 == 1 {
				a = append(a, kolo.Rank(r))
			} else {
				b = append(b, kolo.Rank(r))
			}
		}
		require.NotEqual(t, hasMajority(a, b), hasMajority(b, a), "%v and %v", a, b)
		if len(a) != len(b) {
			require.Equal(t, len(a) > len(b), hasMajority(a, b))
		} else {
			require.Equal(t, a[0] == 0, hasMajority(a, b))
		}
	}
	require.True(t, hasMajority([]kolo.Rank{5}, nil), "all others are known to have ended")
}
