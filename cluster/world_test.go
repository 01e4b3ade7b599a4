package cluster

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/rank"
	"github.com/kolo-ccl/kolo/rank/ranktest"

	"github.com/stretchr/testify/require"
)

// request is what rank r asks for in a collective of n ranks, with data of its own.
func request(k kolo.Collective, r kolo.Rank, n int) rank.Request {
	const count = 1001
	root := kolo.Rank(n - 1)
	counts := make([]int64, n)
	total := 0
	for i := range counts {
		counts[i] = int64(i*37 + 1)
		total += i*37 + 1
	}
	q := rank.Request{Collective: k}
	if k.Reduces() {
		q.Op = kolo.Sum
	}
	if k.Rooted() {
		q.Root = root
	}
	in := func(n int) rank.Buffer { return rank.Of(data(r, n)) }
	out := func(n int) rank.Buffer { return rank.Of(make([]int32, n)) }
	mine := int(counts[r])
	switch k {
	case kolo.AllReduce, kolo.Reduce:
		q.In, q.Out = in(count), out(count)
	case kolo.Broadcast:
		q.Out = in(count)
	case kolo.AllGather, kolo.Gather:
		q.In, q.Out = in(count), out(n*count)
	case kolo.ReduceScatter, kolo.Scatter:
		q.In, q.Out = in(n*count), out(count)
	case kolo.AllToAll:
		q.In, q.Out = in(n*count), out(n*count)
	case kolo.AllGatherV, kolo.GatherV:
		q.In, q.Out, q.Recv.Counts = in(mine), out(total), counts
	case kolo.ReduceScatterV, kolo.ScatterV:
		q.In, q.Out, q.Send.Counts = in(total), out(mine), counts
	case kolo.AllToAllV: // rank r sends counts[r] to each
		q.Send.Counts, q.Recv.Counts = make([]int64, n), counts
		for i := range n {
			q.Send.Counts[i] = counts[r]
		}
		q.In, q.Out = in(n*mine), out(total)
	case kolo.AllToAllVC:
		for i := range n {
			for range n {
				q.Send.Counts = append(q.Send.Counts, counts[i])
			}
		}
		q.In, q.Out = in(n*mine), out(total)
	}
	return q
}

func TestEveryCollectiveOverProcesses(t *testing.T) {
	for _, transport := range []string{"shm", "tcp"} {
		for _, sizes := range [][]int{{1, 1}, {1, 1, 1}, {1, 1, 1, 1}, {1, 1, 1, 1, 1}, {2, 2}, {3, 3}, {2, 3}} {
			t.Run(transport+"/"+strings.Join(strings.Fields(kolo.RankList(ranksOf(sizes))), ""), func(t *testing.T) {
				worlds := worldsOf(together(t, Config{Transport: transport, Rank: rank.Config{Timeout: patience}}, sizes...))
				n := len(worlds)
				for _, k := range kolo.Collectives() {
					for r, err := range each(worlds, func(w *rank.World) error {
						me := w.Rank()
						q := request(k, me, n)
						want := ranktest.Want(n, me, func(r kolo.Rank) rank.Request { return request(k, r, n) })
						if err := rank.Do(t.Context(), w.Group(), q); err != nil {
							return err
						}
						if !bytes.Equal(want, q.Out.Memory.Host) {
							t.Errorf("%v: wrong answer on rank %d of %v", k, int(me), sizes)
						}
						return nil
					}) {
						require.NoError(t, err, "%v on rank %d", k, r)
					}
				}
				closeAll(t, worlds)
			})
		}
	}
}

// Calls of one buffer and of several tensors of the same size are done in different
// ways where the ranks share memory; neither takes the way that was chosen for the other.
func TestTensorsBesideSingleBuffersOverProcesses(t *testing.T) {
	lengths := [][]int{{100}, {60, 40}, {100}, {1, 0, 99}, {33, 33, 33, 1}}
	for _, transport := range []string{"shm", "tcp"} {
		for _, sizes := range [][]int{{1, 1}, {2, 1, 1}} {
			t.Run(transport+"/"+strings.Join(strings.Fields(kolo.RankList(ranksOf(sizes))), ""), func(t *testing.T) {
				worlds := worldsOf(together(t, Config{Transport: transport, Rank: rank.Config{Timeout: patience}}, sizes...))
				for from := range lengths { // whichever comes first
					for r, err := range each(worlds, func(w *rank.World) error {
						g, err := w.NewGroup(rank.GroupConfig{Name: fmt.Sprint("from ", from), Ranks: allRanks(len(worlds))})
						if err != nil {
							return err
						}
						for _, list := range append(lengths[from:len(lengths):len(lengths)], lengths[:from]...) {
							if err := reduceTensors(t.Context(), g, list); err != nil {
								return err
							}
						}
						return g.Close(t.Context())
					}) {
						require.NoError(t, err, "rank %d, from %d", r, from)
					}
				}
				closeAll(t, worlds)
			})
		}
	}
}

// reduceTensors reduces tensors of some lengths, one by AllReduce, and checks them.
func reduceTensors(ctx context.Context, g *rank.Group, lengths []int) error {
	total := 0
	for _, n := range lengths {
		total += n
	}
	whole, want := data(g.Rank(), total), sum(allRanks(g.Size()), total)
	var list [][]int32
	for at, k := 0, 0; k < len(lengths); k++ {
		list = append(list, whole[at:at+lengths[k]])
		at += lengths[k]
	}
	var err error
	if len(list) == 1 {
		err = rank.AllReduce(ctx, g, whole, kolo.Sum)
	} else {
		err = rank.AllReduceTensors(ctx, g, list, kolo.Sum)
	}
	for i := range want {
		if err == nil && whole[i] != want[i] {
			err = fmt.Errorf("tensors of %v: element %d is %d, want %d", lengths, i, whole[i], want[i])
		}
	}
	return err
}

func ranksOf(sizes []int) (list []kolo.Rank) {
	for _, s := range sizes {
		list = append(list, kolo.Rank(s))
	}
	return list
}

func TestMismatchBetweenProcessesIsNamedOnAllRanks(t *testing.T) {
	for _, transport := range []string{"shm", "tcp"} {
		t.Run(transport, func(t *testing.T) {
			worlds := worldsOf(together(t, Config{Transport: transport, Rank: rank.Config{Timeout: patience}}, 1, 1, 2))
			for r, err := range each(worlds, func(w *rank.World) error {
				n := 1000
				if w.Rank() == 1 {
					n = 7
				}
				return rank.AllReduce(t.Context(), w.Group(), data(w.Rank(), n), kolo.Sum)
			}) {
				require.ErrorIs(t, err, kolo.ErrMismatch, "rank %d", r)
				require.ErrorContains(t, err, "rank 1 called AllReduce(7 int32, sum): count 7 instead of 1000")
			}
			closeAll(t, worlds)
		})
	}
}

// The survivor of a crash and the restarted rank meet again in the next epoch.
func TestSurvivorsAndARestartedRankJoinTheNextEpoch(t *testing.T) {
	at := standing(t)
	list := together(t, Config{Rendezvous: at}, 1, 1)
	worlds := worldsOf(list)
	first := list[0].Epoch()
	require.NoError(t, list[1].shut(false)) // as a process that ends without a word
	err := rank.Barrier(t.Context(), worlds[0].Group())
	require.ErrorIs(t, err, kolo.ErrLost)
	require.ErrorContains(t, err, "rank 1")
	for _, w := range worlds {
		_ = w.Close(t.Context()) // what the crash has left says so
	}
	again := worldsOf(together(t, Config{Rendezvous: at, After: first}, 1, 1))
	for _, err := range each(again, func(w *rank.World) error { return allReduce(t.Context(), w.Group(), allRanks(2), 100) }) {
		require.NoError(t, err)
	}
	closeAll(t, again)
}

func TestChannelMapSaysHowEachProcessIsReached(t *testing.T) {
	list := together(t, Config{}, 2, 1)
	m := list[0].Map()
	require.Len(t, m, 2)
	require.Equal(t, "hccs", m[0].Driver)
	require.Equal(t, "shm", m[1].Driver)
	require.Contains(t, m[1].String(), "rank 2 on ")
	closeAll(t, worldsOf(list))
}

// Loopback is told to nobody, and tried only where both ends have one network.
func TestLoopbackIsNeverAdvertised(t *testing.T) {
	for _, toward := range []string{"127.0.0.1:1", "192.0.2.1:1", "[::1]:1", "nonsense"} {
		for _, a := range hostAddresses(nil, toward) {
			require.False(t, netip.MustParseAddr(a).IsLoopback(), a)
		}
	}
	require.Equal(t, []string{"10.1.1.1"}, hostAddresses([]string{"10.1.1.1"}, "127.0.0.1:1"))
	here := &Member{Host: Host{Machine: "m", Network: "m n"}}
	near := &Member{Host: Host{Machine: "m", Network: "m n"}, Addresses: []string{"10.0.0.1"}, Port: 5}
	far := &Member{Host: Host{Machine: "m", Network: "m other"}, Addresses: []string{"10.0.0.1", "fd00::1"}, Port: 5}
	require.Equal(t, []string{"127.0.0.1:5", "[::1]:5", "10.0.0.1:5"}, candidates(here, near))
	require.Equal(t, []string{"10.0.0.1:5", "[fd00::1]:5"}, candidates(here, far))
}

// Who greets must be of this world: job, epoch and nonces say so.
func TestStrangersAreTurnedAway(t *testing.T) {
	p := &Process{self: 0, roster: &roster{Job: "j", Epoch: 7, Members: []Member{{Nonce: "a", Ranks: []kolo.Rank{0}}, {Nonce: "b", Ranks: []kolo.Rank{1}}}}}
	good := greeting{Protocol: protocol, Job: "j", Epoch: 7, Process: 1, Nonce: "b", To: "a"}
	require.Empty(t, p.stranger(&good))
	for says, change := range map[string]func(g *greeting){
		"protocol 99":                     func(g *greeting) { g.Protocol = 99 },
		`expected job "j", got job "k"`:   func(g *greeting) { g.Job = "k" },
		"stale: expected epoch 7":         func(g *greeting) { g.Epoch = 6 },
		"somebody else is meant":          func(g *greeting) { g.To = "b" },
		"got somebody who says process 1": func(g *greeting) { g.Nonce = "x" },
		"got somebody who says process 0": func(g *greeting) { g.Process = 0 },
		"got somebody who says process 9": func(g *greeting) { g.Process = 9 },
	} {
		g := good
		change(&g)
		require.Contains(t, p.stranger(&g), says)
	}
}

func TestTopologyOfProcessesAndHosts(t *testing.T) {
	member := func(host string, ranks ...kolo.Rank) Member { return Member{Host: Host{Machine: host}, Ranks: ranks} }
	r := &roster{Size: 4, Members: []Member{member("a", 0), member("a", 1), member("b", 2), member("b", 3)}}
	topo, err := r.topology("")
	require.NoError(t, err)
	require.Equal(t, []int{0, 0, 1, 1}, topo.Server, "servers are hosts")
	r = &roster{Size: 5, Members: []Member{member("a", 0, 1), member("a", 2), member("b", 3, 4)}}
	topo, err = r.topology("")
	require.NoError(t, err)
	require.Equal(t, []int{0, 0, 1, 2, 2}, topo.Server, "servers are processes")
	require.Equal(t, []int{0, 0, 0, 1, 1}, topo.Rack, "racks are hosts")
}

func TestFramesOfMessages(t *testing.T) {
	var b []byte
	list := [][]byte{{1, 2, 3}, {}, make([]byte, 300)}
	for _, m := range list {
		b = appendMessage(b, m)
	}
	got, err := messages(b)
	require.NoError(t, err)
	require.Equal(t, list, got)
	for n := 0; n < len(b); n++ {
		if got, err := messages(b[:n]); err == nil {
			require.Less(t, len(got), len(list), "cut at %d", n)
		}
	}
}

// certificates are of one authority: for a process that is server and client.
func certificates(t *testing.T) *tls.Config {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		DNSNames: []string{"kolo"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	require.NoError(t, err)
	leaf, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, RootCAs: pool, ClientCAs: pool,
		ClientAuth: tls.RequireAndVerifyClientCert, ServerName: "kolo"}
}

func TestJoinWithTLS(t *testing.T) {
	c := certificates(t)
	r, err := Serve("127.0.0.1:0", c)
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Close()) }()
	worlds := worldsOf(together(t, Config{Rendezvous: r.Address(), TLS: c}, 1, 1))
	for _, err := range each(worlds, func(w *rank.World) error { return allReduce(t.Context(), w.Group(), allRanks(2), 100) }) {
		require.NoError(t, err)
	}
	closeAll(t, worlds)
	short, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = Join(short, Config{Rendezvous: r.Address(), Size: 2, Ranks: []kolo.Rank{1}, Getenv: noEnv})
	require.ErrorIs(t, err, kolo.ErrDeadline, "without TLS")
}

// What a process does not read is bounded: it is lost then.
func TestProcessThatDoesNotReadIsLost(t *testing.T) {
	p := &Process{closing: make(chan struct{}), roster: &roster{Members: []Member{{}, {Ranks: []kolo.Rank{5}}}}}
	l := newLink(p, 1, nil, func() {}, func() {})
	require.NoError(t, l.tell(make([]byte, maxQueue/2)))
	require.NoError(t, l.tell(make([]byte, maxQueue/2)))
	for range 2 {
		err := l.tell([]byte{1})
		require.ErrorIs(t, err, kolo.ErrLimit)
		require.ErrorContains(t, err, "rank 5")
	}
}

// Who cannot be reached is named, with every address that was tried.
func TestProcessThatCannotBeReachedIsNamedWithItsAddresses(t *testing.T) {
	port, err := strconv.Atoi(freePort(t))
	require.NoError(t, err)
	here := thisHost("")
	p := &Process{self: 1, roster: &roster{Job: "j", Members: []Member{
		{Ranks: []kolo.Rank{0}, PID: 7, Host: here, Port: port, Addresses: []string{"127.0.0.2"}}, {Ranks: []kolo.Rank{1}, Host: here}}}}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	p.linked, p.links = make(chan int, 2), make([]atomic.Pointer[link], 2)
	err = p.connect(ctx)
	require.ErrorIs(t, err, kolo.ErrDeadline)
	for _, say := range []string{"rank 0 (pid 7 on ", "cannot be reached from rank 1", "127.0.0.1:", "127.0.0.2:", "connection refused"} {
		require.ErrorContains(t, err, say)
	}
}

// What a rank has sent before it left is received, though the word that it has left may
// come first, and though the receive is made later.
func TestMessageOfARankThatHasLeftIsReceived(t *testing.T) {
	for _, transport := range []string{"shm", "tcp"} {
		t.Run(transport, func(t *testing.T) {
			processes := together(t, Config{Transport: transport}, 1, 1)
			worlds := worldsOf(processes)
			const n = 6
			for i := range n {
				config := rank.GroupConfig{Name: fmt.Sprint("pair ", i), Ranks: []kolo.Rank{0, 1}}
				to, err := worlds[0].NewGroup(config)
				require.NoError(t, err)
				from, err := worlds[1].NewGroup(config)
				require.NoError(t, err)
				want, got := []int32{int32(i), 2, int32(3 * i)}, make([]int32, 3)
				early := rank.RecvAsync(to, got, 1, 7)
				if i%2 == 0 { // a receive that is made first, and one that is not
					require.NoError(t, rank.Send(t.Context(), from, want, 0, 7))
					require.NoError(t, from.Close(t.Context()))
				} else {
					require.NoError(t, rank.Send(t.Context(), from, []int32{1, 1, 1}, 0, 7))
					require.NoError(t, early.Wait(t.Context()))
					require.NoError(t, rank.Send(t.Context(), from, want, 0, 7))
					require.NoError(t, from.Close(t.Context()))
					require.Eventually(t, func() bool { return len(to.Left()) == 1 }, 10*time.Second, time.Millisecond)
					early = rank.RecvAsync(to, got, 1, 7)
				}
				require.NoError(t, early.Wait(t.Context()), "group %d", i)
				require.Equal(t, want, got)
				require.ErrorIs(t, rank.Recv(t.Context(), to, got, 1, 7), kolo.ErrLeft)
				require.NoError(t, to.Close(t.Context()))
			}
			for _, w := range worlds {
				require.NoError(t, w.Close(t.Context()))
			}
		})
	}
}
