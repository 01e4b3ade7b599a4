package pipeline_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/npu"
	"github.com/kolo-ccl/kolo/npu/sim"
	"github.com/kolo-ccl/kolo/pipeline"

	"github.com/stretchr/testify/require"
)

// A reducer is stopped at some moment of some step by some rank, by an abort or by a
// kernel that fails. Everything ends, on every rank, for that one cause, and all memory
// can be given back; a step that was over before is right.
func TestReducerIsStoppedAnywhere(t *testing.T) {
	for seed := range uint64(80) { // half of them with Priority
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			common := rand.New(rand.NewPCG(seed, 99))
			h := halt{cause: errors.New("stop"), rank: kolo.Rank(common.IntN(3)), step: common.IntN(3),
				param: common.IntN(layersHalted), kernel: common.IntN(2) == 0, late: common.IntN(2) == 0, priority: seed%2 == 1}
			onDevices(t, 3, sim.Config{}, func(p *place) error { return h.run(p, rand.New(rand.NewPCG(seed, uint64(p.g.Rank())))) })
		})
	}
}

const layersHalted = 12

// halt is how a reducer is stopped.
type halt struct {
	cause       error
	rank        kolo.Rank
	step, param int
	kernel      bool // by a kernel, else by an abort
	late        bool // when all was asked for
	priority    bool
}

func (h *halt) run(p *place, rng *rand.Rand) error {
	var list []pipeline.Param
	for i := range layersHalted {
		list = append(list, pipeline.Param{Name: fmt.Sprint("layer ", i), Gradient: p.buffer(int64(64 * (1 + i)))})
	}
	r, err := pipeline.NewReducer(pipeline.ReducerConfig{Group: p.g, Params: list, Op: kolo.Sum, Bucket: 4096, First: 512, Priority: h.priority, Slice: 700,
		Producer: p.producer, Consumer: p.consumer})
	require.NoError(p.t, err)
	for step := 0; ; step++ {
		s, err := r.Begin()
		if err != nil { // the Producer has failed after the step before
			require.ErrorIs(p.t, err, h.cause)
			break
		}
		mine := step == h.step && p.g.Rank() == h.rank
		for k, i := range rng.Perm(layersHalted) {
			if mine && !h.late && k == h.param {
				h.stop(p, s)
			}
			took := time.Duration(rng.IntN(100)) * us
			// A rank that was stopped is refused by its streams and by the step.
			stopped := p.set(list[i].Gradient, 64, pipeline.Range{From: 0, To: 64}, took, func(int64) float32 { return float32(step + i) })
			if err := s.Ready(i); err != nil && !errors.Is(err, h.cause) && !errors.Is(err, kolo.ErrAborted) && stopped == nil {
				return err
			}
		}
		if mine && h.late {
			time.Sleep(time.Duration(rng.IntN(1000)) * us) // in a bubble
			h.stop(p, s)
		}
		_, err = s.Wait(p.ctx)
		if step < h.step {
			require.NoError(p.t, err)
			require.Equal(p.t, float32(3*(step+3)), p.values(list[3].Gradient)[5])
			continue
		}
		if err != nil {
			require.ErrorIs(p.t, err, h.cause)
			break
		}
		require.Equal(p.t, h.step, step, "it was over before the stop, which the next step meets")
	}
	for _, s := range []npu.Stream{p.producer, p.consumer} {
		_ = s.Sync(p.ctx) // of a stream that may have failed
	}
	require.NoError(p.t, r.Close())
	for _, x := range list {
		require.NoError(p.t, p.d.Free(x.Gradient.Memory))
	}
	require.Zero(p.t, p.d.Health().Buffers)
	return nil
}

func (h *halt) stop(p *place, s *pipeline.ReducerStep) {
	if !h.kernel {
		_ = s.Abort(h.cause) // what it could not mark is marked already
		return
	}
	require.NoError(p.t, p.producer.Launch(npu.Kernel{Name: "broken", Host: func([][]byte) error { return h.cause }}))
}
