package pipeline

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/actor"
	"github.com/kolo-ccl/kolo/rank"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const ms = time.Millisecond

func TestReportOfAStep(t *testing.T) {
	at := func(ready, begun, ended time.Duration) Times {
		return Times{Ready: ready * ms, Begun: begun * ms, Ended: ended * ms}
	}
	for _, c := range []struct {
		name                                     string
		chunks                                   []Times
		compute, comm, serial, overlapped, shown time.Duration
		efficiency, hidden                       float64
	}{
		{"nothing overlaps", []Times{at(10, 10, 20)}, 10, 10, 20, 20, 10, 0.5, 0},
		{"half is hidden", []Times{at(5, 5, 10), at(10, 10, 15)}, 10, 10, 20, 15, 5, 10.0 / 15, 0.5},
		{"compute bound", []Times{at(10, 10, 14), at(20, 20, 24)}, 20, 8, 28, 24, 4, 20.0 / 24, 0.5},
		{"wire bound", []Times{at(2, 2, 12), at(4, 12, 22)}, 4, 20, 24, 22, 18, 20.0 / 22, 0.5},
		{"a gap on the wire", []Times{at(1, 1, 2), at(9, 9, 10)}, 9, 2, 11, 10, 1, 0.9, 0.5},
		{"no time at all", []Times{at(0, 0, 0)}, 0, 0, 0, 0, 0, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := measure(c.chunks)
			require.Equal(t, []time.Duration{c.compute * ms, c.comm * ms, c.serial * ms, c.overlapped * ms, c.shown * ms},
				[]time.Duration{r.Compute, r.Comm, r.Serial, r.Overlapped, r.Exposed})
			require.InDelta(t, c.efficiency, r.Efficiency, 1e-9)
			require.InDelta(t, c.hidden, r.Hidden, 1e-9)
			sum := time.Duration(0)
			for _, k := range r.Chunks {
				sum += k.Exposed
			}
			require.Equal(t, r.Exposed, sum)
			var out strings.Builder
			require.NoError(t, r.Print(&out))
			require.Equal(t, 2+len(c.chunks), strings.Count(out.String(), "\n"))
		})
	}
}

func TestSplitIsEven(t *testing.T) {
	for n := int64(0); n < 40; n++ {
		for k := 1; k < 45; k++ {
			list := Split(n, k)
			at, least, most := int64(0), n, int64(0)
			for _, r := range list {
				require.Equal(t, at, r.From)
				at, least, most = r.To, min(least, r.Len()), max(most, r.Len())
			}
			require.Equal(t, n, at)
			require.LessOrEqual(t, most-least, int64(1), "n=%d k=%d", n, k)
			require.Len(t, list, int(max(1, min(n, int64(k)))))
		}
	}
}

func TestColumnsArePackedAndUnpacked(t *testing.T) {
	g, err := gridOf([]int64{2, 2, 3}, 12)
	require.NoError(t, err)
	require.Equal(t, grid{4, 3}, g)
	tensor := []byte("abcdefghijkl")
	packed := make([]byte, 8)
	g.pack(packed, tensor, Range{1, 3}, 1)
	require.Equal(t, "bcefhikl", string(packed))
	g.unpack(tensor, []byte("BCEFHIKL"), Range{1, 3}, 1)
	require.Equal(t, "aBCdEFgHIjKL", string(tensor))
	for _, shape := range [][]int64{{13}, {0}, {-1, -12}, {1 << 62, 1 << 62}, {3, 3}} {
		_, err := gridOf(shape, 12)
		require.ErrorIs(t, err, kolo.ErrArgument, shape)
	}
}

// params are parameters of so many bytes, of float32, or of float64 if negative.
func params(bytes ...int) (list []Param) {
	for i, n := range bytes {
		p := Param{Name: fmt.Sprint("p", i), Gradient: rank.Of(make([]float32, max(n, 0)/4))}
		if n < 0 {
			p.Gradient = rank.Of(make([]float64, -n/8))
		}
		list = append(list, p)
	}
	return list
}

func TestBuckets(t *testing.T) {
	for _, c := range []struct {
		name  string
		bytes []int
		order []int
		want  [][]int
	}{
		{"the first is small", []int{40, 40, 40, 40}, []int{3, 2, 1, 0}, [][]int{{3}, {2}, {1, 0}}},
		{"the last is not the rest", []int{20, 20, 20, 20, 20, 20, 20, 40}, []int{7, 6, 5, 4, 3, 2, 1, 0}, [][]int{{7}, {6, 5, 4}, {3, 2, 1, 0}}},
		{"a large one near the end", []int{4, 100, 20, 20, 40}, []int{4, 3, 2, 1, 0}, [][]int{{4}, {3, 2}, {1}, {0}}},
		{"one that fits exactly", []int{16, 32, 100}, []int{1, 0, 2}, [][]int{{1, 0}, {2}}},
		{"one that is too large", []int{400, 4, 400, 4}, []int{0, 1, 2, 3}, [][]int{{0}, {1}, {2}, {3}}},
		{"types are not mixed", []int{16, -16, -16, 16}, []int{0, 1, 2, 3}, [][]int{{0}, {1, 2}, {3}}},
		{"a single one", []int{4}, []int{0}, [][]int{{0}}},
	} {
		t.Run(c.name, func(t *testing.T) { require.Equal(t, c.want, bucketsOf(params(c.bytes...), c.order, 48, 100)) })
	}
}

// Every parameter is in one bucket, in order, and none is larger than it may be.
func TestBucketsOfRandomModels(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		sizes := make([]int, 1+rng.IntN(50))
		for i := range sizes {
			sizes[i] = 8 * (1 + rng.IntN(30)) * (1 - 2*rng.IntN(2))
		}
		list, order := params(sizes...), rng.Perm(len(sizes))
		var all []int
		for i, b := range bucketsOf(list, order, 48, 100) {
			size, limit := int64(0), int64(100)
			if i == 0 {
				limit = 48
			}
			for _, p := range b {
				size += list[p].Gradient.Memory.Len()
				require.Equal(t, list[b[0]].Gradient.DType, list[p].Gradient.DType, "seed %d", seed)
			}
			require.True(t, len(b) == 1 || size <= limit, "seed %d", seed)
			all = append(all, b...)
		}
		require.Equal(t, order, all, "seed %d", seed)
	}
}

func TestOrderIsAgreed(t *testing.T) {
	list := params(4, 8, 12, 16)
	require.Equal(t, []int{2, 0, 3, 1}, completed([]int{2, 0}, 4))
	m := message(list, []int{2, 0, 3, 1})
	order, err := agreed(list, m)
	require.NoError(t, err)
	require.Equal(t, []int{2, 0, 3, 1}, order)
	for name, bad := range map[string][]int64{
		"other parameters": message(params(4, 8, 12, 20), []int{2, 0, 3, 1}),
		"one twice":        message(list, []int{2, 2, 3, 1}),
		"beyond the end":   message(list, []int{4, 0, 3, 1}),
		"negative":         message(list, []int{-1, 0, 3, 1}),
	} {
		_, err := agreed(list, bad)
		require.ErrorIs(t, err, kolo.ErrMismatch, name)
	}
}

func TestSplitOfNothing(t *testing.T) {
	for _, k := range []int{-1, 0, 1, 7} {
		require.Equal(t, []Range{{0, 0}}, Split(0, k))
		require.Equal(t, []Range{{0, 0}}, Split(-3, k))
	}
	require.Equal(t, []Range{{0, 5}}, Split(5, 0))
}

// A chunk whose actor has failed still ends its step.
func TestFailedChunkEndsItsStep(t *testing.T) {
	sys := actor.NewSystem(actor.Config{Steps: rand.New(rand.NewPCG(1, 2))})
	l := &line{name: "test", shard: sys.NewShard("test"), now: time.Now, done: make(chan struct{})}
	c, err := newChunk(l, 0)
	require.NoError(t, err)
	l.left.Store(1)
	c.state = waiting
	require.NoError(t, c.self.Tell(&heard{stage: rank.StageBegun})) // before it is ready: a panic
	require.NoError(t, c.self.Tell(&heard{stage: rank.StageEnded}))
	sys.Run()
	<-l.done
	require.ErrorIs(t, c.err, kolo.ErrPanic)
	require.NoError(t, sys.Close(t.Context()))
}
