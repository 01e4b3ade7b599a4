package roce_test

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/channel/roce"

	"github.com/stretchr/testify/require"
)

// Over IPv4 large messages go in bursts too: the packets of one call have CRCs with the
// numbers that the kernel gives them.
func TestBurstsOverIPv4(t *testing.T) {
	for _, c := range []roce.Config{{}, {MTU: 512, QPs: 2}} {
		c.Addr = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		sides := newPair(t, c)
		exchange(t, rand.Uint64(), sides, 20)
		src, dst := pattern(4<<20, 1), make([]byte, 4<<20)
		k := channel.Key{Call: 1 << 30, Class: channel.Message}
		sides[1].post(channel.Recv, k, dst)
		sides[0].post(channel.Send, k, src)
		for _, s := range sides {
			require.NoError(t, s.wait().Err)
		}
		require.True(t, bytes.Equal(src, dst))
		for _, s := range sides {
			x := s.d.Stats()
			require.Zero(t, x.BadCRC)
			t.Logf("%+v", x)
		}
		if sides[1].d.Stats().Placed == 0 {
			t.Error("no packet came in its place")
		}
		for _, s := range sides {
			s.hangUp()
		}
	}
}
