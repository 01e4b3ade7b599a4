package cluster

import (
	"fmt"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"

	"github.com/stretchr/testify/require"
)

// room is a rendezvous actor under a clock of the test's.
type room struct {
	*rendezvous
	at time.Time
}

func newRoom(only string) *room {
	r := &room{at: time.Unix(1000, 0)}
	r.rendezvous = newRendezvous(only, func() time.Time { return r.at }, func(time.Duration) {})
	return r
}

// come makes a process of some ranks arrive.
func (r *room) come(change func(h *hello), ranks ...kolo.Rank) *guest {
	g := &guest{answer: make(chan answer, maxAnswers), hello: hello{Protocol: protocol, Job: "job", Size: 4, Wait: time.Minute,
		Member: Member{Ranks: ranks, PID: 100 + int(ranks[0]), Host: Host{Name: "here"}, Nonce: fmt.Sprint(ranks, r.at)}}}
	if change != nil {
		change(&g.hello)
	}
	if err := r.Handle(&arrived{g}); err != nil {
		panic(err)
	}
	return g
}

// told is the answer that a process has, if any.
func (g *guest) told() *answer {
	select {
	case a := <-g.answer:
		return &a
	default:
		return nil
	}
}

func TestWorldIsCompleteWhenAllRanksHaveCome(t *testing.T) {
	r := newRoom("")
	list := []*guest{r.come(nil, 3), r.come(nil, 1, 2)}
	require.Nil(t, list[0].told())
	list = append(list, r.come(nil, 0))
	for _, g := range list {
		w := g.told().World
		require.NotZero(t, w.Epoch)
		require.Len(t, w.Members, 3)
		require.Equal(t, []int{0, 1, 1, 2}, w.processes())
	}
}

func TestDeadlineNamesWhoHasComeAndWhoHasNot(t *testing.T) {
	r := newRoom("")
	list := []*guest{r.come(nil, 3), r.come(func(h *hello) { h.Wait = time.Second }, 1)}
	dup := r.come(func(h *hello) { h.Member.PID = 77 }, 3)
	require.Contains(t, dup.told().Refused, "duplicate: rank 3 is claimed by pid 103 on here and by pid 77 on here")
	r.at = r.at.Add(time.Second)
	require.NoError(t, r.Handle(meetTick{}))
	for _, g := range list {
		err := g.told().Missing.err("tcp://x:1")
		require.ErrorIs(t, err, kolo.ErrDeadline)
		require.ErrorContains(t, err, "rank 0 and 2 of 4 did not come")
		require.ErrorContains(t, err, "there came rank 1 (pid 101 on here), rank 3 (pid 103 on here)")
		require.ErrorContains(t, err, "duplicate: rank 3")
	}
}

func TestWhoDoesNotBelongIsRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(h *hello)
		says   string
	}{
		{"another job", func(h *hello) { h.Job = "other" }, `is of job "job", not "other"`},
		{"another size", func(h *hello) { h.Size = 5 }, "expects a world of 5 ranks; rank 0 (pid 100 on here) expects 4"},
		{"an older attempt", func(h *hello) { h.Attempt = 1 }, "stale: this process is of attempt 1, and the job is at attempt 2"},
		{"another protocol", func(h *hello) { h.Protocol = 99 }, "protocol 99; this rendezvous speaks "},
		{"a rank outside", func(h *hello) { h.Member.Ranks = []kolo.Rank{4} }, "rank 4; the world has ranks 0 to 3"},
		{"a rank twice", func(h *hello) { h.Member.Ranks = []kolo.Rank{2, 2} }, "claims rank 2 twice"},
		{"no rank", func(h *hello) { h.Member.Ranks = nil }, "0 of them in this process"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRoom("job")
			second := func(h *hello) { h.Attempt = 2 }
			r.come(second, 0)
			g := r.come(func(h *hello) { second(h); c.change(h) }, 1)
			require.Contains(t, g.told().Refused, c.says)
		})
	}
}

func TestNewerAttemptTurnsOlderProcessesAway(t *testing.T) {
	r := newRoom("")
	old := r.come(nil, 0)
	r.come(func(h *hello) { h.Attempt = 1 }, 1)
	require.Contains(t, old.told().Refused, "attempt 1 has begun")
}

// After a loss the others come again with the epoch that they know, and the restarted
// rank with none. Who comes with an older one, or for a rank that lives, is refused.
func TestRestartedRankJoinsTheNextEpoch(t *testing.T) {
	r := newRoom("")
	all := func(h *hello) { h.Size = 2 }
	zero, one := r.come(all, 0), r.come(all, 1)
	epoch := zero.told().World.Epoch
	one.told()
	twice := r.come(all, 1)
	require.Contains(t, twice.told().Refused, "duplicate")
	require.NoError(t, r.Handle(&gone{one}))
	r.at = r.at.Add(time.Second)
	again := r.come(all, 1)
	require.Nil(t, again.told(), "it waits for the other")
	r.come(func(h *hello) { all(h); h.After = epoch }, 0)
	next := again.told().World
	require.Greater(t, next.Epoch, epoch)
	late := r.come(func(h *hello) { all(h); h.After = epoch }, 1)
	require.Contains(t, late.told().Refused, "stale: this process comes after epoch")
}

func TestRendezvousOfOneWorldHasNoSecondEpoch(t *testing.T) {
	r := newRoom("job")
	all := func(h *hello) { h.Size = 2 }
	zero, one := r.come(all, 0), r.come(all, 1)
	zero.told()
	one.told()
	require.NoError(t, r.Handle(&gone{one}))
	require.Contains(t, r.come(all, 1).told().Retry, "rank 0 has not begun another")
}
