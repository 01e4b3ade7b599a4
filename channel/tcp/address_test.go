package tcp

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/kolo-ccl/kolo"

	"github.com/stretchr/testify/require"
)

func prefixes(s ...string) (list []netip.Prefix) {
	for _, p := range s {
		list = append(list, netip.MustParsePrefix(p))
	}
	return list
}

func addrs(s ...string) (list []netip.Addr) {
	for _, a := range s {
		list = append(list, netip.MustParseAddr(a))
	}
	return list
}

// host is one with two networks, a bridge of containers, and an interface that is down.
func host() []nic {
	return []nic{
		{"lo", true, true, prefixes("127.0.0.1/8", "::1/128")},
		{"docker0", true, false, prefixes("172.17.0.1/16")},
		{"eth0", true, false, prefixes("fd00::5/64", "10.1.0.5/16", "fe80::1/64")},
		{"eth1", true, false, prefixes("192.168.7.5/24")},
		{"eth2", false, false, prefixes("10.9.0.5/16")},
	}
}

func TestChoiceOfAddresses(t *testing.T) {
	for name, c := range map[string]struct {
		c    Config
		want []netip.Addr
		why  string
	}{
		"all, bridges and loopback last": {Config{}, addrs("10.1.0.5", "192.168.7.5", "fd00::5", "172.17.0.1", "127.0.0.1", "::1"), "eth0, eth1"},
		"a prefix":                       {Config{Interfaces: "eth1"}, addrs("192.168.7.5", "127.0.0.1", "::1"), `"eth1"`},
		"two prefixes":                   {Config{Interfaces: "ib,eth"}, addrs("10.1.0.5", "192.168.7.5", "fd00::5", "127.0.0.1", "::1"), "eth0, eth1"},
		"exactly":                        {Config{Interfaces: "=eth0"}, addrs("10.1.0.5", "fd00::5", "127.0.0.1", "::1"), "eth0"},
		"all but":                        {Config{Interfaces: "^docker,eth1"}, addrs("10.1.0.5", "fd00::5", "127.0.0.1", "::1"), "eth0"},
		"a bridge that was asked for":    {Config{Interfaces: "docker0"}, addrs("172.17.0.1", "127.0.0.1", "::1"), "docker0"},
		"one address":                    {Config{IP: netip.MustParseAddr("192.168.7.5")}, addrs("192.168.7.5"), "HCCL_IF_IP"},
		"what is told":                   {Config{Advertise: addrs("203.0.113.9")}, addrs("203.0.113.9"), "Advertise"},
	} {
		known, why, err := choose(&c.c, host())
		require.NoError(t, err, name)
		require.Equal(t, c.want, known, name)
		require.Contains(t, why, c.why, name)
	}
	for _, none := range []string{"=eth", "ib0", "eth2", "^eth,docker"} {
		_, _, err := choose(&Config{Interfaces: none}, host())
		require.ErrorIs(t, err, kolo.ErrArgument, none)
		require.ErrorContains(t, err, "eth0", none)
	}
	known, why, err := choose(&Config{}, host()[:1])
	require.NoError(t, err)
	require.Equal(t, addrs("127.0.0.1", "::1"), known)
	require.Contains(t, why, "this host only")
}

func TestCandidates(t *testing.T) {
	known := addrs("10.1.0.5", "fd00::5", "172.17.0.1", "192.168.7.5", "127.0.0.1")
	a := &address{host: 1, port: 7, known: known}
	ips := func(list []netip.AddrPort) (out []netip.Addr) {
		for _, p := range list {
			require.Equal(t, uint16(7), p.Port())
			out = append(out, p.Addr())
		}
		return out
	}
	require.Equal(t, addrs("192.168.7.5", "10.1.0.5", "fd00::5", "172.17.0.1"), ips(a.candidates(2, prefixes("192.168.7.0/24"))), "another host: its network first, never loopback")
	require.Equal(t, addrs("127.0.0.1", "10.1.0.5", "fd00::5", "172.17.0.1", "192.168.7.5"), ips(a.candidates(1, nil)), "the same host: loopback first")
	require.Empty(t, (&address{host: 1, port: 7, known: addrs("127.0.0.1")}).candidates(2, nil))
}

func TestAddressesSurvive(t *testing.T) {
	a := &address{host: 1 << 63, port: 65535, known: addrs("10.1.0.5", "fd00::5")}
	b := a.encode()
	got, err := decodeAddress(b)
	require.NoError(t, err)
	require.Equal(t, a, got)
	for at := range b {
		if got, err := decodeAddress(b[:at]); err == nil { // an end between two addresses is one
			require.Less(t, len(got.known), len(a.known))
		}
	}
	many := &address{known: slices.Repeat(addrs("fd00::5"), maxAddresses)}
	require.LessOrEqual(t, len(many.encode()), 4096)
	many.known = append(many.known, many.known[0])
	_, err = decodeAddress(many.encode())
	require.ErrorIs(t, err, kolo.ErrArgument)
}

func FuzzAddress(f *testing.F) {
	f.Add((&address{host: 1, port: 2, known: addrs("10.1.0.5", "fd00::5")}).encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if a, err := decodeAddress(b); err == nil {
			require.Equal(t, b, a.encode())
			a.candidates(1, nil)
		}
	})
}

func TestConfigFromEnv(t *testing.T) {
	env := func(kv ...string) func(string) string {
		return func(k string) string {
			if i := slices.Index(kv, k); i >= 0 {
				return kv[i+1]
			}
			return ""
		}
	}
	c, err := ConfigFromEnv(env("HCCL_IF_IP", "10.0.0.1", "HCCL_CONNECT_TIMEOUT", "7"))
	require.NoError(t, err)
	require.Equal(t, "10.0.0.1", c.IP.String())
	require.Equal(t, "7s", c.ConnectTimeout.String())
	c, err = ConfigFromEnv(env("HCCL_SOCKET_IFNAME", "^docker"))
	require.NoError(t, err)
	require.Equal(t, "^docker", c.Interfaces)
	for _, bad := range [][]string{{"HCCL_IF_IP", "host"}, {"HCCL_CONNECT_TIMEOUT", "soon"}, {"HCCL_CONNECT_TIMEOUT", "0"},
		{"HCCL_IF_IP", "10.0.0.1", "HCCL_SOCKET_IFNAME", "eth0"}, {"HCCL_IF_IP", "0.0.0.0"}} {
		_, err := ConfigFromEnv(env(bad...))
		require.ErrorIs(t, err, kolo.ErrArgument, "%v", bad)
	}
}

func TestConfigsThatAreRefused(t *testing.T) {
	for _, c := range []Config{{Timeout: -1}, {Timeout: 1}, {Stripes: 17}, {Eager: 2 << 20}, {Window: 1}, {Buffer: -1},
		{Advertise: addrs("0.0.0.0")}, {Advertise: make([]netip.Addr, 65)}, {Interfaces: "eth0, eth1"}} {
		require.ErrorIs(t, c.Validate(), kolo.ErrArgument, "%+v", c)
	}
	require.NoError(t, Config{}.Validate())
}
