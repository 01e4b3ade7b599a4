package plan

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kolo-ccl/kolo"
)

// PAT with as many parts at a time as there are is NHR: the same messages.
func TestPATWithAllPartsIsNHR(t *testing.T) {
	for n := 2; n <= 130; n++ {
		var want []string
		list, _, err := Moves("nhr", kolo.AllGather, n, 0)
		require.NoError(t, err)
		for m := range list {
			if m.Op != Recv {
				continue
			}
			var parts []int
			for k := range m.N {
				parts = append(parts, (((-m.Off-k*m.Stride)%n)+n)%n)
			}
			slices.Sort(parts)
			want = append(want, fmt.Sprint((n-int(m.Peer))%n, parts))
		}
		var got []string
		for _, r := range patRounds(n, n) {
			got = append(got, fmt.Sprint(r.d, r.offsets))
		}
		require.Equal(t, want, got, "%d ranks", n)
	}
}

func TestPATRoundsAndSizes(t *testing.T) {
	for n := 2; n <= 200; n++ {
		for a := 1; a <= n; a *= 2 {
			seen := make([]int, n)
			rounds := patRounds(n, a)
			for _, r := range rounds {
				require.LessOrEqual(t, len(r.offsets), a)
				for _, s := range r.offsets {
					seen[s]++
					require.Equal(t, s&-s, r.d, "offset %d comes from its parent", s)
				}
			}
			require.Equal(t, append([]int{0}, slices.Repeat([]int{1}, n-1)...), seen, "%d ranks, %d parts: each once", n, a)
			if n == 1<<ceilLog(n) && a <= n/2 {
				require.Len(t, rounds, floorLog(a)+n/a-1, "%d ranks, %d parts", n, a)
			}
		}
	}
}

// Every part comes once, as much goes each way, and ceil(lg P) rounds suffice.
func TestSwingSpansForEvenRanks(t *testing.T) {
	for n := 2; n <= 258; n += 2 {
		rounds := swingRounds(n)
		require.Len(t, rounds, ceilLog(n))
		taken := 0
		for _, r := range rounds {
			require.Equal(t, len(r.give), len(r.take), "%d ranks", n)
			taken += len(r.take)
		}
		require.Equal(t, n-1, taken, "%d ranks", n)
	}
	var distances []int
	for _, r := range swingRounds(64) {
		distances = append(distances, r.partner)
	}
	require.Equal(t, []int{11 - 32, 11, -5, 3, -1, 1}, distances)
}

// The rings of a multi-ring visit all ranks, and no two share a link in one direction.
func TestMultiRingsAreApart(t *testing.T) {
	for n := 2; n <= 100; n++ {
		list := strides(n)
		require.NotEmpty(t, list)
		require.LessOrEqual(t, len(list), maxRings)
		for k, s := range list {
			require.Equal(t, 1, gcd(s, n), "%d ranks, stride %d", n, s)
			require.NotContains(t, list[:k], s)
		}
	}
	require.Equal(t, []int{1, 7, 3, 5}, strides(8))
	require.Equal(t, []int{1, 5}, strides(6))
	require.Equal(t, []int{1}, strides(2))
}

// AHC leaves each rank of the smallest server the most to carry between servers, and
// nobody less than its share.
func TestAHCSharesByTheSizeOfServers(t *testing.T) {
	topo := mustServers(t, 2, 3, 6)
	chunks, err := ahcChunks(topo)
	require.NoError(t, err)
	require.Equal(t, 6, chunks)
	require.Equal(t, []int{0, 1, 2}, ahcRuns([]int{2, 3, 6}, chunks, 0, 3))
	require.Equal(t, []int{0, 2, 3, 4}, ahcRuns([]int{2, 3}, 6, 0, 6))
	_, err = ahcChunks(mustServers(t, 61, 59, 53))
	require.ErrorContains(t, err, "more than 4096 blocks")
}

func TestSquarest(t *testing.T) {
	for n, want := range map[int][2]int{1: {1, 1}, 7: {1, 7}, 12: {3, 4}, 16: {4, 4}, 30: {5, 6}, 22: {2, 11}} {
		a, b := squarest(n)
		require.Equal(t, want, [2]int{a, b})
	}
}
