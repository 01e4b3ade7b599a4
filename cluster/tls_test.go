package cluster

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/rank"

	"github.com/stretchr/testify/require"
)

// A dialler of the data port meets TLS there, with the certificate of the setting.
func TestTLSCoversTheDataPort(t *testing.T) {
	c := certificates(t)
	list := together(t, tlsWorld(t, c), 1, 1)
	defer closeAll(t, worldsOf(list))
	for _, p := range list {
		at := dataPort(t, p)
		conn, err := tls.Dial("tcp", at, c)
		require.NoError(t, err)
		require.NoError(t, conn.Close())
		stranger := &tls.Config{RootCAs: c.RootCAs, ServerName: c.ServerName} // without a certificate
		conn, err = tls.Dial("tcp", at, stranger)
		if err == nil { // with TLS 1.3 the refusal comes with the first read
			_, err = conn.Read(make([]byte, 1))
			require.NoError(t, conn.Close())
		}
		require.ErrorContains(t, err, "certificate required")
	}
}

// tlsWorld is a world over tcp under c.
func tlsWorld(t *testing.T, c *tls.Config) Config {
	r, err := Serve("127.0.0.1:0", c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return Config{Rendezvous: r.Address(), TLS: c, Transport: "tcp", Rank: rank.Config{Timeout: patience}}
}

// dataPort is where the tcp driver of a process listens.
func dataPort(t *testing.T, p *Process) string {
	for _, d := range p.drivers.drivers {
		if d.Link() == kolo.LinkTCP {
			b, err := d.(channel.Remote).Address()
			require.NoError(t, err)
			return net.JoinHostPort("127.0.0.1", strconv.Itoa(int(binary.LittleEndian.Uint16(b[9:]))))
		}
	}
	t.Fatal("no tcp driver")
	return ""
}

// No bytes of a tensor cross the loopback interface as they are; without TLS they do, and
// the listener sees them. The bytes are random, as others on the machine may run this test too.
func TestTLSHidesTheData(t *testing.T) {
	const count, tries = 5000, 20
	var noise [2][]int32
	for r := range noise {
		noise[r] = make([]int32, count)
		_, err := rand.Read(rank.Of(noise[r]).Memory.Host)
		require.NoError(t, err)
	}
	for name, c := range map[string]*tls.Config{"plain": nil, "tls": certificates(t)} {
		t.Run(name, func(t *testing.T) {
			worlds := worldsOf(together(t, tlsWorld(t, c), 1, 1))
			defer closeAll(t, worlds)
			heard := false
			for try := 0; try < tries && !heard; try++ { // the listener misses packets where others send too much
				var gather []error
				wire := eavesdrop(t, func() {
					gather = each(worlds, func(w *rank.World) error {
						return rank.AllGather(t.Context(), w.Group(), make([]int32, 2*count), noise[w.Rank()])
					})
				})
				require.NoError(t, errors.Join(gather...))
				if heard = overheard(wire, noise[0]) && overheard(wire, noise[1]); c != nil {
					require.False(t, overheard(wire, noise[0]) || overheard(wire, noise[1]))
					break
				}
			}
			require.Equal(t, c == nil, heard)
		})
	}
}

// overheard says whether pieces of a tensor, of 10 elements, have crossed a wire. One of
// them may lie across two packets.
func overheard(wire []byte, tensor []int32) bool {
	b := rank.Of(tensor).Memory.Host
	for at := 0; at+40 <= len(b); at += 4000 {
		if bytes.Contains(wire, b[at:at+40]) {
			return true
		}
	}
	return false
}

// A world under TLS has no driver that sends data off the host as it is.
func TestTLSRefusesDriversWithoutIt(t *testing.T) {
	channel.Register("plain wire", func(c channel.Config) (channel.Driver, error) { return channel.Open("tcp", c) })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	c := tlsWorld(t, certificates(t))
	c.Transport, c.Size, c.Ranks, c.Getenv = "plain wire", 1, allRanks(1), noEnv
	_, err := Join(ctx, c)
	require.ErrorIs(t, err, kolo.ErrArgument)
	require.ErrorContains(t, err, "plain wire")
	c.TLS = &tls.Config{}
	_, err = Join(ctx, c)
	require.ErrorIs(t, err, kolo.ErrArgument)
	require.ErrorContains(t, err, "no certificate")
}

// Without a ServerName the certificates must name the addresses that are dialled.
func TestTLSByAddress(t *testing.T) {
	c := certificates(t)
	c.ServerName = ""
	worlds := worldsOf(together(t, tlsWorld(t, c), 1, 1))
	for _, err := range each(worlds, func(w *rank.World) error { return allReduce(t.Context(), w.Group(), allRanks(2), 100) }) {
		require.NoError(t, err)
	}
	closeAll(t, worlds)
}
