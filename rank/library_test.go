package rank_test

import (
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/plan"
	"github.com/kolo-ccl/kolo/rank"
)

// outside are the directories of plans that the tests use: those of package msccl and
// the public ones, if KOLO_DATA says where they are.
func outside() []string {
	dirs := []string{"../plan/msccl/testdata"}
	if d := os.Getenv("KOLO_DATA"); d != "" {
		dirs = append(dirs, filepath.Join(d, "msccl-xml"))
	}
	return dirs
}

// Every plan of the directories gives on real buffers what its collective says, in place
// and not, for counts that its chunks divide and for others.
func TestPlansFromOutside(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for _, dir := range outside() {
		lib, err := rank.ReadPlans(os.DirFS(dir))
		require.NoError(t, err)
		require.NotEmpty(t, lib.Entries())
		for _, e := range lib.Entries() {
			t.Run(e.Name, func(t *testing.T) {
				own := *e
				own.InPlace, own.OutOfPlace, own.MinBytes, own.MaxBytes = true, true, 0, 0
				one := &plan.Library{}
				require.NoError(t, one.Add(&own))
				parts := e.Program(0, true).Parts
				for i, count := range []int{parts, 3*parts + 1, 1, 1021} {
					rng := rand.New(rand.NewPCG(seed, uint64(count)))
					runPlan(t, rank.Config{Plans: one}, count, i, rng)
				}
				if e.Ranks <= 16 { // sockets between all of them
					runPlan(t, rank.Config{Plans: one, Driver: "tcp"}, 3*parts+1, 1, rand.New(rand.NewPCG(seed, 9)))
				}
			})
		}
	}
}

// runPlan makes a call of the one plan of a library. Every second call is in place, the
// third on odd ranks only.
func runPlan(t *testing.T, cfg rank.Config, count, turn int, rng *rand.Rand) {
	t.Helper()
	e := cfg.Plans.Entries()[0]
	n, c := e.Ranks, e.Key.Collective
	in, out := make([][]int64, n), make([][]int64, n)
	big := count
	if c != kolo.AllReduce {
		big *= n
	}
	for r := range n {
		in[r], out[r] = make([]int64, big), make([]int64, big)
		for i := range in[r] {
			in[r][i] = rng.Int64N(1<<40) - 1<<39
		}
	}
	want := func(r, i int) (sum int64) { // element i of the output of rank r
		switch c {
		case kolo.AllGather:
			return in[i/count][i%count]
		case kolo.AllToAll:
			return in[i/count][r*count+i%count]
		case kolo.ReduceScatter:
			i += r * count
		}
		for q := range n {
			sum += in[q][i]
		}
		return sum
	}
	err := cfg.Run(t.Context(), n, func(ctx context.Context, w *rank.World) error {
		r := int(w.Rank())
		q := rank.Request{Collective: c, Op: kolo.Sum}
		mine := slices.Clone(in[r])
		from, to := mine, out[r]
		if inPlace := turn == 1 || turn == 2 && r%2 == 1; inPlace {
			to = from
		}
		switch lo, hi := r*count, (r+1)*count; c {
		case kolo.AllGather:
			mine = mine[:count]
			if from = mine; turn == 1 || turn == 2 && r%2 == 1 {
				from = out[r][lo:hi]
				to = out[r]
				copy(from, mine)
			}
		case kolo.ReduceScatter:
			to = to[lo:hi]
		}
		q.In, q.Out = rank.Of(from), rank.Of(to)
		got, err := w.Group().Explain(kolo.Call{Collective: c, Op: kolo.Sum, DType: kolo.Int64, Count: int64(count)})
		if err != nil || got.Algorithm != e.Name {
			return fmt.Errorf("the choice is %v (%w)", got, err)
		}
		if err := rank.Do(ctx, w.Group(), q); err != nil {
			return err
		}
		for i, x := range to {
			if x != want(r, i) {
				return fmt.Errorf("element %d of %d is %d instead of %d", i, len(to), x, want(r, i))
			}
		}
		return nil
	})
	require.NoError(t, err, "count %d, turn %d", count, turn)
}

// A registered plan is taken for what it says it is for, and for nothing else.
func TestPlansAreTakenWithinTheirWindow(t *testing.T) {
	data, err := os.ReadFile("../plan/msccl/testdata/allreduce-pairs-2.xml")
	require.NoError(t, err)
	dir := fstest.MapFS{"pairs.xml": {Data: data}, "README.md": {Data: []byte("none")}}
	lib, err := rank.ReadPlans(dir)
	require.NoError(t, err)
	run := func(cfg rank.Config, n int, f func(w *rank.World, name func(bytes int64, inPlace bool) string)) {
		cfg.Plans = lib
		require.NoError(t, cfg.Run(t.Context(), n, func(_ context.Context, w *rank.World) error {
			f(w, func(bytes int64, inPlace bool) string {
				got, err := w.Group().Explain(kolo.Call{Collective: kolo.AllReduce, Op: kolo.Sum, DType: kolo.Float32, Count: bytes / 4, InPlace: inPlace})
				if err != nil {
					return err.Error()
				}
				return got.Algorithm
			})
			return nil
		}))
	}
	run(rank.Config{}, 2, func(_ *rank.World, name func(int64, bool) string) {
		require.Equal(t, "pairs", name(16, true))
		require.Equal(t, "pairs", name(65536, true))
		require.NotEqual(t, "pairs", name(12, true))
		require.NotEqual(t, "pairs", name(65540, true))
		require.NotEqual(t, "pairs", name(16, false))
	})
	run(rank.Config{Algorithm: "ring"}, 2, func(_ *rank.World, name func(int64, bool) string) { require.Equal(t, "ring", name(16, true)) })
	run(rank.Config{}, 3, func(_ *rank.World, name func(int64, bool) string) { require.NotEqual(t, "pairs", name(16, true)) })
	run(rank.Config{Algorithm: "pairs"}, 2, func(_ *rank.World, name func(int64, bool) string) {
		require.Equal(t, "pairs", name(16, true))
		require.ErrorContains(t, fmt.Errorf("%s", name(16, false)), "out of place (false)")
	})
	run(rank.Config{Reproducible: true}, 2, func(_ *rank.World, name func(int64, bool) string) { require.Equal(t, "fabric", name(16, false)) })
}

// A call that the plan set by name cannot do fails on all ranks, and names the reason.
func TestPlanByNameThatDoesNotServe(t *testing.T) {
	lib, err := rank.ReadPlans(os.DirFS("../plan/msccl/testdata"))
	require.NoError(t, err)
	cfg := rank.Config{Plans: lib, Algorithm: "allreduce-pairs-2"}
	require.NoError(t, cfg.Run(t.Context(), 2, func(ctx context.Context, w *rank.World) error {
		err := rank.AllReduce(ctx, w.Group(), []float64{1}, kolo.Sum)
		require.ErrorIs(t, err, kolo.ErrUnsupported)
		require.ErrorContains(t, err, "allreduce-pairs-2 is for 16 to 65536 bytes")
		x := []float64{1, 2, 3, float64(w.Rank())}
		require.NoError(t, rank.AllReduce(ctx, w.Group(), x, kolo.Avg))
		require.Equal(t, []float64{1, 2, 3, 0.5}, x)
		return nil
	}))
}

func TestReadPlansNamesEveryBadFile(t *testing.T) {
	_, err := rank.ReadPlans(fstest.MapFS{"a.xml": {Data: []byte("<algo")}, "b.xml": {Data: []byte("{}")}})
	require.ErrorContains(t, err, "plans: a.xml: msccl: line 1")
	require.ErrorContains(t, err, "plans: b.xml")
	require.Equal(t, 2, strings.Count(err.Error(), "plans: "))
}

// endless is a directory with a file that has no end, as a link to a device would be.
type endless struct{ fstest.MapFS }

func (e endless) Open(name string) (fs.File, error) {
	f, err := e.MapFS.Open(name)
	if name == "a.xml" {
		f = zeros{f}
	}
	return f, err
}

type zeros struct{ fs.File }

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

func TestReadPlansOfAFileWithoutEnd(t *testing.T) {
	_, err := rank.ReadPlans(endless{fstest.MapFS{"a.xml": {}}})
	require.ErrorIs(t, err, kolo.ErrLimit)
}
