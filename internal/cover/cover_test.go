package cover

import (
	"cmp"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWhoGoes(t *testing.T) {
	for name, c := range map[string]struct {
		pairs [][2]int
		want  []int
	}{
		"nobody":                 {nil, nil},
		"one pair":               {[][2]int{{0, 1}}, []int{1}},
		"the other way around":   {[][2]int{{1, 0}}, []int{1}},
		"twice the same":         {[][2]int{{1, 0}, {0, 1}}, []int{1}},
		"two that share one":     {[][2]int{{1, 2}, {2, 3}}, []int{2}},
		"two that share rank 0":  {[][2]int{{0, 1}, {0, 2}}, []int{0}},
		"two apart":              {[][2]int{{0, 1}, {2, 3}}, []int{1, 3}},
		"three in a circle":      {[][2]int{{0, 1}, {1, 2}, {2, 0}}, []int{1, 2}},
		"four in a row":          {[][2]int{{0, 1}, {1, 2}, {2, 3}}, []int{1, 3}},
		"a row that keeps 0":     {[][2]int{{3, 0}, {0, 1}, {1, 2}}, []int{1, 3}},
		"two hosts of two ranks": {[][2]int{{0, 2}, {0, 3}, {1, 2}, {1, 3}}, []int{2, 3}},
		"most pairs first would take one more": {[][2]int{{0, 1}, {0, 2}, {0, 3}, {1, 4}, {2, 5}, {3, 6}},
			[]int{1, 2, 3}},
	} {
		require.Equal(t, c.want, Fewest(c.pairs), name)
	}
}

// best is Fewest by looking at every set of ends.
func best(pairs [][2]int, n int) []int {
	var sets []int
	for set := range 1 << n {
		covers := !slices.ContainsFunc(pairs, func(p [2]int) bool { return set>>p[0]&1 == 0 && set>>p[1]&1 == 0 })
		if covers {
			sets = append(sets, set)
		}
	}
	set := slices.MinFunc(sets, func(a, b int) int {
		if d := bits.OnesCount(uint(a)) - bits.OnesCount(uint(b)); d != 0 {
			return d
		}
		return cmp.Compare(bits.Reverse64(uint64(a)), bits.Reverse64(uint64(b))) // the lowest number that differs stays
	})
	var list []int
	for v := range n {
		if set>>v&1 == 1 {
			list = append(list, v)
		}
	}
	return list
}

func TestFewestAgainstEverySet(t *testing.T) {
	seed := rand.Uint64()
	t.Log("seed", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	for range 1500 {
		n := 2 + rng.IntN(8)
		var pairs [][2]int
		for a := range n {
			for b := range a {
				if rng.IntN(3) == 0 {
					pairs = append(pairs, [2]int{b, a})
				}
			}
		}
		want := best(pairs, n)
		require.Equal(t, want, Fewest(pairs), "%v", pairs)
		rng.Shuffle(len(pairs), func(i, j int) { pairs[i], pairs[j] = pairs[j], pairs[i] })
		for i := range pairs {
			if rng.IntN(2) == 0 {
				pairs[i][0], pairs[i][1] = pairs[i][1], pairs[i][0]
			}
		}
		require.Equal(t, want, Fewest(pairs), "%v", pairs)
	}
}

// Sets as they come of real faults are solved whatever their size, and one that is too hard
// is covered all the same, by everybody alike.
func TestLargeSets(t *testing.T) {
	var hosts [][2]int // two hosts of 64 ranks that do not reach each other
	for a := range 64 {
		for b := 64; b < 128; b++ {
			hosts = append(hosts, [2]int{a, b})
		}
	}
	list := Fewest(hosts)
	require.Len(t, list, 64)
	require.Equal(t, 64, list[0])
	var star [][2]int
	for b := 1; b < 1000; b++ {
		star = append(star, [2]int{0, b})
	}
	require.Equal(t, []int{0}, Fewest(star))
	rng := rand.New(rand.NewPCG(7, 7))
	var hard [][2]int
	for a := range 70 {
		for b := range a {
			if rng.IntN(8) == 0 {
				hard = append(hard, [2]int{a, b})
			}
		}
	}
	list = Fewest(hard)
	for _, p := range hard {
		require.True(t, slices.Contains(list, p[0]) || slices.Contains(list, p[1]))
	}
	slices.Reverse(hard)
	require.Equal(t, list, Fewest(hard))
}
