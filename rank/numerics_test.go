package rank_test

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/plan"
	"github.com/kolo-ccl/kolo/rank"
	"github.com/kolo-ccl/kolo/rank/ranktest"

	"github.com/stretchr/testify/require"
)

// numericPlaces are few and many ranks, powers of two and others, in one server and
// in several.
func numericPlaces() []place {
	names := []string{"n=1 in one server", "n=3 in one server", "n=4 in servers of [2 2]", "n=9 in three servers in turn"}
	return slices.DeleteFunc(places(), func(p place) bool { return !slices.Contains(names, p.name) })
}

// eachAlgorithm calls f for every algorithm that serves a collective, at every place.
func eachAlgorithm(t *testing.T, c kolo.Collective, f func(t *testing.T, m *matrixWorld, algorithm string)) {
	for _, at := range numericPlaces() {
		t.Run(at.name, func(t *testing.T) {
			m := openMatrix(t, at)
			for _, a := range plan.Algorithms() {
				if a.Serves(c, at.topo) == nil {
					f(t, m, a.Name)
				}
			}
		})
	}
}

// allReduce is the result of every rank, out of place.
func (m *matrixWorld) allReduce(t *testing.T, algorithm string, d kolo.DType, op kolo.ReduceOp, in [][]byte) [][]byte {
	calls, out := make([]rank.Request, len(in)), make([][]byte, len(in))
	for r, b := range in {
		out[r] = rank.Of(make([]uint64, len(b)/8+1)).Memory.Host[:len(b)]
		calls[r] = rank.Request{Collective: kolo.AllReduce, Op: op,
			In: rank.Buffer{Memory: kolo.HostMemory(b), DType: d}, Out: rank.Buffer{Memory: kolo.HostMemory(out[r]), DType: d}}
	}
	for r, err := range m.call(t, algorithm, calls, false) {
		require.NoError(t, err, "rank %d, %v %v by %s", r, d, op, algorithm)
	}
	return out
}

// answer is the naive answer to allReduce.
func answer(d kolo.DType, op kolo.ReduceOp, in [][]byte) []byte {
	calls := make([]rank.Request, len(in))
	for r, b := range in {
		calls[r] = rank.Request{Collective: kolo.AllReduce, Op: op,
			In: rank.Buffer{Memory: kolo.HostMemory(b), DType: d}, Out: rank.Buffer{Memory: kolo.HostMemory(slices.Clone(b)), DType: d}}
	}
	return ranktest.Answer(calls)[0]
}

// inputs makes the bytes of each rank.
func (m *matrixWorld) inputs(make func(r int) []byte) [][]byte {
	var in [][]byte
	for r := range m.worlds {
		in = append(in, make(r))
	}
	return in
}

// floats are values of a float type.
func floats(d kolo.DType, values ...float64) []byte {
	single := make([]float32, len(values))
	for i, v := range values {
		single[i] = float32(v)
	}
	switch d {
	case kolo.Float64:
		return ranktest.Bytes(values)
	case kolo.Float32:
		return ranktest.Bytes(single)
	}
	return ranktest.Bytes(ranktest.Halves(d, single))
}

// values are the elements of a float type.
func values(d kolo.DType, b []byte) []float64 {
	get := func(i int) float64 {
		switch d {
		case kolo.Float64:
			return math.Float64frombits(word(b, 8*i, 8))
		case kolo.Float32:
			return float64(math.Float32frombits(uint32(word(b, 4*i, 4))))
		}
		return float64(ranktest.Float32s(d, []uint16{uint16(word(b, 2*i, 2))})[0])
	}
	out := make([]float64, len(b)/d.Size())
	for i := range out {
		out[i] = get(i)
	}
	return out
}

// word is a number of size bytes in the machine's order, as rank.Of lays it out.
func word(b []byte, at, size int) uint64 {
	one := []uint64{0}
	raw := rank.Of(one).Memory.Host
	if one[0] = 1; raw[0] == 1 { // little-endian
		clear(raw)
		copy(raw, b[at:at+size])
	} else {
		clear(raw)
		copy(raw[8-size:], b[at:at+size])
	}
	return one[0]
}

func floatTypes() []kolo.DType {
	return []kolo.DType{kolo.Float16, kolo.BFloat16, kolo.Float32, kolo.Float64}
}

func TestIntegerAverageTruncatesTowardZero(t *testing.T) {
	for _, c := range []struct {
		in   []int8
		want int8
	}{
		{[]int8{-1, -1, -3}, -1}, {[]int8{1, 1, 3}, 1}, {[]int8{-1, 0, 0}, 0}, {[]int8{7, 7, 7}, 7},
		{[]int8{-2, 0, 0, 0, 1}, 0}, {[]int8{-128, 0}, -64}, {[]int8{-3, 0}, -1},
		{[]int8{100, 100, 0}, -18}, // the sum wraps to -56 first
		{[]int8{-1, -1, -1, -1, -1, -1, -1}, -1}, {[]int8{-1, -1, -1, -1, -1, -1, 0}, 0},
	} {
		p := len(c.in)
		m := openMatrix(t, place{topo: plan.OneProcess(p)})
		for _, a := range plan.Algorithms() {
			if a.Serves(kolo.AllReduce, plan.OneProcess(p)) != nil {
				continue
			}
			for r, out := range m.allReduce(t, a.Name, kolo.Int8, kolo.Avg, m.inputs(func(r int) []byte { return ranktest.Bytes(c.in[r : r+1]) })) {
				if got := int8(out[0]); got != c.want {
					t.Errorf("average of %d by %s is %d on rank %d, not %d", c.in, a.Name, got, r, c.want)
				}
			}
		}
	}
}

// The divisor need not fit the type: 130 ranks of int8.
func TestIntegerAverageOverMoreRanksThanTheTypeHolds(t *testing.T) {
	ranktest.Run(t, 130, func(t *testing.T, g *rank.Group) {
		b := []int8{-1, 1, 0}
		if g.Rank() < 3 {
			b[2] = -1
		}
		require.NoError(t, rank.AllReduce(t.Context(), g, b, kolo.Avg))
		require.Equal(t, []int8{0, 0, 0}, b) // 126/130, -126/130, -3/130
	})
}

func TestAverageOfEveryTypeByEveryAlgorithm(t *testing.T) {
	eachAlgorithm(t, kolo.AllReduce, func(t *testing.T, m *matrixWorld, algorithm string) {
		for _, d := range kolo.ReducibleDTypes() {
			in := m.inputs(func(r int) []byte { return filled(d, kolo.Avg, r, 37) })
			want := answer(d, kolo.Avg, in)
			for r, out := range m.allReduce(t, algorithm, d, kolo.Avg, in) {
				require.Equal(t, want, out, "%v by %s on rank %d", d, algorithm, r)
			}
		}
	})
}

// filled is n elements of rank r for which op is exact.
func filled(d kolo.DType, op kolo.ReduceOp, r, n int) []byte {
	b := rank.Of(make([]uint64, n)).Memory.Host[:n*d.Size()]
	ranktest.Fill(rank.Buffer{Memory: kolo.HostMemory(b), DType: d}, op, kolo.Rank(r))
	return b
}

func TestPreMulSumAndProdOfEveryTypeByEveryAlgorithm(t *testing.T) {
	eachAlgorithm(t, kolo.AllReduce, func(t *testing.T, m *matrixWorld, algorithm string) {
		for _, d := range kolo.ReducibleDTypes() {
			ops := []kolo.ReduceOp{kolo.Prod, kolo.PreMulSum(0), kolo.PreMulSum(1), kolo.PreMulSum(4)}
			switch {
			case d.Float():
				ops = append(ops, kolo.PreMulSum(0.5), kolo.PreMulSum(-2))
			case d == kolo.Int8 || d == kolo.Int16 || d == kolo.Int32 || d == kolo.Int64:
				ops = append(ops, kolo.PreMulSum(-3), kolo.PreMulSum(-128))
			default:
				ops = append(ops, kolo.PreMulSum(255))
			}
			for _, op := range ops {
				in := m.inputs(func(r int) []byte { return filled(d, op, r, 21) })
				want := values64(d, answer(d, op, in))
				for r, out := range m.allReduce(t, algorithm, d, op, in) {
					require.Equal(t, want, values64(d, out), "%v %v by %s on rank %d", d, op, algorithm, r)
				}
			}
		}
	})
}

// values64 are the elements as comparable values, -0 and +0 being one: a sum of zeros
// of both signs is +0, but one rank alone keeps its -0.
func values64(d kolo.DType, b []byte) any {
	if !d.Float() {
		return b
	}
	list := values(d, b)
	for i := range list {
		list[i] += 0
	}
	return list
}

func TestMaxAndMinPropagateNaNAndOrderZeros(t *testing.T) {
	nan, zero, inf := math.NaN(), math.Copysign(0, -1), math.Inf(1)
	eachAlgorithm(t, kolo.AllReduce, func(t *testing.T, m *matrixWorld, algorithm string) {
		p := len(m.worlds)
		for _, d := range floatTypes() {
			for _, op := range []kolo.ReduceOp{kolo.Max, kolo.Min} {
				// Element i is odd on rank i%p only; then come elements that are the same everywhere.
				in := m.inputs(func(r int) []byte {
					list := []float64{}
					for i := range p {
						list = append(list, pick(i == r, nan, 1), pick(i == r, nan, inf), pick(i == r, zero, 0), pick(i == r, 0, zero), pick(i == r, -inf, 2), pick(i == r, inf, -2))
					}
					return floats(d, append(list, zero, 0, nan, -inf)...)
				})
				want := values(d, answer(d, op, in))
				for r, out := range m.allReduce(t, algorithm, d, op, in) {
					for i, v := range values(d, out) {
						if same := v == want[i] && math.Signbit(v) == math.Signbit(want[i]) || v != v && want[i] != want[i]; !same {
							t.Fatalf("%v of %v by %s on rank %d: element %d is %v, not %v", op, d, algorithm, r, i, v, want[i])
						}
					}
				}
			}
		}
	})
}

func pick(yes bool, a, b float64) float64 {
	if yes {
		return a
	}
	return b
}

func TestIntegersWrap(t *testing.T) {
	eachAlgorithm(t, kolo.AllReduce, func(t *testing.T, m *matrixWorld, algorithm string) {
		in := m.inputs(func(r int) []byte {
			return ranktest.Bytes([]int8{[]int8{120, 100, 0, 0, 0, 0, 0, 0, 0}[r], -128})
		})
		want := []int8{map[bool]int8{true: 120, false: -36}[len(in) == 1], int8(len(in) % 2 * -128)}
		for r, out := range m.allReduce(t, algorithm, kolo.Int8, kolo.Sum, in) {
			require.Equal(t, ranktest.Bytes(want), out, "by %s on rank %d", algorithm, r)
		}
	})
}

// Sums of 16-bit floats are those of float32, rounded once: of anything that is
// finite, subnormal numbers and sums that overflow among it.
func TestHalfSumsAreFloat32SumsRoundedOnce(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	for _, p := range []int{1, 2, 3, 8, 33} {
		m := openMatrix(t, place{topo: plan.OneProcess(p)})
		for _, algorithm := range []string{"fabric", "mesh", "mesh-oneshot", "star"} {
			for _, d := range []kolo.DType{kolo.Float16, kolo.BFloat16} {
				inf := ranktest.Halves(d, []float32{float32(math.Inf(1))})[0]
				wide, in := make([][]uint16, p), make([][]byte, p)
				for r := range p {
					wide[r] = make([]uint16, 1000)
					for i := range wide[r] {
						span := []uint16{inf, inf - 40, 40, 4 * (inf &^ (inf << 1))}[i%4] // any, large, subnormal, small
						wide[r][i] = uint16(rng.IntN(int(span))) | uint16(rng.IntN(2))<<15
						if i%4 == 1 {
							wide[r][i] = inf - 1 - uint16(rng.IntN(40))
						}
					}
					in[r] = ranktest.Bytes(wide[r])
				}
				for _, op := range []kolo.ReduceOp{kolo.Sum, kolo.Avg} {
					want := ranktest.FoldHalves(d, op, wide...)
					if p == 8 && op == kolo.Sum && want[1]&0x7fff != inf {
						t.Errorf("seed %d: no overflow among the sums", seed)
					}
					for r, out := range m.allReduce(t, algorithm, d, op, in) {
						require.Equal(t, ranktest.Bytes(want), out, "%v %v by %s on rank %d of %d, seed %d", d, op, algorithm, r, p, seed)
					}
				}
			}
		}
	}
}

// random is float32 bits of magnitudes for which sums depend on the order.
func random(rng *rand.Rand, n int) []float32 {
	b := make([]float32, n)
	for i := range b {
		b[i] = float32(rng.NormFloat64() * math.Pow(10, float64(rng.IntN(7)-3)))
	}
	return b
}

func TestEveryRankHasTheSameBits(t *testing.T) {
	const most = 20011
	seed := rand.Uint64()
	all := random(rand.New(rand.NewPCG(seed, 0)), 9*most)
	eachAlgorithm(t, kolo.AllReduce, func(t *testing.T, m *matrixWorld, algorithm string) {
		for _, n := range []int{1, 5, 1000, most} {
			in := m.inputs(func(r int) []byte { return ranktest.Bytes(all[r*most:][:n]) })
			for _, op := range []kolo.ReduceOp{kolo.Sum, kolo.PreMulSum(1.0 / 3)} {
				out := m.allReduce(t, algorithm, kolo.Float32, op, in)
				again := m.allReduce(t, algorithm, kolo.Float32, op, in)
				for r := range out {
					if !bytes.Equal(out[0], out[r]) || !bytes.Equal(out[0], again[r]) {
						t.Fatalf("%v of %d by %s: rank 0 and the two results of rank %d differ, seed %d", op, n, algorithm, r, seed)
					}
				}
			}
		}
	})
}

// reproducible are the algorithms that the mode admits.
var reproducible = []string{"fabric", "mesh", "mesh-oneshot", "star"}

// openReproducible is a World in the mode.
func openReproducible(t *testing.T, p int) *matrixWorld {
	return openMatrix(t, place{topo: plan.OneProcess(p)}, rank.Config{Reproducible: true})
}

func TestReproducibleBitsAreThoseOfRankOrder(t *testing.T) {
	seed := rand.Uint64()
	for _, p := range []int{1, 2, 3, 5, 8} {
		m := openReproducible(t, p)
		for _, n := range []int{1, 7, 1000, 20011} {
			rng := rand.New(rand.NewPCG(seed, uint64(n)))
			single := make([][]float32, p)
			for r := range single {
				single[r] = random(rng, n)
			}
			for _, d := range []kolo.DType{kolo.Float32, kolo.Float16, kolo.BFloat16} {
				if d != kolo.Float32 && n*p > 3000 || n*p > 70000 {
					continue
				}
				in := m.inputs(func(r int) []byte {
					if d == kolo.Float32 {
						return ranktest.Bytes(single[r])
					}
					return ranktest.Bytes(ranktest.Halves(d, single[r]))
				})
				for _, op := range []kolo.ReduceOp{kolo.Sum, kolo.Avg, kolo.Prod, kolo.PreMulSum(1.0 / 3)} {
					want := answer(d, op, in)
					for _, algorithm := range append([]string{""}, reproducible...) {
						for r, out := range m.allReduce(t, algorithm, d, op, in) {
							if !slices.Equal(want, out) {
								t.Errorf("%v %v of %d elements by %q on rank %d of %d is not the fold in rank order, seed %d", d, op, n, algorithm, r, p, seed)
								break
							}
						}
						m.reduceAndScatter(t, algorithm, d, op, in)
					}
				}
			}
		}
	}
}

// reduceAndScatter compares Reduce and ReduceScatter of in, of which each rank gets
// as many elements as there are, with the fold in rank order. Algorithms that do not
// serve are left out.
func (m *matrixWorld) reduceAndScatter(t *testing.T, algorithm string, d kolo.DType, op kolo.ReduceOp, in [][]byte) {
	p := len(in)
	for _, c := range []kolo.Collective{kolo.Reduce, kolo.ReduceScatter} {
		if a, err := plan.Lookup(algorithm); err == nil && a.Serves(c, plan.OneProcess(p)) != nil {
			continue
		}
		calls := make([]rank.Request, p)
		for r := range calls {
			calls[r] = rank.Request{Collective: c, Op: op, Root: kolo.Rank(p - 1)}
			all := in[r]
			if c == kolo.ReduceScatter {
				all = bytes.Repeat(in[r], p)
			}
			calls[r].In = rank.Buffer{Memory: kolo.HostMemory(all), DType: d}
			calls[r].Out = rank.Buffer{Memory: kolo.HostMemory(make([]byte, len(in[r]))), DType: d}
		}
		want := ranktest.Answer(calls)
		for r, err := range m.call(t, algorithm, calls, true) {
			require.NoError(t, err, "rank %d, %v of %v by %q", r, c, d, algorithm)
			if !bytes.Equal(want[r], calls[r].Out.Memory.Host) {
				t.Fatalf("%v of %v, %v, by %q on rank %d of %d is not the fold in rank order", c, d, op, algorithm, r, p)
			}
		}
	}
}

func TestReproducibleRefusesAlgorithmsThatCannot(t *testing.T) {
	ranks := ranktest.Open(t, 4, rank.Config{Reproducible: true})
	for _, a := range plan.Algorithms() {
		if a.Serves(kolo.AllReduce, plan.OneProcess(4)) != nil || slices.Contains(reproducible, a.Name) {
			continue
		}
		ranks.RunGroup(t, rank.GroupConfig{Algorithm: a.Name, Name: a.Name}, func(t *testing.T, g *rank.Group) {
			b := []float32{1}
			require.ErrorIs(t, rank.AllReduce(t.Context(), g, b, kolo.Sum), kolo.ErrUnsupported)
			require.Equal(t, []float32{1}, b)
			if a.Serves(kolo.AllGather, plan.OneProcess(4)) == nil { // nothing is reduced
				require.NoError(t, rank.AllGather(t.Context(), g, make([]float32, 4), b))
			}
		})
	}
}

func TestResultDoesNotDependOnChunking(t *testing.T) {
	seed := rand.Uint64()
	for _, p := range []int{2, 3, 8} {
		m := openReproducible(t, p)
		for _, n := range []int{2, 17, 1000, 20011} {
			for _, cut := range []int{1, n / 2, n - 1} {
				rng := rand.New(rand.NewPCG(seed, uint64(n)))
				in := m.inputs(func(r int) []byte { return ranktest.Bytes(random(rng, n)) })
				head := m.inputs(func(r int) []byte { return in[r][:4*cut] })
				tail := m.inputs(func(r int) []byte { return in[r][4*cut:] })
				for _, algorithm := range append([]string{""}, reproducible...) {
					whole := m.allReduce(t, algorithm, kolo.Float32, kolo.Sum, in)[0]
					a := m.allReduce(t, algorithm, kolo.Float32, kolo.Sum, head)[0]
					b := m.allReduce(t, algorithm, kolo.Float32, kolo.Sum, tail)[0]
					require.Equal(t, whole, slices.Concat(a, b), fmt.Sprintf("%d elements cut at %d by %q, %d ranks, seed %d", n, cut, algorithm, p, seed))
				}
			}
		}
	}
}
