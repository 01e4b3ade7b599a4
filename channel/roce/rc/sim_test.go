package rc

import (
	"bytes"
	"container/heap"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// faults is what a simulated network does to packets.
type faults struct {
	loss, duplicate, corrupt, late float64 // parts of all packets
	delay, jitter                  time.Duration
	blackhole                      time.Duration // from then on nothing comes through; 0 is never
}

// network is two queue pairs and the packets between them, in simulated time.
type network struct {
	t      testing.TB
	rng    *rand.Rand
	now    time.Duration
	faults faults
	events events
	count  int
	ends   [2]*end
}

// end is one queue pair and what it has done.
type end struct {
	n       *network
	side    int
	qp      *QP
	domain  *Domain
	flow    *Flow // of what it sends
	done    []Completion
	at      time.Duration // of the last completion
	ticks   time.Duration // when a tick is under way, 0 if none
	stock   int           // receives to keep posted
	posted  uint64
	inboxes map[uint64][]byte
}

type event struct {
	at    time.Duration
	order int
	f     func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].order < e[j].order
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	old := *e
	x := old[len(old)-1]
	*e = old[:len(old)-1]
	return x
}

func (n *network) after(d time.Duration, f func()) {
	n.count++
	heap.Push(&n.events, event{n.now + d, n.count, f})
}

// newNetwork connects two queue pairs, whose first PSNs are just before the wrap.
func newNetwork(t testing.TB, seed uint64, f faults, c Config) *network {
	n := &network{t: t, rng: rand.New(rand.NewPCG(seed, 1)), faults: f}
	for i := range n.ends {
		e := &end{n: n, side: i, domain: NewDomain(uint32(1000 * (i + 1))), inboxes: map[uint64][]byte{}, stock: 4}
		c := c
		c.QPN, c.First, c.Domain = uint32(0x10+i), uint32(psnMask-20*i), e.domain
		var err error
		e.qp, err = NewQP(c)
		require.NoError(t, err)
		src, dst := [16]byte{15: byte(i + 1)}, [16]byte{15: byte(2 - i)}
		e.flow = NewFlow6(src, dst, 0xc000, 4791)
		n.ends[i] = e
	}
	for i, e := range n.ends {
		e.qp.Connect(uint32(0x10+1-i), uint32(psnMask-20*(1-i)))
	}
	return n
}

// pump lets an end send what it may, and asks for its next tick.
func (e *end) pump() {
	for {
		ready := e.qp.Ready(e.n.now)
		b := e.qp.Output(e.n.now, make([]byte, 0, MaxMTU+MaxOverhead))
		require.True(e.n.t, ready || len(b) == 0)
		if len(b) == 0 {
			break
		}
		e.n.carry(e, e.flow.Seal(b))
	}
	for c, ok := e.qp.Next(); ok; c, ok = e.qp.Next() {
		e.done = append(e.done, c)
		e.at = e.n.now
	}
	for e.qp.Err() == OK && e.qp.res.receives.len() < e.stock {
		e.receive(MaxMTU * 6)
	}
	if at, ok := e.qp.Deadline(); ok && (e.ticks == 0 || at < e.ticks) {
		e.ticks = at
		e.n.after(at-e.n.now, func() {
			if e.ticks == at {
				e.ticks = 0
			}
			e.qp.Tick(e.n.now)
			e.pump()
		})
	}
}

func (e *end) receive(size int) {
	e.posted++
	e.inboxes[e.posted] = make([]byte, size)
	e.qp.PostReceive(e.posted, NewVector(e.inboxes[e.posted]))
}

// requests are the completions of requests.
func (e *end) requests() (list []Completion) {
	for _, c := range e.done {
		if c.Kind != Receive {
			list = append(list, c)
		}
	}
	return list
}

// carry brings a packet to the other end, as the faults have it.
func (n *network) carry(from *end, b []byte) {
	f, to := n.faults, n.ends[1-from.side]
	copies := 1
	if n.rng.Float64() < f.duplicate {
		copies = 2
	}
	for range copies {
		if n.rng.Float64() < f.loss || f.blackhole > 0 && n.now >= f.blackhole {
			continue
		}
		d := f.delay + 5*time.Microsecond
		if f.jitter > 0 {
			d += time.Duration(n.rng.Int64N(int64(f.jitter)))
		}
		if n.rng.Float64() < f.late {
			d += 300 * time.Microsecond
		}
		b := bytes.Clone(b)
		if n.rng.Float64() < f.corrupt {
			b[n.rng.IntN(len(b))] ^= 1 << n.rng.IntN(8)
		}
		n.after(d, func() { to.arrive(from, b) })
	}
}

func (e *end) arrive(from *end, b []byte) {
	if !from.flow.Sealed(b) {
		return
	}
	p, err := Parse(b)
	if err != nil {
		return // an inverted bit in the congestion byte, which the CRC does not cover, is no error
	}
	e.qp.Input(e.n.now, &p)
	e.pump()
}

// run lets time pass until nothing happens any more, or the limit has come.
func (n *network) run(limit time.Duration) {
	for len(n.events) > 0 {
		e := heap.Pop(&n.events).(event)
		if e.at > limit {
			n.now = limit
			return
		}
		n.now = e.at
		e.f()
	}
}

// pattern makes bytes that differ per stream and index.
func pattern(n int, stream uint64) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte((uint64(i)*0x9e3779b97f4a7c15 + stream*0xbf58476d1ce4e5b9) >> 37)
	}
	return b
}

// cutUp is b in pieces, some of them empty.
func cutUp(rng *rand.Rand, b []byte) (list [][]byte) {
	for range rng.IntN(4) {
		n := rng.IntN(len(b) + 1)
		list, b = append(list, b[:n], nil), b[n:]
	}
	return append(list, b)
}

var networks = map[string]faults{
	"clean":       {},
	"loss 0.1%":   {loss: 0.001},
	"loss 1%":     {loss: 0.01},
	"loss 5%":     {loss: 0.05},
	"duplicates":  {duplicate: 0.2},
	"corruption":  {corrupt: 0.02},
	"reordering":  {late: 0.05, jitter: 20 * time.Microsecond},
	"delay":       {delay: 30 * time.Millisecond},
	"all at once": {loss: 0.02, duplicate: 0.02, corrupt: 0.01, late: 0.02, jitter: 30 * time.Microsecond, delay: 200 * time.Microsecond},
}

// Every message arrives once, whole and in order, over every network and path MTU.
func TestTransfersOverBadNetworks(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for name, f := range networks {
		for i, mtu := range []int{256, 512, 1024, 2048, 4096} {
			t.Run(fmt.Sprintf("%s/mtu=%d", name, mtu), func(t *testing.T) {
				c := Config{MTU: mtu, MinTimeout: 500 * time.Microsecond, Window: 32 << (i % 3), Timeout: 100 * time.Millisecond, AckDelay: time.Duration(i%2) * 200 * time.Microsecond}
				exchange(t, seed+uint64(i), f, c, 120)
			})
		}
	}
}

// exchange lets both ends send, write and read at random.
func exchange(t *testing.T, seed uint64, f faults, c Config, messages int) {
	n := newNetwork(t, seed, f, c)
	type check func()
	var checks []check
	for side, e := range n.ends {
		peer := n.ends[1-side]
		source := pattern(100_000, uint64(100+side))
		readable := peer.domain.Register(1<<40, RemoteRead, cutUp(n.rng, source)...)
		var sent [][]byte
		for m := range messages {
			data := pattern(n.rng.IntN(1+n.rng.IntN(5*c.MTU)), uint64(side*1000+m))
			w := Work{Kind: Kind(n.rng.IntN(5)), ID: uint64(m), Data: NewVector(cutUp(n.rng, data)...), Imm: uint32(m) * 7}
			switch w.Kind {
			case Send, SendImm:
				sent = append(sent, data)
			case Write, WriteImm:
				if w.Kind == WriteImm {
					sent = append(sent, nil)
				}
				target := make([]byte, len(data)+20)
				r := peer.domain.Register(uint64(m)<<20, RemoteWrite, cutUp(n.rng, target)...)
				w.VA, w.Key = r.VA+7, r.Key
				checks = append(checks, func() {
					require.Equal(t, data, target[7:7+len(data)], "write %d", m)
					require.Equal(t, make([]byte, 20), append(target[:7:7], target[7+len(data):]...), "beside write %d", m)
				})
			case Read:
				off := n.rng.IntN(len(source) - len(data))
				into := make([]byte, len(data))
				w.Data, w.VA, w.Key = NewVector(cutUp(n.rng, into)...), 1<<40+uint64(off), readable.Key
				checks = append(checks, func() { require.Equal(t, source[off:off+len(into)], into, "read %d", m) })
			}
			// posted in bursts
			n.after(time.Duration(m/10)*time.Millisecond, func() { e.qp.Post(w); e.pump() })
		}
		checks = append(checks, func() { e.verify(messages, peer, sent) })
	}
	n.run(time.Minute)
	for _, c := range checks {
		c()
	}
}

// verify looks at the completions of an end, and at those of its messages at the peer.
func (e *end) verify(messages int, peer *end, sent [][]byte) {
	t := e.n.t
	next := uint64(0)
	for _, c := range e.done {
		require.Equal(t, OK, c.Status)
		if c.Kind != Receive {
			require.Equal(t, next, c.ID, "requests complete in order")
			next++
		}
	}
	require.EqualValues(t, messages, next, "%+v", e.qp.Stats())
	i := 0
	for _, c := range peer.done {
		if c.Kind != Receive {
			continue
		}
		require.Less(t, i, len(sent))
		if !c.Wrote {
			require.Equal(t, len(sent[i]), int(c.Bytes), "message %d", i)
			require.True(t, bytes.Equal(sent[i], peer.inboxes[c.ID][:c.Bytes]), "message %d", i)
		}
		i++
	}
	require.Equal(t, len(sent), i)
	require.Zero(t, e.qp.Pending())
}

// A network that carries nothing any more ends in the typed status, at its deadline.
func TestBlackhole(t *testing.T) {
	for name, f := range map[string]faults{"at once": {blackhole: 1}, "later": {blackhole: 3 * time.Millisecond}, "later, lossy": {blackhole: 3 * time.Millisecond, loss: 0.02}} {
		t.Run(name, func(t *testing.T) {
			c := Config{MTU: 1024, Timeout: 10 * time.Millisecond, MinTimeout: time.Millisecond, Retries: 3}
			n := newNetwork(t, 5, f, c)
			e := n.ends[0]
			var last time.Duration
			n.after(2, func() { e.pump(); n.ends[1].pump() })
			for m := range 40 {
				n.after(time.Duration(2+m*100_000), func() {
					e.qp.Post(Work{Kind: Send, ID: uint64(m), Data: NewVector(pattern(5000, 1))})
					e.pump()
				})
			}
			for n.ends[0].qp.Err() == OK && len(n.events) > 0 {
				ev := heap.Pop(&n.events).(event)
				n.now = ev.at
				before, idle := e.qp.req.una, e.qp.req.una == e.qp.req.sent
				ev.f()
				if e.qp.req.una > before || idle && e.qp.req.sent > before {
					last = n.now
				}
			}
			require.Equal(t, RetryExceeded, e.qp.Err())
			require.Equal(t, last+40*time.Millisecond, n.now, "four timeouts after the last progress, or after the first packet in flight")
			e.pump()
			var failed []Status
			for _, c := range e.done {
				if c.Kind == Send && c.Status != OK {
					failed = append(failed, c.Status)
				}
			}
			require.NotEmpty(t, failed)
			require.Equal(t, RetryExceeded, failed[0])
			for _, s := range failed[1:] {
				require.Equal(t, Flushed, s)
			}
		})
	}
}

// With equal waits, as the specification has them, the packets go out Retries times
// more and then the connection is given up.
func TestRetriesAsSpecified(t *testing.T) {
	n := newNetwork(t, 1, faults{blackhole: 1}, Config{MTU: 256, Timeout: 10 * time.Millisecond, Retries: 7})
	e := n.ends[0]
	n.now = 1
	e.qp.Post(Work{Kind: Send, Data: NewVector([]byte("hello"))})
	e.pump()
	n.run(time.Second)
	require.Equal(t, RetryExceeded, e.qp.Err())
	require.EqualValues(t, 8, e.qp.Stats().Sent)
	require.Equal(t, 80*time.Millisecond+1, e.at)
}

// Acknowledgements that may wait go out together, and the last one in its time.
func TestAcknowledgementsWait(t *testing.T) {
	n := newNetwork(t, 1, faults{}, Config{MTU: 256, AckDelay: 3 * time.Millisecond, MinTimeout: 4 * time.Millisecond})
	a, b := n.ends[0], n.ends[1]
	b.pump()
	for i := range 20 {
		n.after(time.Duration(i)*10*time.Microsecond, func() {
			a.qp.Post(Work{Kind: Send, ID: uint64(i), Data: NewVector([]byte{1})})
			a.pump()
		})
	}
	n.run(time.Second)
	require.EqualValues(t, 20, a.qp.Stats().Sent)
	require.EqualValues(t, 3, b.qp.Stats().Sent, "8, 8 and 4 of them")
	require.Len(t, a.requests(), 20)
	require.Equal(t, 160*time.Microsecond+3*time.Millisecond+10*time.Microsecond, a.at)
}

// A receiver that has no memory for a message makes the sender wait, and end if it was
// told to.
func TestReceiverNotReady(t *testing.T) {
	for _, kind := range []Kind{Send, WriteImm} {
		for _, ready := range []bool{true, false} {
			n := newNetwork(t, 1, faults{}, Config{MTU: 256, RNRRetries: 3})
			a, b := n.ends[0], n.ends[1]
			b.stock = 0
			target := make([]byte, 700)
			r := b.domain.Register(0, RemoteWrite, target)
			a.qp.Post(Work{Kind: kind, ID: 9, Data: NewVector(pattern(700, 3)), Key: r.Key})
			a.pump()
			if ready {
				n.after(1500*time.Microsecond, func() { b.receive(1000); b.pump() })
			}
			n.run(time.Second)
			if !ready {
				require.Equal(t, RNRExceeded, a.qp.Err())
				require.EqualValues(t, 4, a.qp.Stats().RNRs)
				continue
			}
			require.Equal(t, []Completion{{ID: 9, Kind: kind, Bytes: 700}}, a.done)
			require.Len(t, b.done, 1)
			require.EqualValues(t, 700, b.done[0].Bytes)
			if kind == Send {
				target = b.inboxes[1][:700]
			}
			require.Equal(t, pattern(700, 3), target)
			require.Positive(t, a.qp.Stats().RNRs)
		}
	}
}

// An access outside of a region is refused with the NAK of a remote access error: it
// ends both ends of this connection, writes nothing, and is also heard if NAKs are lost.
func TestAccessOutside(t *testing.T) {
	for _, c := range []struct {
		name   string
		kind   Kind
		va     uint64
		n      int
		key    uint32 // added to the right one
		access Access
		want   Status
	}{
		{"below", Write, 999, 10, 0, RemoteWrite, RemoteAccess},
		{"above", Write, 1000 + 4096, 1, 0, RemoteWrite, RemoteAccess},
		{"over the end", WriteImm, 1000 + 4000, 97, 0, RemoteWrite, RemoteAccess},
		{"far over the end, in several packets", Write, 1000, 5000, 0, RemoteWrite, RemoteAccess},
		{"at the end of all addresses", Write, ^uint64(0), 2, 0, RemoteWrite, RemoteAccess},
		{"with another key", Write, 1000, 1, 1, RemoteWrite, RemoteAccess},
		{"without the right", Write, 1000, 1, 0, RemoteRead, RemoteAccess},
		{"read without the right", Read, 1000, 1, 0, RemoteWrite, RemoteAccess},
		{"read over the end", Read, 1000, 4097, 0, RemoteRead, RemoteAccess},
		{"nothing at all is no access", Write, 0, 0, 99, RemoteRead, OK},
		{"all of it", Write, 1000, 4096, 0, RemoteWrite, OK},
		{"the last byte", Read, 1000 + 4095, 1, 0, RemoteRead, OK},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNetwork(t, 3, faults{loss: 0.3}, Config{MTU: 256, MinTimeout: time.Millisecond})
			a, b := n.ends[0], n.ends[1]
			b.pump()
			target := make([]byte, 4096)
			r := b.domain.Register(1000, c.access, target)
			other := b.domain.Register(1000, RemoteRead|RemoteWrite, make([]byte, 8))
			require.NotEqual(t, r.Key, other.Key)
			a.qp.Post(Work{Kind: c.kind, ID: 1, Data: NewVector(pattern(c.n, 1)), VA: c.va, Key: r.Key + c.key})
			a.qp.Post(Work{Kind: Send, ID: 2, Data: NewVector([]byte("behind"))})
			a.pump()
			n.run(10 * time.Second)
			done := a.requests()
			require.Len(t, done, 2)
			require.Equal(t, c.want, done[0].Status)
			require.Equal(t, c.want, a.qp.Err())
			require.Equal(t, c.want, b.qp.Err())
			if c.want != OK {
				require.Equal(t, Flushed, done[1].Status)
				require.Equal(t, make([]byte, 4096), target)
				require.NotEmpty(t, b.done)
				for _, d := range b.done {
					require.Equal(t, Completion{ID: d.ID, Kind: Receive, Status: Flushed}, d)
				}
			}
		})
	}
}

// A region that is taken back in the middle of a WRITE gets no further byte.
func TestDeregisterWhileWritten(t *testing.T) {
	n := newNetwork(t, 4, faults{}, Config{MTU: 256, Window: 4})
	a, b := n.ends[0], n.ends[1]
	target := make([]byte, 1<<20)
	r := b.domain.Register(0, RemoteWrite, target)
	a.qp.Post(Work{Kind: Write, Data: NewVector(bytes.Repeat([]byte{1}, len(target))), Key: r.Key})
	a.pump()
	var kept []byte
	n.after(200*time.Microsecond, func() {
		b.domain.Deregister(r)
		kept = bytes.Clone(target)
	})
	n.run(time.Second)
	require.Equal(t, RemoteAccess, a.qp.Err())
	require.NotZero(t, kept[0])
	require.Equal(t, kept, target)
}

// A message longer than the receive is refused.
func TestMessageTooLong(t *testing.T) {
	n := newNetwork(t, 4, faults{}, Config{MTU: 256})
	a, b := n.ends[0], n.ends[1]
	b.stock = 0
	b.receive(600)
	a.qp.Post(Work{Kind: Send, Data: NewVector(make([]byte, 601))})
	a.pump()
	n.run(time.Second)
	require.Equal(t, RemoteInvalid, a.qp.Err())
	require.Equal(t, []Completion{{ID: 1, Kind: Receive, Status: LengthError}}, b.done)
}

// Posting to a queue pair that has ended completes at once.
func TestPostAfterTheEnd(t *testing.T) {
	n := newNetwork(t, 4, faults{}, Config{MTU: 256})
	q := n.ends[0].qp
	q.Post(Work{Kind: Read, ID: 1, Data: NewVector(make([]byte, 3))})
	q.PostReceive(2, NewVector(make([]byte, 3)))
	q.Fail(Flushed)
	q.Fail(RetryExceeded)
	q.Post(Work{Kind: Send, ID: 3})
	q.PostReceive(4, Vector{})
	for _, want := range []Completion{{ID: 1, Kind: Read, Status: Flushed}, {ID: 2, Kind: Receive, Status: Flushed},
		{ID: 3, Kind: Send, Status: Flushed}, {ID: 4, Kind: Receive, Status: Flushed}} {
		got, ok := q.Next()
		require.True(t, ok)
		require.Equal(t, want, got)
	}
	_, ok := q.Next()
	require.False(t, ok)
	require.Equal(t, Flushed, q.Err())
	require.Empty(t, q.Output(0, nil))
}

// Counts and PSNs are the same thing, however often the PSNs have wrapped.
func TestNear(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 100_000 {
		base := int64(origin) + rng.Int64N(1<<40)
		seq := base + rng.Int64N(1<<24) - 1<<23
		require.Equal(t, seq, near(base, psnOf(seq)))
	}
}
