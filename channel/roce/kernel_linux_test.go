package roce

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo/channel/roce/rc"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// kernelCase is one conversation with the kernel's RoCE.
type kernelCase struct {
	name             string
	v4               bool
	mtu, size, count int
	dropOut, dropIn  int // every n-th packet is lost
	corrupt          int // the CRC of every n-th packet of ours is wrong
	outside          bool
}

var kernelCases = []kernelCase{
	{name: "IPv6", mtu: 1024, size: 4096, count: 20},
	{name: "IPv6, path MTU 256, odd size", mtu: 256, size: 5001, count: 20},
	{name: "IPv6, path MTU 4096, 100,003 bytes", mtu: 4096, size: 100_003, count: 4},
	{name: "IPv6, one byte", mtu: 1024, size: 1, count: 20},
	{name: "IPv6, packets lost both ways", mtu: 512, size: 5001, count: 20, dropOut: 17, dropIn: 23},
	{name: "IPv6, wrong CRCs", mtu: 512, size: 5001, count: 10, corrupt: 13},
	{name: "IPv6, outside of a region", mtu: 1024, size: 3000, count: 2, outside: true},
	{name: "IPv4", v4: true, mtu: 1024, size: 4096, count: 20},
	{name: "IPv4, path MTU 256", v4: true, mtu: 256, size: 700, count: 2},
	{name: "IPv4, odd size, packets lost both ways", v4: true, mtu: 2048, size: 5001, count: 20, dropOut: 17, dropIn: 23},
}

// kernelPeer is our end: a queue pair of package rc on a socket of this driver.
type kernelPeer struct {
	t        *testing.T
	c        kernelCase
	me, peer netip.Addr
	conn     *net.UDPConn
	raw      *net.IPConn // IPv4: sees the identification of packets, which the CRC covers
	qp       *rc.QP
	domain   *rc.Domain
	in, out  *rc.Flow
	start    time.Time
	buf      []byte
	sent     int
	got      int
	wrong    int
	done     []rc.Completion
	seen     map[rc.Opcode]bool
}

// TestKernelInterop speaks with rdma_rxe, the RoCE v2 of the Linux kernel, driven by
// testdata/rxe/peer.c. It needs both, as in the machine of make rxe-vm, which sets
// KOLO_RXE_PEER (its address over IPv6), KOLO_RXE_GID6 and KOLO_RXE_GID4 (indexes).
func TestKernelInterop(t *testing.T) {
	at := os.Getenv("KOLO_RXE_PEER")
	if at == "" {
		t.Skip("KOLO_RXE_PEER is not set; make rxe-vm runs this test against the kernel's RoCE")
	}
	control, err := net.Dial("tcp", at)
	require.NoError(t, err)
	defer control.Close()
	lines := bufio.NewReader(control)
	for _, c := range kernelCases {
		t.Run(c.name, func(t *testing.T) {
			k := newKernelPeer(t, c)
			ask := func(line string) string {
				_, err := fmt.Fprintln(control, line)
				require.NoError(t, err)
				answer := make(chan string, 1)
				go func() { // ends with the answer
					s, err := lines.ReadString('\n')
					if err != nil {
						s = err.Error()
					}
					answer <- strings.TrimSpace(s)
				}()
				end := time.Now().Add(30 * time.Second)
				for {
					select {
					case s := <-answer:
						return s
					default:
						require.True(t, time.Now().Before(end), "no answer to %q", line)
						k.turn()
					}
				}
			}
			k.talk(ask)
			s := k.qp.Stats()
			t.Logf("packets out %d in %d, CRCs of the kernel right %d wrong %d, sent again %d, NAKs received %d, sent %d, duplicates %d, gaps %d",
				k.sent, k.got+k.wrong, k.got, k.wrong, s.Retransmitted, s.NAKs, s.SentNAKs, s.Duplicates, s.Gaps)
			require.Zero(t, k.wrong, "CRCs of the kernel that are wrong")
			require.Equal(t, c.dropOut+c.corrupt > 0, s.Retransmitted > 0)
		})
	}
	_, err = fmt.Fprintln(control, "end")
	require.NoError(t, err)
}

// kernelBytes is what peer.c fills memory with.
func kernelBytes(n, stream int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*131 + stream*29 + (i>>8)*7)
	}
	return b
}

func newKernelPeer(t *testing.T, c kernelCase) *kernelPeer {
	k := &kernelPeer{t: t, c: c, me: netip.MustParseAddr("fd09::2"), peer: netip.MustParseAddr("fd09::1"), start: time.Now(), buf: make([]byte, 9200), domain: rc.NewDomain(0x1000), seen: map[rc.Opcode]bool{}}
	network := "udp6"
	if c.v4 {
		k.me, k.peer, network = netip.MustParseAddr("10.9.0.2"), netip.MustParseAddr("10.9.0.1"), "udp4"
	}
	var err error
	k.conn, err = net.ListenUDP(network, net.UDPAddrFromAddrPort(netip.AddrPortFrom(k.me, Port)))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, k.conn.Close()) })
	raw, err := k.conn.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		if c.v4 { // the kernel then writes identification 0
			err = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IP, syscall.IP_MTU_DISCOVER, syscall.IP_PMTUDISC_DO)
		} else { // the kernel's RoCE sends no UDP checksum
			err = unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_NO_CHECK6_RX, 1)
		}
	}))
	require.NoError(t, err)
	if c.v4 {
		k.raw, err = net.ListenIP("ip4:udp", &net.IPAddr{IP: k.me.AsSlice()})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, k.raw.Close()) })
	}
	k.qp, err = rc.NewQP(rc.Config{QPN: 0xabc, First: 0xfffffe, MTU: c.mtu, Domain: k.domain, MinTimeout: 20 * time.Millisecond, Window: 64})
	require.NoError(t, err)
	k.out = flow(netip.AddrPortFrom(k.me, Port), netip.AddrPortFrom(k.peer, Port))
	return k
}

// talk does every operation in both directions.
func (k *kernelPeer) talk(ask func(string) string) {
	t, c := k.t, k.c
	target, source := make([]byte, c.size), kernelBytes(c.size, 4)
	mine := k.domain.Register(1<<33, rc.RemoteRead|rc.RemoteWrite, target)
	gid, index := k.me.As16(), os.Getenv("KOLO_RXE_GID6")
	if c.v4 {
		index = os.Getenv("KOLO_RXE_GID4")
	}
	var qpn, psn, key uint32
	var va uint64
	var peerGID string
	answer := ask(fmt.Sprintf("case %d %s %d %d %d %d %d %d %s", c.mtu, index, 0xabc, 0xfffffe, mine.Key, mine.VA, c.size, c.count, hex.EncodeToString(gid[:])))
	_, err := fmt.Sscan(answer, &qpn, &psn, &key, &va, &peerGID)
	require.NoError(t, err, answer)
	k.qp.Connect(qpn, psn)
	inboxes := make([][]byte, c.count)
	for i := range inboxes {
		inboxes[i] = make([]byte, c.size)
		k.qp.PostReceive(uint64(i), rc.NewVector(inboxes[i]))
	}
	for i := range c.count {
		k.qp.Post(rc.Work{Kind: rc.Send, Data: rc.NewVector(kernelBytes(c.size, 10+i))})
	}
	k.wait(c.count)
	require.Equal(t, "ok", ask("recv"), "our SENDs")
	k.qp.Post(rc.Work{Kind: rc.Write, Data: rc.NewVector(kernelBytes(c.size, 1)), VA: va, Key: key})
	k.wait(1)
	require.Equal(t, "ok", ask("written"), "our WRITE")
	into := make([]byte, c.size)
	k.qp.Post(rc.Work{Kind: rc.Read, Data: rc.NewVector(into), VA: va + uint64(c.size), Key: key})
	k.wait(1)
	require.True(t, bytes.Equal(kernelBytes(c.size, 2), into), "our READ")
	require.Equal(t, "ok", ask("send"), "SENDs of the kernel")
	k.wait(c.count)
	for i := range inboxes {
		require.True(t, bytes.Equal(kernelBytes(c.size, 100+i), inboxes[i]), "message %d of the kernel", i)
	}
	require.Equal(t, "ok", ask("write"), "WRITE of the kernel")
	require.True(t, bytes.Equal(kernelBytes(c.size, 3), target), "WRITE of the kernel")
	copy(target, source)
	require.Equal(t, "ok", ask("read"), "READ of the kernel")
	if c.outside {
		require.Equal(t, "ok", ask("outside"), "the kernel hears of a remote access error")
		require.True(t, bytes.Equal(source, target), "nothing was written")
		require.Equal(t, rc.RemoteAccess, k.qp.Err())
	}
}

// wait waits for so many completions, which must be right.
func (k *kernelPeer) wait(n int) {
	end := time.Now().Add(30 * time.Second)
	for len(k.done) < n {
		require.True(k.t, time.Now().Before(end), "%d of %d completions, %+v", len(k.done), n, k.qp.Stats())
		k.turn()
	}
	for _, c := range k.done[:n] {
		require.Equal(k.t, rc.OK, c.Status)
	}
	k.done = k.done[n:]
}

// turn sends what may go, takes a packet if one comes in time, and looks at the clock.
func (k *kernelPeer) turn() {
	now := time.Since(k.start)
	k.qp.Tick(now)
	for {
		b := k.qp.Output(now, make([]byte, 0, 5000))
		if len(b) == 0 {
			break
		}
		b = k.out.Seal(b)
		k.sent++
		if k.c.dropOut > 0 && k.sent%k.c.dropOut == 0 {
			continue
		}
		if k.c.corrupt > 0 && k.sent%k.c.corrupt == 0 {
			b[len(b)-1] ^= 0x10
		}
		_, err := k.conn.WriteToUDPAddrPort(b, netip.AddrPortFrom(k.peer, Port))
		require.NoError(k.t, err)
	}
	if p, ok := k.packet(); ok {
		k.qp.Input(time.Since(k.start), &p)
	}
	for c, ok := k.qp.Next(); ok; c, ok = k.qp.Next() {
		if c.Status != rc.Flushed {
			k.done = append(k.done, c)
		}
	}
}

// packet reads one packet of the kernel.
func (k *kernelPeer) packet() (p rc.Packet, ok bool) {
	soon := time.Now().Add(5 * time.Millisecond)
	var b []byte
	if k.c.v4 {
		require.NoError(k.t, k.raw.SetReadDeadline(soon))
		ip, ok := k.rawPacket()
		if !ok {
			return p, false
		}
		udp := ip[int(ip[0]&15)*4:]
		if binary.BigEndian.Uint16(udp[2:]) != Port {
			return p, false
		}
		k.in = flow(netip.AddrPortFrom(k.peer, binary.BigEndian.Uint16(udp)), netip.AddrPortFrom(k.me, Port))
		k.in.ID4(binary.BigEndian.Uint16(ip[4:]))
		b = udp[8:]
		if op := rc.Opcode(b[0]); k.c.mtu == 256 && !k.seen[op] { // for rc/testdata/kernel.txt
			k.seen[op] = true
			k.t.Logf("kernel, %v: %x", op, ip)
		}
	} else {
		require.NoError(k.t, k.conn.SetReadDeadline(soon))
		n, from, err := k.conn.ReadFromUDPAddrPort(k.buf)
		if err != nil {
			require.True(k.t, errors.Is(err, os.ErrDeadlineExceeded), err)
			return p, false
		}
		k.in = flow(from, netip.AddrPortFrom(k.me, Port))
		b = k.buf[:n]
	}
	if k.c.dropIn > 0 && (k.got+1)%k.c.dropIn == 0 {
		k.got++ // seen and dropped
		return p, false
	}
	if !k.in.Sealed(b) {
		k.wrong++
		return p, false
	}
	k.got++
	p, err := rc.Parse(b)
	require.NoError(k.t, err)
	return p, p.QPN == 0xabc
}

// rawPacket reads a packet with its IP header, which ReadFrom would take away.
func (k *kernelPeer) rawPacket() ([]byte, bool) {
	raw, err := k.raw.SyscallConn()
	require.NoError(k.t, err)
	n := 0
	err = raw.Read(func(fd uintptr) bool {
		var err error
		n, err = syscall.Read(int(fd), k.buf)
		return err == nil
	})
	return k.buf[:max(n, 0)], err == nil
}
