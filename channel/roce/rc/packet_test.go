package rc

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// examples is one packet of each opcode.
func examples() []Packet {
	var list []Packet
	for op := range shapes {
		s := shapes[op]
		if s&known == 0 {
			continue
		}
		p := Packet{Op: Opcode(op), Solicited: op%2 == 0, AckReq: op%3 == 0, PKey: defaultPKey, QPN: 0x112233 + uint32(op), PSN: 0xfffff0 + uint32(op)%16}
		if s&hasRETH != 0 {
			p.VA, p.Key, p.Length = 0x0123456789abcdef, 0xa1b2c3d4, 17
		}
		if s&hasAETH != 0 {
			p.Syndrome, p.MSN = ACK, 0xabcdef
		}
		if s&hasImm != 0 {
			p.Imm = 0xdeadbeef
		}
		if s&hasDETH != 0 {
			p.QKey, p.SrcQPN = 0x80010000, 0x12
		}
		p.Payload = []byte{}
		if s&noData == 0 {
			p.Payload = pattern(17+op%4, uint64(op))
		}
		list = append(list, p)
	}
	return list
}

func TestAppendThenParse(t *testing.T) {
	list := examples()
	require.Len(t, list, 19)
	for _, p := range list {
		b := append(p.Append(nil), 1, 2, 3, 4)
		got, err := Parse(b)
		require.NoError(t, err, "%v", p.Op)
		require.Equal(t, p, got)
		for n := range len(b) { // cut at every byte
			got, err := Parse(b[:n])
			if err != nil {
				require.ErrorIs(t, err, ErrPacket)
				continue
			}
			require.Equal(t, p.Op, got.Op)
			require.Less(t, len(got.Payload), len(p.Payload))
		}
		b[1] |= 1
		_, err = Parse(b)
		require.ErrorIs(t, err, ErrPacket, "another transport version")
	}
	require.Equal(t, "RDMA WRITE Only", WriteOnly.String())
	require.Equal(t, "opcode 0xc0", Opcode(0xc0).String())
	require.Equal(t, "remote access error", RemoteAccess.String())
	require.Equal(t, "status 99", Status(99).String())
}

// fixtures reads a file of whole packets, from the IP header on, each with a name.
func fixtures(t *testing.T, file string, f func(name string, ip []byte)) (n int) {
	r, err := os.Open(file)
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Close()) }()
	for in := bufio.NewScanner(r); in.Scan(); n++ {
		name, text, ok := strings.Cut(in.Text(), ": ")
		if !ok || strings.HasPrefix(name, "#") {
			n--
			continue
		}
		ip, err := hex.DecodeString(text)
		require.NoError(t, err)
		f(name, ip)
	}
	return n
}

// The packets of testdata/packets.txt have CRCs that another implementation has judged
// (see testdata/README.md).
func TestCRCOfFixtures(t *testing.T) {
	n := fixtures(t, "testdata/packets.txt", func(name string, ip []byte) {
		flow, udp := flowOf(ip)
		require.True(t, flow.Sealed(udp[8:]), name)
		p, err := Parse(udp[8:])
		require.NoError(t, err, name)
		require.Equal(t, udp[8:len(udp)-ICRCSize], p.Append(nil), name)
		require.Equal(t, udp[8:], flow.Seal(p.Append(nil)), name)
		for bit := range 8 * len(ip) { // whatever the CRC covers, it covers each bit of
			changed := bytes.Clone(ip)
			changed[bit/8] ^= 1 << (bit % 8)
			if covered(ip, bit/8) {
				off := len(ip) - len(udp) + 8
				require.False(t, flow.Sealed(changed[off:]), "%s, bit %d", name, bit)
			}
		}
	})
	require.Equal(t, 38, n)
}

// Packets that the Linux kernel has sent have the CRC that this package computes.
func TestPacketsOfTheKernel(t *testing.T) {
	n := fixtures(t, "testdata/kernel.txt", func(name string, ip []byte) {
		flow, udp := flowOf(ip)
		require.True(t, flow.Sealed(udp[8:]), name)
		p, err := Parse(udp[8:])
		require.NoError(t, err, name)
		require.Equal(t, "kernel, "+p.Op.String(), name)
		require.EqualValues(t, 0xabc, p.QPN)
		udp[6+8]++ // a byte of the queue pair's number
		require.False(t, flow.Sealed(udp[8:]), name)
	})
	require.Equal(t, 11, n)
}

// A packet of another implementation of the CRC: 127.0.0.1 to 127.0.0.2, seen by scapy.
func TestCRCOfOneKnownPacket(t *testing.T) {
	packet, err := hex.DecodeString("04e0ffff000000118000123568656c6c6f2073656e64000027d9fce6")
	require.NoError(t, err)
	f := NewFlow4([4]byte{127, 0, 0, 1}, [4]byte{127, 0, 0, 2}, 49153, 4791)
	require.True(t, f.Sealed(packet))
	p, err := Parse(packet)
	require.NoError(t, err)
	require.Equal(t, Packet{Op: SendOnly, Solicited: true, AckReq: true, PKey: 0xffff, QPN: 0x11, PSN: 0x1235, Payload: []byte("hello send")}, p)
	require.False(t, f.Sealed(packet[:15]))
}

// covered says whether the CRC covers a byte of the RoCE packet.
func covered(ip []byte, at int) bool {
	bth := 48
	if ip[0]>>4 == 4 {
		bth = 28
	}
	return at >= bth && at != bth+4
}

// flowOf is the flow of an IP packet, and its UDP part.
func flowOf(ip []byte) (*Flow, []byte) {
	port := func(b []byte) uint16 { return uint16(b[0])<<8 | uint16(b[1]) }
	if ip[0]>>4 == 4 {
		f := NewFlow4([4]byte(ip[12:16]), [4]byte(ip[16:20]), port(ip[20:]), port(ip[22:]))
		f.ID4(port(ip[4:]))
		return f, ip[20:]
	}
	return NewFlow6([16]byte(ip[8:24]), [16]byte(ip[24:40]), port(ip[40:]), port(ip[42:])), ip[40:]
}

func FuzzParse(f *testing.F) {
	for _, p := range examples() {
		f.Add(append(p.Append(nil), 1, 2, 3, 4))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := Parse(b)
		if err != nil {
			require.ErrorIs(t, err, ErrPacket)
			return
		}
		again, err := Parse(append(p.Append(nil), 0, 0, 0, 0))
		require.NoError(t, err)
		require.Equal(t, p, again)
	})
}

// FuzzQP gives a queue pair any packets at any times. It must not panic, nor touch
// memory that it was not given, and what was posted must complete exactly once.
func FuzzQP(f *testing.F) {
	var all []byte
	for _, p := range examples() {
		b := append(p.Append(nil), 1, 2, 3, 4)
		all = append(append(all, byte(len(b))), b...)
	}
	f.Add(all, uint64(1))
	f.Fuzz(func(t *testing.T, b []byte, seed uint64) {
		rng := rand.New(rand.NewPCG(seed, 2))
		d := NewDomain(0xa1b2c3d4)
		d.Register(0x0123456789abcdef, RemoteRead|RemoteWrite, make([]byte, 20), nil, make([]byte, 4))
		q, err := NewQP(Config{QPN: 0x112233, First: psnMask, MTU: 256, Domain: d, Timeout: time.Millisecond})
		require.NoError(t, err)
		q.Connect(7, 0xfffff0)
		posted := map[uint64]bool{}
		id := uint64(0)
		now := time.Duration(0)
		complete := func() {
			for c, ok := q.Next(); ok; c, ok = q.Next() {
				require.True(t, posted[c.ID], "%+v", c)
				delete(posted, c.ID)
			}
		}
		for len(b) > 0 {
			id++
			posted[id] = true
			data := NewVector(make([]byte, rng.IntN(600)))
			if rng.IntN(3) == 0 {
				q.PostReceive(id, data)
			} else {
				q.Post(Work{Kind: Kind(rng.IntN(5)), ID: id, Data: data})
			}
			for range 1000 {
				if len(q.Output(now, make([]byte, 0, 400))) == 0 {
					break
				}
			}
			n := min(int(b[0])+1, len(b))
			packet := bytes.Clone(b[1:n])
			b = b[n:]
			if len(packet) > bthSize && rng.IntN(2) == 0 { // as if in order
				seq := q.res.expected
				if shapes[packet[0]]&response != 0 {
					seq = q.req.una
				}
				psn := psnOf(seq)
				packet[9], packet[10], packet[11] = byte(psn>>16), byte(psn>>8), byte(psn)
			}
			if p, err := Parse(packet); err == nil {
				q.Input(now, &p)
			}
			complete()
			if at, ok := q.Deadline(); ok && rng.IntN(4) == 0 {
				now = max(now, at)
				q.Tick(now)
			}
			complete()
		}
		q.Fail(Flushed)
		complete()
		require.Empty(t, posted)
	})
}

func BenchmarkWrite(b *testing.B) {
	for _, mtu := range []int{1024, 4096} {
		b.Run("mtu="+map[int]string{1024: "1024", 4096: "4096"}[mtu], func(b *testing.B) { benchmarkWrite(b, mtu) })
	}
}

// benchmarkWrite measures WRITEs of 1 MiB from one queue pair to another, with all
// CRCs, in memory.
func benchmarkWrite(b *testing.B, mtu int) {
	n := newNetwork(b, 1, faults{}, Config{MTU: mtu})
	x, y := n.ends[0], n.ends[1]
	const size = 1 << 20
	r := y.domain.Register(0, RemoteWrite, make([]byte, size))
	data := NewVector(make([]byte, size))
	var space [2][]byte
	for i := range space {
		space[i] = make([]byte, 0, MaxMTU+MaxOverhead)
	}
	b.SetBytes(size)
	b.ReportAllocs()
	for b.Loop() {
		x.qp.Post(Work{Kind: Write, Data: data, Key: r.Key})
		for x.qp.Pending() > 0 {
			for _, e := range []*end{x, y} {
				for {
					p := e.qp.Output(0, space[0][:0])
					if len(p) == 0 {
						break
					}
					p = e.flow.Seal(p)
					if !e.flow.Sealed(p) {
						b.Fatal("CRC")
					}
					q, err := Parse(p)
					if err != nil {
						b.Fatal(err)
					}
					n.ends[1-e.side].qp.Input(0, &q)
				}
			}
		}
		x.qp.Next()
	}
}
