package tcp

import (
	"net/netip"
	"os/exec"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/internal/netlab"

	"github.com/stretchr/testify/require"
)

// ip runs ip in this process's network namespace.
func ip(t *testing.T, args ...string) {
	b, err := exec.CommandContext(t.Context(), "ip", args...).CombinedOutput()
	require.NoError(t, err, "ip %v: %s", args, b)
}

// hole gives this host an address, and neighbours that nobody is.
func hole(t *testing.T) {
	ip(t, "link", "set", "lo", "up")
	ip(t, "link", "add", "v0", "type", "veth", "peer", "name", "v1")
	ip(t, "addr", "add", "10.66.0.1/24", "dev", "v0")
	ip(t, "link", "set", "v0", "up")
	ip(t, "link", "set", "v1", "up")
	for _, a := range []string{"10.66.0.2", "10.66.0.3", "10.66.0.4"} {
		ip(t, "neigh", "add", a, "lladdr", "02:00:00:00:66:01", "nud", "permanent", "dev", "v0")
	}
}

// Addresses that swallow what they are sent cost a link a moment each, and no share of
// the time to connect.
func TestAddressesThatLeadNowhereCostAMoment(t *testing.T) {
	if !netlab.Alone(t) {
		return
	}
	hole(t)
	p := parties(t, 2, Config{})
	far := func(of *party) channel.Peer {
		a := address{host: of.d.host + 1, port: of.d.mine.port}
		for _, s := range []string{"10.66.0.2", "10.66.0.3", "10.66.0.4", "10.66.0.1"} {
			a.known = append(a.known, netip.MustParseAddr(s))
		}
		return channel.Peer{Rank: of.rank, Address: a.encode()}
	}
	require.NoError(t, p[0].d.Meet([]channel.Peer{far(p[1])}))
	require.NoError(t, p[1].d.Meet([]channel.Peer{far(p[0])})) // whichever dials
	begin := time.Now()
	exchange(t, p[0], p[1], 1, 1000)
	d := time.Since(begin)
	require.GreaterOrEqual(t, d, 3*attemptDelay, "they are tried one by one, at first")
	require.Less(t, d, 3*DefaultConnectTimeout/4)
	require.NoError(t, p[0].d.Close())
}

// With all of them it is an error when the time is over, which says what was tried.
func TestNoAddressLeadsAnywhere(t *testing.T) {
	if !netlab.Alone(t) {
		return
	}
	hole(t)
	p := newParty(t, 0, Config{ConnectTimeout: 2 * time.Second}, channel.Config{Job: "test"})
	a := address{host: p.d.host + 1, port: 9, known: []netip.Addr{netip.MustParseAddr("10.66.0.2"), netip.MustParseAddr("10.66.0.3")}}
	require.NoError(t, p.d.Meet([]channel.Peer{{Rank: 1, Address: a.encode()}}))
	err := p.post(channel.Send, 1, 1, []byte{1}).wait()
	require.ErrorIs(t, err, kolo.ErrLost)
	require.ErrorContains(t, err, "rank 0 to rank 1")
	require.ErrorContains(t, err, "10.66.0.2:9")
	require.ErrorContains(t, err, "10.66.0.3:9")
}

// A link on which nothing is on its way, to a host that is gone without a word, is lost
// when the timeout is over: the kernel has asked.
func TestSilentLinkIsLost(t *testing.T) {
	if !netlab.Alone(t) {
		return
	}
	ip(t, "link", "set", "lo", "up")
	p := newParty(t, 0, Config{Timeout: 2 * time.Second}, channel.Config{Job: "test"})
	actorless(t, p, 1000, 1<<20)
	m := p.post(channel.Recv, 1, 1, make([]byte, 10))
	begin := time.Now()
	ip(t, "link", "set", "lo", "down")
	err := m.wait()
	t.Logf("after %v", time.Since(begin))
	require.ErrorIs(t, err, kolo.ErrLost)
	require.ErrorContains(t, err, "rank 0 to rank 1")
}
