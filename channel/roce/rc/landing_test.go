package rc

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// linked is two queue pairs that know each other.
func linked(t *testing.T, mtu int) (a, b *QP, domain *Domain) {
	domain = NewDomain(7)
	var err error
	a, err = NewQP(Config{QPN: 16, First: psnMask - 3, MTU: mtu, Domain: NewDomain(1)})
	require.NoError(t, err)
	b, err = NewQP(Config{QPN: 17, MTU: mtu, Domain: domain})
	require.NoError(t, err)
	a.Connect(17, 0)
	b.Connect(16, psnMask-3)
	return a, b, domain
}

// inPieces is b in random pieces.
func inPieces(rng *rand.Rand, b []byte) (list [][]byte) {
	for len(b) > 0 {
		n := 1 + rng.IntN(min(len(b), 700))
		list = append(list, b[:n])
		b = b[n:]
	}
	return list
}

// Gather's pieces are the packet of Output, and the CRC of a packet is that of its pieces.
func TestGatherIsOutput(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	flow := NewFlow6([16]byte{1}, [16]byte{2}, 3, 4)
	for _, size := range []int{0, 1, 255, 256, 257, 5000} {
		data := make([]byte, size)
		for i := range data {
			data[i] = byte(rng.Uint32())
		}
		var qps [2]*QP
		for i := range qps {
			qps[i], _, _ = linked(t, 256)
			qps[i].Post(Work{Kind: WriteImm, Data: NewVector(inPieces(rng, data)...), VA: 9, Key: 10, Imm: 11})
			qps[i].Post(Work{Kind: Read, Data: NewVector(make([]byte, 300)), Key: 12})
		}
		for n := 0; ; n++ {
			want := qps[0].Output(0, nil)
			head, list := qps[1].Gather(0, nil, nil)
			if len(want) == 0 {
				require.Empty(t, head)
				require.Greater(t, n, 1)
				break
			}
			got := bytes.Clone(head)
			for _, b := range list {
				got = append(got, b...)
			}
			pad := make([]byte, -len(got)&3)
			require.Equal(t, want, append(got, pad...), "packet %d of %d bytes", n, size)
			require.Equal(t, flow.CRC(want), flow.CRC(head, append(list, pad)...))
		}
	}
}

// A landing foretells the middle of a WRITE: where its payloads go, and what their
// headers are; nothing else fits.
func TestLanding(t *testing.T) {
	const mtu, packets = 256, 9
	a, b, domain := linked(t, mtu)
	data := make([]byte, packets*mtu-100)
	for i := range data {
		data[i] = byte(i*7 + i>>8)
	}
	for _, pieces := range [][]int{{len(data)}, {2*mtu + mtu + 10, len(data) - 3*mtu - 10}} {
		into := make([]byte, len(data))
		region := domain.Register(100, RemoteWrite, into[:pieces[0]], into[pieces[0]:])
		a.Post(Work{Kind: Write, Data: NewVector(data), VA: 100, Key: region.Key})
		_, ok := b.Landing()
		require.False(t, ok, "nothing has begun")
		first, err := Parse(append(a.Output(0, nil), 0, 0, 0, 0))
		require.NoError(t, err)
		b.Input(0, &first)
		at, ok := b.Landing()
		require.True(t, ok)
		require.EqualValues(t, len(data)-mtu, at.Left)
		placed := 0
		for i := 1; i < packets; i++ {
			packet := a.Output(0, nil)
			place := at.Place(0)
			head := packet[:bthSize]
			if i == packets-1 {
				require.Nil(t, place, "the last packet may be shorter")
			}
			if place == nil { // it lies in two pieces
				p, err := Parse(append(packet, 0, 0, 0, 0))
				require.NoError(t, err)
				b.Input(0, &p)
				at, ok = b.Landing()
				require.Equal(t, i < packets-2, ok)
				continue
			}
			require.True(t, at.Fits(0, head))
			require.False(t, at.Fits(1, head), "another place in the row")
			for _, change := range []struct{ byte, bit int }{{0, 1}, {1, 0x10}, {1, 1}, {11, 1}, {9, 0x80}} {
				bad := bytes.Clone(head)
				bad[change.byte] ^= byte(change.bit)
				require.False(t, at.Fits(0, bad), "%+v", change)
			}
			want, err := Parse(append(bytes.Clone(packet), 0, 0, 0, 0))
			require.NoError(t, err)
			copy(place, packet[bthSize:])
			got := ParseMiddle(head, place)
			require.Equal(t, want, got)
			b.Input(0, &got)
			at.Advance(1)
			placed++
		}
		require.Equal(t, data, into)
		require.Equal(t, packets-2-(len(pieces)-1), placed)
		domain.Deregister(region)
	}
}
