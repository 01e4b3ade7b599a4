package rank

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/kolo-ccl/kolo"

	"github.com/stretchr/testify/require"
)

// each runs f on every rank and gives the error of each. What f returns does not
// make its rank fail.
func each(t testing.TB, c Config, n int, f func(ctx context.Context, w *World) error) []error {
	t.Helper()
	errs := make([]error, n)
	require.NoError(t, c.Run(t.Context(), n, func(ctx context.Context, w *World) error {
		errs[w.Rank()] = f(ctx, w)
		return nil
	}))
	return errs
}

// want says that err is a *kolo.Error of the kinds, made by rank r, with the texts.
func want(t testing.TB, err error, r kolo.Rank, kinds []error, texts ...string) *kolo.Error {
	t.Helper()
	var e *kolo.Error
	require.ErrorAs(t, err, &e, "rank %d", int(r))
	for _, k := range kinds {
		require.ErrorIs(t, err, k, "rank %d", int(r))
	}
	for _, s := range texts {
		require.ErrorContains(t, err, s, "rank %d", int(r))
	}
	require.Equal(t, r, e.Rank)
	return e
}

// ints, floats are buffers of n elements, different at each rank and index.
func ints(r kolo.Rank, n int) Buffer { return Of(fill(r, n)) }

func floats(r kolo.Rank, n int) Buffer {
	b := make([]float32, n)
	for i := range b {
		b[i] = float32(value(r, i))
	}
	return Of(b)
}

func reduced(b Buffer, op kolo.ReduceOp) Request {
	return Request{Collective: kolo.AllReduce, In: b, Out: b, Op: op}
}

// pick is a for rank 2 and b for the others.
func pick[T any](r kolo.Rank, a, b T) T {
	if r == 2 {
		return a
	}
	return b
}

// oddCalls are calls of 4 ranks of which rank 2 makes another.
var oddCalls = []struct {
	name  string
	call  func(r kolo.Rank) Request
	texts []string
}{
	{"Count", func(r kolo.Rank) Request { return reduced(ints(r, pick(r, 256, 512)), kolo.Sum) },
		[]string{"AllReduce(512 int32, sum)", "rank 2", "count 256 instead of 512"}},
	{"CountByOne", func(r kolo.Rank) Request { return reduced(ints(r, pick(r, 1001, 1000)), kolo.Sum) },
		[]string{"rank 2", "count 1001 instead of 1000"}},
	{"LargeCount", func(r kolo.Rank) Request { return reduced(ints(r, pick(r, 256000, 512000)), kolo.Sum) },
		[]string{"rank 2", "count 256000 instead of 512000"}},
	{"NoElementsOnOneRank", func(r kolo.Rank) Request { return reduced(ints(r, pick(r, 0, 7)), kolo.Sum) },
		[]string{"rank 2", "count 0 instead of 7"}},
	{"ElementsOnOneRankOnly", func(r kolo.Rank) Request { return reduced(ints(r, pick(r, 7, 0)), kolo.Sum) },
		[]string{"rank 2", "count 7 instead of 0"}},
	{"ElementType", func(r kolo.Rank) Request { return reduced(pick(r, floats, ints)(r, 64), kolo.Sum) },
		[]string{"rank 2", "element type fp32 instead of int32"}},
	{"Operation", func(r kolo.Rank) Request { return reduced(ints(r, 64), pick(r, kolo.Max, kolo.Sum)) },
		[]string{"rank 2", "reduce operation max instead of sum"}},
	{"PremultipliedBy", func(r kolo.Rank) Request {
		return reduced(floats(r, 64), kolo.PreMulSum(pick(r, 0.5, 0.25)))
	}, []string{"rank 2", "premulsum(0.5) instead of premulsum(0.25)"}},
	{"SeveralThings", func(r kolo.Rank) Request {
		return reduced(pick(r, floats, ints)(r, pick(r, 3, 4)), pick(r, kolo.Min, kolo.Prod))
	}, []string{"rank 2", "fp32 instead of int32", "min instead of prod", "count 3 instead of 4"}},
	{"RootOfBroadcast", func(r kolo.Rank) Request {
		return Request{Collective: kolo.Broadcast, Out: ints(r, 64), Root: pick[kolo.Rank](r, 2, 1)}
	}, []string{"rank 2", "root rank 2 instead of rank 1"}},
	{"RootOfReduce", func(r kolo.Rank) Request {
		return Request{Collective: kolo.Reduce, In: ints(r, 64), Out: ints(r+9, 64), Root: pick[kolo.Rank](r, 0, 3)}
	}, []string{"rank 2", "root rank 0 instead of rank 3"}},
	{"RootOfGather", func(r kolo.Rank) Request {
		return Request{Collective: kolo.Gather, In: ints(r, 64), Out: ints(r+9, 256), Root: pick[kolo.Rank](r, 2, 3)}
	}, []string{"rank 2", "root rank 2 instead of rank 3"}},
	{"RootOfScatter", func(r kolo.Rank) Request {
		return Request{Collective: kolo.Scatter, In: ints(r, 256), Out: ints(r+9, 64), Root: pick[kolo.Rank](r, 2, 0)}
	}, []string{"rank 2", "root rank 2 instead of rank 0"}},
	{"Collective", func(r kolo.Rank) Request {
		return pick(r, Request{Collective: kolo.Broadcast, Out: ints(r, 999)}, reduced(ints(r, 100), kolo.Sum))
	}, []string{"rank 2", "Broadcast(999 int32, root 0)", "AllReduce(100 int32, sum)"}},
	{"BarrierInsteadOfData", func(r kolo.Rank) Request {
		return pick(r, Request{Collective: kolo.Barrier}, reduced(ints(r, 100), kolo.Sum))
	}, []string{"rank 2", "collective Barrier instead of AllReduce(100 int32, sum)"}},
	{"VFormInsteadOfBase", func(r kolo.Rank) Request {
		in, out := ints(r, 5), ints(r+9, 20)
		return pick(r, Request{Collective: kolo.AllGatherV, In: in, Out: out, Recv: Vector{Counts: []int64{5, 5, 5, 5}}},
			Request{Collective: kolo.AllGather, In: in, Out: out})
	}, []string{"rank 2", "collective AllGatherV"}},
	{"CountOfAllGather", func(r kolo.Rank) Request {
		n := pick(r, 3, 5)
		return Request{Collective: kolo.AllGather, In: ints(r, n), Out: ints(r+9, 4*n)}
	}, []string{"rank 2", "count 3 instead of 5"}},
	{"CountOfReduceScatter", func(r kolo.Rank) Request {
		n := pick(r, 3, 5)
		return Request{Collective: kolo.ReduceScatter, In: ints(r, 4*n), Out: ints(r+9, n)}
	}, []string{"rank 2", "count 3 instead of 5"}},
	{"CountOfAllToAll", func(r kolo.Rank) Request {
		n := pick(r, 3, 5)
		return Request{Collective: kolo.AllToAll, In: ints(r, 4*n), Out: ints(r+9, 4*n)}
	}, []string{"rank 2", "count 3 instead of 5"}},
	{"CountOfBroadcast", func(r kolo.Rank) Request {
		return Request{Collective: kolo.Broadcast, Out: ints(r, pick(r, 3, 5))}
	}, []string{"rank 2", "count 3 instead of 5"}},
	{"CountOfGather", func(r kolo.Rank) Request {
		return Request{Collective: kolo.Gather, In: ints(r, pick(r, 3, 5)), Out: ints(r+9, 20)}
	}, []string{"rank 2", "count 3 instead of 5"}},
	{"CountOfScatter", func(r kolo.Rank) Request {
		return Request{Collective: kolo.Scatter, In: ints(r, 20), Out: ints(r+9, pick(r, 3, 5))}
	}, []string{"rank 2", "count 3 instead of 5"}},
	{"CountsOfAllGatherV", func(r kolo.Rank) Request {
		c := pick(r, []int64{1, 2, 3, 9}, []int64{1, 2, 3, 4})
		return Request{Collective: kolo.AllGatherV, In: ints(r, int(c[r])), Out: ints(r+9, total(c)), Recv: Vector{Counts: c}}
	}, []string{"rank 2", "9", "4"}},
	{"CountsOfReduceScatterV", func(r kolo.Rank) Request {
		c := pick(r, []int64{1, 2, 3, 9}, []int64{1, 2, 3, 4})
		return Request{Collective: kolo.ReduceScatterV, In: ints(r, total(c)), Out: ints(r+9, int(c[r])), Send: Vector{Counts: c}}
	}, []string{"rank 2", "9", "4"}},
	{"CountsOfGatherV", func(r kolo.Rank) Request {
		c := pick(r, []int64{1, 2, 3, 9}, []int64{1, 2, 3, 4})
		return Request{Collective: kolo.GatherV, In: ints(r, int(c[r])), Out: ints(r+9, total(c)), Recv: Vector{Counts: c}}
	}, []string{"rank 2", "9", "4"}},
	{"CountsOfScatterV", func(r kolo.Rank) Request {
		c := pick(r, []int64{1, 2, 3, 9}, []int64{1, 2, 3, 4})
		return Request{Collective: kolo.ScatterV, In: ints(r, total(c)), Out: ints(r+9, int(c[r])), Send: Vector{Counts: c}}
	}, []string{"rank 2", "9", "4"}},
	{"MatrixOfAllToAllVC", func(r kolo.Rank) Request {
		m := make([]int64, 16)
		for i := range m {
			m[i] = int64(i % 5)
		}
		m[15] += int64(pick(r, 2, 0)) // concerns rank 3 alone
		send, recv := 0, 0
		for k := range 4 {
			send, recv = send+int(m[int(r)*4+k]), recv+int(m[k*4+int(r)])
		}
		return Request{Collective: kolo.AllToAllVC, In: ints(r, send), Out: ints(r+9, recv), Send: Vector{Counts: m}}
	}, []string{"rank 2", "counts"}},
}

func total(counts []int64) int {
	n := int64(0)
	for _, k := range counts {
		n += k
	}
	return int(n)
}

func TestAnOddCallFailsOnAllRanksBeforeAByteChanges(t *testing.T) {
	for _, algorithm := range some([]string{"ring", "", "nhr", "star"}, 2) {
		for _, c := range oddCalls {
			t.Run(fmt.Sprintf("%s/%s", c.name, named(algorithm)), func(t *testing.T) {
				errs := each(t, Config{Algorithm: algorithm}, 4, func(ctx context.Context, w *World) error {
					return unchanged(ctx, t, w.Group(), c.call(w.Rank()))
				})
				for r, err := range errs {
					e := want(t, err, kolo.Rank(r), []error{kolo.ErrMismatch}, c.texts...)
					require.Equal(t, []kolo.Rank{2}, e.Ranks)
					require.Equal(t, kolo.Rank(2), e.Peer)
					require.Equal(t, uint64(0), e.Seq)
					require.Equal(t, c.call(kolo.Rank(r)).Collective, e.Op)
				}
			})
		}
	}
}

func named(algorithm string) string {
	if algorithm == "" {
		return "by-cost"
	}
	return algorithm
}

// unchanged makes a call that must leave both buffers as they are.
func unchanged(ctx context.Context, t testing.TB, g *Group, r Request) error {
	in, out := slices.Clone(r.In.Memory.Host), slices.Clone(r.Out.Memory.Host)
	err := Do(ctx, g, r)
	if !slices.Equal(in, r.In.Memory.Host) || !slices.Equal(out, r.Out.Memory.Host) {
		t.Errorf("rank %d: %v has changed its buffers", int(g.Rank()), r.Collective)
	}
	return err
}

// The counts of every pair of sizes that other libraries hang on or finish wrongly.
func TestUnequalCountsOfTwoRanksAlwaysFail(t *testing.T) {
	sizes := []int{0, 1, 2, 3, 8, 255, 256, 1024, 65537}
	for i, a := range sizes {
		for _, b := range sizes[:i] {
			errs := each(t, Config{}, 2, func(ctx context.Context, w *World) error {
				return unchanged(ctx, t, w.Group(), reduced(ints(w.Rank(), []int{a, b}[w.Rank()]), kolo.Sum))
			})
			for r, err := range errs {
				want(t, err, kolo.Rank(r), []error{kolo.ErrMismatch}, "rank 1", fmt.Sprintf("count %d instead of %d", b, a))
			}
		}
	}
}

func TestOneOddRankOfThirtyNine(t *testing.T) {
	errs := each(t, Config{}, 39, func(ctx context.Context, w *World) error {
		for range 3 {
			if err := AllReduce(ctx, w.Group(), fill(w.Rank(), 10), kolo.Sum); err != nil {
				return err
			}
		}
		n := 10
		if w.Rank() == 38 {
			n = 11
		}
		return unchanged(ctx, t, w.Group(), reduced(ints(w.Rank(), n), kolo.Sum))
	})
	for r, err := range errs {
		e := want(t, err, kolo.Rank(r), []error{kolo.ErrMismatch}, "38 of 39 ranks called AllReduce(10 int32, sum)", "rank 38 called AllReduce(11 int32, sum)")
		require.Equal(t, []kolo.Rank{38}, e.Ranks)
		require.Equal(t, uint64(3), e.Seq)
	}
}

// Without a majority both sides are told, whoever is called odd.
func TestTwoSidesWithoutMajority(t *testing.T) {
	errs := each(t, Config{}, 4, func(ctx context.Context, w *World) error {
		return unchanged(ctx, t, w.Group(), reduced(ints(w.Rank(), 10+int(w.Rank())/2), kolo.Sum))
	})
	for r, err := range errs {
		e := want(t, err, kolo.Rank(r), []error{kolo.ErrMismatch}, "2 of 4 ranks called AllReduce(10 int32, sum)", "rank 2 and 3 called AllReduce(11 int32, sum)")
		require.Equal(t, []kolo.Rank{2, 3}, e.Ranks)
		require.Equal(t, kolo.NoRank, e.Peer)
	}
}

func TestThreeKindsOfCallsAreAllTold(t *testing.T) {
	errs := each(t, Config{}, 5, func(ctx context.Context, w *World) error {
		return unchanged(ctx, t, w.Group(), reduced(ints(w.Rank(), []int{10, 11, 10, 12, 10}[w.Rank()]), kolo.Sum))
	})
	for r, err := range errs {
		e := want(t, err, kolo.Rank(r), []error{kolo.ErrMismatch}, "3 of 5 ranks", "rank 1 called AllReduce(11", "rank 3 called AllReduce(12")
		require.Equal(t, []kolo.Rank{1, 3}, e.Ranks)
	}
}

// The lists of a large group do not make an error of a thousand words.
func TestAMismatchOfLongListsIsShort(t *testing.T) {
	const n = 40
	errs := each(t, Config{}, n, func(ctx context.Context, w *World) error {
		m := make([]int64, n*n)
		for i := range m {
			m[i] = 1
		}
		if w.Rank() == 7 {
			m[3*n+5] = 2 // rank 3 to rank 5
		}
		return unchanged(ctx, t, w.Group(), Request{Collective: kolo.AllToAllVC, In: ints(w.Rank(), n), Out: ints(w.Rank()+50, n), Send: Vector{Counts: m}})
	})
	for r, err := range errs {
		e := want(t, err, kolo.Rank(r), []error{kolo.ErrMismatch}, "counts[125] 2 instead of 1")
		require.Equal(t, []kolo.Rank{7}, e.Ranks)
		require.Less(t, len(err.Error()), 600)
	}
}

func TestPairsOfAllToAllVMustAgree(t *testing.T) {
	for _, algorithm := range []string{"", "pairwise"} {
		errs := each(t, Config{Algorithm: algorithm}, 3, func(ctx context.Context, w *World) error {
			send, recv := []int64{2, 2, 2}, []int64{2, 2, 2}
			if w.Rank() == 1 {
				send[2] = 3
			}
			return unchanged(ctx, t, w.Group(), Request{Collective: kolo.AllToAllV, In: ints(w.Rank(), total(send)),
				Out: ints(w.Rank()+9, total(recv)), Send: Vector{Counts: send}, Recv: Vector{Counts: recv}})
		})
		for r, err := range errs {
			e := want(t, err, kolo.Rank(r), []error{kolo.ErrMismatch}, "rank 1 sends 3 elements to rank 2, which takes 2")
			require.Equal(t, []kolo.Rank{1, 2}, e.Ranks)
		}
	}
}

func TestAMessageOfAnotherLengthIsAMismatchOnBothRanks(t *testing.T) {
	for _, c := range []struct {
		name       string
		send, recv Buffer
		texts      []string
	}{
		{"Length", ints(0, 4), ints(1, 8), []string{"16 bytes", "takes 32"}},
		{"Nothing", ints(0, 0), ints(1, 8), []string{"0 bytes", "takes 32"}},
		{"ElementType", ints(0, 4), floats(1, 4), []string{"int32", "fp32"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			errs := each(t, Config{}, 2, func(ctx context.Context, w *World) error {
				r := Request{Collective: kolo.Send, In: c.send, Peer: 1, Tag: 5}
				if w.Rank() == 1 {
					r = Request{Collective: kolo.Recv, Out: c.recv, Peer: 0, Tag: 5}
				}
				return unchanged(ctx, t, w.Group(), r)
			})
			for r, err := range errs {
				e := want(t, err, kolo.Rank(r), []error{kolo.ErrMismatch}, c.texts...)
				require.Equal(t, kolo.Rank(1-r), e.Peer)
				require.Equal(t, []kolo.Collective{kolo.Send, kolo.Recv}[r], e.Op)
			}
		})
	}
}

// A group is made alike by all members, or fails for all that call it.
func TestGroupMadeDifferentlyIsAMismatch(t *testing.T) {
	all := []kolo.Rank{0, 1, 2}
	for _, c := range []struct {
		name  string
		odd   GroupConfig
		texts []string
	}{
		{"Order", GroupConfig{Name: "g", Ranks: []kolo.Rank{0, 2, 1}}, []string{"rank 2 makes the group", "ranks [0, 2 and 1] instead of [0, 1 and 2]"}},
		{"Fewer", GroupConfig{Name: "g", Ranks: []kolo.Rank{0, 2}}, []string{"ranks [0 and 2] instead of [0, 1 and 2]"}},
		{"More", GroupConfig{Name: "g", Ranks: []kolo.Rank{3, 0, 1, 2}}, []string{"ranks [3, 0, 1 and 2] instead of [0, 1 and 2]"}},
		{"Algorithm", GroupConfig{Name: "g", Ranks: all, Algorithm: "nhr"}, []string{`algorithm "nhr" instead of "ring"`}},
		{"AlgorithmOfTheWorld", GroupConfig{Name: "g", Ranks: all, Algorithm: "-"}, []string{`algorithm "" instead of "ring"`}},
		{"Timeout", GroupConfig{Name: "g", Ranks: all, Timeout: 1e9}, []string{"timeout 1s instead of"}},
		{"Priority", GroupConfig{Name: "g", Ranks: all, Priority: 3}, []string{"priority 3 instead of 0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			made := make(chan struct{})
			var oddMade error
			errs := each(t, Config{}, 4, func(ctx context.Context, w *World) error {
				switch w.Rank() {
				case 2:
					<-made
					odd := c.odd
					switch odd.Algorithm {
					case "":
						odd.Algorithm = "ring"
					case "-":
						odd.Algorithm = ""
					}
					_, oddMade = w.NewGroup(odd)
					return oddMade
				case 3:
					return nil
				}
				g, err := w.NewGroup(GroupConfig{Name: "g", Ranks: all, Algorithm: "ring"})
				require.NoError(t, err)
				if w.Rank() == 0 {
					close(made)
				}
				return unchanged(ctx, t, g, reduced(ints(w.Rank(), 10), kolo.Sum))
			})
			for r, err := range errs[:3] {
				e := want(t, err, kolo.Rank(r), []error{kolo.ErrMismatch}, c.texts...)
				require.Equal(t, []kolo.Rank{2}, e.Ranks)
				require.Equal(t, "g", e.Group)
			}
		})
	}
}

// Groups of one name whose members are other ranks have nothing to do with each
// other, as the rows of a grid that are all named "tp".
func TestDisjointGroupsMayHaveOneName(t *testing.T) {
	require.NoError(t, Config{}.Run(t.Context(), 4, func(ctx context.Context, w *World) error {
		first := w.Rank() &^ 1
		for range 3 {
			g, err := w.NewGroup(GroupConfig{Name: "tp", Ranks: []kolo.Rank{first, first + 1}})
			if err != nil {
				return err
			}
			b := []int32{int32(w.Rank()) + 1}
			if err := AllReduce(ctx, g, b, kolo.Sum); err != nil {
				return err
			}
			if b[0] != int32(2*first+3) {
				return fmt.Errorf("rank %d has %d", int(w.Rank()), b[0])
			}
		}
		return nil
	}))
}

// After a mismatch every later call says which call it was that failed the group,
// and other groups go on.
func TestCallsAfterAMismatchNameTheCallThatFailed(t *testing.T) {
	errs := each(t, Config{}, 2, func(ctx context.Context, w *World) error {
		g, err := w.NewGroup(GroupConfig{Name: "other", Ranks: []kolo.Rank{0, 1}})
		require.NoError(t, err)
		first := AllReduce(ctx, w.Group(), fill(w.Rank(), 1+int(w.Rank())), kolo.Sum)
		want(t, first, w.Rank(), []error{kolo.ErrMismatch})
		for range 2 {
			second := Broadcast(ctx, w.Group(), fill(w.Rank(), 5), 0)
			e := want(t, second, w.Rank(), []error{kolo.ErrMismatch, kolo.ErrAborted}, "AllReduce #0", "count 2 instead of 1")
			require.Equal(t, kolo.Broadcast, e.Op)
			require.Equal(t, []kolo.Rank{1}, e.Ranks)
			message := Send(ctx, w.Group(), fill(w.Rank(), 5), 0, 0)
			e = want(t, message, w.Rank(), []error{kolo.ErrMismatch, kolo.ErrAborted}, "AllReduce #0")
			require.Equal(t, kolo.Send, e.Op)
		}
		require.ErrorIs(t, w.Group().Err(), kolo.ErrMismatch)
		require.NoError(t, g.Err())
		return AllReduce(ctx, g, fill(w.Rank(), 3), kolo.Sum)
	})
	require.NoError(t, errors.Join(errs...))
}
