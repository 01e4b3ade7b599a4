package roce

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"
	"github.com/kolo-ccl/kolo/channel/roce/rc"

	"github.com/stretchr/testify/require"
)

// records is one of each kind.
func records() []record {
	k := channel.Key{Group: 1<<63 + 1, Call: 1<<62 + 2, Class: channel.Message, Lane: 200, Number: 1<<31 + 3}
	return []record{
		{kind: recordEager, id: 7, key: k, dtype: kolo.Float32, size: 5, digest: 1 << 60, data: []byte("hello")},
		{kind: recordEager, id: 8, key: k, data: []byte{}},
		{kind: recordOffer, id: 9, key: k, dtype: kolo.Int8, size: 1 << 40, digest: 3, stripes: 32},
		{kind: recordTake, id: 1 << 31, slot: 77, places: []place{{0, 1 << 40, 0xdeadbeef}}},
		{kind: recordTake, id: 10, slot: 78},
		{kind: recordTake, id: 11, slot: 79, places: []place{{1 << 63, 1, 2}, {3, 4, 1 << 31}}},
		{kind: recordTaken, id: 12},
		{kind: recordRefuse, id: 13, dtype: kolo.Int8, size: 99, digest: 1 << 50},
		{kind: recordCancel, id: 14},
		{kind: recordCredit, id: 1 << 17},
		{kind: recordFin, id: 4, data: []byte("gone")},
	}
}

func (r *record) bytes() []byte {
	b := r.append(nil)
	if r.kind == recordEager {
		b = append(b, r.data...)
	}
	return b
}

func TestRecords(t *testing.T) {
	var all []byte
	for _, r := range records() {
		b := r.bytes()
		for n := range len(b) { // cut at every byte
			_, _, err := parseRecord(b[:n])
			require.ErrorIs(t, err, errRecord)
		}
		all = append(all, b...)
	}
	for _, want := range records() {
		got, rest, err := parseRecord(all)
		require.NoError(t, err)
		if want.data == nil {
			want.data = []byte{}
		}
		require.Equal(t, want, got)
		all = rest
	}
	require.Empty(t, all)
	long := record{kind: recordFin, data: []byte(strings.Repeat("x", 1000))}
	got, _, err := parseRecord(long.append(nil))
	require.NoError(t, err)
	require.Len(t, got.data, maxReason)
}

func FuzzRecord(f *testing.F) {
	for _, r := range records() {
		f.Add(r.bytes())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, rest, err := parseRecord(b)
		if err != nil {
			require.ErrorIs(t, err, errRecord)
			return
		}
		again, more, err := parseRecord(append(r.bytes(), rest...))
		require.NoError(t, err)
		require.Equal(t, r, again)
		require.Equal(t, len(rest), len(more))
	})
}

// hellos is one of each kind.
func hellos() []hello {
	return []hello{
		{kind: helloMine, done: true, adapter: true, job: 1 << 63, epoch: 2, from: 3, to: 4, nonce: 5, seen: 6, window: 1 << 20, mtu: 4096,
			qps: []qpAddress{{0x112233, 0xffffff}, {17, 0}}},
		{kind: helloWait, job: 1, from: 1 << 40, to: 0, seen: 9},
		{kind: helloReject, job: 1, seen: 9, reason: "the rank has closed all its links"},
	}
}

func TestHellos(t *testing.T) {
	for _, want := range hellos() {
		packet := want.packet()
		got, err := parseHello(&packet)
		require.NoError(t, err)
		require.Equal(t, want, got)
		for n := range len(packet.Payload) { // cut at every byte
			p := packet
			p.Payload = p.Payload[:n]
			_, err := parseHello(&p)
			require.ErrorIs(t, err, errRecord)
		}
		packet.QKey++
		_, err = parseHello(&packet)
		require.ErrorIs(t, err, errRecord)
	}
}

func FuzzHello(f *testing.F) {
	for _, h := range hellos() {
		p := h.packet()
		f.Add(p.Payload)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := parseHello(&rc.Packet{Op: rc.Datagram, QKey: controlKey, Payload: b})
		if err != nil {
			require.ErrorIs(t, err, errRecord)
			return
		}
		p := h.packet()
		again, err := parseHello(&p)
		require.NoError(t, err)
		require.Equal(t, h, again)
	})
}

func TestAddress(t *testing.T) {
	d, err := New(channel.Config{Job: "a"}, Config{})
	require.NoError(t, err)
	defer func() { require.NoError(t, d.Close()) }()
	b, err := d.Address()
	require.NoError(t, err)
	a, err := parseAddress(b)
	require.NoError(t, err)
	require.Equal(t, d.host, a.host)
	require.True(t, a.ports[0].Addr().IsLoopback())
	for n := range len(b) { // cut at every byte
		_, err := parseAddress(b[:n])
		require.ErrorIs(t, err, kolo.ErrArgument)
		require.ErrorIs(t, d.Meet([]channel.Peer{{Rank: 3, Address: b[:n]}}), kolo.ErrArgument)
	}
	_, _, err = d.route(0)
	require.NoError(t, err, "before Meet, all ranks are here")
	a.host[0]++ // another host
	d.peers[1] = a
	d.met = true
	p, to, err := d.route(1)
	if len(d.ports) > 1 {
		require.NoError(t, err)
		require.Equal(t, a.ports[1], to)
		require.Equal(t, d.ports[1], p)
	} else {
		require.ErrorIs(t, err, kolo.ErrLost)
	}
	_, _, err = d.route(2)
	require.ErrorIs(t, err, kolo.ErrLost)
}

func FuzzAddress(f *testing.F) {
	f.Add(append([]byte{addressVersion, 1}, make([]byte, 34)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := parseAddress(b)
		if err == nil {
			require.NotEmpty(t, a.ports)
			require.NotZero(t, a.ports[0].Port())
		}
	})
}

func TestConfigFromEnv(t *testing.T) {
	env := map[string]string{"HCCL_IF_IP": "fd00::7", "HCCL_RDMA_TC": "100", "HCCL_RDMA_TIMEOUT": "14", "HCCL_RDMA_RETRY_CNT": "3",
		"HCCL_RDMA_QPS_PER_CONNECTION": "4", "HCCL_MULTI_QP_THRESHOLD": "64"}
	c, err := ConfigFromEnv(func(n string) string { return env[n] })
	require.NoError(t, err)
	require.Equal(t, Config{Addr: netip.MustParseAddr("fd00::7"), TrafficClass: 100, Timeout: 4096 << 14, Retries: 3, QPs: 4, MultiQP: 64 << 10}, c)
	c, err = ConfigFromEnv(func(n string) string { return map[string]string{"HCCL_RDMA_TC": "0"}[n] })
	require.NoError(t, err)
	require.Zero(t, c.withDefaults().TrafficClass)
	require.Equal(t, DefaultTrafficClass, new(Config).withDefaults().TrafficClass)
	for name, value := range map[string]string{"HCCL_IF_IP": "here", "HCCL_RDMA_TC": "101", "HCCL_RDMA_TIMEOUT": "21", "HCCL_RDMA_RETRY_CNT": "8",
		"HCCL_RDMA_QPS_PER_CONNECTION": "33", "HCCL_MULTI_QP_THRESHOLD": "-1"} {
		_, err := ConfigFromEnv(func(n string) string { return map[string]string{name: value}[n] })
		require.ErrorIs(t, err, kolo.ErrArgument, "%s=%s", name, value)
	}
	for _, c := range []Config{{MTU: 1500}, {QPs: 40}, {Window: -1}} {
		_, err := New(channel.Config{}, c)
		require.ErrorIs(t, err, kolo.ErrArgument)
	}
}

func TestPathMTU(t *testing.T) {
	for link, want := range map[int]int{65536: 4096, 9000: 4096, 4200: 4096, 4100: 2048, 1500: 1024, 1400: 1024, 1280: 1024, 1100: 512, 576: 256, 68: 256} {
		require.Equal(t, want, pathMTU(link, 0), "MTU %d", link)
	}
	require.Equal(t, 512, pathMTU(9000, 512))
}
