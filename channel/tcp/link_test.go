package tcp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/actor"
	"github.com/kolo-ccl/kolo/channel"

	"github.com/stretchr/testify/require"
)

// patience is how long a test waits for what must come.
const patience = time.Minute

// party is one rank with a driver of its own, as in a process of its own.
type party struct {
	t     testing.TB
	rank  kolo.Rank
	d     *driver
	sys   *actor.System
	shard *actor.Shard
	end   channel.Endpoint
	chans map[kolo.Rank]*channel.Channel
	on    actor.Ref[*do]
}

type do struct {
	f    func()
	done chan struct{}
}

func (p *party) Handle(m *do) error {
	m.f()
	close(m.done)
	return nil
}

func newParty(t testing.TB, r kolo.Rank, c Config, w channel.Config) *party {
	d, err := c.New(w)
	require.NoError(t, err)
	p := &party{t: t, rank: r, d: d.(*driver), sys: actor.NewSystem(actor.Config{}), chans: map[kolo.Rank]*channel.Channel{}}
	p.shard = p.sys.NewShard(r.String())
	p.end, err = d.Open(r)
	require.NoError(t, err)
	p.on, err = actor.Spawn[*do](p.shard, actor.Props{Name: "party"}, p)
	require.NoError(t, err)
	t.Cleanup(p.close)
	return p
}

// parties are n ranks with a driver each, which have met.
func parties(t testing.TB, n int, c Config) []*party {
	var list []*party
	for r := range n {
		list = append(list, newParty(t, kolo.Rank(r), c, channel.Config{Job: "test", Epoch: 3}))
	}
	introduce(list...)
	return list
}

func introduce(list ...*party) {
	var peers []channel.Peer
	for _, p := range list {
		a, err := p.d.Address()
		require.NoError(p.t, err)
		peers = append(peers, channel.Peer{Rank: p.rank, Address: a})
	}
	for _, p := range list {
		require.NoError(p.t, p.d.Meet(peers))
	}
}

func (p *party) do(f func()) {
	m := &do{f, make(chan struct{})}
	require.NoError(p.t, p.on.Tell(m))
	<-m.done
}

var errHome = errors.New("goes home")

func (p *party) close() {
	p.do(func() {
		for _, c := range p.chans {
			c.Close(errHome)
		}
		p.end.Close()
	})
	require.NoError(p.t, p.sys.Close(context.Background()))
	require.NoError(p.t, p.d.Close())
}

// move is an op on its way.
type move struct {
	channel.Op
	t    testing.TB
	done chan struct{}
}

func (m *move) Complete(*channel.Op) { close(m.done) }

func (m *move) wait() error {
	select {
	case <-m.done:
		return m.Err
	case <-time.After(patience):
		m.t.Fatalf("a %v has not completed", m.Kind)
		return nil
	}
}

// post starts an op of one byte slice.
func (p *party) post(kind channel.Kind, peer kolo.Rank, call uint64, b []byte) *move {
	m := &move{t: p.t, done: make(chan struct{})}
	m.Op = channel.Op{Kind: kind, Key: channel.Key{Group: 1, Call: call}, Size: int64(len(b)), DType: kolo.Uint8, Sink: m}
	if kind != channel.View {
		m.Mem = []kolo.Memory{kolo.HostMemory(b)}
	}
	p.do(func() { p.link(peer).Post(&m.Op) })
	return m
}

func (p *party) link(peer kolo.Rank) *channel.Channel {
	if p.chans[peer] == nil {
		c, err := p.end.Connect(peer)
		require.NoError(p.t, err)
		p.chans[peer], err = channel.Spawn(p.shard, "link", peer, c, nil)
		require.NoError(p.t, err)
	}
	return p.chans[peer]
}

// bytesOf differ per stream and index.
func bytesOf(n, stream int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8*13 + stream*31)
	}
	return b
}

// exchange sends n bytes from one to the other.
func exchange(t testing.TB, from, to *party, call uint64, n int) {
	t.Helper()
	dst := make([]byte, n)
	r := to.post(channel.Recv, from.rank, call, dst)
	require.NoError(t, from.post(channel.Send, to.rank, call, bytesOf(n, int(call))).wait())
	require.NoError(t, r.wait())
	require.Equal(t, bytesOf(n, int(call)), dst)
}

func TestTwoProcesses(t *testing.T) {
	for name, c := range map[string]Config{"default": {}, "stripes": {Stripes: 3}, "nothing unasked": {Eager: 1}, "small window": {Window: 64 << 10},
		"buffers": {Buffer: 32 << 10}, "nothing inline": {Inline: 1}, "all inline": {Inline: 1 << 20, Eager: 1}} {
		t.Run(name, func(t *testing.T) {
			p := parties(t, 2, c)
			for i, n := range []int{0, 1, 100, 5000, 64 << 10, 64<<10 + 1, 512 << 10, 512<<10 + 1, 3<<20 + 7} {
				exchange(t, p[0], p[1], uint64(i), n)
				exchange(t, p[1], p[0], uint64(i), n)
			}
		})
	}
}

// What was sent is received though the sender has closed at once, also a message that goes
// on the control connection while data connections are there.
func TestCloseBehindAMiddleSizedMessage(t *testing.T) {
	for range 20 {
		p := parties(t, 2, Config{})
		exchange(t, p[0], p[1], 1, 2<<20)
		dst := make([]byte, 400<<10)
		r := p[1].post(channel.Recv, 0, 2, dst)
		require.NoError(t, p[0].post(channel.Send, 1, 2, bytesOf(len(dst), 7)).wait())
		require.NoError(t, p[0].d.Close())
		require.NoError(t, r.wait())
		require.Equal(t, bytesOf(len(dst), 7), dst)
	}
}

// stranger connects to a party and says b; it returns what it hears until the end.
func stranger(t testing.TB, p *party, b []byte, shut bool) []byte {
	c, err := net.Dial("tcp", netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), p.d.mine.port).String())
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	_, err = c.Write(b)
	require.NoError(t, err)
	if shut {
		_ = c.(*net.TCPConn).CloseWrite() // it may have been closed from there
	}
	heard, _ := io.ReadAll(c) // a reset is an end too
	return heard
}

func TestStrangersAreRefusedAndDisturbNobody(t *testing.T) {
	p := parties(t, 2, Config{ConnectTimeout: 2 * time.Second})
	exchange(t, p[0], p[1], 1, 10)
	good := hello{job: "test", epoch: 3, from: 1, to: 0}
	of := func(f func(h *hello)) []byte {
		h := good
		f(&h)
		return h.encode()
	}
	spoilt := good.encode()
	spoilt[20] ^= 1
	for name, c := range map[string]struct {
		say  []byte
		want string
	}{
		"a browser":       {[]byte("GET / HTTP/1.1\r\n\r\n"), "no rank of kolo"},
		"nothing":         {nil, "no hello"},
		"half a hello":    {good.encode()[:30], "half a hello"},
		"noise":           {bytesOf(500, 3), "no rank of kolo"},
		"another version": {append([]byte{'K', 'O', 'L', 'O', 9}, spoilt[5:]...), "version 9"},
		"a wrong digest":  {spoilt, "digest"},
		"another job":     {of(func(h *hello) { h.job = "other" }), `this is job "test", not "other"`},
		"another epoch":   {of(func(h *hello) { h.epoch = 2 }), "this is epoch 3 of the job, not 2"},
		"unknown rank":    {of(func(h *hello) { h.from = 7 }), "rank 7 is not in this world"},
		"wrong host":      {of(func(h *hello) { h.to = 1 }), "rank 1 is not here"},
		"a second one":    {good.encode(), "has a connection to rank 1 already"},
		"only data":       {of(func(h *hello) { h.role = data }), "without its control connection"},
	} {
		a := stranger(t, p[0], c.say, true)
		got, err := readAnswer(newReader(a))
		require.NoError(t, err, name)
		require.Equal(t, refusal, got.verdict, name)
		require.Contains(t, got.text, c.want, name)
	}
	exchange(t, p[0], p[1], 2, 10)
	exchange(t, p[1], p[0], 3, 1<<20)
}

func newReader(b []byte) io.Reader { return &reader{b} }

type reader struct{ b []byte }

func (r *reader) Read(b []byte) (int, error) {
	n := copy(b, r.b)
	if r.b = r.b[n:]; n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

func TestWrongJobAndEpochAreErrorsOfTheOp(t *testing.T) {
	for want, w := range map[string]channel.Config{
		`this is job "other", not "test"`:   {Job: "other", Epoch: 3},
		"this is epoch 4 of the job, not 3": {Job: "test", Epoch: 4},
	} {
		a := newParty(t, 0, Config{}, channel.Config{Job: "test", Epoch: 3})
		b := newParty(t, 1, Config{}, w)
		introduce(a, b)
		err := a.post(channel.Send, 1, 1, []byte{1}).wait()
		require.ErrorIs(t, err, kolo.ErrLost)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "rank 0 to rank 1")
	}
}

func TestNobodyListens(t *testing.T) {
	a := newParty(t, 0, Config{}, channel.Config{Job: "test"})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := l.Addr().(*net.TCPAddr).AddrPort().Port()
	require.NoError(t, l.Close())
	gone := address{host: a.d.host, port: port, known: []netip.Addr{netip.MustParseAddr("127.0.0.1")}}
	require.NoError(t, a.d.Meet([]channel.Peer{{Rank: 1, Address: gone.encode()}}))
	err = a.post(channel.Recv, 1, 1, []byte{1}).wait()
	require.ErrorIs(t, err, kolo.ErrLost)
	require.ErrorContains(t, err, "refused")
	_, err = a.end.Connect(2)
	require.ErrorIs(t, err, kolo.ErrArgument)
	gone.host++
	err = a.d.Meet([]channel.Peer{{Rank: 2, Address: gone.encode()}})
	require.ErrorIs(t, err, kolo.ErrUnsupported, "loopback of another host")
}

// actorless is a peer played by the test: it has greeted party 0 as rank 1.
func actorless(t testing.TB, p *party, eager, window int64) *net.TCPConn {
	me := address{host: p.d.host, port: 1, known: []netip.Addr{netip.MustParseAddr("127.0.0.1")}}
	require.NoError(t, p.d.Meet([]channel.Peer{{Rank: 1, Address: me.encode()}}))
	c, err := net.Dial("tcp", netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), p.d.mine.port).String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() }) // the test may have done it
	_, err = c.Write((&hello{job: "test", from: 1, to: 0, link: 5, eager: eager, window: window}).encode())
	require.NoError(t, err)
	a, err := readAnswer(c)
	require.NoError(t, err)
	require.Equal(t, welcome, a.verdict, a.text)
	return c.(*net.TCPConn)
}

func frameOf(h header, body []byte) []byte {
	b := make([]byte, headerSize)
	h.encode(b)
	return append(b, body...)
}

// A peer that breaks, in each way that a peer can, ends all ops of its link, at once and
// with a text that says who and what.
func TestBrokenPeers(t *testing.T) {
	key := channel.Key{Group: 1, Call: 1}
	message := header{kind: eager, key: key, size: 1000, dtype: kolo.Uint8}
	for name, c := range map[string]struct {
		say  []byte
		want string
	}{
		"the end":        {nil, "has ended or cut"},
		"half a header":  {frameOf(message, nil)[:17], "has ended or cut"},
		"half a message": {frameOf(message, bytesOf(400, 1)), "has ended or cut"},
		"noise":          {bytesOf(3000, 5), "malformed"},
		"half of a part": {append(frameOf(header{kind: offer, key: key, size: 1000, dtype: kolo.Uint8, id: 9}, nil),
			frameOf(header{kind: part, size: 1000, id: 9}, bytesOf(400, 1))...), "has ended or cut"},
		"a part too long": {append(frameOf(header{kind: offer, key: key, size: 1000, dtype: kolo.Uint8, id: 9}, nil),
			frameOf(header{kind: part, size: 2000, id: 9}, bytesOf(400, 1))...), "of a message of 1000 bytes"},
		"a part twice": {append(frameOf(header{kind: offer, key: key, size: 1000, dtype: kolo.Uint8, id: 9}, nil),
			append(frameOf(header{kind: part, size: 500, id: 9}, bytesOf(500, 1)), frameOf(header{kind: part, size: 501, id: 9}, nil)...)...), "500 are missing"},
		"a part":                   {frameOf(header{kind: part, size: 3}, []byte{1, 2, 3}), "a part of a message that nobody has asked for"},
		"credit that is not owed":  {frameOf(header{kind: credit, credit: maxSize}, nil), "not owed"},
		"more than it may":         {frameOf(header{kind: eager, size: DefaultEager + 1}, nil), "nobody has asked for"},
		"a size that is not there": {frameOf(header{kind: eager, size: -1}, nil), "malformed"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newParty(t, 0, Config{}, channel.Config{Job: "test"})
			peer := actorless(t, p, 1000, 1<<20)
			ops := []*move{p.post(channel.Recv, 1, 1, make([]byte, 1000)), p.post(channel.View, 1, 2, make([]byte, 10)), p.post(channel.Send, 1, 3, make([]byte, 1<<20))}
			_, err := peer.Write(c.say)
			require.NoError(t, err)
			require.NoError(t, peer.CloseWrite())
			for _, m := range ops {
				err := m.wait()
				require.ErrorIs(t, err, kolo.ErrLost)
				require.ErrorContains(t, err, c.want)
				require.ErrorContains(t, err, "rank 0 to rank 1")
			}
			require.ErrorIs(t, p.post(channel.Send, 1, 4, []byte{1}).wait(), kolo.ErrLost, "later")
		})
	}
}

func TestReset(t *testing.T) {
	p := newParty(t, 0, Config{}, channel.Config{Job: "test"})
	peer := actorless(t, p, 1000, 1<<20)
	m := p.post(channel.Recv, 1, 1, make([]byte, 1000))
	require.NoError(t, peer.SetLinger(0))
	require.NoError(t, peer.Close())
	err := m.wait()
	require.ErrorIs(t, err, kolo.ErrLost)
	require.ErrorContains(t, err, "reset")
}

// A peer whose host answers, but which reads nothing, is lost after the timeout.
func TestPeerThatStandsStill(t *testing.T) {
	p := newParty(t, 0, Config{Timeout: 300 * time.Millisecond}, channel.Config{Job: "test"})
	actorless(t, p, maxEager, maxWindow)
	var last *move
	for i := range 40 {
		last = p.post(channel.Send, 1, uint64(i), make([]byte, maxEager))
	}
	err := last.wait()
	require.ErrorIs(t, err, kolo.ErrLost)
	require.ErrorContains(t, err, "timed out")
}

// What was sent before a close arrives, also where its receive comes later.
func TestCloseDelivers(t *testing.T) {
	p := parties(t, 2, Config{})
	dst := make([]byte, 3<<20)
	large := p[1].post(channel.Recv, 0, 2, dst)
	require.NoError(t, p[0].post(channel.Send, 1, 1, bytesOf(500, 1)).wait())
	require.NoError(t, p[0].post(channel.Send, 1, 2, bytesOf(len(dst), 2)).wait())
	p[0].do(func() { p[0].link(1).Close(errHome) })
	require.NoError(t, large.wait())
	require.Equal(t, bytesOf(len(dst), 2), dst)
	require.ErrorIs(t, p[1].post(channel.Recv, 0, 3, make([]byte, 5)).wait(), kolo.ErrLost)
	small := make([]byte, 500)
	require.NoError(t, p[1].post(channel.Recv, 0, 1, small).wait())
	require.Equal(t, bytesOf(500, 1), small)
	require.ErrorContains(t, p[1].post(channel.Recv, 0, 3, make([]byte, 5)).wait(), "goes home", "the cause is told")
}

// cutData is a peer played by the test which has offered message 9 of 1000 bytes, been told to send it, and
// closed a data connection on which nothing was under way. The rest may come for so long.
func cutData(t *testing.T, key channel.Key, rest time.Duration) (p *party, peer *net.TCPConn, m *move, dst []byte) {
	p = newParty(t, 0, Config{}, channel.Config{Job: "test"})
	p.d.cutFor = rest
	peer = actorless(t, p, 1000, 1<<20)
	second, err := net.Dial("tcp", peer.RemoteAddr().String())
	require.NoError(t, err)
	_, err = second.Write((&hello{role: data, job: "test", from: 1, to: 0, link: 5}).encode())
	require.NoError(t, err)
	a, err := readAnswer(second)
	require.NoError(t, err)
	require.Equal(t, welcome, a.verdict, a.text)
	dst = make([]byte, 1000)
	m = p.post(channel.Recv, 1, key.Call, dst)
	_, err = peer.Write(frameOf(header{kind: offer, key: key, size: 1000, dtype: kolo.Uint8, id: 9}, nil))
	require.NoError(t, err)
	_, err = io.ReadFull(peer, make([]byte, headerSize)) // it is asked for
	require.NoError(t, err)
	require.NoError(t, second.Close())
	p.d.mu.Lock()
	l := p.d.links[side{me: 0, peer: 1}]
	p.d.mu.Unlock()
	require.Eventually(t, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.data.readers == 0
	}, patience, time.Millisecond)
	return p, peer, m, dst
}

// A peer that closes its connections may have sent on the control connection what is being
// waited for: the end of the data connection, which may be seen first, does not undo that.
func TestDataConnectionThatEndsFirst(t *testing.T) {
	key := channel.Key{Group: 1, Call: 1}
	_, peer, m, dst := cutData(t, key, patience)
	_, err := peer.Write(frameOf(header{kind: part, size: 1000, id: 9}, bytesOf(1000, 4)))
	require.NoError(t, err)
	require.NoError(t, peer.CloseWrite())
	require.NoError(t, m.wait())
	require.Equal(t, bytesOf(1000, 4), dst)
}

// Who has been welcomed may open a data connection at once: it is not refused because the
// other end has not yet come to note that the control connection is there.
func TestDataConnectionAtOnce(t *testing.T) {
	p := newParty(t, 0, Config{}, channel.Config{Job: "test"})
	me := address{host: p.d.host, port: 1, known: []netip.Addr{netip.MustParseAddr("127.0.0.1")}}
	require.NoError(t, p.d.Meet([]channel.Peer{{Rank: 1, Address: me.encode()}}))
	p.d.mu.Lock()
	l := p.d.link(side{me: 0, peer: 1})
	p.d.mu.Unlock()
	listen, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, listen.Close()) }()
	there, err := net.Dial("tcp", listen.Addr().String())
	require.NoError(t, err)
	defer func() { require.NoError(t, there.Close()) }()
	here, err := listen.Accept()
	require.NoError(t, err)
	written := make(chan struct{})
	var taken sync.WaitGroup
	taken.Go(func() { // ends with the greeting
		l.take(here, &hello{job: "test", from: 1, to: 0, link: 5, eager: 1000, window: 1 << 20}, func() {
			close(written)
			<-time.After(50 * time.Millisecond) // it is slow to note
		})
	})
	a, err := readAnswer(there)
	require.NoError(t, err)
	require.Equal(t, welcome, a.verdict, a.text)
	<-written
	c, err := net.Dial("tcp", netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), p.d.mine.port).String())
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	_, err = c.Write((&hello{role: data, job: "test", from: 1, to: 0, link: 5}).encode())
	require.NoError(t, err)
	a, err = readAnswer(c)
	require.NoError(t, err)
	require.Equal(t, welcome, a.verdict, a.text)
	taken.Wait()
}

// Where nothing comes, a data connection that was cut ends the link all the same.
func TestDataConnectionThatIsCut(t *testing.T) {
	_, _, m, _ := cutData(t, channel.Key{Group: 1, Call: 1}, cutTime)
	err := m.wait()
	require.ErrorIs(t, err, kolo.ErrLost)
	require.ErrorContains(t, err, "cut a data connection")
}

// Messages that nobody receives yet take no more memory than the window.
func TestWindow(t *testing.T) {
	const window, count, size = 64 << 10, 2000, 1000
	p := parties(t, 2, Config{Window: window})
	var sends []*move
	for i := range count {
		sends = append(sends, p[0].post(channel.Send, 1, uint64(i), bytesOf(size, i)))
	}
	exchange(t, p[1], p[0], count, 10) // all that is sent unasked has come
	p[1].d.mu.Lock()
	l := p[1].d.links[side{me: 1, peer: 0}]
	p[1].d.mu.Unlock()
	l.mu.Lock()
	held := 0
	for _, e := range l.early {
		held += len(e.buf)
	}
	l.mu.Unlock()
	require.LessOrEqual(t, held, window)
	for i := count - 1; i >= 0; i-- {
		dst := make([]byte, size)
		require.NoError(t, p[1].post(channel.Recv, 0, uint64(i), dst).wait())
		require.Equal(t, bytesOf(size, i), dst)
		require.NoError(t, sends[i].wait())
	}
	exchange(t, p[0], p[1], count+1, 1000)
}

// A rank that polls takes what has come, without the goroutine of the driver.
func TestPoll(t *testing.T) {
	p := parties(t, 2, Config{})
	exchange(t, p[0], p[1], 0, 8)
	if p[0].d.poller == nil {
		t.Skip("no poller on this system")
	}
	var done atomic.Uint32
	p[1].d.Poll(&done) // returns, since nothing comes
	for i := range 200 {
		call := uint64(1 + i)
		done.Store(0)
		dst := make([]byte, 8)
		r := p[1].post(channel.Recv, 0, call, dst)
		var wg sync.WaitGroup
		// ends when the receive has completed
		wg.Go(func() { _ = r.wait(); done.Store(1) })
		require.NoError(t, p[0].post(channel.Send, 1, call, bytesOf(8, i)).wait())
		for done.Load() == 0 {
			p[1].d.Poll(&done)
		}
		wg.Wait()
		require.NoError(t, r.Err)
		require.Equal(t, bytesOf(8, i), dst)
	}
}

// descriptors is how many this process has open.
func descriptors(t testing.TB) int {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("no /proc here")
	}
	return len(list)
}

func TestDescriptorsStayFlat(t *testing.T) {
	cycle := func() {
		t.Run("", func(t *testing.T) {
			p := parties(t, 2, Config{})
			exchange(t, p[0], p[1], 1, 10)
			exchange(t, p[1], p[0], 2, 100_000)
		})
	}
	for range 5 {
		cycle()
	}
	before := descriptors(t)
	for range 200 {
		cycle()
	}
	n := descriptors(t)
	for end := time.Now().Add(patience); n > before && time.Now().Before(end); n = descriptors(t) {
		runtime.Gosched() // a goroutine that has done its work may hold one yet
	}
	require.LessOrEqual(t, n, before)
}

func TestString(t *testing.T) {
	p := parties(t, 2, Config{})
	require.Contains(t, p[0].d.String(), fmt.Sprint(p[0].d.mine.port))
	require.Equal(t, kolo.LinkTCP, p[0].d.Link())
	require.Equal(t, uint32(magic), binary.LittleEndian.Uint32([]byte("KOLO")))
}
