package chart

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gonum.org/v1/plot"
)

// labels are the labels of ticks that have one.
func labels(ticks []plot.Tick) string {
	var list []string
	for _, t := range ticks {
		if t.Label != "" {
			list = append(list, t.Label)
		}
	}
	return strings.Join(list, " ")
}

func TestTicks(t *testing.T) {
	for _, row := range []struct{ name, got, want string }{
		{"few sizes", labels(sizeTicks(8, 256)), "8 16 32 64 128 256"},
		{"many sizes", labels(sizeTicks(8, 64<<20)), "8 32 128 512 2K 8K 32K 128K 512K 2M 8M 32M"},
		{"a short axis", labels(decadeTicks(0.1, 10)), "0.1 0.2 0.5 1 2 5 10"},
		{"a long axis", labels(decadeTicks(0.01, 100_000)), "0.01 0.1 1 10 100 1000 10000 100000"},
	} {
		if row.got != row.want {
			t.Errorf("%s: %s, want %s", row.name, row.got, row.want)
		}
	}
}

func TestAxesEndAtPowers(t *testing.T) {
	for _, row := range []struct{ lo, hi, base, wantLo, wantHi float64 }{
		{8, 64, 2, 8, 64},
		{9, 63, 2, 8, 64},
		{8, 8, 2, 4, 16},
		{3, 250, 10, 1, 1000},
		{100, 100, 10, 10, 1000},
		{0.001, 1000, 10, 0.001, 1000},
	} {
		e := extent{row.lo, row.hi}
		e.outward(row.base)
		require.InEpsilon(t, row.wantLo, e.lo, 1e-12, "%+v", row)
		require.InEpsilon(t, row.wantHi, e.hi, 1e-12, "%+v", row)
	}
}

func TestNothingToPlot(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.png")
	require.ErrorContains(t, Write(path, "title", []Series{{Name: "empty"}}), "nothing to plot")
	_, err := os.Stat(path)
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestOddPointsDoNotStopAPlot(t *testing.T) {
	for _, name := range []string{"a.png", "a.svg"} {
		path := filepath.Join(t.TempDir(), name)
		points := []Point{{Size: 0, Time: 1, BusBW: 1}, {Size: 8, Time: 0, BusBW: 0}, {Size: 1 << 40, Time: 1e12, BusBW: 1e-9}, {Size: 7, Time: 1e-3, BusBW: 1e5}}
		var series []Series
		for i := range 6 {
			series = append(series, Series{Name: fmt.Sprint("curve ", i), Points: points})
		}
		require.NoError(t, Write(path, "title", series))
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Greater(t, info.Size(), int64(1000))
	}
}
