package msccl

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/plan"
)

// What the table offers goes out and comes back as the same collective, and the file of
// it as the same file.
func TestExportedProgramsComeBack(t *testing.T) {
	two, err := plan.Servers(3, 3)
	require.NoError(t, err)
	for _, topo := range []*plan.Topology{plan.OneServer(1), plan.OneServer(2), plan.OneServer(5), plan.OneServer(8), two} {
		n := topo.Ranks()
		for _, a := range plan.Algorithms() {
			for _, c := range []kolo.Collective{kolo.AllReduce, kolo.AllGather, kolo.ReduceScatter, kolo.AllToAll,
				kolo.Broadcast, kolo.Reduce, kolo.Gather, kolo.Scatter} {
				if a.Name == "fabric" || a.Serves(c, topo) != nil {
					continue
				}
				for _, inPlace := range []bool{false, true} {
					k := plan.Key{Algorithm: a.Name, Collective: c, InPlace: inPlace || c == kolo.Broadcast}
					if c.Rooted() {
						k.Root = kolo.Rank(n - 1)
					}
					comesBack(t, k, topo)
				}
			}
		}
	}
}

func comesBack(t *testing.T, k plan.Key, topo *plan.Topology) {
	t.Helper()
	name := fmt.Sprintf("%+v of %d ranks", k, topo.Ranks())
	programs, err := plan.Programs(k, topo)
	require.NoError(t, err, name)
	f, err := Export(k, programs)
	require.NoError(t, err, name)
	p, err := Import(f.XML())
	require.NoError(t, err, name)
	require.Equal(t, f, p.File, name)
	require.Equal(t, k, p.Key, name)
	require.Zero(t, p.Report.Credits, name)
	if single(programs) {
		require.True(t, p.Report.SameBits, name)
	}
	_, err = p.Entry()
	require.NoError(t, err, name)
	again, err := Export(p.Key, p.Programs)
	require.NoError(t, err, name)
	_, err = again.Plan()
	require.NoError(t, err, name)
}

// single says that no step reduces what several peers send.
func single(programs []*plan.Program) bool {
	for _, p := range programs {
		for _, s := range p.Steps {
			if s.Op == plan.RecvReduce && len(s.Peers) > 1 {
				return false
			}
		}
	}
	return true
}

func TestExportRefusesWhatTheFormatCannotSay(t *testing.T) {
	topo := plan.OneProcess(4)
	for name, k := range map[string]plan.Key{
		"the medium":        {Algorithm: "fabric", Collective: kolo.AllReduce},
		"premultiplication": {Algorithm: "ring", Collective: kolo.AllReduce, Scale: true},
		"barrier":           {Algorithm: "ring", Collective: kolo.Barrier},
	} {
		t.Run(name, func(t *testing.T) {
			programs, err := plan.Programs(k, topo)
			require.NoError(t, err)
			_, err = Export(k, programs)
			require.ErrorIs(t, err, kolo.ErrUnsupported)
		})
	}
}
