package cluster

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/channel/faulty"
	"github.com/kolo-ccl/kolo/rank"

	"github.com/stretchr/testify/require"
)

// Only the data link between two processes breaks, and both live. The call ends soon on all,
// both ends name each other, Shrink goes on without the higher.
func TestDataLinkThatBreaksAlone(t *testing.T) {
	for _, transport := range []string{"tcp", "shm"} {
		t.Run(transport, func(t *testing.T) {
			t.Parallel()
			c := withRendezvous(t, Config{Transport: transport, Rank: rank.Config{Timeout: 3 * time.Second, Algorithm: "ring"}})
			list, errs := tryEach(t, c, func(i int, c *Config) {
				if i == 0 {
					c.Rank.Wrap = func(d channel.Driver) (channel.Driver, error) { return faulty.New(d, "cut 0 -> 1 after 20", 0) }
				}
			}, 1, 1, 1)
			require.NoError(t, errors.Join(errs...))
			worlds := worldsOf(list)
			began := time.Now()
			errs = each(worlds, func(w *rank.World) error {
				for {
					if err := allReduce(t.Context(), w.Group(), allRanks(3), 1000); err != nil {
						return err
					}
				}
			})
			t.Logf("ended after %v: %q", time.Since(began), errs)
			require.Less(t, time.Since(began), DefaultSilence)
			for r, err := range errs {
				require.ErrorIs(t, err, kolo.ErrLost, "rank %d", r)
				var e *kolo.Error
				require.ErrorAs(t, err, &e, "rank %d", r)
				if r < 2 {
					require.EqualValues(t, 1-r, e.Peer, "rank %d: %v", r, err)
				}
			}
			groups := make([]*rank.Group, 3)
			for r, err := range each(worlds, func(w *rank.World) (err error) { groups[w.Rank()], err = w.Shrink(t.Context()); return err }) {
				if r == 1 {
					require.ErrorIs(t, err, kolo.ErrLeftOut)
					require.ErrorIs(t, err, kolo.ErrLost)
					var e *kolo.Error
					require.ErrorAs(t, err, &e)
					require.Equal(t, []kolo.Rank{0}, e.Ranks)
					require.ErrorContains(t, err, "the data link of rank 1 to rank 0 is broken though both live (")
					continue
				}
				require.NoError(t, err, "rank %d", r)
			}
			t.Logf("shrunk after %v", time.Since(began))
			for r, err := range each([]*rank.World{worlds[0], worlds[2]}, func(w *rank.World) error {
				return allReduce(t.Context(), groups[w.Rank()], []kolo.Rank{0, 2}, 1000)
			}) {
				require.NoError(t, err, "rank %d", r)
			}
			closeAll(t, worlds)
		})
	}
}

// Several data links break, by either driver and with several ranks in a process: as few ranks as
// can be are left out, the others go on.
func TestSeveralDataLinksThatBreak(t *testing.T) {
	for name, c := range map[string]struct {
		sizes []int
		pairs [][2]kolo.Rank
		left  []kolo.Rank
	}{
		"two of rank 1":        {[]int{1, 1, 1, 1}, [][2]kolo.Rank{{1, 2}, {1, 3}}, []kolo.Rank{0, 2, 3}},
		"two apart":            {[]int{1, 1, 1, 1}, [][2]kolo.Rank{{0, 2}, {1, 3}}, []kolo.Rank{0, 1}},
		"of a rank in process": {[]int{2, 2}, [][2]kolo.Rank{{0, 3}, {1, 3}}, []kolo.Rank{0, 1, 2}},
	} {
		for _, transport := range []string{"tcp", "shm"} {
			t.Run(name+"/"+transport, func(t *testing.T) {
				t.Parallel()
				script := ""
				for _, p := range c.pairs {
					script += fmt.Sprintf("cut %d -> %d after 0\ncut %d -> %d after 0\n", p[0], p[1], p[1], p[0])
				}
				worlds := worldsOf(together(t, Config{Transport: transport, Rank: rank.Config{Timeout: patience, Algorithm: "ring",
					Wrap: func(d channel.Driver) (channel.Driver, error) { return faulty.New(d, script, 0) }}}, c.sizes...))
				pairwise := func(w *rank.World, p [2]kolo.Rank) error {
					g, err := w.NewGroup(rank.GroupConfig{Name: fmt.Sprint(p), Ranks: p[:]})
					if err != nil {
						return err
					}
					return errors.Join(allReduce(t.Context(), g, p[:], 1000), g.Close(t.Context()))
				}
				for r, err := range each(worlds, func(w *rank.World) error {
					for _, p := range c.pairs {
						if slices.Contains(p[:], w.Rank()) {
							if err := pairwise(w, p); !errors.Is(err, kolo.ErrLost) {
								return fmt.Errorf("link %v: %w", p, err)
							}
						}
					}
					g, err := w.Shrink(t.Context())
					if !slices.Contains(c.left, w.Rank()) {
						if !errors.Is(err, kolo.ErrLeftOut) {
							return fmt.Errorf("not left out: %w", err)
						}
						return nil
					}
					if err == nil {
						err = allReduce(t.Context(), g, c.left, 100000)
					}
					return err
				}) {
					require.NoError(t, err, "rank %d", r)
				}
				closeAll(t, worlds)
			})
		}
	}
}

// A link that no call has opened, and that the new group does not meet by, is broken too: the first
// Shrink does not know, the call that opens it says so, and the next Shrink goes on without its end.
func TestBrokenLinkThatIsOpenedLaterTakesAnotherShrink(t *testing.T) {
	script := "cut 0 -> 1 after 0\ncut 1 -> 0 after 0\ncut 2 -> 4 after 0\ncut 4 -> 2 after 0\n"
	worlds := worldsOf(together(t, Config{Transport: "tcp", Measure: MeasureOff, Rank: rank.Config{Timeout: patience, Algorithm: "ring",
		Wrap: func(d channel.Driver) (channel.Driver, error) { return faulty.New(d, script, 0) }}}, 1, 1, 1, 1, 1))
	pairwise := func(w *rank.World, p ...kolo.Rank) error {
		if !slices.Contains(p, w.Rank()) {
			return nil
		}
		g, err := w.NewGroup(rank.GroupConfig{Name: fmt.Sprint(p), Ranks: p})
		if err != nil {
			return err
		}
		if err := allReduce(t.Context(), g, p, 1000); !errors.Is(err, kolo.ErrLost) {
			return fmt.Errorf("link %v: %w", p, err)
		}
		return g.Close(t.Context())
	}
	shrink := func(w *rank.World, left ...kolo.Rank) error {
		g, err := w.Shrink(t.Context())
		switch {
		case !slices.Contains(left, w.Rank()):
			if !errors.Is(err, kolo.ErrLeftOut) {
				return fmt.Errorf("not left out of %v: %w", left, err)
			}
			return nil
		case err != nil:
			return err
		case g.Size() != len(left):
			return fmt.Errorf("%d are left, not %v", g.Size(), left)
		}
		return allReduce(t.Context(), g, left, 1000)
	}
	for _, step := range []func(w *rank.World) error{
		func(w *rank.World) error { return pairwise(w, 0, 1) },
		func(w *rank.World) error { return shrink(w, 0, 2, 3, 4) },
		func(w *rank.World) error { return pairwise(w, 2, 4) },
		func(w *rank.World) error {
			if w.Rank() == 1 {
				return nil
			}
			return shrink(w, 0, 2, 3)
		},
	} {
		for r, err := range each(worlds, step) {
			require.NoError(t, err, "rank %d", r)
		}
	}
	closeAll(t, worlds)
}
