package tcp

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"fmt"
	"math/big"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// childVariable makes a run of the test program the other process of a test.
const childVariable = "KOLO_TCP_CHILD"

func TestMain(m *testing.M) {
	var size, stripes int
	var polls bool
	switch v := os.Getenv(childVariable); {
	case v == "":
	case v == "echo":
		child()
		return
	case scans(v, "trade %d %t %d", &size, &polls, &stripes):
		traderChild(size, polls, stripes)
		return
	case scans(v, "plain %d", &size):
		plainChild(size)
		return
	}
	goleak.VerifyTestMain(m)
}

func scans(v, format string, a ...any) bool {
	n, err := fmt.Sscanf(v, format, a...)
	return err == nil && n == len(a)
}

// child is rank 1: it says where it is, hears where rank 0 is, and answers its messages
// until it is killed.
func child() {
	w := channel.Config{Job: "process"}
	t := &crash{}
	p := newParty(t, 1, Config{}, w)
	mine, err := p.d.Address()
	require.NoError(t, err)
	fmt.Println(hex.EncodeToString(mine))
	line, err := bufio.NewReader(os.Stdin).ReadString('\n')
	require.NoError(t, err)
	theirs, err := hex.DecodeString(line[:len(line)-1])
	require.NoError(t, err)
	require.NoError(t, p.d.Meet([]channel.Peer{{Rank: 0, Address: theirs}, {Rank: 1, Address: mine}}))
	for i := uint64(0); ; i++ {
		b := make([]byte, 100_000)
		require.NoError(t, p.post(channel.Recv, 0, i, b).wait())
		require.NoError(t, p.post(channel.Send, 0, i, b).wait())
	}
}

// crash is a testing.TB whose failures end the process.
type crash struct{ testing.TB }

func (c *crash) Errorf(format string, a ...any) { fmt.Fprintf(os.Stderr, format, a...) }
func (c *crash) Fatalf(format string, a ...any) { panic(fmt.Sprintf(format, a...)) }
func (c *crash) FailNow()                       { panic("failed") }
func (c *crash) Helper()                        {}
func (c *crash) Cleanup(func())                 {}

func TestKilledProcess(t *testing.T) {
	p := newParty(t, 0, Config{}, channel.Config{Job: "process"})
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"=echo")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	killed := false
	kill := func() {
		if !killed {
			killed = true
			require.NoError(t, cmd.Process.Kill()) // SIGKILL
		}
	}
	t.Cleanup(func() {
		kill()
		_ = cmd.Wait() // it was killed
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	theirs, err := hex.DecodeString(line[:len(line)-1])
	require.NoError(t, err)
	mine, err := p.d.Address()
	require.NoError(t, err)
	require.NoError(t, p.d.Meet([]channel.Peer{{Rank: 0, Address: mine}, {Rank: 1, Address: theirs}}))
	_, err = fmt.Fprintln(in, hex.EncodeToString(mine))
	require.NoError(t, err)
	for i := range uint64(20) {
		b := make([]byte, 100_000)
		r := p.post(channel.Recv, 1, i, b)
		require.NoError(t, p.post(channel.Send, 1, i, bytesOf(len(b), int(i))).wait())
		require.NoError(t, r.wait())
		require.Equal(t, bytesOf(len(b), int(i)), b)
	}
	ops := []*move{p.post(channel.Recv, 1, 50, make([]byte, 10)), p.post(channel.View, 1, 51, make([]byte, 10)), p.post(channel.Send, 1, 52, make([]byte, 1<<20))}
	kill()
	for _, m := range ops {
		err := m.wait()
		require.ErrorIs(t, err, kolo.ErrLost)
		require.ErrorContains(t, err, "rank 0 to rank 1")
		require.NotContains(t, err.Error(), "timed out", "the kernel says that it has ended")
	}
	require.ErrorIs(t, p.post(channel.Send, 1, 53, []byte{1}).wait(), kolo.ErrLost)
}

// TLSOf makes the configuration of one end: its certificate is of one authority, and
// it believes another.
func TLSOf(t testing.TB, of, believes string) *tls.Config {
	own, trusted := authority(t, of), authority(t, believes)
	roots := x509.NewCertPool()
	roots.AddCert(trusted.cert)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(2), DNSNames: []string{"kolo"}, NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, own.cert, &key.PublicKey, own.key)
	require.NoError(t, err)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, RootCAs: roots, ClientCAs: roots,
		ClientAuth: tls.RequireAndVerifyClientCert, ServerName: "kolo"}
}

type signer struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// signers has the authority of each name.
var signers = map[string]*signer{}

func authority(t testing.TB, name string) *signer {
	if s := signers[name]; s != nil {
		return s
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	signers[name] = &signer{cert, key}
	return signers[name]
}

func TestTLSRefusesWhoIsNotSigned(t *testing.T) {
	w := channel.Config{Job: "test", Epoch: 3}
	a := newParty(t, 0, Config{TLS: TLSOf(t, "a", "a"), ConnectTimeout: 3 * time.Second}, w)
	b := newParty(t, 1, Config{TLS: TLSOf(t, "a", "a"), ConnectTimeout: 3 * time.Second}, w)
	forger := newParty(t, 2, Config{TLS: TLSOf(t, "b", "a"), ConnectTimeout: 3 * time.Second}, w)
	plain := newParty(t, 3, Config{ConnectTimeout: 3 * time.Second}, w)
	introduce(a, b, forger, plain)
	exchange(t, a, b, 1, 100)
	for _, p := range []*party{forger, plain} {
		err := p.post(channel.Send, 0, 1, []byte{1}).wait()
		require.ErrorIs(t, err, kolo.ErrLost)
		err = a.post(channel.Send, p.rank, 1, []byte{1}).wait()
		require.ErrorIs(t, err, kolo.ErrLost)
		require.ErrorContains(t, err, "TLS")
	}
	exchange(t, b, a, 2, 1<<20)
	_, err := Config{TLS: &tls.Config{}}.New(w)
	require.ErrorIs(t, err, kolo.ErrArgument)
}
