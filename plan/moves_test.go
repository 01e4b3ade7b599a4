package plan

import (
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kolo-ccl/kolo"
)

var formulas = []struct {
	name string
	list []kolo.Collective
}{
	{"ring", []kolo.Collective{kolo.AllReduce, kolo.AllGather, kolo.ReduceScatter}},
	{"nhr", []kolo.Collective{kolo.AllReduce, kolo.AllGather, kolo.ReduceScatter}},
	{"nb", []kolo.Collective{kolo.AllReduce, kolo.AllGather, kolo.ReduceScatter}},
	{"recursive-doubling", []kolo.Collective{kolo.AllReduce}},
	{"halving-doubling", []kolo.Collective{kolo.AllReduce}},
}

// What is asked for one by one is what the Program has: the same peers, and as many
// blocks in each message, which are those of the vector where they lie at home.
func TestMovesAreTheProgram(t *testing.T) {
	for _, f := range formulas {
		for _, c := range f.list {
			for n := 1; n <= 33; n++ {
				for r := range n {
					list, blocks, err := Moves(f.name, c, n, kolo.Rank(r))
					require.NoError(t, err)
					p, _, err := Compile(Key{Algorithm: f.name, Collective: c, InPlace: true}, OneServer(n), kolo.Rank(r))
					require.NoError(t, err)
					require.Equal(t, p.Chunks*p.Parts, blocks)
					i := 0
					for m := range list {
						s := &p.Steps[i]
						i++
						require.Equal(t, s.Op, m.Op, "%s %v, rank %d of %d, step %d", f.name, c, r, n, i)
						require.Equal(t, []kolo.Rank{p.Peer(s.Peers[0])}, []kolo.Rank{m.Peer})
						require.Equal(t, s.Final, m.Final)
						spans := s.Src
						if m.Op != Send {
							spans = s.Dst
						}
						var want, got []int
						for _, x := range spans {
							p.At(x, func(b int) { want = append(want, b) })
						}
						for k := range m.N {
							got = append(got, (((m.Off+k*m.Stride)%blocks)+blocks)%blocks)
						}
						require.Equal(t, want, got, "%s %v, rank %d of %d, step %d: %s", f.name, c, r, n, i, p.Describe(i-1))
					}
					for ; i < len(p.Steps); i++ { // what brings blocks home
						require.Equal(t, Copy, p.Steps[i].Op)
					}
				}
			}
		}
	}
}

// A rank's messages at 65,536 ranks take no memory that grows with the ranks.
func TestMovesTakeNoMemory(t *testing.T) {
	const n = 1 << 16
	for _, f := range formulas {
		for _, c := range f.list {
			for _, ranks := range []int{n, n - 1} {
				list, _, err := Moves(f.name, c, ranks, 12345)
				require.NoError(t, err)
				count, most := 0, uint64(1<<62)
				for range 3 { // others may allocate at the same time
					var before, after runtime.MemStats
					runtime.ReadMemStats(&before)
					count = 0
					for range list {
						count++
					}
					runtime.ReadMemStats(&after)
					most = min(most, after.TotalAlloc-before.TotalAlloc)
				}
				t.Logf("%s %v of %d ranks: %d messages, %d bytes", f.name, c, ranks, count, most)
				require.Less(t, most, uint64(2048), "%s %v", f.name, c)
			}
		}
	}
}

func TestMovesEndWhenNobodyAsks(t *testing.T) {
	list, blocks, err := Moves("ring", kolo.AllReduce, 8, 3)
	require.NoError(t, err)
	require.Equal(t, 8, blocks)
	var got []Move
	for m := range list {
		if got = append(got, m); len(got) == 2 {
			break
		}
	}
	require.Equal(t, []Move{{Send, 4, 2, 1, 1, false}, {RecvReduce, 2, 1, 1, 1, false}}, got)
	_, _, err = Moves("tree", kolo.AllReduce, 8, 3)
	require.ErrorIs(t, err, kolo.ErrUnsupported)
	_, _, err = Moves("ring", kolo.AllReduce, 8, 8)
	require.ErrorIs(t, err, kolo.ErrArgument)
	list, _, err = Moves("ring", kolo.AllReduce, 1, 0)
	require.NoError(t, err)
	require.Empty(t, slices.Collect(list))
}
