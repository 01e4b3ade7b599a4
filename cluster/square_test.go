package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/plan"
	"github.com/kolo-ccl/kolo/rank"

	"github.com/stretchr/testify/require"
)

// Every rank sends to every other and closes its world when it has what is for it. Slow ranks
// receive what quick ones have sent when those are gone. Nothing is lost, and nobody hangs.
func TestMessageSquareBeforeClose(t *testing.T) {
	sizes := []int{2, 1, 2, 1}
	topo, err := plan.Servers(sizes...)
	require.NoError(t, err)
	for name, transports := range map[string][]string{
		"shm":   {"shm", "shm", "shm", "shm"},
		"tcp":   {"tcp", "tcp", "tcp", "tcp"},
		"mixed": {"shm,tcp", "tcp", "shm,tcp", "shm,tcp"},
	} {
		for _, slow := range [][]kolo.Rank{nil, {2}, {0, 1, 5}} {
			t.Run(fmt.Sprintf("%s/slow %v", name, slow), func(t *testing.T) {
				t.Parallel()
				list, errs := tryEach(t, withRendezvous(t, Config{Rank: rank.Config{Topology: topo, Timeout: patience}}),
					func(i int, c *Config) { c.Transport = transports[i] }, sizes...)
				require.NoError(t, errors.Join(errs...))
				began := time.Now()
				for r, err := range each(worldsOf(list), func(w *rank.World) error { return square(t.Context(), w, slow) }) {
					require.NoError(t, err, "rank %d", r)
				}
				require.Less(t, time.Since(began), patience)
			})
		}
	}
}

// square is one rank's part. What goes to a slow rank from a quick one is small enough not to
// wait for its receive; within a process, where nothing is small enough, ranks are alike.
func square(ctx context.Context, w *rank.World, slow []kolo.Rank) error {
	g, me := w.Group(), w.Rank()
	count := func(from, to kolo.Rank, k int) int {
		if slices.Contains(slow, to) && !slices.Contains(slow, from) || k < 3 {
			return []int{0, 1, 1000, 2000}[k]
		}
		return 200000
	}
	message := func(from, to kolo.Rank, k int) []int32 { return data(from*64+to*8+kolo.Rank(k), count(from, to, k)) }
	var sends, receives []rank.Work
	var got, want [][]int32
	for q := range kolo.Rank(g.Size()) {
		for k := 0; q != me && k < 4; k++ { // k is the tag
			sends = append(sends, rank.SendAsync(g, message(me, q, k), q, uint64(k)))
		}
	}
	receive := func(which func(q kolo.Rank) bool) {
		for q := range kolo.Rank(g.Size()) {
			for k := 0; q != me && which(q) && k < 4; k++ {
				b := make([]int32, count(q, me, k))
				got, want = append(got, b), append(want, message(q, me, k))
				receives = append(receives, rank.RecvAsync(g, b, q, uint64(k)))
			}
		}
	}
	quick := func(q kolo.Rank) bool { return !slices.Contains(slow, q) }
	if quick(me) {
		receive(func(kolo.Rank) bool { return true })
	} else {
		receive(func(q kolo.Rank) bool { return !quick(q) })
		for t := time.NewTicker(time.Millisecond); len(g.Left()) < g.Size()-len(slow); { // until all quick ones are gone
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
				return ctx.Err()
			}
		}
		receive(quick)
	}
	var errs []error
	for _, x := range append(sends, receives...) {
		errs = append(errs, x.Wait(ctx))
	}
	for i := range got {
		if !slices.Equal(want[i], got[i]) {
			errs = append(errs, fmt.Errorf("rank %d: message %d is not what was sent", int(me), i))
		}
	}
	return errors.Join(append(errs, w.Close(ctx))...)
}
