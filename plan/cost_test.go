package plan

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kolo-ccl/kolo"
)

// AllReduce times in microseconds at 5 us per round, 25 GB/s moved and 100 GB/s folded,
// computed by a round-by-round simulation that shares nothing with this package.
// (Of NHR the same figures hold for NB.)
const goldenTimes = `
bytes     ranks  ring     nhr      halving-doubling  recursive-doubling  mesh-oneshot  mesh      pat
4096      8      70.32    30.32    30.32             15.61               6.43          10.32     30.32
4096      33     320.36   60.36    60.73             36.39               11.55         10.36     170.36
1048576   7      140.89   110.89   195.15            219.23              319.57        90.89     110.89
1048576   8      152.58   112.58   112.58            172.29              372.00        92.58     112.58
1048576   64     722.90   152.90   152.90            344.57              3308.01       102.90    262.90
67108864  8      5354.82  5314.82  5314.82           10081.33            23493.1       5294.82   5314.82
67108864  33     6176.77  5916.77  11950.85          22852.01            107379        5866.77   6026.77
`

func TestTermsAgainstSimulatedTimes(t *testing.T) {
	lines := strings.Split(strings.TrimSpace(goldenTimes), "\n")
	names := strings.Fields(lines[0])[2:]
	for _, line := range lines[1:] {
		cells := strings.Fields(line)
		n, err := strconv.ParseFloat(cells[0], 64)
		require.NoError(t, err)
		p, err := strconv.Atoi(cells[1])
		require.NoError(t, err)
		for i, name := range names {
			t.Run(fmt.Sprintf("bytes=%s/ranks=%d/%s", cells[0], p, name), func(t *testing.T) {
				a, err := Lookup(name)
				require.NoError(t, err)
				want := cells[2+i]
				_, digits, _ := strings.Cut(want, ".")
				l := a.terms(kolo.AllReduce, OneServer(p), n)[0]
				us := (float64(l.Rounds*5e-6) + float64(l.Bytes/25e9) + float64(l.Reduced/100e9)) * 1e6
				require.Equal(t, want, strconv.FormatFloat(us, 'f', len(digits), 64))
			})
		}
	}
}

// Every row that serves has terms, of no negative part, which grow with the bytes.
func TestTermsOfAllRows(t *testing.T) {
	servers, err := Servers(4, 4, 4)
	require.NoError(t, err)
	for _, topo := range []*Topology{OneServer(2), OneServer(3), OneServer(12), servers} {
		for _, a := range Algorithms() {
			for _, c := range []kolo.Collective{kolo.AllReduce, kolo.ReduceScatter, kolo.AllGather, kolo.Broadcast,
				kolo.Reduce, kolo.Scatter, kolo.Gather, kolo.AllToAll} {
				if a.Serves(c, topo) != nil {
					continue
				}
				small, large := a.terms(c, topo, 1<<10), a.terms(c, topo, 1<<24)
				var bytes [2]float64
				for l := range small {
					require.False(t, small[l].Rounds < 0 || small[l].Bytes < 0 || small[l].Reduced < 0, "%s %v", a.Name, c)
					bytes[0], bytes[1] = bytes[0]+small[l].Bytes, bytes[1]+large[l].Bytes
				}
				require.Greater(t, bytes[1], bytes[0], "%s %v", a.Name, c)
				if c.Reduces() {
					require.Positive(t, large[0].Reduced+large[1].Reduced, "%s %v", a.Name, c)
				}
			}
		}
	}
}

// What a two-level plan carries between servers is 1/M of what a flat ring carries.
func TestHierarchyCarriesLittleBetweenServers(t *testing.T) {
	topo, err := Servers(8, 8, 8, 8)
	require.NoError(t, err)
	const n = 1 << 20
	a, err := Lookup("hier:ring+nhr")
	require.NoError(t, err)
	for _, c := range []kolo.Collective{kolo.ReduceScatter, kolo.AllGather} {
		got := a.terms(c, topo, n)
		require.Equal(t, 7.0, got[0].Rounds)
		require.Equal(t, 2.0, got[1].Rounds)
		require.Equal(t, n*7.0/8, got[0].Bytes)
		require.Equal(t, n/8.0*3/4, got[1].Bytes)
	}
}

// The bytes that the terms charge are those that some rank really sends, for the
// algorithms whose ranks all send at a time.
func TestTermsCountWhatIsSent(t *testing.T) {
	for _, p := range []int{2, 3, 6, 8, 13} {
		topo := OneServer(p)
		for _, name := range []string{"ring", "ring-bidir", "mesh", "nhr", "nb", "pairwise", "bruck", "mesh-oneshot", "pat", "multi-ring"} {
			a, err := Lookup(name)
			require.NoError(t, err)
			for _, c := range []kolo.Collective{kolo.AllReduce, kolo.ReduceScatter, kolo.AllGather, kolo.AllToAll} {
				if a.Serves(c, topo) != nil {
					continue
				}
				k := Key{Algorithm: name, Collective: c}
				prog, _, err := Compile(k, topo, 0)
				require.NoError(t, err)
				blocks := 0
				for _, s := range prog.Steps {
					for _, span := range s.Src {
						if s.Op == Send {
							blocks += int(span.N) * len(s.Peers)
						}
					}
				}
				whole := float64(prog.Chunks * prog.Parts)
				require.InDelta(t, float64(blocks)/whole, a.terms(c, topo, 1)[0].Bytes, 1e-9, "%s %v P=%d", name, c, p)
			}
		}
	}
}
