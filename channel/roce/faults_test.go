package roce_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/channel/roce"
	"github.com/kolo-ccl/kolo/channel/roce/rc"

	"github.com/stretchr/testify/require"
)

// badWire loses, doubles, delays and damages packets.
type badWire struct {
	loss, duplicate, late, corrupt float64
	delay                          time.Duration

	mu   sync.Mutex
	rng  *rand.Rand
	dead bool // nothing comes through
}

func (w *badWire) carry(packet []byte, deliver func([]byte)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	copies := 1
	if w.rng.Float64() < w.duplicate {
		copies = 2
	}
	for range copies {
		if w.dead || w.rng.Float64() < w.loss {
			continue
		}
		b := bytes.Clone(packet)
		if w.rng.Float64() < w.corrupt {
			b[w.rng.IntN(len(b))] ^= 1 << w.rng.IntN(8)
		}
		d := w.delay
		if w.rng.Float64() < w.late {
			d += time.Duration(w.rng.IntN(int(2 * time.Millisecond)))
		}
		if d == 0 {
			deliver(b)
			continue
		}
		time.AfterFunc(d, func() { deliver(b) })
	}
}

// cut makes the wire carry nothing any more.
func (w *badWire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dead = true
}

// pattern is n bytes of a stream, different at each place.
func pattern(n int, stream uint64) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte((uint64(i)*0x9e3779b97f4a7c15 + stream*0xbf58476d1ce4e5b9) >> 37)
	}
	return b
}

func TestTransfersOverABadWire(t *testing.T) {
	seed := rand.Uint64()
	for name, w := range map[string]*badWire{
		"loss 0.1%":   {loss: 0.001},
		"loss 1%":     {loss: 0.01},
		"loss 5%":     {loss: 0.05},
		"duplicates":  {duplicate: 0.1},
		"corruption":  {corrupt: 0.01},
		"reordering":  {late: 0.02},
		"delay":       {delay: time.Millisecond},
		"all at once": {loss: 0.005, duplicate: 0.01, corrupt: 0.005, late: 0.005, delay: 200 * time.Microsecond},
	} {
		t.Run(name, func(t *testing.T) {
			w.rng = rand.New(rand.NewPCG(seed, 1))
			sides := newPair(t, roce.Config{QPs: 2, MultiQP: 100_000}.WithWire(w.carry), roce.Config{}.WithWire(w.carry))
			exchange(t, seed, sides, 30)
			for _, s := range sides {
				s.hangUp()
			}
			var sum roce.Stats
			for _, s := range sides {
				require.NoError(t, s.d.Close())
				x := s.d.Stats()
				sum.Retransmitted += x.Retransmitted
				sum.Duplicates += x.Duplicates
				sum.BadCRC += x.BadCRC
				sum.Sent += x.Sent
			}
			t.Logf("seed %d, %+v", seed, sum)
			if w.loss > 0.005 && sum.Retransmitted == 0 || w.duplicate > 0.05 && sum.Duplicates == 0 || w.corrupt > 0.005 && sum.BadCRC == 0 {
				t.Error("the wire was too good")
			}
		})
	}
}

// exchange sends messages of many sizes both ways, with the receives in another order.
func exchange(t *testing.T, seed uint64, sides [2]*side, messages int) {
	rng := rand.New(rand.NewPCG(seed, 2))
	sizes := []int{0, 1, 8, 4096, 8 << 10, 8<<10 + 1, 50_000, 300_001, 1 << 20}
	type move struct {
		from   int
		stream uint64
		buf    []byte
	}
	want := map[*channel.Op]move{}
	for m := range messages {
		for from := range 2 {
			n := sizes[rng.IntN(len(sizes))]
			k := channel.Key{Group: 1, Call: uint64(m), Class: channel.Class(rng.IntN(2))}
			stream := uint64(2*m + from)
			buf := make([]byte, n)
			first := rng.IntN(2) == 0
			if first {
				sides[from].post(channel.Send, k, pattern(n, stream))
			}
			want[sides[1-from].post(channel.Recv, k, buf)] = move{from, stream, buf}
			if !first {
				sides[from].post(channel.Send, k, pattern(n, stream))
			}
		}
	}
	for _, s := range sides {
		for range 2 * messages {
			op := s.wait()
			require.NoError(t, op.Err, "seed %d", seed)
			if m, ok := want[op]; ok {
				require.True(t, bytes.Equal(pattern(len(m.buf), m.stream), m.buf), "message %d of %d bytes, seed %d", m.stream, len(m.buf), seed)
			}
		}
	}
}

// A wire that carries nothing any more ends the link at its deadline with kolo.ErrLost,
// for the side that sends and for the one that only waits.
func TestBlackhole(t *testing.T) {
	const timeout, retries = 400 * time.Millisecond, 3 // long enough for a machine with much to do
	for _, size := range []int{8, 4 << 20} {
		w := &badWire{rng: rand.New(rand.NewPCG(1, 1))}
		sides := newPair(t, roce.Config{Timeout: timeout, Retries: retries}.WithWire(w.carry))
		exchange(t, 1, sides, 2)
		lone := sides[0].post(channel.Recv, channel.Key{Call: 1 << 40}, make([]byte, 4))
		start := time.Now()
		w.cut()
		k := channel.Key{Class: channel.Message}
		recv := sides[1].post(channel.Recv, k, make([]byte, size))
		send := sides[0].post(channel.Send, k, make([]byte, size))
		for _, s := range []*side{sides[0], sides[0], sides[1]} {
			op := s.wait()
			require.ErrorIs(t, op.Err, kolo.ErrLost)
			require.Contains(t, []*channel.Op{lone, recv, send}, op)
			// it is counted from the last acknowledgement, which was before the cut
			if took := time.Since(start); took < (retries+1)*timeout/2 {
				t.Errorf("the link was given up after %v", took)
			}
		}
		after := sides[0].post(channel.Send, k, make([]byte, size))
		require.Same(t, after, sides[0].wait())
		require.ErrorIs(t, after.Err, kolo.ErrLost)
	}
}

// A WRITE with a key that the receiver has not given ends the link that it came on, at
// both ends and with the reason, and no other.
func TestForeignKeyEndsOneLinkOnly(t *testing.T) {
	var mu sync.Mutex
	var flow *rc.Flow
	wire := func(packet []byte, deliver func([]byte)) {
		mu.Lock()
		defer mu.Unlock()
		if op := rc.Opcode(packet[0]); op == rc.WriteFirst && flow != nil {
			b := bytes.Clone(packet[:len(packet)-rc.ICRCSize])
			b[12+8] ^= 0xff
			packet, flow = flow.Seal(b), nil
		}
		deliver(packet)
	}
	sides := newPair(t, roce.Config{}.WithWire(wire))
	third := *sides[0] // rank 2, in the process of rank 0
	third.ended = make(chan *channel.Op, 16)
	third.connect(2, 0)
	back := *sides[0]
	back.ended = make(chan *channel.Op, 16)
	back.to = connectTo(t, sides[0], 2)
	var ports [2]uint16
	for i, s := range sides {
		b, err := s.d.Address()
		require.NoError(t, err)
		ports[i] = binary.BigEndian.Uint16(b[34:])
	}
	mu.Lock()
	flow = rc.NewFlow6([16]byte{15: 1}, [16]byte{15: 1}, ports[0], ports[1])
	mu.Unlock()
	buf := make([]byte, 1<<20)
	sides[1].post(channel.Recv, channel.Key{}, buf)
	sides[0].post(channel.Send, channel.Key{}, bytes.Repeat([]byte{1}, len(buf)))
	for _, s := range sides {
		op := s.wait()
		require.ErrorIs(t, op.Err, kolo.ErrLost)
		require.ErrorContains(t, op.Err, "remote access error")
	}
	require.Equal(t, make([]byte, len(buf)), buf, "nothing was written")
	third.post(channel.Recv, channel.Key{}, buf)
	back.post(channel.Send, channel.Key{}, pattern(len(buf), 4))
	require.NoError(t, back.wait().Err)
	require.NoError(t, third.wait().Err)
	require.True(t, bytes.Equal(pattern(len(buf), 4), buf))
}

// connectTo is a further channel of a side's rank.
func connectTo(t *testing.T, s *side, peer kolo.Rank) *channel.Channel {
	conn, err := s.e.Connect(peer)
	require.NoError(t, err)
	c, err := channel.Spawn(s.shard, "further", peer, conn, nil)
	require.NoError(t, err)
	t.Cleanup(func() { s.run(func() { c.Close(errEnd) }) })
	return c
}

// A process that is not there, and one of another job, cannot be connected to.
func TestNobodyThere(t *testing.T) {
	silent, err := roce.New(channel.Config{Job: "other"}, roce.Config{})
	require.NoError(t, err)
	address, err := silent.Address()
	require.NoError(t, err)
	sides := newPair(t, roce.Config{ConnectTimeout: 2 * time.Second})
	require.NoError(t, sides[0].d.Meet([]channel.Peer{{Rank: 5, Address: address}, {Rank: 6, Address: address}}))
	for peer, text := range map[kolo.Rank]string{5: "another job", 7: "nobody has said"} {
		s := *sides[0]
		s.ended = make(chan *channel.Op, 1)
		s.to = connectTo(t, sides[0], peer)
		s.post(channel.Recv, channel.Key{}, nil)
		op := s.wait()
		require.ErrorIs(t, op.Err, kolo.ErrLost)
		require.ErrorContains(t, op.Err, text)
	}
	require.NoError(t, silent.Close())
	s := *sides[0]
	s.ended = make(chan *channel.Op, 1)
	s.to = connectTo(t, sides[0], 6)
	s.post(channel.Recv, channel.Key{}, nil)
	op := s.wait()
	require.ErrorIs(t, op.Err, kolo.ErrLost)
	require.ErrorContains(t, op.Err, "has not answered")
	require.False(t, errors.Is(op.Err, kolo.ErrDeadline))
}
