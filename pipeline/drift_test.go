package pipeline_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/npu/sim"
	"github.com/kolo-ccl/kolo/pipeline"
	"github.com/kolo-ccl/kolo/rank"

	"github.com/stretchr/testify/require"
)

func TestDriftNamesParametersAndRanks(t *testing.T) {
	for _, c := range []struct {
		name string
		at   map[kolo.Rank]float32 // what ranks have in the last element of parameter 1
		want []pipeline.Drifted
	}{
		{"none", nil, nil},
		{"one", map[kolo.Rank]float32{2: 1e-30}, []pipeline.Drifted{{Name: "layer 1", Ranks: []kolo.Rank{2}}}},
		{"rank 0", map[kolo.Rank]float32{0: 1}, []pipeline.Drifted{{Name: "layer 1", Ranks: []kolo.Rank{0}}}},
		{"all", map[kolo.Rank]float32{1: 1, 2: 2, 3: 3}, []pipeline.Drifted{{Name: "layer 1", Ranks: []kolo.Rank{1, 2, 3}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.NoError(t, rank.Run(t.Context(), 4, func(ctx context.Context, w *rank.World) error {
				m := modelOf(5, 6, 7)
				m.values[1][5] = c.at[w.Rank()]
				got, err := pipeline.Drift(ctx, w.Group(), nil, m.params)
				require.Equal(t, c.want, got)
				return err
			}))
		})
	}
}

func TestDriftOnDevicesAndOfOtherModels(t *testing.T) {
	onDevices(t, 2, sim.Config{}, func(p *place) error {
		b := p.buffer(64)
		list := []pipeline.Param{{Name: "weights", Gradient: b}}
		require.NoError(p.t, p.set(b, 64, pipeline.Range{From: 0, To: 64}, us, func(i int64) float32 { return float32(int(i) * int(p.g.Rank())) }))
		got, err := pipeline.Drift(p.ctx, p.g, p.producer, list) // behind the kernel
		require.NoError(p.t, err)
		require.Equal(p.t, []pipeline.Drifted{{Name: "weights", Ranks: []kolo.Rank{1}}}, got)
		list[0].Name = fmt.Sprint("weights of rank ", int(p.g.Rank()))
		_, err = pipeline.Drift(p.ctx, p.g, p.producer, list)
		require.ErrorIs(p.t, err, kolo.ErrMismatch)
		return nil
	})
}
