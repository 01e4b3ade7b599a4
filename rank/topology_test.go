package rank_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/plan"
	"github.com/kolo-ccl/kolo/rank"
)

// A topology that is agreed on after the ranks were made counts for all groups that span
// processes, those that are made later among them, and is refused once a call was made.
func TestTopologyIsSetBeforeTheFirstCall(t *testing.T) {
	s := openParts(t, []int{0, 1, 2, 3}, rank.Config{})
	defer s.close(t)
	call := kolo.Call{Collective: kolo.AllReduce, DType: kolo.Int32, Op: kolo.Sum, Count: 64 << 10}
	usual, err := s.worlds[0].Group().Explain(call)
	require.NoError(t, err)
	far, err := plan.Places([]int{0, 1, 2, 3}, nil)
	require.NoError(t, err)
	far.Levels[1], far.Sources[1] = kolo.Edge{Link: kolo.LinkTCP, Latency: 10 * time.Millisecond, Bandwidth: 1e9}, "measured"
	for _, l := range s.locals {
		require.ErrorIs(t, l.SetTopology(plan.OneServer(3), "a test"), kolo.ErrArgument)
		require.NoError(t, l.SetTopology(far, "a test"))
	}
	want, err := plan.Choose(&call, far, plan.Policy{})
	require.NoError(t, err)
	require.NotEqual(t, usual.Algorithm, want.Algorithm)
	for r, err := range s.each(func(w *rank.World) error {
		pair, err := w.NewGroup(rank.GroupConfig{Name: "all again", Ranks: []kolo.Rank{3, 2, 1, 0}})
		if err != nil {
			return err
		}
		for _, g := range []*rank.Group{w.Group(), pair} {
			ch, err := g.Explain(call)
			if err != nil {
				return err
			}
			if text := ch.Explain(); ch.Algorithm != want.Algorithm {
				t.Errorf("rank %d: %s", int(w.Rank()), text)
			} else {
				require.Contains(t, text, "tcp 10ms 1 GB/s (measured)")
			}
			b := int32s(w.Rank(), 1000)
			if err := rank.AllReduce(t.Context(), g, b, kolo.Sum); err != nil {
				return err
			}
			require.Equal(t, sumOf([]kolo.Rank{0, 1, 2, 3}, 1000), b)
		}
		return pair.Close(t.Context())
	}) {
		require.NoError(t, err, "rank %d", r)
	}
	require.Contains(t, s.worlds[1].Settings(), rank.Setting{Name: "Topology", Value: far.String(), Source: "a test"})
	require.ErrorIs(t, s.locals[0].SetTopology(far, "a test"), kolo.ErrArgument)
}
