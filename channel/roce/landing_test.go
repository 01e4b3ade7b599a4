package roce_test

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/channel/roce"
	"github.com/kolo-ccl/kolo/channel/roce/rc"

	"github.com/stretchr/testify/require"
)

// pieces cuts b at random places.
func pieces(rng *rand.Rand, b []byte, most int) (list [][]byte) {
	for len(b) > 0 {
		n := min(len(b), 1+rng.IntN(most))
		list = append(list, b[:n])
		b = b[n:]
	}
	return list
}

// Data comes whole whatever the pieces are that it is in, and most of a large message
// goes to its place at once where that is in one piece.
func TestPayloadsGoToTheirPlaces(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	const size = 2<<20 + 3
	for name, most := range map[string][2]int{
		"whole": {size, size}, "source in pieces": {3000, size}, "target in pieces": {size, 3000},
		"large pieces": {100_000, 200_000}, "small pieces": {300, 300},
	} {
		t.Run(name, func(t *testing.T) {
			for _, c := range []roce.Config{{}, {QPs: 3}, {MTU: 1024}} {
				sides := newPair(t, c)
				for i := range 3 {
					k := channel.Key{Call: uint64(i), Class: channel.Message}
					src, dst := pattern(size, uint64(i)), make([]byte, size)
					back, into := pattern(size, uint64(100+i)), make([]byte, size)
					sides[1].post(channel.Recv, k, pieces(rng, dst, most[1])...)
					sides[0].post(channel.Recv, k, pieces(rng, into, most[1])...)
					sides[0].post(channel.Send, k, pieces(rng, src, most[0])...)
					sides[1].post(channel.Send, k, pieces(rng, back, most[0])...)
					for _, s := range []*side{sides[0], sides[0], sides[1], sides[1]} {
						require.NoError(t, s.wait().Err)
					}
					require.True(t, bytes.Equal(src, dst) && bytes.Equal(back, into), "seed %d, %+v", seed, c)
				}
				placed := sides[0].d.Stats().Placed + sides[1].d.Stats().Placed
				t.Logf("%d queue pairs, MTU %d: %d packets to their places", c.QPs, c.MTU, placed)
				if most[1] == size && c.QPs == 0 && placed == 0 {
					t.Error("no packet has gone to its place at once")
				}
				for _, s := range sides {
					s.hangUp()
				}
			}
		})
	}
}

// What comes late, for a receive that has ended, is not written to its memory.
func TestNothingIsPlacedAfterTheEnd(t *testing.T) {
	var mu sync.Mutex
	var held []func()
	writes := 0
	wire := func(packet []byte, deliver func([]byte)) {
		mu.Lock()
		defer mu.Unlock()
		if op := rc.Opcode(packet[0]); op >= rc.WriteFirst && op <= rc.WriteOnlyImm {
			if writes++; writes > 40 {
				b := bytes.Clone(packet)
				held = append(held, func() { deliver(b) })
				return
			}
		}
		deliver(packet)
	}
	sides := newPair(t, roce.Config{}.WithWire(wire), roce.Config{})
	buf := make([]byte, 1<<20)
	sides[1].post(channel.Recv, channel.Key{}, buf)
	sides[0].post(channel.Send, channel.Key{}, pattern(len(buf), 7))
	for stop := false; !stop; {
		mu.Lock()
		stop = len(held) > 0
		mu.Unlock()
		sides[1].run(func() {})
	}
	sides[1].hangUp()
	op := sides[1].wait() // when the close has lingered: the sender does not go on
	require.ErrorIs(t, op.Err, kolo.ErrLost)
	before := bytes.Clone(buf)
	require.True(t, bytes.Equal(buf[:4096], pattern(4096, 7)), "the first packets have come")
	mu.Lock()
	for _, f := range held {
		f()
	}
	mu.Unlock()
	other := *sides[1] // a link of the same port, to know that the late packets were read
	other.ended = make(chan *channel.Op, 4)
	other.connect(3, 3)
	k := channel.Key{Class: channel.Message}
	other.post(channel.Recv, k, make([]byte, 4))
	other.post(channel.Send, k, make([]byte, 4))
	require.NoError(t, other.wait().Err)
	require.NoError(t, other.wait().Err)
	require.True(t, bytes.Equal(before, buf), "memory was written after its receive had ended")
	require.Equal(t, kolo.LinkRoCE, sides[1].d.Link())
}
