package rc

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// The CRC of a packet with any identification that a system gives to the packets which it
// cuts is accepted where it may be cut, no other, and none but 0 elsewhere.
func TestPacketsThatWereCut(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	sender := NewFlow4([4]byte{10, 0, 0, 1}, [4]byte{10, 0, 0, 2}, 5, 6)
	plain, cut := *sender, *sender
	cut.MayBeCut()
	for n := range 200 { // more sizes than are kept
		packet := make([]byte, 16+4*(n*7%100))
		for i := range packet {
			packet[i] = byte(rng.Uint32())
		}
		id := rng.IntN(2 * MostCut)
		sender.ID4(uint16(id))
		sealed := sender.Seal(packet[:len(packet):len(packet)])
		require.Equal(t, id < MostCut, cut.Sealed(sealed), "identification %d, %d bytes", id, len(packet))
		require.Equal(t, id == 0, plain.Sealed(sealed))
		crc := sender.CRC(packet)
		require.Equal(t, id < MostCut, cut.Matches(crc, packet[:12], packet[12:15], packet[15:]))
		sealed[rng.IntN(len(packet))] ^= 1 << rng.IntN(8)
		if b := sealed[4]; b == packet[4] { // congestion marks are not covered
			require.False(t, cut.Sealed(sealed), "a bit is wrong")
		}
	}
	six := NewFlow6([16]byte{1}, [16]byte{2}, 5, 6)
	six.MayBeCut()
	require.False(t, six.Sealed(make([]byte, 40)))
}
