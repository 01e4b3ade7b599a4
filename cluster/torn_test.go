package cluster

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/channel/faulty"
	"github.com/kolo-ccl/kolo/rank"

	"github.com/stretchr/testify/require"
)

// Only the data link between two processes breaks, and both live. The call ends soon on all,
// both ends name each other, Shrink says what is left, and a group without one end works.
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
			for r, err := range each(worlds, func(w *rank.World) error { _, err := w.Shrink(t.Context()); return err }) {
				require.ErrorIs(t, err, kolo.ErrLost, "rank %d", r)
				require.ErrorContains(t, err, "rank 0, 1 and 2 are all left, but the data link between two of them is broken", "rank %d", r)
			}
			for r, err := range each(worlds, func(w *rank.World) error {
				if w.Rank() == 1 {
					return nil
				}
				g, err := w.NewGroup(rank.GroupConfig{Name: "without 1", Ranks: []kolo.Rank{0, 2}})
				if err != nil {
					return fmt.Errorf("new group: %w", err)
				}
				return allReduce(t.Context(), g, []kolo.Rank{0, 2}, 1000)
			}) {
				require.NoError(t, err, "rank %d", r)
			}
			closeAll(t, worlds)
		})
	}
}
