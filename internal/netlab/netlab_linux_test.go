package netlab

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// What this binary is on a host: a server of one connection at an address, or its client.
// The client's trips are many, as a busy machine may not let both run at once.
const (
	echoVariable = "KOLO_NETLAB_ECHO"
	dialVariable = "KOLO_NETLAB_DIAL"
	trips        = 20
)

func TestMain(m *testing.M) {
	var err error
	switch {
	case os.Getenv(echoVariable) != "":
		err = echo(os.Getenv(echoVariable))
	case os.Getenv(dialVariable) != "":
		err = dial(os.Getenv(dialVariable))
	default:
		goleak.VerifyTestMain(m)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// echo listens, says so, and gives back what comes, byte by byte.
func echo(at string) error {
	l, err := net.Listen("tcp", at)
	if err != nil {
		return err
	}
	fmt.Println("listening")
	c, err := l.Accept()
	if err != nil {
		return err
	}
	for err == nil {
		_, err = io.CopyN(c, c, 1)
	}
	if err == io.EOF {
		err = nil
	}
	return err
}

// dial says how long a byte takes there and back at the least.
func dial(at string) error {
	c, err := net.DialTimeout("tcp", at, 2*time.Second)
	if err != nil {
		return err
	}
	least := time.Hour
	for i := 0; i < trips && err == nil; i++ {
		begin := time.Now()
		if _, err = c.Write([]byte{1}); err == nil {
			_, err = c.Read(make([]byte, 1))
		}
		least = min(least, time.Since(begin))
	}
	fmt.Println(least)
	return err
}

// trip is how long a byte takes from host 0 to host 1 and back at the least.
func trip(t *testing.T, l *Lab) time.Duration {
	server := l.Command(1, os.Args[0])
	server.Env = append(os.Environ(), echoVariable+"="+l.Join(1, 7))
	out, err := server.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, server.Start())
	defer func() {
		_ = server.Process.Kill() // it may have ended
		_ = server.Wait()
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "listening\n", line)
	client := l.Command(0, os.Args[0])
	client.Env = append(os.Environ(), dialVariable+"="+l.Join(1, 7))
	b, err := client.CombinedOutput()
	require.NoError(t, err, "%s", b)
	d, err := time.ParseDuration(strings.TrimSpace(string(b)))
	require.NoError(t, err)
	return d
}

func TestDelayIsThereAndBack(t *testing.T) {
	const delay = 20 * time.Millisecond
	for _, v6 := range []bool{false, true} {
		d := trip(t, New(t, 2, Config{Delay: delay, IPv6: v6}))
		require.Greater(t, d, 2*delay)
		require.Less(t, d, 2*delay+time.Second)
		require.Less(t, trip(t, New(t, 2, Config{IPv6: v6})), 2*delay, "a switch")
	}
}

// A host that is cut off is not reached, and there is no error either but the dialler's.
func TestCut(t *testing.T) {
	l := New(t, 2, Config{})
	l.Cut(1)
	c := l.Command(0, os.Args[0])
	c.Env = append(os.Environ(), dialVariable+"="+l.Join(1, 7))
	b, err := c.CombinedOutput()
	require.Error(t, err)
	require.Regexp(t, "timeout|no route to host", string(b))
}

func TestDestination(t *testing.T) {
	four, six := make([]byte, 20), make([]byte, 40)
	four[0], six[0] = 0x45, 0x60
	copy(four[16:], []byte{10, 77, 0, 2})
	six[24], six[39] = 0xfd, 2
	require.Equal(t, netip.MustParseAddr("10.77.0.2"), destination(four))
	require.Equal(t, netip.MustParseAddr("fd00::2"), destination(six))
	for _, b := range [][]byte{four, six} {
		for n := range b {
			require.False(t, destination(b[:n]).IsValid())
		}
	}
}

// What is alone sees a loopback and no more.
func TestAlone(t *testing.T) {
	if !Alone(t) {
		return
	}
	list, err := net.Interfaces()
	require.NoError(t, err)
	for _, i := range list {
		require.Zero(t, i.Flags&net.FlagUp, i.Name)
	}
}
