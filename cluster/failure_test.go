package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/rank"

	"github.com/stretchr/testify/require"
)

// inTime is long after Config.Silence is over on a machine that has much to do, and long
// before a call ends at its deadline.
const inTime = 4 * DefaultSilence

// strike stops one rank of four in a loop of large AllReduces by a signal, and returns how
// long the others took to report it. They must name it, and go on as three. One that is
// killed is missed by its connections, and not by its silence.
func strike(t *testing.T, s syscall.Signal, victim int, env ...string) time.Duration {
	list := spawn(t, "loop", 4, env...)
	for _, o := range list {
		o.wait(t, "LOOPING", patience)
	}
	at := time.Now()
	require.NoError(t, list[victim].cmd.Process.Signal(s))
	longest := time.Duration(0)
	rest, left := slices.Delete(slices.Clone(list), victim, victim+1), slices.Delete(allRanks(4), victim, victim+1)
	for _, o := range rest {
		said := o.wait(t, "LOST", patience)
		var ns int64
		_, err := fmt.Sscan(said, &ns)
		require.NoError(t, err)
		longest = max(longest, time.Unix(0, ns).Sub(at))
		require.Contains(t, said, fmt.Sprintf("rank %d", victim), "%s", said)
		require.Contains(t, said, "connection lost")
		require.Equal(t, s == syscall.SIGSTOP, strings.Contains(said, "silent"), "%s", said)
	}
	for _, o := range rest {
		require.Equal(t, kolo.RankList(left), o.wait(t, "SHRUNK", patience))
		o.wait(t, "DONE", patience)
	}
	return longest
}

// How soon is a matter of the machine, too: a second is what the tests that take minutes ask
// for, which have it to themselves.
func TestKilledProcessIsReportedAtOnceAndTheOthersGoOn(t *testing.T) {
	for _, transport := range []string{"shm", "tcp"} {
		t.Run(transport, func(t *testing.T) {
			for range 3 {
				d := strike(t, syscall.SIGKILL, 2, "KOLO_TEST_TRANSPORT="+transport)
				t.Logf("reported after %v", d)
			}
		})
	}
	for _, call := range []string{"AllGather", "Broadcast"} { // others read the victim's memory
		t.Run(call, func(t *testing.T) {
			for victim := range 3 {
				d := strike(t, syscall.SIGKILL, victim, "KOLO_TEST_TRANSPORT=shm", "KOLO_TEST_CALL="+call)
				t.Logf("rank %d: reported after %v", victim, d)
			}
		})
	}
}

// Rank 0 has served the rendezvous; once the world is complete nobody needs that.
func TestKilledRankZeroIsALossAsAnyOther(t *testing.T) {
	d := strike(t, syscall.SIGKILL, 0, "KOLO_RENDEZVOUS=tcp://127.0.0.1:"+freePort(t))
	t.Logf("reported after %v", d)
}

func TestStoppedProcessIsFoundByItsSilence(t *testing.T) {
	for _, call := range []string{"AllReduce", "AllGather"} {
		d := strike(t, syscall.SIGSTOP, 2, "KOLO_TEST_CALL="+call)
		t.Logf("%s: reported after %v", call, d)
		require.Greater(t, d, time.Second)
	}
}

// pair is a process that has one other, of rank 5, for a heart without a clock.
func pair() (*Process, *link) {
	p := &Process{closing: make(chan struct{}), inbox: newInbox(), links: make([]atomic.Pointer[link], 2),
		roster: &roster{Members: []Member{{Ranks: []kolo.Rank{0}}, {Ranks: []kolo.Rank{5}}}}}
	l := newLink(p, 1, nil, func() {}, func() {})
	p.links[1].Store(l)
	return p, l
}

// The time within which silence is noticed, by a clock of the test's: five looks are no reason
// yet, and before the time is over the process is lost. In a join it has four times as long.
func TestSilenceIsNoticedBeforeItsTimeIsOver(t *testing.T) {
	for _, silence := range []time.Duration{DefaultSilence, time.Minute} {
		for _, started := range []bool{true, false} {
			p, l := pair()
			p.failed, p.told = make(chan error, 1), make(chan error, 1)
			h := newHeart(p, silence)
			h.started = started
			bound := silence
			if !started {
				bound = 4 * silence
			}
			look := silence / looksPerSilence
			now := time.Now()
			require.NoError(t, h.Handle(&beats{now}))
			l.heard.Add(1)
			last := now.Add(time.Millisecond) // the worst case: just behind a look
			for h.state[1] == alive {
				now = now.Add(look)
				require.Less(t, now.Sub(last), bound)
				require.NoError(t, h.Handle(&beats{now}))
			}
			require.Greater(t, now.Sub(last), bound*3/4)
			require.ErrorIs(t, h.cause[1], kolo.ErrLost)
			require.ErrorContains(t, h.cause[1], "rank 5")
			require.ErrorContains(t, h.cause[1], "silent")
		}
	}
}

// A process that was not run for a while, or stopped, finds the beats of the others only when
// it runs again: its own time is not their silence. Then it counts as before.
func TestOwnStallIsNotTheSilenceOfOthers(t *testing.T) {
	p, l := pair()
	h := newHeart(p, DefaultSilence)
	h.started = true
	now, look := time.Now(), DefaultSilence/looksPerSilence
	see := func(d time.Duration) life {
		now = now.Add(d)
		require.NoError(t, h.Handle(&beats{now}))
		return h.state[1]
	}
	see(look)
	for range 5 { // the tick that was waiting, and those that follow at once
		require.Equal(t, alive, see(time.Minute))
		for range 10 {
			require.Equal(t, alive, see(time.Millisecond))
		}
		l.heard.Add(1)
	}
	see(look)
	for range silentLooks - 1 {
		require.Equal(t, alive, see(look))
	}
	require.Equal(t, lost, see(look))
}

// A process hears late that all are ready, and goes on late: on a machine with more to do than
// processors by seconds. It lives, and the first to go on does not take it for lost.
func TestProcessThatGoesOnLateAfterTheJoinIsNotLost(t *testing.T) {
	t.Parallel()
	c := withRendezvous(t, Config{Size: 2, Silence: time.Second, Timeout: patience, Measure: MeasureOff, Getenv: noEnv})
	first := make(chan *Process, 1)
	go func(c Config) { // ends with the join
		c.Ranks = []kolo.Rank{0}
		p, err := Open(t.Context(), c)
		if err != nil {
			t.Error(err)
		}
		first <- p
	}(c)
	c.Ranks = []kolo.Rank{1}
	c, err := c.withDefaults()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), c.Timeout)
	defer cancel()
	late := newProcess(c)
	require.NoError(t, late.join(ctx))
	p := <-first
	require.NotNil(t, p)
	<-time.After(2 * c.Silence)
	require.NoError(t, late.begin(ctx))
	worlds := worldsOf([]*Process{p, late})
	for r, err := range each(worlds, func(w *rank.World) error { return allReduce(t.Context(), w.Group(), allRanks(2), 1000) }) {
		require.NoError(t, err, "rank %d", r)
	}
	closeAll(t, worlds)
}

// What is queued on many links is sent as long as some of them get on; it ends when none
// has for a while, which one process that is stopped cannot draw out.
func TestFarewellWaitsAsLongAsItGetsOn(t *testing.T) {
	for name, c := range map[string]struct {
		links int
		every time.Duration // one link ends, 0: none
		takes time.Duration
	}{
		"nobody":              {3, 0, farewellTime},
		"slowly, all":         {5, 1500 * time.Millisecond, 7500 * time.Millisecond},
		"too slowly for ever": {20, 1500 * time.Millisecond, farewellsTime},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &Process{links: make([]atomic.Pointer[link], c.links+1)}
				for i := range c.links {
					p.links[i].Store(newLink(p, i, nil, func() {}, func() {}))
				}
				go func() { // ends with the test
					for i := c.links - 1; c.every > 0 && i >= 0; i-- {
						select {
						case <-time.After(c.every):
						case <-t.Context().Done():
							return
						}
						close(p.links[i].Load().sent)
						close(p.links[i].Load().ended)
					}
				}()
				begin := time.Now()
				p.farewell()
				require.Equal(t, c.takes, time.Since(begin))
			})
		})
	}
}
