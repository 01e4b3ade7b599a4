package perf

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/plan"
	"github.com/kolo-ccl/kolo/rank"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// small is a run of a few sizes, none of which is a multiple of much.
func small(o Operator, d kolo.DType, op kolo.ReduceOp, ranks int) *Config {
	return &Config{
		Operator: o, Placements: o.Placements(), Ranks: ranks, Range: Range{Min: 8, Max: 40_000, Factor: 17},
		DType: d, Op: op, Root: kolo.Rank(ranks - 1), Iterations: 1, Warmup: 1, Check: true,
		Rank: rank.Config{Timeout: time.Minute, Topology: plan.OneProcess(ranks)}, Now: time.Now,
	}
}

// rows runs c and returns what it gave.
func rows(t *testing.T, c *Config) []Row {
	t.Helper()
	var list []Row
	c.Row = func(r Row) error { list = append(list, r); return nil }
	require.NoError(t, c.Run(t.Context()))
	return list
}

func operator(t *testing.T, name string) Operator {
	t.Helper()
	i := slices.IndexFunc(Operators(), func(o Operator) bool { return o.Name == name })
	require.GreaterOrEqual(t, i, 0)
	return Operators()[i]
}

func TestEveryOperatorIsRight(t *testing.T) {
	for _, o := range Operators() {
		for _, d := range append(kolo.ReducibleDTypes(), kolo.HiFloat8, kolo.Float8E5M2) {
			for _, op := range []kolo.ReduceOp{kolo.Sum, kolo.Prod, kolo.Max, kolo.Min, kolo.Avg} {
				if !telling(o, d, op) {
					continue
				}
				t.Run(fmt.Sprintf("%s/%v/%v", o.Name, d, op), func(t *testing.T) {
					c := small(o, d, op, 3)
					c.Uneven = o.Counted()
					list := rows(t, c)
					require.GreaterOrEqual(t, len(list), 4*len(o.Placements())-1)
					for _, r := range list {
						if r.Verdict() != "success" {
							t.Errorf("%d bytes %v: %s %v", r.Size, r.Placement, r.Verdict(), r.Mistakes)
						}
						if r.Time <= 0 || r.AlgBW <= 0 || r.Choice.Algorithm == "" {
							t.Errorf("a row without figures: %+v", r)
						}
					}
				})
			}
		}
	}
}

// telling says whether a combination can go wrong where the others do not: every
// type with every operation once, and elsewhere one type of each width.
func telling(o Operator, d kolo.DType, op kolo.ReduceOp) bool {
	if o.Collective == kolo.AllReduce || !d.Reducible() {
		return d.Reducible() || !o.Collective.Reduces() && op == kolo.Sum
	}
	widths := []kolo.DType{kolo.Int8, kolo.Float16, kolo.Uint32, kolo.Float64}
	return slices.Contains(widths, d) && (op == kolo.Sum || op == kolo.Avg && o.Collective.Reduces())
}

func TestCountsMayBeEqual(t *testing.T) {
	for _, o := range Operators() {
		if o.Counted() {
			for _, r := range rows(t, small(o, kolo.Float32, kolo.Sum, 4)) {
				if r.Verdict() != "success" {
					t.Errorf("%s: %d bytes %v: %v", o.Name, r.Size, r.Placement, r.Mistakes)
				}
			}
		}
	}
}

func TestManyRanksAndChoreographies(t *testing.T) {
	for _, ranks := range []int{1, 2, 17} {
		for _, algorithm := range []string{"", "ring"} {
			for _, name := range []string{"all_reduce", "reduce_scatter", "all_gather"} {
				c := small(operator(t, name), kolo.BFloat16, kolo.Prod, ranks)
				c.Rank.Algorithm = algorithm
				for _, r := range rows(t, c) {
					if r.Verdict() != "success" {
						t.Errorf("%s, %d ranks, %q: %v", name, ranks, algorithm, r.Mistakes)
					}
				}
			}
		}
	}
}

func TestForcedAlgorithmIsForTheOperatorOnly(t *testing.T) {
	c := small(operator(t, "alltoall"), kolo.Float32, kolo.Sum, 3)
	c.Rank.Algorithm = "pairwise" // which does nothing else
	for _, r := range rows(t, c) {
		if r.Verdict() != "success" || r.Choice.Algorithm != "pairwise" {
			t.Errorf("%d bytes %v: %s by %s", r.Size, r.Placement, r.Verdict(), r.Choice.Algorithm)
		}
	}
}

// One wrong byte anywhere in any output must be found, and be told apart by rank and
// index.
func TestTheCheckFindsOneWrongElement(t *testing.T) {
	for _, o := range Operators() {
		for _, d := range []kolo.DType{kolo.Int8, kolo.Float16, kolo.Float64} {
			c := small(o, d, kolo.Sum, 3)
			c.Range = Range{Min: 40_000, Max: 40_000}
			hit, at := kolo.Rank(1), int64(0)
			if o.Collective == kolo.Reduce {
				hit = c.Root
			}
			c.Tamper = func(r kolo.Rank, out []byte) {
				if r == hit {
					at = int64(len(out)/d.Size()) * 2 / 3
					out[at*int64(d.Size())] ^= 1
				}
			}
			for _, r := range rows(t, c) {
				if r.Verdict() != "failed" || len(r.Mistakes) != 1 || r.Wrong() != 1 {
					t.Fatalf("%s of %v: %s %v", o.Name, d, r.Verdict(), r.Mistakes)
				}
				m := r.Mistakes[0]
				if m.Rank != hit || m.Index != at || m.Got == m.Want {
					t.Errorf("%s of %v: %v; want rank %d, element %d", o.Name, d, m, hit, at)
				}
			}
		}
	}
}

// What hccl_test's constant inputs cannot show.
func TestTheCheckFindsMisplacedBlocks(t *testing.T) {
	c := small(operator(t, "all_reduce"), kolo.Float32, kolo.Sum, 4)
	c.Range = Range{Min: 1 << 20, Max: 1 << 20}
	c.Tamper = func(r kolo.Rank, out []byte) {
		half := len(out) / 2
		a := slices.Clone(out[:half])
		copy(out, out[half:])
		copy(out[half:], a)
	}
	for _, r := range rows(t, c) {
		if len(r.Mistakes) != 4 || r.Wrong() < 4*(1<<18)*9/10 {
			t.Errorf("swapped halves: %d of %d elements are wrong", r.Wrong(), 4*(1<<18))
		}
	}
}

func TestSequencesDifferByRankAndPlace(t *testing.T) {
	for _, d := range kolo.ReducibleDTypes() {
		p := newPattern(d, kolo.Max, 3)
		at := func(rank int, i int64) uint64 {
			b := make([]byte, d.Size())
			p.fill(b, rank, i)
			return get(b, d, 0)
		}
		for _, step := range []int64{1, 4, 128, 4096, 1 << 18, period, 1e6} {
			same := 0
			for i := range int64(1000) {
				if at(0, i) == at(0, i+step) {
					same++
				}
				if at(0, i) == at(1, i) {
					same++
				}
			}
			if same > 60 { // of 2000
				t.Errorf("%v: %d of 2000 elements look like those %d further, or of another rank", d, same, step)
			}
		}
	}
}

func TestPatternWalksLikeItsFormula(t *testing.T) {
	p := newPattern(kolo.Uint32, kolo.Sum, 2)
	for _, from := range []int64{0, 1, period - 1, period, 5*period + 17, 1 << 33} {
		got := make([]byte, 4*3*period)
		p.fill(got, 1, from)
		for k := range int64(3 * period) {
			i := from + k
			want := get(p.ranks[1], kolo.Uint32, int((i%period+i/period*stride)%period))
			if get(got, kolo.Uint32, int(k)) != want {
				t.Fatalf("element %d from %d", k, from)
			}
		}
		wrong, _, _ := p.compare(got, 1, from)
		require.Zero(t, wrong)
	}
}

func TestExactness(t *testing.T) {
	for _, row := range []struct {
		name  string
		dtype kolo.DType
		op    kolo.ReduceOp
		ranks int
		exact bool
	}{
		{"bfloat16 sum of 256", kolo.BFloat16, kolo.Sum, 256, true},
		{"bfloat16 sum of 257", kolo.BFloat16, kolo.Sum, 257, false},
		{"float16 sum of 2048", kolo.Float16, kolo.Sum, 2048, true},
		{"float16 product of 1000", kolo.Float16, kolo.Prod, 1000, true},
		{"int8 sum of 1000 wraps", kolo.Int8, kolo.Sum, 1000, true},
		{"int8 average of 11", kolo.Int8, kolo.Avg, 11, true},
		{"int8 average of 12 may wrap", kolo.Int8, kolo.Avg, 12, false},
	} {
		c := small(operator(t, "all_reduce"), row.dtype, row.op, row.ranks)
		if c.Exact() != row.exact {
			t.Errorf("%s: exact is %v", row.name, !row.exact)
		}
	}
}

func TestFloatsGoThereAndBack(t *testing.T) {
	for _, d := range []kolo.DType{kolo.Float16, kolo.BFloat16, kolo.Float32, kolo.Float64} {
		for _, x := range []float64{0, 1, -1, 2, -3, 0.5, 0.25, 127, -200, 256, 1.0 / (1 << 14), 1 << 14} {
			if got := toFloat(d, fromFloat(d, x)); got != x {
				t.Errorf("%v: %v comes back as %v", d, x, got)
			}
		}
	}
	for bits, want := range map[uint64]string{0x7c00: "+Inf", 0xfc00: "-Inf", 0x7e00: "NaN", 1: "5.960464477539063e-08", 0x8001: "-5.960464477539063e-08"} {
		if got := text(kolo.Float16, bits); got != want {
			t.Errorf("float16 %#x is %s, want %s", bits, got, want)
		}
	}
	if got := text(kolo.Int8, 0xff); got != "-1" {
		t.Errorf("int8 0xff is %s", got)
	}
}

func TestSizes(t *testing.T) {
	for _, row := range []struct {
		name     string
		operator string
		ranks    int
		r        Range
		want     []int64 // elements of 4 bytes
	}{
		{"a factor", "all_reduce", 8, Range{Min: 8, Max: 64, Factor: 2}, []int64{2, 4, 8, 16}},
		{"a step", "all_reduce", 8, Range{Min: 100, Max: 400, Step: 100}, []int64{25, 50, 75, 100}},
		{"step 0 stays", "all_reduce", 8, Range{Min: 100, Max: 400}, []int64{25}},
		{"parts of elements count as one", "all_reduce", 3, Range{Min: 5, Max: 5, Step: 1}, []int64{2}},
		{"equal counts once", "all_reduce", 3, Range{Min: 1, Max: 8, Step: 1}, []int64{1, 2}},
		{"at least an element per rank", "all_gather", 8, Range{Min: 8, Max: 64, Factor: 2}, []int64{8, 16}},
		{"divided by 3", "reduce_scatter", 3, Range{Min: 100, Max: 100, Step: 1}, []int64{27}},
		{"aligned above 16 MiB", "scatter", 3, Range{Min: 16<<20 + 2000, Max: 16<<20 + 2000, Step: 1}, []int64{(16<<20 + 2000) / 1536 * 384}},
		{"not aligned where nothing is divided", "reduce", 3, Range{Min: 16<<20 + 2000, Max: 16<<20 + 2000, Step: 1}, []int64{4<<20 + 500}},
		{"a factor near 1 goes on", "broadcast", 2, Range{Min: 4, Max: 12, Factor: 1.0001}, []int64{1, 2, 3}},
	} {
		got, err := row.r.Counts(operator(t, row.operator), row.ranks, kolo.Float32)
		require.NoError(t, err, row.name)
		require.Equal(t, row.want, got, row.name)
	}
	_, err := Range{Min: 1, Max: 1 << 30, Step: 1}.Counts(operator(t, "reduce"), 2, kolo.Int8)
	require.ErrorContains(t, err, "take a larger step")
}

func TestSharesAddUp(t *testing.T) {
	for _, count := range []int64{0, 3, 17, 4096} {
		for _, n := range []int{1, 3, 8} {
			for _, uneven := range []bool{false, true} {
				if got := before(share(count, n, uneven), n); got != count {
					t.Errorf("%d in %d parts add up to %d", count, n, got)
				}
			}
		}
	}
}

func TestBadConfigurationsAreRefused(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(*Config)
		want   string
	}{
		{"no ranks", func(c *Config) { c.Ranks = 0 }, "0 ranks"},
		{"root outside", func(c *Config) { c.Root = 3 }, "the ranks are 0 to 2"},
		{"no iterations", func(c *Config) { c.Iterations = 0 }, "want 1 or more"},
		{"sizes backwards", func(c *Config) { c.Range = Range{Min: 8, Max: 4} }, "less than"},
		{"factor 1", func(c *Config) { c.Range.Factor = 1 }, "more than 1"},
		{"uneven without counts", func(c *Config) { c.Uneven = true }, "takes no counts"},
		{"unknown algorithm", func(c *Config) { c.Rank.Algorithm = "rings" }, "rings"},
		{"out of place broadcast", func(c *Config) {
			c.Operator, c.Placements = operator(t, "broadcast"), []Placement{OutOfPlace}
		}, "always in-place"},
	} {
		c := small(operator(t, "all_reduce"), kolo.Float32, kolo.Sum, 3)
		row.change(c)
		err := c.Run(t.Context())
		require.ErrorContains(t, err, row.want, row.name)
	}
}

func TestRepeatEndsWithTheContext(t *testing.T) {
	c := small(operator(t, "all_reduce"), kolo.Float32, kolo.Sum, 2)
	c.Range, c.Repeat = Range{Min: 8, Max: 8}, true
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	c.Row = func(Row) error {
		if n++; n == 10 {
			cancel()
		}
		return nil
	}
	require.ErrorIs(t, c.Run(ctx), kolo.ErrCanceled)
	require.GreaterOrEqual(t, n, 10)
}

func TestAnErrorOfRowEndsTheRun(t *testing.T) {
	c := small(operator(t, "all_reduce"), kolo.Float32, kolo.Sum, 3)
	full := errors.New("the disk is full")
	c.Row = func(Row) error { return full }
	require.ErrorIs(t, c.Run(t.Context()), full)
}

func TestMemoryIsForTheLargestSize(t *testing.T) {
	c := small(operator(t, "all_gather"), kolo.Float32, kolo.Sum, 4)
	c.Range = Range{Min: 1 << 10, Max: 1 << 20, Factor: 2}
	n, err := c.Memory()
	require.NoError(t, err)
	if want := int64(4<<20 + 1<<20); n < want || n > want+4*1024 {
		t.Errorf("%d bytes, want about %d", n, want)
	}
	c.Placements = []Placement{InPlace}
	n, err = c.Memory()
	require.NoError(t, err)
	if want := int64(4 << 20); n < want || n > want+4*1024 {
		t.Errorf("in place %d bytes, want about %d", n, want)
	}
}

func TestMistakeSaysWhere(t *testing.T) {
	m := Mistake{Rank: 3, Wrong: 2, Of: 100, Index: 17, Got: "5", Want: "7"}
	for _, want := range []string{"rank 3", "element 17", "5 instead of 7", "2 of 100"} {
		if !strings.Contains(m.String(), want) {
			t.Errorf("%q does not say %q", m.String(), want)
		}
	}
}

// Memory grows with the ranks, not with their square.
func TestMemoryOfManyRanks(t *testing.T) {
	used := func(ranks int) uint64 {
		c := small(operator(t, "all_reduce"), kolo.Float32, kolo.Sum, ranks)
		c.Range = Range{Min: 8, Max: 8, Factor: 2}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		rows(t, c)
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	used(64)
	few, many := used(128), used(512)
	t.Logf("%d bytes for 128 ranks, %d for 512", few, many)
	require.Less(t, many, 6*few)
}
