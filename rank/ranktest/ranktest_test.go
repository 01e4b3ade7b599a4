package ranktest_test

import (
	"math"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/rank"
	"github.com/kolo-ccl/kolo/rank/ranktest"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEveryRankRunsWithItsOwnT(t *testing.T) {
	var names [3]string
	ranktest.Run(t, 3, func(t *testing.T, g *rank.Group) {
		names[g.Rank()] = t.Name()
		require.NoError(t, rank.Barrier(t.Context(), g))
	})
	for r, name := range names {
		if want := t.Name() + "/rank_" + string(rune('0'+r)); name != want {
			t.Errorf("rank %d ran as %q, not %q", r, name, want)
		}
	}
	goleak.VerifyNone(t)
}

func TestConfigReachesTheRanks(t *testing.T) {
	ranktest.RunConfig(t, 2, rank.Config{Algorithm: "ring"}, func(t *testing.T, g *rank.Group) {
		got, err := g.Explain(kolo.Call{Collective: kolo.AllReduce, Count: 1})
		require.NoError(t, err)
		require.Equal(t, "ring", got.Algorithm)
	})
}

func TestRanksServeManyRuns(t *testing.T) {
	ranks := ranktest.Open(t, 3, rank.Config{})
	for range 3 {
		ranks.Run(t, func(t *testing.T, g *rank.Group) {
			b := ranktest.Data[int32](g.Rank(), 10)
			require.NoError(t, rank.AllReduce(t.Context(), g, b, kolo.Sum))
			require.Equal(t, ranktest.Fold(kolo.Sum, ranktest.Inputs[int32](3, 10)...), b)
			_, err := g.World().NewGroup(rank.GroupConfig{Ranks: []kolo.Rank{g.Rank()}}) // left open
			require.NoError(t, err)
		})
	}
	ranks.RunGroup(t, rank.GroupConfig{Ranks: []kolo.Rank{2, 0}}, func(t *testing.T, g *rank.Group) {
		require.Equal(t, 2, g.Size())
		require.Equal(t, 2-2*g.Rank(), g.World().Rank())
	})
	ranks.Close(t)
	ranks.Close(t)
	goleak.VerifyNone(t)
}

// fails says that this process is the one that runs the tests that fail on purpose.
const fails = "KOLO_RANKTEST_FAILS"

func TestRankThatFails(t *testing.T) {
	if os.Getenv(fails) == "" {
		t.Skip("run by TestFailureOfOneRankEndsTheOthers")
	}
	body := func(t *testing.T, g *rank.Group) {
		if g.Rank() == 2 {
			t.FailNow()
		}
		require.ErrorContains(t, rank.Barrier(t.Context(), g), "its test has failed")
		t.Log("was freed")
	}
	t.Run("run", func(t *testing.T) { ranktest.Run(t, 4, body) })
	t.Run("open", func(t *testing.T) {
		ranks := ranktest.Open(t, 4, rank.Config{})
		ranks.Run(t, body)
		ranks.Run(t, func(t *testing.T, g *rank.Group) {
			require.NoError(t, rank.Barrier(t.Context(), g))
			t.Log("goes on")
		})
		ranks.Run(t, func(t *testing.T, g *rank.Group) {
			if g.Rank() > 0 {
				require.ErrorIs(t, rank.Barrier(t.Context(), g), kolo.ErrLeft)
				t.Log("was left")
			}
		})
	})
}

func TestFailureOfOneRankEndsTheOthers(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestRankThatFails$", "-test.v")
	cmd.Env = append(os.Environ(), fails+"=1")
	out, err := cmd.CombinedOutput()
	text := string(out)
	require.Error(t, err, text)
	count := func(want int, what string) {
		if got := strings.Count(text, what); got != want {
			t.Errorf("%d times %q instead of %d", got, what, want)
		}
	}
	count(1, "--- FAIL: TestRankThatFails/run/rank_2 ")
	count(1, "--- FAIL: TestRankThatFails/open/rank_2 ")
	count(6, "was freed")
	count(4, "goes on")
	count(3, "was left")
	if t.Failed() {
		t.Log(text)
	}
}

func TestHalvesByDefinition(t *testing.T) {
	inf := float32(math.Inf(1))
	for _, c := range []struct {
		dtype kolo.DType
		value float32
		bits  uint16
	}{
		{kolo.Float16, 0, 0}, {kolo.Float16, 1, 0x3c00}, {kolo.Float16, -2, 0xc000}, {kolo.Float16, 65504, 0x7bff},
		{kolo.Float16, 65519, 0x7bff}, {kolo.Float16, 65520, 0x7c00}, {kolo.Float16, inf, 0x7c00}, {kolo.Float16, -inf, 0xfc00},
		{kolo.Float16, 0x1p-24, 1}, {kolo.Float16, 0x1p-25, 0}, {kolo.Float16, 0x1.8p-25, 1}, {kolo.Float16, 0x1p-14, 0x0400},
		{kolo.Float16, 2049, 0x6800}, {kolo.Float16, 2051, 0x6802}, {kolo.Float16, 0x1.ffffp-15, 0x0400},
		{kolo.BFloat16, 1, 0x3f80}, {kolo.BFloat16, 257, 0x4380}, {kolo.BFloat16, 259, 0x4382}, {kolo.BFloat16, math.MaxFloat32, 0x7f80},
		{kolo.BFloat16, 0x1p-133, 1}, {kolo.BFloat16, 0x1p-126, 0x80},
	} {
		got := ranktest.Halves(c.dtype, []float32{c.value, -c.value})
		if got[0] != c.bits || got[1] != c.bits^0x8000 && c.value > 0 {
			t.Errorf("%v of %v and less is %#04x, not %#04x", c.dtype, c.value, got, c.bits)
		}
	}
	for _, d := range []kolo.DType{kolo.Float16, kolo.BFloat16} {
		for h := range 1 << 16 {
			f := ranktest.Float32s(d, []uint16{uint16(h)})
			if back := ranktest.Halves(d, f)[0]; back != uint16(h) && f[0] == f[0] {
				t.Fatalf("%v %#04x is %v, which is %#04x", d, h, f[0], back)
			}
		}
	}
}

func TestFilledElementsFoldTheSameInAnyOrder(t *testing.T) {
	const p, n = 33, 50
	ops := []kolo.ReduceOp{kolo.Sum, kolo.Prod, kolo.Max, kolo.Min, kolo.Avg, kolo.PreMulSum(2)}
	for _, op := range ops {
		for _, d := range []kolo.DType{kolo.Float16, kolo.BFloat16} {
			up, down := make([][]uint16, p), make([][]uint16, p)
			for r := range p {
				up[r] = make([]uint16, n)
				b := rank.Float16s(up[r])
				b.DType = d
				ranktest.Fill(b, op, kolo.Rank(r))
				down[p-1-r] = up[r]
			}
			require.Equal(t, ranktest.FoldHalves(d, op, up...), ranktest.FoldHalves(d, op, down...), "%v %v", d, op)
			pairs := [][]uint16{ranktest.FoldHalves(d, partial(op), up[:16]...), ranktest.FoldHalves(d, partial(op), up[16:]...)}
			if op.Kind != kolo.OpAvg && op.Kind != kolo.OpPreMulSum {
				require.Equal(t, ranktest.FoldHalves(d, op, up...), ranktest.FoldHalves(d, op, pairs...), "%v %v", d, op)
			}
		}
	}
}

// partial is the operation that joins partial results.
func partial(op kolo.ReduceOp) kolo.ReduceOp {
	if op.Kind == kolo.OpAvg || op.Kind == kolo.OpPreMulSum {
		return kolo.Sum
	}
	return op
}

func TestDataDiffersByRankAndIndex(t *testing.T) {
	in := ranktest.Inputs[float32](4, 1000)
	for r := range 4 {
		for i := range 999 {
			same := 0
			for q := range 4 {
				if in[q][i] == in[r][i] {
					same++
				}
			}
			if in[r][i] == in[r][i+1] {
				same++
			}
			if same > 3 {
				t.Fatalf("rank %d has at %d what others have", r, i)
			}
		}
	}
}
