package roce_test

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo/channel/roce/rc"
	"github.com/kolo-ccl/kolo/internal/netlab"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Two hosts have no loopback in common, packets that really are cut, and path MTUs of the
// wire.
func TestTwoHosts(t *testing.T) {
	for _, mtu := range []int{1500, 9000} {
		for _, v6 := range []bool{true, false} {
			t.Run(fmt.Sprintf("MTU %d IPv6 %t", mtu, v6), func(t *testing.T) {
				if !v6 {
					t.Setenv(watchVariable, "1")
				}
				l := netlab.New(t, 2, netlab.Config{MTU: mtu, IPv6: v6})
				for i := range 2 {
					l.IP(i, "link", "set", "eth0", "gso_max_segs", "1") // the system must cut what it has not cut before
				}
				twoHosts(t, l)
			})
		}
	}
}

func twoHosts(t *testing.T, l *netlab.Lab) {
	var cs [2]*exec.Cmd
	var ins [2]io.WriteCloser
	var outs [2]*bufio.Reader
	for i := range cs {
		cs[i], ins[i], outs[i] = child(t, i, l.Prefix(i)...)
	}
	for i := range cs {
		for {
			line, err := outs[i].ReadString('\n')
			require.NoError(t, err)
			if strings.HasPrefix(line, "address ") {
				_, err := io.WriteString(ins[1-i], line)
				require.NoError(t, err)
				break
			}
		}
	}
	for i := range cs {
		rest, err := io.ReadAll(outs[i])
		require.NoError(t, err)
		require.NoError(t, cs[i].Wait(), "rank %d: %s", i, rest)
		t.Logf("rank %d: %s", i, rest)
	}
}

// watchVariable tells a child to look at the packets as they come over the wire.
const watchVariable = "KOLO_ROCE_TEST_WATCH"

// watchPackets looks at the IPv4 packets of this host, with their headers, and says in the
// end what is wrong with them: each must have the CRC of its own identification, as an
// adapter wants it; and some were cut from others, so that it is not 0.
func watchPackets(t *testing.T) (end func()) {
	if os.Getenv(watchVariable) == "" {
		return func() {}
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	require.NoError(t, err)
	require.NoError(t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 10_000}))
	stop, done := make(chan struct{}), make(chan struct{})
	var seen, numbered, wrong int
	go func() { // ended by end
		defer close(done)
		b := make([]byte, 1<<16)
		for {
			n, err := unix.Read(fd, b)
			if err != nil {
				select {
				case <-stop:
					return
				default:
					continue
				}
			}
			if n < 20+8+16 || b[0] != 0x45 {
				continue
			}
			f := rc.NewFlow4([4]byte(b[12:]), [4]byte(b[16:]), binary.BigEndian.Uint16(b[20:]), binary.BigEndian.Uint16(b[22:]))
			id := binary.BigEndian.Uint16(b[4:])
			f.ID4(id)
			seen++
			if id > 0 {
				numbered++
			}
			if !f.Sealed(b[28:n]) {
				wrong++
			}
		}
	}()
	return func() {
		close(stop)
		<-done
		require.NoError(t, unix.Close(fd))
		t.Logf("%d packets, %d with an identification, %d with another CRC", seen, numbered, wrong)
		require.Positive(t, numbered, "none of %d was cut from others", seen)
		require.Zero(t, wrong)
	}
}

// Two hosts whose network loses packets, or is far, exchange everything all the same.
func TestTwoHostsOnABadNetwork(t *testing.T) {
	for _, c := range []struct {
		permille int // of packets that are lost
		cfg      netlab.Config
	}{
		{1, netlab.Config{MTU: 9000, IPv6: true}}, {10, netlab.Config{MTU: 9000, IPv6: true}}, {50, netlab.Config{MTU: 9000, IPv6: true}},
		{10, netlab.Config{MTU: 9000}}, {0, netlab.Config{IPv6: true, Delay: 2 * time.Millisecond}},
	} {
		t.Run(fmt.Sprintf("%d permille lost, %v, IPv6 %t", c.permille, c.cfg.Delay, c.cfg.IPv6), func(t *testing.T) {
			l := netlab.New(t, 2, c.cfg)
			if c.permille > 0 {
				for i := range 2 {
					l.IP(i, "link", "set", "eth0", "gso_max_segs", "1")
				}
				l.Loss(c.permille)
			}
			twoHosts(t, l)
		})
	}
}
