package cluster

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/rank"

	"github.com/stretchr/testify/require"
)

// Memory of AllocShared is a buffer like any other: where the others read it in place, and
// where the driver has no such memory.
func TestAllocSharedOverProcesses(t *testing.T) {
	for _, transport := range []string{"shm", "tcp"} {
		for _, sizes := range [][]int{{1, 1}, {2, 1, 1}} {
			t.Run(transport+"/"+strings.Join(strings.Fields(kolo.RankList(ranksOf(sizes))), ""), func(t *testing.T) {
				worlds := worldsOf(together(t, Config{Transport: transport, Rank: rank.Config{Timeout: patience}}, sizes...))
				for r, err := range each(worlds, func(w *rank.World) error { return inSharedMemory(t, w) }) {
					require.NoError(t, err, "rank %d", r)
				}
				closeAll(t, worlds)
				if transport == "shm" {
					_, _, err := rank.AllocShared[int32](worlds[0], 10)
					require.ErrorIs(t, err, kolo.ErrClosed)
				}
			})
		}
	}
}

// inSharedMemory reduces parts of shared memory, and gathers them, and compares.
func inSharedMemory(t *testing.T, w *rank.World) error {
	const most = 200_001
	g, me := w.Group(), w.Rank()
	s, free, err := rank.AllocShared[int32](w, most+1)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(s, func(x int32) bool { return x != 0 }) {
		return fmt.Errorf("shared memory is not zero")
	}
	for i, n := range []int{most, 1, 70_001, 40_000, 5} {
		buf := s[i%2:][:n:n]
		copy(buf, data(me, n))
		if err := rank.AllReduce(t.Context(), g, buf, kolo.Sum); err != nil {
			return err
		}
		if !slices.Equal(buf, sum(allRanks(w.Size()), n)) {
			return fmt.Errorf("the sum of %d elements is wrong", n)
		}
		buf[0] = -1 // the others have read what they need
		if copy(buf, data(me, n)); n > 10_000 {
			all := make([]int32, n*w.Size())
			if err := rank.AllGather(t.Context(), g, all, buf); err != nil {
				return err
			}
			for r := range allRanks(w.Size()) {
				if !slices.Equal(all[r*n:][:n], data(kolo.Rank(r), n)) {
					return fmt.Errorf("%d elements of rank %d are wrong", n, r)
				}
			}
		}
	}
	if err := rank.Barrier(t.Context(), g); err != nil {
		return err
	}
	return free()
}
