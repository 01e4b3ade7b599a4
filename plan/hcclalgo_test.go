package plan

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kolo-ccl/kolo"
)

// hcclBuilt stands for a table in which AHC, pipeline and NHR_V1 are missing.
var hcclBuilt = algorithmList{"ring", "tree", "double-tree", "halving-doubling", "recursive-doubling", "nhr", "nb", "pairwise",
	"bruck", "mesh", "mesh-oneshot", "star", "hier:ring+nhr", "hier:mesh+nhr", "hier:mesh+halving-doubling", "hier:ring+nhr+ring", "fabric"}

func TestHCCLAlgoIsReadAndWritten(t *testing.T) {
	for _, row := range []struct{ in, want string }{
		{"", ""},
		{"level0:NA", "level0:NA"},
		{"level0:NA;level1:H-D_R", "level0:NA;level1:H-D_R"},
		{"level1:ring", "level0:NA;level1:ring"},
		{"level2:NHR;level1:nhr;level0:na", "level0:NA;level1:NHR;level2:NHR"},
		{"LEVEL0:fullmesh;level1:NB", "level0:mesh;level1:NB"},
		{"level1:halving-doubling", "level0:NA;level1:H-D_R"},
		{"level0:mesh;level1:Tree;level2:double-tree", "level0:mesh;level1:tree;level2:double-tree"},
		{"allreduce=level0:NA;level1:ring/allgather=level0:NA;level1:NHR", "allreduce=level0:NA;level1:ring/allgather=level0:NA;level1:NHR"},
		{"others=level1:NHR/AllToAll=level1:pairwise", "alltoall=level0:NA;level1:pairwise/others=level0:NA;level1:NHR"},
		{"others=level1:NHR", "level0:NA;level1:NHR"},
		{"alltoallvc=level1:pairwise/barrier=level1:tree", "alltoallvc=level0:NA;level1:pairwise/barrier=level0:NA;level1:tree"},
	} {
		h, err := parseHCCLAlgo(row.in, hcclBuilt)
		require.NoError(t, err, row.in)
		require.Equal(t, row.want, h.String(), row.in)
		again, err := parseHCCLAlgo(h.String(), hcclBuilt)
		require.NoError(t, err, row.in)
		require.Equal(t, h, again, row.in)
	}
}

func TestHCCLAlgoErrors(t *testing.T) {
	for _, row := range []struct {
		in       string
		sentinel error
		text     string
	}{
		{"ring", kolo.ErrArgument, `position 1: "ring" instead of level0:name`},
		{"level1", kolo.ErrArgument, `position 1: "level1"`},
		{"level3:ring", kolo.ErrArgument, `position 1: "level3:ring"`},
		{"level0:NA;", kolo.ErrArgument, `position 11: ""`},
		{"level0:NA;level1:rung", kolo.ErrArgument, `position 18: "rung" instead of one of NA, ring, H-D_R, NHR, NB, pairwise, fullmesh, tree`},
		{"level0:NA;level1:", kolo.ErrArgument, `position 18: ""`},
		{"level0:NA; level1:ring", kolo.ErrArgument, `position 11: " level1:ring"`},
		{"level1:ring;level1:ring", kolo.ErrArgument, `position 13: "level1:ring" instead of each level once`},
		{"level1:hier:ring+nhr", kolo.ErrArgument, `position 8: "hier:ring+nhr"`},
		{"allreduce=level1:ring/", kolo.ErrArgument, `position 23: "" instead of op=levels`},
		{"level1:ring/level1:ring", kolo.ErrArgument, `position 1: "level1:ring" instead of op=levels`},
		{"allreduce=level1:ring/minuet=level1:ring", kolo.ErrArgument, `position 23: "minuet" instead of an operator: broadcast, allreduce`},
		{"allreduce=level1:ring/allreduce=level1:NHR", kolo.ErrArgument, `position 23: "allreduce" instead of each operator once`},
		{"allreduce=", kolo.ErrArgument, `position 11: ""`},
		{"send=level1:ring", kolo.ErrArgument, `position 1: "send"`},
		{"level1:AHC", kolo.ErrUnsupported, "position 8: HCCL has AHC, but it is not built here; built are NA, ring"},
		{"allreduce=level0:NA;level1:pipeline", kolo.ErrUnsupported, "position 28: HCCL has pipeline"},
		{"level0:NA;level1:nhr_v1", kolo.ErrUnsupported, "position 18: HCCL has NHR_V1"},
		{strings.Repeat("x", maxHCCLAlgo+1), kolo.ErrArgument, "1601 bytes; at most 1600"},
	} {
		_, err := parseHCCLAlgo(row.in, hcclBuilt)
		require.ErrorIs(t, err, row.sentinel, row.in)
		require.ErrorContains(t, err, row.text, row.in)
	}
}

func TestHCCLAlgoBecomesAnAlgorithm(t *testing.T) {
	one, two := OneServer(8), mustServers(t, 4, 4)
	single, pods := mustServers(t, 1, 1, 1), mustRacks(t, []int{2, 2}, []int{2, 2})
	for _, row := range []struct {
		in         string
		collective kolo.Collective
		top        *Topology
		want       string // "!": an error
	}{
		{"", kolo.AllReduce, one, ""},
		{"level0:NA", kolo.AllReduce, one, ""},
		{"level0:NA;level1:H-D_R", kolo.AllReduce, one, "halving-doubling"},
		{"level0:NA;level1:H-D_R", kolo.AllReduce, two, "halving-doubling"},
		{"level0:mesh;level1:H-D_R", kolo.AllReduce, one, "mesh"},
		{"level0:mesh;level1:H-D_R", kolo.AllReduce, two, "hier:mesh+halving-doubling"},
		{"level0:mesh;level1:ring", kolo.AllReduce, two, "!"},
		{"level0:ring", kolo.AllReduce, two, "hier:ring+nhr"},
		{"level0:ring", kolo.AllReduce, single, "nhr"},
		{"level0:ring;level1:tree", kolo.AllReduce, single, "tree"},
		{"level1:ring;level2:NHR", kolo.AllReduce, two, "ring"},
		{"level1:ring;level2:NHR", kolo.AllReduce, pods, "!"},
		{"level1:NHR;level2:NHR", kolo.AllReduce, pods, "nhr"},
		{"level2:NHR", kolo.AllReduce, one, ""},
		{"level2:NHR", kolo.AllReduce, pods, "!"},
		{"level0:ring;level1:NHR;level2:ring", kolo.AllReduce, pods, "hier:ring+nhr+ring"},
		{"level0:ring;level1:NHR;level2:ring", kolo.AllReduce, two, "hier:ring+nhr"},
		{"level0:ring;level1:NHR", kolo.AllReduce, pods, "hier:ring+nhr"},
		{"level0:ring;level1:NHR;level2:NHR", kolo.AllReduce, pods, "!"},
		{"allreduce=level1:ring", kolo.AllGather, one, ""},
		{"allgather=level1:ring", kolo.AllGatherV, one, "ring"},
		{"allgather=level1:ring/allgatherv=level1:NB", kolo.AllGatherV, one, "nb"},
		{"alltoall=level1:pairwise/others=level1:ring", kolo.AllToAllVC, one, "pairwise"},
		{"alltoall=level1:pairwise/others=level1:ring", kolo.Reduce, one, "ring"},
		{"allreduce=level0:NA/others=level1:ring", kolo.AllReduce, one, ""},
		{"level1:ring", kolo.Barrier, one, ""},
		{"barrier=level1:tree", kolo.Barrier, one, "tree"},
	} {
		h, err := parseHCCLAlgo(row.in, hcclBuilt)
		require.NoError(t, err, row.in)
		got, err := h.forAmong(row.collective, row.top, hcclBuilt)
		if row.want == "!" {
			require.ErrorIs(t, err, kolo.ErrUnsupported, row.in)
			continue
		}
		require.NoError(t, err, row.in)
		require.Equal(t, row.want, got, "%s for %v over %v", row.in, row.collective, row.top)
	}
	ahc := append(algorithmList{"ahc"}, hcclBuilt...)
	h, err := parseHCCLAlgo("level0:ring;level1:AHC;level2:NHR", ahc)
	require.NoError(t, err)
	got, err := h.forAmong(kolo.AllReduce, pods, ahc)
	require.NoError(t, err)
	require.Equal(t, "ahc", got, "AHC at level 1 is AHC everywhere")
}

// Every value that the package's own table takes is an algorithm that exists.
func TestHCCLAlgoOverTheTable(t *testing.T) {
	for _, name := range algorithmNames() {
		if strings.HasPrefix(name, hierPrefix) {
			continue
		}
		h, err := ParseHCCLAlgo("level1:" + name)
		require.NoError(t, err)
		got, err := h.For(kolo.AllReduce, OneServer(4))
		require.NoError(t, err)
		require.Equal(t, name, got)
	}
}

func FuzzParseHCCLAlgo(f *testing.F) {
	for _, s := range []string{"", "level0:NA;level1:ring", "allreduce=level0:NA;level1:H-D_R/others=level1:NHR;level2:NB",
		"level0:mesh;level1:tree;level2:star", "level1:AHC", "alltoallvc=level1:pairwise", "a=b/c;d:e", "level9:", "=/;:"} {
		f.Add(s)
	}
	tops := []*Topology{OneServer(1), OneServer(4), mustServers(f, 2, 2), mustServers(f, 1, 1), mustRacks(f, []int{2}, []int{1, 1})}
	f.Fuzz(func(t *testing.T, s string) {
		h, err := parseHCCLAlgo(s, hcclBuilt)
		if err != nil {
			if !errors.Is(err, kolo.ErrArgument) && !errors.Is(err, kolo.ErrUnsupported) {
				t.Fatalf("%q: an error of no kind: %v", s, err)
			}
			return
		}
		again, err := parseHCCLAlgo(h.String(), hcclBuilt)
		if err != nil || again.String() != h.String() {
			t.Fatalf("%q is written %q, which is read as %q, %v", s, h, again, err)
		}
		for _, top := range tops {
			for _, c := range kolo.Collectives() {
				x, err := h.forAmong(c, top, hcclBuilt)
				y, again := again.forAmong(c, top, hcclBuilt)
				if x != y || (err == nil) != (again == nil) || err != nil && !errors.Is(err, kolo.ErrUnsupported) {
					t.Fatalf("%q for %v: %q %v, then %q %v", s, c, x, err, y, again)
				}
			}
		}
	})
}
