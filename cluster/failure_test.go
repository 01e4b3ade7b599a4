package cluster

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"

	"github.com/stretchr/testify/require"
)

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
}

// Rank 0 has served the rendezvous; once the world is complete nobody needs that.
func TestKilledRankZeroIsALossAsAnyOther(t *testing.T) {
	d := strike(t, syscall.SIGKILL, 0, "KOLO_RENDEZVOUS=tcp://127.0.0.1:"+freePort(t))
	t.Logf("reported after %v", d)
}

func TestStoppedProcessIsFoundByItsSilence(t *testing.T) {
	d := strike(t, syscall.SIGSTOP, 2)
	t.Logf("reported after %v", d)
	require.Greater(t, d, time.Second)
}

// The time within which silence is noticed, by a clock of the test's: three quarters of
// Config.Silence are no reason yet, and before it is over the process is lost.
func TestSilenceIsNoticedBeforeItsTimeIsOver(t *testing.T) {
	p := &Process{closing: make(chan struct{}), inbox: newInbox(), links: make([]atomic.Pointer[link], 2),
		roster: &roster{Members: []Member{{Ranks: []kolo.Rank{0}}, {Ranks: []kolo.Rank{5}}}}}
	l := newLink(p, 1, nil, func() {}, func() {})
	p.links[1].Store(l)
	for _, silence := range []time.Duration{DefaultSilence, time.Minute} {
		h := newHeart(p, silence)
		h.started = true
		begin := time.Now()
		l.seen.Store(begin.UnixNano())
		for at := time.Duration(0); h.state[1] == alive; at += silence / looksPerSilence {
			require.Less(t, at, silence)
			require.NoError(t, h.Handle(&beats{begin.Add(at)}))
			require.Equal(t, at > silence*3/4, h.state[1] == lost, at)
		}
		require.ErrorIs(t, h.cause[1], kolo.ErrLost)
		require.ErrorContains(t, h.cause[1], "rank 5")
		require.ErrorContains(t, h.cause[1], "silent")
	}
}
