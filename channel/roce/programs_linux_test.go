package roce

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo/channel/roce/rc"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestPeerPrograms has programs of others as peers, on the kernel's RoCE: our end speaks
// their exchange over TCP. ibv_rc_pingpong is of rdma-core, ib_write_bw and ib_read_bw
// are of perftest. Our sockets are in the network namespace of KOLO_RXE_NAMESPACE (a
// file). It runs in the machine of make rxe-vm.
func TestPeerPrograms(t *testing.T) {
	space := os.Getenv("KOLO_RXE_NAMESPACE")
	if space == "" {
		t.Skip("KOLO_RXE_NAMESPACE is not set; make rxe-vm runs this test")
	}
	for i, c := range []struct {
		name string
		talk func(p *program)
	}{
		{"ibv_rc_pingpong, which answers", (*program).answersPings},
		{"ibv_rc_pingpong, which asks", (*program).asks},
		{"ib_write_bw, written to by us", (*program).isWritten},
		{"ib_write_bw, which writes", (*program).writes},
		{"ib_read_bw, read by us", (*program).isRead},
		{"ib_read_bw, which reads", (*program).reads},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := &program{t: t, port: strconv.Itoa(18600 + i)}
			there(t, space, func() {
				p.k = newKernelPeer(t, kernelCase{mtu: 1024, size: programSize, count: 20})
				var err error
				p.listener, err = net.Listen("tcp4", "10.9.0.2:"+p.port)
				require.NoError(t, err)
			})
			t.Cleanup(func() { _ = p.listener.Close() }) // it may be closed
			p.dial = func() (c net.Conn, err error) {
				there(t, space, func() { c, err = net.Dial("tcp4", "10.9.0.1:"+p.port) })
				return c, err
			}
			c.talk(p)
			s := p.k.qp.Stats()
			t.Logf("packets out %d in %d, CRCs of the kernel wrong %d, sent again %d", p.k.sent, p.k.got, p.k.wrong, s.Retransmitted)
			require.Zero(t, p.k.wrong)
		})
	}
}

// there runs f in another network namespace, in which the sockets that it makes stay.
func there(t *testing.T, space string, f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var fds [2]int
	for i, name := range []string{"/proc/thread-self/ns/net", space} {
		fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		require.NoError(t, err)
		defer unix.Close(fd)
		fds[i] = fd
	}
	require.NoError(t, unix.Setns(fds[1], unix.CLONE_NEWNET))
	defer func() { require.NoError(t, unix.Setns(fds[0], unix.CLONE_NEWNET)) }()
	f()
}

const (
	programSize  = 10_001 // bytes of a message
	programTimes = 20
	keySize      = 108 // of perftest's keys
)

// program is a conversation with one.
type program struct {
	t        *testing.T
	k        *kernelPeer
	port     string
	listener net.Listener
	dial     func() (net.Conn, error)
	cmd      *exec.Cmd
	out      bytes.Buffer
	conn     net.Conn
	client   bool // our part over TCP
	qpn, psn uint32
	key      uint32 // of the peer's memory
	va       uint64
}

// start runs the program. If we are the client it is given no address, and waited for.
func (p *program) start(client bool, name string, args ...string) {
	t := p.t
	p.client = client
	if !client {
		args = append(args, "10.9.0.2")
	}
	p.cmd = exec.CommandContext(t.Context(), name, args...)
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	require.NoError(t, p.cmd.Start())
	t.Cleanup(func() { _ = p.conn.Close() }) // it may be closed
	end := time.Now().Add(60 * time.Second)
	var err error
	if !client {
		require.NoError(t, p.listener.(*net.TCPListener).SetDeadline(end))
		p.conn, err = p.listener.Accept()
		require.NoError(t, err, "%s", &p.out)
		return
	}
	for p.conn, err = p.dial(); err != nil; p.conn, err = p.dial() {
		require.True(t, time.Now().Before(end), "%v %s", err, &p.out)
		p.k.turn() // some milliseconds
	}
}

// end waits for the program, which must be content.
func (p *program) end() {
	done := make(chan error, 1)
	go func() { done <- p.cmd.Wait() }() // ends with the program, which the test's context ends
	end := time.Now().Add(60 * time.Second)
	for {
		select {
		case err := <-done:
			require.NoError(p.t, err, "%s", &p.out)
			p.t.Logf("%s", &p.out)
			return
		default:
			require.True(p.t, time.Now().Before(end), "the program does not end")
			p.k.turn()
		}
	}
}

// hear reads n bytes of the exchange while packets go on.
func (p *program) hear(n int) []byte {
	b, done := make([]byte, n), make(chan error, 1)
	require.NoError(p.t, p.conn.SetReadDeadline(time.Now().Add(60*time.Second)))
	go func() { // ends with the bytes or the deadline
		_, err := io.ReadFull(p.conn, b)
		done <- err
	}()
	for {
		select {
		case err := <-done:
			if err != nil {
				_ = p.cmd.Wait() // for what it has said
			}
			require.NoError(p.t, err, "%d bytes of the exchange: %s", n, &p.out)
			return b
		default:
			p.k.turn()
		}
	}
}

func (p *program) say(b []byte) {
	_, err := p.conn.Write(b)
	require.NoError(p.t, err)
}

// swap gives the program b and takes as many bytes of it: the client speaks first.
func (p *program) swap(b []byte) []byte {
	if p.client {
		p.say(b)
		return p.hear(len(b))
	}
	got := p.hear(len(b))
	p.say(b)
	return got
}

// pingpong makes the exchange of rdma-core's examples: LID:QPN:PSN:GID, and "done".
func (p *program) pingpong(client bool, args ...string) {
	p.start(client, "ibv_rc_pingpong", append([]string{"-d", "rxe0", "-g", os.Getenv("KOLO_RXE_GID6"), "-p", p.port, "-c",
		"-s", strconv.Itoa(programSize), "-n", strconv.Itoa(programTimes), "-m", "1024"}, args...)...)
	gid := p.k.me.As16()
	line := string(p.swap(fmt.Appendf(nil, "%04x:%06x:%06x:%s\x00", 0, 0xabc, 0xfffffe, hex.EncodeToString(gid[:]))))
	var lid uint32
	_, err := fmt.Sscanf(line, "%x:%x:%x:", &lid, &p.qpn, &p.psn)
	require.NoError(p.t, err, "%q", line)
	require.Equal(p.t, p.k.peer.As16(), [16]byte(unhex(p.t, line[19:51])))
	p.k.qp.Connect(p.qpn, p.psn)
}

func unhex(t *testing.T, s string) []byte {
	b, err := hex.DecodeString(s)
	require.NoError(t, err)
	return b
}

// ping is message i: with -c the program wants a zero at the begin of each page.
func ping(i int) []byte {
	b := kernelBytes(programSize, i)
	for at := 0; at < len(b); at += 4096 {
		b[at] = 0
	}
	return b
}

// The program sends from the memory it receives to: it is an echo.
func (p *program) answersPings() {
	p.pingpong(true)
	into := make([]byte, programSize)
	for i := range programTimes {
		p.k.qp.PostReceive(0, rc.NewVector(into))
		if i == 0 {
			p.say([]byte("done\x00"))
		}
		p.k.qp.Post(rc.Work{Kind: rc.Send, Data: rc.NewVector(ping(i))})
		p.k.wait(2)
		require.True(p.t, bytes.Equal(ping(i), into), "message %d", i)
	}
	p.end()
}

func (p *program) asks() {
	into := make([]byte, programSize)
	p.k.qp.PostReceive(0, rc.NewVector(into))
	p.pingpong(false)
	require.Equal(p.t, "done\x00", string(p.hear(5)))
	for i := range programTimes {
		p.k.wait(1)
		want := bytes.Repeat([]byte{0x7b}, programSize)
		if i > 0 {
			want = ping(i - 1)
		} else {
			for at := 0; at < len(want); at += 4096 {
				want[at] = 0
			}
		}
		require.True(p.t, bytes.Equal(want, into), "message %d", i)
		if i < programTimes-1 {
			p.k.qp.PostReceive(0, rc.NewVector(into))
		}
		p.k.qp.Post(rc.Work{Kind: rc.Send, Data: rc.NewVector(ping(i))})
		p.k.wait(1)
	}
	p.end()
}

// perftest makes the exchange of perftest: versions, sizes of pages and cache lines, the
// path MTU, then the keys, and the keys again each time that both are ready.
func (p *program) perftest(client bool, name string, region *rc.Region) {
	p.start(client, name, "-d", "rxe0", "-x", os.Getenv("KOLO_RXE_GID6"), "-p", p.port, "-F", "-m", "1024", "-s", strconv.Itoa(programSize), "-n", strconv.Itoa(programTimes))
	version := make([]byte, 16)
	copy(version, "6.06")
	p.t.Logf("version %q", bytes.TrimRight(p.swap(version), "\x00"))
	p.swap(binary.BigEndian.AppendUint32(nil, 4096))
	p.swap(binary.BigEndian.AppendUint32(nil, 64))
	mtu := p.swap([]byte("3\x00")) // IBV_MTU_1024
	require.Equal(p.t, "3", string(mtu[:1]))
	p.keys(region)
	p.k.qp.Connect(p.qpn, p.psn)
	for range 2 { // ready to receive, ready to begin
		p.keys(region)
	}
	p.t.Logf("QPN %#x PSN %#x key %#x address %#x", p.qpn, p.psn, p.key, p.va)
}

// keys swaps LID:reads:QPN:PSN:key:address:GID:SRQ.
func (p *program) keys(region *rc.Region) {
	gid := p.k.me.As16()
	b := fmt.Appendf(nil, "%04x:%04x:%06x:%06x:%08x:%016x:", 0, 1, 0xabc, 0xfffffe, region.Key, region.VA)
	for _, x := range gid {
		b = fmt.Appendf(b, "%02x:", x)
	}
	b = fmt.Appendf(b, "%08x:\x00", 0)
	require.Len(p.t, b, keySize)
	f := strings.Split(string(p.swap(b)), ":")
	require.Greater(p.t, len(f), 22)
	require.Equal(p.t, p.k.peer.As16(), [16]byte(unhex(p.t, strings.Join(f[6:22], ""))))
	number := func(s string) uint64 {
		n, err := strconv.ParseUint(s, 16, 64)
		require.NoError(p.t, err)
		return n
	}
	p.qpn, p.psn, p.key, p.va = uint32(number(f[2])), uint32(number(f[3])), uint32(number(f[4])), number(f[5])
}

// close ends the exchange: we are done, five numbers of the report, and goodbye.
func (p *program) close(region *rc.Region) {
	p.keys(region)
	for range 5 {
		p.swap(make([]byte, 8))
	}
	p.keys(region)
	p.end()
}

func (p *program) isWritten() {
	region := p.k.domain.Register(1<<33, rc.RemoteWrite, make([]byte, 1<<16))
	p.perftest(true, "ib_write_bw", region)
	for i := range programTimes {
		p.k.qp.Post(rc.Work{Kind: rc.Write, Data: rc.NewVector(kernelBytes(programSize, i)), VA: p.va, Key: p.key})
	}
	p.k.wait(programTimes)
	p.close(region)
}

func (p *program) writes() {
	memory := make([]byte, 1<<16)
	region := p.k.domain.Register(1<<33, rc.RemoteWrite, memory)
	start := time.Now()
	p.perftest(false, "ib_write_bw", region)
	p.close(region)
	p.random(start, memory[:programSize])
	require.Equal(p.t, make([]byte, 1<<16-programSize), memory[programSize:], "nothing more is written")
}

func (p *program) isRead() {
	region := p.k.domain.Register(1<<33, rc.RemoteWrite, make([]byte, 1<<16))
	start := time.Now()
	p.perftest(true, "ib_read_bw", region)
	for range programTimes {
		into := make([]byte, programSize)
		p.k.qp.Post(rc.Work{Kind: rc.Read, Data: rc.NewVector(into), VA: p.va, Key: p.key})
		p.k.wait(1)
		p.random(start, into)
	}
	p.close(region)
}

// reads has the program read; it does not look at what, so the packets' number counts.
func (p *program) reads() {
	region := p.k.domain.Register(1<<33, rc.RemoteRead, kernelBytes(1<<16, 3))
	p.perftest(false, "ib_read_bw", region)
	p.close(region)
	require.GreaterOrEqual(p.t, p.k.sent, programTimes*((programSize+1023)/1024), "responses")
}

// random says whether the data is what perftest fills its memory with: the low bytes of
// rand, after srand with the time.
func (p *program) random(start time.Time, data []byte) {
	for seed := start.Unix() - 2; seed <= time.Now().Unix()+2; seed++ {
		stream := cRandom(uint32(seed), 1<<17)
		if i := bytes.Index(stream, data[:16]); i >= 0 && bytes.HasPrefix(stream[i:], data) {
			return
		}
	}
	require.Fail(p.t, "the data is not of the program", "%x...", data[:64])
}

// cRandom is the low bytes of n numbers of the C library's rand (glibc's additive
// feedback generator, TYPE_3).
func cRandom(seed uint32, n int) []byte {
	r := make([]int32, 34, n+344)
	r[0] = int32(max(seed, 1))
	for i := 1; i < 31; i++ {
		r[i] = int32(int64(r[i-1]) * 16807 % 2147483647)
		if r[i] < 0 {
			r[i] += 2147483647
		}
	}
	for i := 31; i < 34; i++ {
		r[i] = r[i-31]
	}
	for i := 34; i < n+344; i++ {
		r = append(r, r[i-31]+r[i-3])
	}
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(uint32(r[i+344]) >> 1)
	}
	return b
}

// cRandom is checked with numbers that a C program has printed.
func TestCRandom(t *testing.T) {
	var want []byte
	for _, n := range []uint32{1804289383, 846930886, 1681692777, 1714636915, 1957747793} { // srand(1)
		want = append(want, byte(n))
	}
	require.Equal(t, want, cRandom(1, 5))
}
