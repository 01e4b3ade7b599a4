package plan

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kolo-ccl/kolo"
)

func compile(t *testing.T, algorithm string, c kolo.Collective, n int, r kolo.Rank) *Program {
	t.Helper()
	p, _, err := Compile(Key{Algorithm: algorithm, Collective: c}, OneServer(n), r)
	require.NoError(t, err)
	return p.Program
}

// The blocks of a buffer follow each other without gap and cover it.
func TestBlocksCoverTheVector(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		n, count := 1+rng.IntN(20), rng.Int64N(3000)
		p := compile(t, "ring", kolo.AllReduce, n, 0)
		l := LayoutOf(p, &kolo.Call{Collective: kolo.AllReduce, DType: kolo.Float32, Count: count}, Displs{})
		end := int64(0)
		for i := range p.Blocks[Out] {
			off, size := l.Range(Out, i)
			require.Equal(t, end, off)
			require.GreaterOrEqual(t, size, int64(0))
			end += size
		}
		require.Equal(t, count*4, end)
	}
}

// Cuts of a vector that is large enough lie at cache lines, so that no two ranks
// write to one.
func TestCutsAtCacheLines(t *testing.T) {
	for _, tc := range []struct {
		name        string
		n, unit     int64
		parts       int
		aligned     bool
		least, most int64
	}{
		{"few elements", 10, 16, 4, false, 2, 3},
		{"fewer than parts", 3, 16, 4, false, 0, 1},
		{"none", 0, 16, 4, false, 0, 0},
		{"just too few", 8*16*4 - 1, 16, 4, false, 127, 128},
		{"enough", 8*16*4 + 5, 16, 4, true, 128, 133},
		{"whole", 1000, 16, 1, true, 1000, 1000},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for i := range tc.parts {
				off, size := cut(tc.n, tc.parts, i, tc.unit)
				require.True(t, tc.least <= size && size <= tc.most, "part %d has %d", i, size)
				if tc.aligned {
					require.Zero(t, off%tc.unit)
				}
			}
		})
	}
}

func TestLayoutOfUnevenChunks(t *testing.T) {
	p := compile(t, "ring", kolo.AllGatherV, 3, 1)
	c := &kolo.Call{Collective: kolo.AllGatherV, DType: kolo.Int16, Counts: []int64{2, 0, 5}}
	l := LayoutOf(p, c, Displs{})
	require.Equal(t, []Segment{{Out, 0, 14}}, l.Segments(nil, p, []Span{{Buf: Out, Off: 2, N: 3, Stride: 1}}))
	l = LayoutOf(p, c, Displs{Out: []int64{10, 0, 4}})
	require.Equal(t, []Segment{{Out, 20, 4}, {Out, 8, 10}}, l.Segments(nil, p, []Span{{Buf: Out, Off: 2, N: 3, Stride: 1}}))
	_, n := l.Range(In, 0)
	require.Zero(t, n, "rank 1 gives nothing")
}

func TestLayoutOfAllToAllMatrix(t *testing.T) {
	matrix := []int64{1, 2, 3, 4, 5, 6, 7, 8, 9}
	for r, want := range [][3]int64{{1, 4, 7}, {2, 5, 8}, {3, 6, 9}} {
		p := compile(t, "pairwise", kolo.AllToAllVC, 3, kolo.Rank(r))
		l := LayoutOf(p, &kolo.Call{Collective: kolo.AllToAllVC, DType: kolo.Int8, Counts: matrix}, Displs{})
		end := int64(0)
		for q, size := range want {
			off, n := l.Range(Out, q)
			require.Equal(t, [2]int64{end, size}, [2]int64{off, n})
			end += size
			_, n = l.Range(In, q)
			require.Equal(t, matrix[3*r+q], n)
		}
	}
}

// Segments are the ranges of the blocks in order, joined and without empty ones.
func TestSegmentsAgainstRanges(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range 500 {
		n := 2 + rng.IntN(12)
		counts := make([]int64, n)
		for i := range counts {
			counts[i] = rng.Int64N(4)
		}
		p := compile(t, "nhr", kolo.ReduceScatterV, n, kolo.Rank(rng.IntN(n)))
		l := LayoutOf(p, &kolo.Call{Collective: kolo.ReduceScatterV, DType: kolo.Int8, Counts: counts}, Displs{})
		span := Span{Buf: In, Off: int32(rng.IntN(n)), N: int32(1 + rng.IntN(n)), Stride: int32(rng.IntN(2*n) - n)}
		var want, got []int64
		p.At(span, func(block int) {
			off, size := l.Range(In, block)
			for i := range size {
				want = append(want, off+i)
			}
		})
		list := l.Segments(nil, p, []Span{span})
		for i, g := range list {
			require.Positive(t, g.Len)
			if i > 0 {
				require.NotEqual(t, list[i-1].Off+list[i-1].Len, g.Off, "not joined")
			}
			for k := range g.Len {
				got = append(got, g.Off+k)
			}
		}
		require.Equal(t, want, got)
	}
}

func TestLayoutAllocatesNothing(t *testing.T) {
	p := compile(t, "nhr", kolo.AllReduce, 8, 3)
	c := &kolo.Call{Collective: kolo.AllReduce, DType: kolo.Float32, Count: 1000}
	list := make([]Segment, 0, 16)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		l := LayoutOf(p, c, Displs{})
		for i := range p.Steps {
			list = l.Segments(list[:0], p, p.Steps[i].Src)
		}
		_ = l.ScratchSize(p)
	}))
}

func TestSpansJoinAcrossTheEnd(t *testing.T) {
	b := newBuilder("test", request{collective: kolo.AllReduce, ranks: 8, parts: 8, cuts: 1})
	for _, tc := range []struct {
		name   string
		blocks []int32
		want   []Span
	}{
		{"one", []int32{3}, []Span{{In, 3, 1, 1}}},
		{"range", []int32{3, 4, 5}, []Span{{In, 3, 3, 1}}},
		{"cyclic", []int32{6, 7, 0, 1}, []Span{{In, 6, 4, 1}}},
		{"backwards", []int32{1, 7, 5, 3}, []Span{{In, 1, 4, -2}}},
		{"half way", []int32{1, 5}, []Span{{In, 1, 2, 4}}},
		{"two runs", []int32{0, 1, 4, 5}, []Span{{In, 0, 2, 1}, {In, 4, 2, 1}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var at []place
			for _, i := range tc.blocks {
				at = append(at, place{In, i})
			}
			require.Equal(t, tc.want, b.join(at))
		})
	}
}
