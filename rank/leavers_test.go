package rank_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/channel/faulty"
	"github.com/kolo-ccl/kolo/internal/cover"
	"github.com/kolo-ccl/kolo/rank"

	"github.com/stretchr/testify/require"
)

// cutting wraps the driver so that the links of some pairs break at their first message.
func cutting(pairs [][2]kolo.Rank) func(channel.Driver) (channel.Driver, error) {
	var script strings.Builder
	for _, p := range pairs {
		fmt.Fprintf(&script, "cut %d -> %d after 0\ncut %d -> %d after 0\n", p[0], p[1], p[1], p[0])
	}
	return func(d channel.Driver) (channel.Driver, error) { return faulty.New(d, script.String(), 0) }
}

// breakLinks uses the links of pairs until they have broken for both of their ends.
func breakLinks(ctx context.Context, w *rank.World, pairs [][2]kolo.Rank) error {
	for _, p := range pairs {
		if !slices.Contains(p[:], w.Rank()) {
			continue
		}
		g, err := w.NewGroup(rank.GroupConfig{Name: fmt.Sprint("pair ", p), Ranks: p[:], Algorithm: "ring"})
		if err != nil {
			return err
		}
		if err := rank.AllReduce(ctx, g, make([]int32, 10), kolo.Sum); !errors.Is(err, kolo.ErrLost) {
			return fmt.Errorf("link %v: %w", p, err)
		}
		if err := g.Close(ctx); err != nil {
			return err
		}
	}
	return nil
}

// members are the world ranks of a group.
func members(g *rank.Group) (list []kolo.Rank) {
	for r := range g.Size() {
		list = append(list, g.WorldRank(kolo.Rank(r)))
	}
	return list
}

// Both ends of a broken data link live: as few ranks as can be are left out, and the others go on.
func TestShrinkLeavesOutTheEndsOfBrokenLinks(t *testing.T) {
	for name, c := range map[string]struct {
		of      []int
		pairs   [][2]kolo.Rank
		out     []kolo.Rank
		because string // for the first of them
	}{
		"one pair":                  {[]int{0, 1, 2}, [][2]kolo.Rank{{0, 1}}, []kolo.Rank{1}, "rank 1 to rank 0 is broken"},
		"only two ranks":            {[]int{0, 1}, [][2]kolo.Rank{{0, 1}}, []kolo.Rank{1}, "rank 1 to rank 0 is broken"},
		"two pairs of one rank":     {[]int{0, 1, 2, 3}, [][2]kolo.Rank{{1, 2}, {1, 3}}, []kolo.Rank{1}, "rank 1 to rank 2 and 3 is broken"},
		"two pairs of rank 0":       {[]int{0, 1, 2, 3}, [][2]kolo.Rank{{0, 2}, {0, 3}}, []kolo.Rank{0}, "rank 0 to rank 2 and 3 is broken"},
		"two pairs apart":           {[]int{0, 1, 2, 3, 4}, [][2]kolo.Rank{{0, 1}, {2, 3}}, []kolo.Rank{1, 3}, "rank 1 to rank 0 is broken"},
		"a circle":                  {[]int{0, 1, 2, 3}, [][2]kolo.Rank{{0, 1}, {1, 2}, {0, 2}}, []kolo.Rank{1, 2}, "rank 1 to rank 0 and 2 is broken"},
		"of several ranks each":     {[]int{0, 0, 1, 1}, [][2]kolo.Rank{{1, 2}}, []kolo.Rank{2}, "rank 2 to rank 1 is broken"},
		"two processes, all links":  {[]int{0, 0, 1, 1, 2}, [][2]kolo.Rank{{0, 2}, {0, 3}, {1, 2}, {1, 3}}, []kolo.Rank{2, 3}, "rank 2 to rank 0 and 1 is broken"},
		"one process of three":      {[]int{0, 0, 0}, [][2]kolo.Rank{{0, 2}}, []kolo.Rank{2}, "rank 2 to rank 0 is broken"},
		"nobody where none is used": {[]int{0, 1, 2}, nil, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openParts(t, c.of, rank.Config{Timeout: 20 * time.Second, Algorithm: "ring", Wrap: cutting(c.pairs)})
			groups := make([]*rank.Group, len(c.of))
			for round := range 2 { // the second time nothing is new
				errs := s.each(func(w *rank.World) error {
					if round == 0 {
						if err := breakLinks(t.Context(), w, c.pairs); err != nil {
							return err
						}
					}
					g, err := w.Shrink(t.Context())
					if groups[w.Rank()] = g; err != nil {
						return err
					}
					b := int32s(w.Rank(), 100)
					if err := rank.AllReduce(t.Context(), g, b, kolo.Sum); err != nil {
						return err
					}
					require.Equal(t, sumOf(members(g), 100), b)
					return g.Close(t.Context())
				})
				var left []kolo.Rank
				for r, err := range errs {
					if slices.Contains(c.out, kolo.Rank(r)) {
						require.ErrorIs(t, err, kolo.ErrLeftOut, "rank %d", r)
						require.ErrorIs(t, err, kolo.ErrLost, "rank %d", r)
						continue
					}
					require.NoError(t, err, "rank %d", r)
					left = append(left, kolo.Rank(r))
				}
				for _, r := range left {
					require.Equal(t, left, members(groups[r]), "rank %d", r)
					require.Equal(t, left, s.worlds[r].Survivors())
				}
				if len(c.out) > 0 {
					require.ErrorContains(t, errs[c.out[0]], c.because)
					require.ErrorContains(t, errs[c.out[0]], "was cut before message 0")
				}
			}
			s.close(t)
		})
	}
}

// Broken links, a rank that closes its world in the meantime, and words that come late: who
// goes on does so with the same members, without two whose link is broken, and as many as can be.
func TestShrinkAgreesWhateverComesFirst(t *testing.T) {
	for range 25 {
		seed := rand.Uint64()
		rng := rand.New(rand.NewPCG(seed, 1))
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			n := 3 + rng.IntN(4)
			of := make([]int, n)
			for i := 1; i < n; i++ {
				of[i] = of[i-1] + min(1, rng.IntN(3))
			}
			var pairs [][2]kolo.Rank
			for a := range n {
				for b := range a {
					if rng.IntN(5) == 0 {
						pairs = append(pairs, [2]kolo.Rank{kolo.Rank(b), kolo.Rank(a)})
					}
				}
			}
			leaver := kolo.Rank(rng.IntN(2 * n)) // or nobody
			s := openParts(t, of, rank.Config{Timeout: 20 * time.Second, Algorithm: "ring", Wrap: cutting(pairs)})
			defer s.close(t)
			for r, err := range s.each(func(w *rank.World) error { return breakLinks(t.Context(), w, pairs) }) {
				require.NoError(t, err, "rank %d", r)
			}
			slow := rng.IntN(len(s.lines))
			s.lines[slow].hold()
			var once sync.Once
			time.AfterFunc(time.Duration(rng.IntN(20))*time.Millisecond, s.lines[slow].release)
			groups := make([]*rank.Group, n)
			errs := s.each(func(w *rank.World) error {
				if w.Rank() == leaver {
					once.Do(func() {})
					return w.Close(t.Context())
				}
				for {
					g, err := w.Shrink(t.Context())
					if err != nil {
						return err
					}
					if groups[w.Rank()] = g; rank.Barrier(t.Context(), g) == nil {
						return nil
					}
				}
			})
			var known [][2]kolo.Rank
			for _, p := range pairs {
				if !slices.Contains(p[:], leaver) {
					known = append(known, p)
				}
			}
			most := n - len(cover.Fewest(known))
			if int(leaver) < n {
				most--
			}
			var left []kolo.Rank
			for r, err := range errs {
				switch {
				case kolo.Rank(r) == leaver:
					require.NoError(t, err)
				case err != nil:
					require.ErrorIs(t, err, kolo.ErrLeftOut, "rank %d of %v with %v, %v leaves", r, of, pairs, leaver)
				default:
					left = append(left, kolo.Rank(r))
				}
			}
			for _, r := range left {
				require.Equal(t, left, members(groups[r]), "rank %d of %v with %v, %v leaves", r, of, pairs, leaver)
			}
			require.Len(t, left, most, "%v with %v, %v leaves", of, pairs, leaver)
		})
	}
}

// A link is broken, and another swallows what it is given: that is found before anybody goes,
// so that it is the end of both.
func TestShrinkTriesTheLinksThatNobodyHasMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := [][2]kolo.Rank{{1, 2}}
		script := "cut 1 -> 2 after 0\ncut 2 -> 1 after 0\nlose 3 -> 1 send 1..9999\nlose 1 -> 3 send 1..9999"
		s := openParts(t, []int{0, 1, 2, 3}, rank.Config{Timeout: time.Minute, Algorithm: "ring",
			Wrap: func(d channel.Driver) (channel.Driver, error) { return faulty.New(d, script, 0) }})
		for r, err := range s.each(func(w *rank.World) error {
			if w.Rank() == 1 || w.Rank() == 3 { // the link that will be silent is open, at one end
				pair, err := w.NewGroup(rank.GroupConfig{Name: "pair", Ranks: []kolo.Rank{1, 3}})
				if err != nil {
					return err
				}
				if w.Rank() == 3 {
					err = rank.Send(t.Context(), pair, []int32{1}, 0, 7)
				} else {
					err = rank.Recv(t.Context(), pair, make([]int32, 1), 1, 7)
				}
				if err != nil {
					return err
				}
			}
			if err := breakLinks(t.Context(), w, broken); err != nil {
				return err
			}
			g, err := w.Shrink(t.Context())
			if w.Rank() == 1 {
				require.ErrorIs(t, err, kolo.ErrLeftOut)
				require.ErrorContains(t, err, "rank 1 to rank 2 and 3 is broken")
				return nil
			}
			if err == nil {
				require.Equal(t, []kolo.Rank{0, 2, 3}, members(g))
			}
			return err
		}) {
			require.NoError(t, err, "rank %d", r)
		}
		s.close(t)
	})
}
