package rank_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/plan"
	"github.com/kolo-ccl/kolo/rank"
	"github.com/kolo-ccl/kolo/rank/ranktest"

	"github.com/stretchr/testify/require"
)

// Several tensors in one call have the bits of one buffer that holds them all, by every
// algorithm, whatever their lengths.
func TestTensorsOfOneCallByEveryAlgorithm(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for _, n := range []int{1, 2, 3, 4, 5} {
		topo := plan.OneProcess(n)
		if n == 4 {
			var err error
			topo, err = plan.Servers(2, 2) // for the algorithms of two levels
			require.NoError(t, err)
		}
		ranks := ranktest.Open(t, n, rank.Config{Topology: topo})
		for k, a := range plan.Algorithms() {
			if a.Serves(kolo.AllReduce, topo) != nil {
				continue
			}
			rng := rand.New(rand.NewPCG(seed, uint64(k)))
			lengths := make([]int, 1+rng.IntN(20))
			total := 0
			for i := range lengths {
				lengths[i] = rng.IntN(4) * rng.IntN(300)
				total += lengths[i]
			}
			op := []kolo.ReduceOp{kolo.Sum, kolo.Max, kolo.Avg}[rng.IntN(3)]
			ranks.RunGroup(t, rank.GroupConfig{Name: a.Name, Algorithm: a.Name}, func(t *testing.T, g *rank.Group) {
				whole, packed := ranktest.Data[float32](g.Rank(), total), ranktest.Data[float32](g.Rank(), total)
				require.NoError(t, rank.AllReduce(t.Context(), g, whole, op))
				var list [][]float32
				for rest := packed; len(list) < len(lengths); rest = rest[lengths[len(list)-1]:] {
					list = append(list, append([]float32{}, rest[:lengths[len(list)]]...))
				}
				before := g.Calls()
				w := rank.AllReduceTensorsAsync(g, list, op)
				require.NoError(t, w.Wait(t.Context()), a.Name)
				require.Equal(t, before+1, g.Calls())
				var got []float32
				for _, x := range list {
					got = append(got, x...)
				}
				require.Equal(t, len(whole), len(got))
				for i := range whole {
					require.Equal(t, whole[i], got[i], "%s, element %d of %v", a.Name, i, lengths)
				}
			})
		}
	}
}

// What is wrong with a list of tensors is said on every rank, and names the ranks.
func TestTensorsThatDoNotFit(t *testing.T) {
	f := func(n ...int) (list [][]float32) {
		for _, k := range n {
			list = append(list, make([]float32, k))
		}
		return list
	}
	for name, of := range map[string]func(r kolo.Rank) [][]float32{
		"lengths": func(r kolo.Rank) [][]float32 { return f(3+int(r), 5-int(r)) },
		"number":  func(r kolo.Rank) [][]float32 { return f(8)[:1:1] },
	} {
		ranktest.Run(t, 2, func(t *testing.T, g *rank.Group) {
			list := of(g.Rank())
			if name == "number" && g.Rank() == 1 {
				list = f(4, 4)
			}
			require.ErrorIs(t, rank.AllReduceTensors(t.Context(), g, list, kolo.Sum), kolo.ErrMismatch, name)
		})
	}
	shared := make([]float32, 10)
	for name, of := range map[string]func(r kolo.Rank) [][]float32{
		"two ranks": func(r kolo.Rank) [][]float32 { return [][]float32{make([]float32, 6), shared[4*r : 4*r+6]} },
		"one rank": func(kolo.Rank) [][]float32 {
			x := make([]float32, 10)
			return [][]float32{x[:6], x[4:10]}
		},
	} {
		ranktest.Run(t, 2, func(t *testing.T, g *rank.Group) {
			require.ErrorIs(t, rank.AllReduceTensors(t.Context(), g, of(g.Rank()), kolo.Sum), kolo.ErrOverlap, name)
		})
	}
	ranktest.Run(t, 1, func(t *testing.T, g *rank.Group) {
		b := rank.Of(make([]float32, 2))
		for name, r := range map[string]rank.Request{
			"none":   {Collective: kolo.AllReduce, Tensors: []rank.Buffer{}},
			"types":  {Collective: kolo.AllReduce, Tensors: []rank.Buffer{b, rank.Of(make([]int32, 2))}},
			"and In": {Collective: kolo.AllReduce, Tensors: []rank.Buffer{b}, In: rank.Of(make([]float32, 2))},
		} {
			require.ErrorIs(t, rank.Do(t.Context(), g, r), kolo.ErrArgument, name)
		}
		require.ErrorIs(t, rank.Do(t.Context(), g, rank.Request{Collective: kolo.Broadcast, Tensors: []rank.Buffer{b}}), kolo.ErrUnsupported)
		require.NoError(t, g.Err())
	})
}

// Calls of tensors and other calls take turns on one group, whose tickets are used again.
func TestTensorsBetweenOtherCalls(t *testing.T) {
	for _, algorithm := range []string{"fabric", "ring"} {
		ranktest.RunConfig(t, 3, rank.Config{Algorithm: algorithm}, func(t *testing.T, g *rank.Group) {
			x, list := make([]int64, 8), [][]int64{make([]int64, 3), make([]int64, 1)}
			for k := range int64(20) {
				x[0], list[0][2], list[1][0] = k+int64(g.Rank()), k, 2*k
				if k%3 != 0 {
					require.NoError(t, rank.AllReduce(t.Context(), g, x, kolo.Sum))
					require.Equal(t, 3*k+3, x[0])
				}
				require.NoError(t, rank.AllReduceTensors(t.Context(), g, list[:1+k%2], kolo.Sum))
				require.Equal(t, 3*k, list[0][2])
				if k%2 == 1 {
					require.Equal(t, 6*k, list[1][0])
				}
			}
		})
	}
}

// BenchmarkTensors is 100 small tensors reduced in one call, beside one call for each,
// and beside one call of a buffer that they are copied to and from.
func BenchmarkTensors(b *testing.B) {
	const count, each = 100, 256
	for _, way := range []string{"one-call", "staged", "each"} {
		b.Run(fmt.Sprintf("n=4/tensors=%d/bytes=%d/%s", count, 4*each, way), func(b *testing.B) {
			b.SetBytes(count * each * 4)
			err := rank.Run(b.Context(), 4, func(ctx context.Context, w *rank.World) error {
				g, stage := w.Group(), make([]float32, count*each)
				var list [][]float32
				var buffers []rank.Buffer
				for range count {
					list = append(list, make([]float32, each))
					buffers = append(buffers, rank.Of(list[len(list)-1]))
				}
				for range b.N {
					switch way {
					case "one-call":
						if err := rank.Do(ctx, g, rank.Request{Collective: kolo.AllReduce, Tensors: buffers, Op: kolo.Sum}); err != nil {
							return err
						}
					case "staged":
						for i, x := range list {
							copy(stage[i*each:], x)
						}
						if err := rank.AllReduce(ctx, g, stage, kolo.Sum); err != nil {
							return err
						}
						for i, x := range list {
							copy(x, stage[i*each:])
						}
					case "each":
						for _, x := range list {
							if err := rank.AllReduce(ctx, g, x, kolo.Sum); err != nil {
								return err
							}
						}
					}
				}
				return nil
			})
			if err != nil {
				b.Fatal(err)
			}
		})
	}
}
