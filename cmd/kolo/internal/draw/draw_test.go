package draw

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/internal/golden"
	"github.com/kolo-ccl/kolo/plan"
)

func picture(t *testing.T, algorithm string, c kolo.Collective, servers ...int) Picture {
	t.Helper()
	topo, err := plan.Servers(servers...)
	require.NoError(t, err)
	programs, err := plan.Programs(plan.KeyOf(&kolo.Call{Collective: c, DType: kolo.Float32, Count: 1 << 10}, algorithm), topo)
	require.NoError(t, err)
	return Picture{Programs: programs, Server: topo.Server}
}

func svg(t *testing.T, p Picture) string {
	t.Helper()
	var b strings.Builder
	require.NoError(t, p.WriteSVG(&b))
	return b.String()
}

func TestPictures(t *testing.T) {
	golden.Equal(t, "ring.svg", svg(t, picture(t, "ring", kolo.AllReduce, 4)))
	golden.Equal(t, "two-level.svg", svg(t, picture(t, "hier:mesh+ring", kolo.AllReduce, 3, 3)))
}

// Every algorithm and collective gives a picture that is well formed, with an arrow
// for every message.
func TestEveryAlgorithmIsDrawn(t *testing.T) {
	topo, err := plan.Servers(3, 3)
	require.NoError(t, err)
	for _, a := range plan.Algorithms() {
		for _, c := range kolo.Collectives() {
			if a.Serves(c, topo) != nil || a.Name == "fabric" {
				continue
			}
			p := picture(t, a.Name, c, 3, 3)
			report, err := plan.Verify(plan.KeyOf(&kolo.Call{Collective: c, DType: kolo.Float32, Count: 1 << 10}, a.Name), p.Programs)
			require.NoError(t, err)
			text := svg(t, p)
			require.Equal(t, report.Messages, strings.Count(text, "marker-end"), "%s %v", a.Name, c)
			d := xml.NewDecoder(strings.NewReader(text))
			for {
				if _, err := d.Token(); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					t.Fatalf("%s %v: %v", a.Name, c, err)
				}
			}
		}
	}
}

func TestRoundsAreThoseOfThePapers(t *testing.T) {
	for _, row := range []struct {
		algorithm string
		ranks     int
		want      int
	}{{"ring", 8, 14}, {"nhr", 8, 6}, {"recursive-doubling", 8, 3}, {"mesh", 8, 2}, {"halving-doubling", 8, 6}} {
		c, err := newScene(picture(t, row.algorithm, kolo.AllReduce, row.ranks).Programs)
		require.NoError(t, err)
		require.Equal(t, row.want, c.rounds, row.algorithm)
	}
}

func TestPicturesHaveLimits(t *testing.T) {
	require.ErrorIs(t, Picture{}.WriteSVG(io.Discard), kolo.ErrArgument)
	require.ErrorIs(t, picture(t, "nhr", kolo.AllReduce, 65).WriteSVG(io.Discard), kolo.ErrArgument)
	require.ErrorIs(t, picture(t, "ring", kolo.AllReduce, 64).WriteSVG(io.Discard), kolo.ErrLimit)
	p := picture(t, "ring", kolo.AllReduce, 2)
	p.Programs[1].Steps = p.Programs[1].Steps[:1]
	require.ErrorIs(t, p.WriteSVG(io.Discard), kolo.ErrArgument)
}

func TestPage(t *testing.T) {
	var b strings.Builder
	require.NoError(t, picture(t, "ring", kolo.AllReduce, 3).WriteHTML(&b))
	require.Contains(t, b.String(), "<svg")
	require.Equal(t, 3, strings.Count(b.String(), "<details>"))
}
