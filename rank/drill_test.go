package rank

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kolo-ccl/kolo"

	"github.com/stretchr/testify/require"
)

// The drill: of three ranks, rank 2 does not do its part, in each way there is, in
// each call there is, by each kind of algorithm. The other two must hear the right
// thing at the right time; the process goes on, and nothing is left behind.
func TestDrill(t *testing.T) {
	const deadline, later = 5 * time.Second, time.Second
	absences := []struct {
		name  string
		when  time.Duration // the others hear of it
		kinds []error
		be    func(ctx context.Context, w *World) error
	}{
		{"Silent", deadline, []error{kolo.ErrDeadline}, func(context.Context, *World) error { return silent() }},
		{"Leaves", later, []error{kolo.ErrLeft}, func(context.Context, *World) error { sleep(later); return nil }},
		{"Fails", later, []error{kolo.ErrLeft, errBadInput}, func(context.Context, *World) error { sleep(later); return errBadInput }},
		{"Panics", later, []error{kolo.ErrLeft, errBadInput}, func(context.Context, *World) error { sleep(later); panic(errBadInput) }},
		{"EndsItsGoroutine", later, []error{kolo.ErrLeft}, func(context.Context, *World) error { sleep(later); runtime.Goexit(); return nil }},
		{"Aborts", later, []error{kolo.ErrAborted, errBadInput}, func(_ context.Context, w *World) error {
			sleep(later)
			w.Group().Abort(errBadInput)
			return silent()
		}},
		{"ClosesTheGroup", later, []error{kolo.ErrLeft}, func(ctx context.Context, w *World) error {
			sleep(later)
			return errors.Join(w.Group().Close(ctx), silent())
		}},
		{"CallsAnother", later, []error{kolo.ErrMismatch}, func(ctx context.Context, w *World) error {
			sleep(later)
			return Do(ctx, w.Group(), reduced(ints(2, 77), kolo.Prod))
		}},
		{"GivesUp", later, []error{kolo.ErrCanceled}, func(ctx context.Context, w *World) error {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(later, cancel)
			call := Request{Collective: kolo.Recv, Out: ints(2, 3), Peer: 2, Tag: 99} // of itself, which never comes
			return errors.Join(Do(ctx, w.Group(), call), silent())
		}},
	}
	table := calls(3)
	for _, c := range []kolo.Collective{kolo.Send, kolo.Recv} {
		table = append(table, struct {
			name string
			call func(r kolo.Rank) Request
		}{c.String(), func(r kolo.Rank) Request {
			return Request{Collective: c, In: ints(r, 3), Out: ints(r+100, 3), Peer: 2, Tag: uint64(r)}
		}})
	}
	before := runtime.NumGoroutine()
	for _, algorithm := range []string{"", "tree", "ring"} {
		for i, a := range absences {
			if raceEnabled && i%3 > 0 && algorithm != "" {
				continue // see some
			}
			t.Run(fmt.Sprintf("%s/%s", a.name, named(algorithm)), func(t *testing.T) {
				for _, c := range table {
					if a.name == "CallsAnother" && (c.name == "Send" || c.name == "Recv") {
						continue // a message and a collective have nothing to do with each other
					}
					synctest.Test(t, func(t *testing.T) {
						start := time.Now()
						errs := make([]error, 3)
						ages := make([]time.Duration, 3)
						err := Config{Algorithm: algorithm, Timeout: deadline}.Run(t.Context(), 3, func(ctx context.Context, w *World) error {
							if w.Rank() == 2 {
								return a.be(ctx, w)
							}
							call := c.call(w.Rank())
							errs[w.Rank()] = unchanged(ctx, t, w.Group(), call)
							ages[w.Rank()] = time.Since(start)
							return nil
						})
						for r := range kolo.Rank(2) {
							e := want(t, errs[r], r, a.kinds)
							require.Equal(t, a.when, ages[r], "%s: %v", c.name, errs[r])
							require.Equal(t, c.call(r).Collective, e.Op)
						}
						if err != nil {
							require.ErrorContains(t, err, "rank 2")
							require.NotContains(t, err.Error(), "rank 1: ")
						}
					})
				}
			})
		}
	}
	require.LessOrEqual(t, goroutines(before), before)
}
