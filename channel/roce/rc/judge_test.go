package rc

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// run runs an outside program for a while.
func run(t *testing.T, stdin, name string, args ...string) string {
	t.Helper()
	c := exec.CommandContext(t.Context(), name, args...)
	c.WaitDelay = time.Second
	c.Stdin = strings.NewReader(stdin)
	var out, complaint bytes.Buffer
	c.Stdout, c.Stderr = &out, &complaint
	require.NoError(t, c.Run(), "%s: %s", name, complaint.String())
	return out.String()
}

// scapyJudge prints for each packet, one a line in hexadecimal, the CRC that it has
// and the one that scapy computes.
const scapyJudge = `
import sys
sys.path.append('/usr/lib/python3/dist-packages')
try:
    from scapy.layers.inet import IP
    from scapy.contrib.roce import BTH
except ImportError as e:
    print('absent', e)
    sys.exit(0)
for line in sys.stdin:
    p = IP(bytes.fromhex(line))
    q = p.copy()
    q[BTH].icrc = None
    print(p[BTH].icrc, IP(bytes(q))[BTH].icrc)
`

// scapy's RoCE layer, where installed, agrees with every CRC over IPv4 and sees a
// corrupted one. It does not speak IPv6.
func TestScapyAgreesOnCRCs(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("no python3")
	}
	var in strings.Builder
	list := examples()
	for i, p := range list {
		b := ipv4(p.Append(nil), 0xc000+uint16(i), uint16(77*i))
		fmt.Fprintln(&in, hex.EncodeToString(b))
		b[len(b)-1-i%4] ^= 0x40
		fmt.Fprintln(&in, hex.EncodeToString(b))
	}
	out := run(t, in.String(), "python3", "-c", scapyJudge)
	if strings.HasPrefix(out, "absent") {
		t.Skipf("no scapy with its RoCE layer: %s", out)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.Len(t, lines, 2*len(list))
	for i, line := range lines {
		has, computed, ok := strings.Cut(line, " ")
		require.True(t, ok, line)
		require.Equal(t, i%2 == 0, has == computed, "%v: it has %s, scapy computes %s", list[i/2].Op, has, computed)
	}
}

// plainJudge is the CRC over IPv6 as the specification's annex A17 describes it, written
// with zlib only.
const plainJudge = `
import sys, zlib
for line in sys.stdin:
    p = bytearray.fromhex(line)
    crc = p[-4:]
    del p[-4:]
    for i in (0, 1, 2, 3, 7, 46, 47, 52):  # class, flow label; hop limit; UDP checksum; congestion marks
        p[i] = 0xff if i else 0x6f
    print(int.from_bytes(crc, 'little'), zlib.crc32(b'\xff' * 8 + bytes(p)))
`

func TestPlainCRCOverIPv6(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("no python3")
	}
	var in strings.Builder
	for i, p := range examples() {
		fmt.Fprintln(&in, hex.EncodeToString(ipv6(p.Append(nil), 0xc000+uint16(i))))
	}
	for _, line := range strings.Split(strings.TrimSpace(run(t, in.String(), "python3", "-c", plainJudge)), "\n") {
		has, computed, _ := strings.Cut(line, " ")
		require.Equal(t, computed, has)
	}
}

// tsharkFields are what tshark is asked for.
var tsharkFields = []string{"bth.opcode", "bth.se", "bth.m", "bth.padcnt", "bth.tver", "bth.p_key", "bth.destqp", "bth.a", "bth.psn",
	"reth.va", "reth.r_key", "reth.dmalen", "aeth.syndrome", "aeth.msn", "immdt", "deth.q_key", "deth.srcqp", "invariant.crc"}

// tshark, where installed, decodes the fields of each opcode as they were written.
func TestTsharkDecodesFields(t *testing.T) {
	if _, err := exec.LookPath("tshark"); err != nil {
		t.Skip("no tshark")
	}
	list := examples()
	capture := pcapHeader()
	var packets [][]byte
	for i, p := range list {
		for _, b := range [][]byte{ipv6(p.Append(nil), 0xc000+uint16(i)), ipv4(p.Append(nil), 0xc000+uint16(i), uint16(i))} {
			capture = pcapRecord(capture, b)
			packets = append(packets, b)
		}
	}
	file := filepath.Join(t.TempDir(), "a.pcap")
	require.NoError(t, os.WriteFile(file, capture, 0o600))
	args := []string{"-r", file, "--disable-protocol", "rpcordma", "-T", "fields", "-E", "separator=;"}
	for _, f := range tsharkFields {
		args = append(args, "-e", "infiniband."+f)
	}
	lines := strings.Split(strings.TrimRight(run(t, "", "tshark", args...), "\n"), "\n")
	require.Len(t, lines, len(packets))
	for i, line := range lines {
		p := &list[i/2]
		got := map[string]string{}
		for k, v := range strings.Split(line, ";") {
			got[tsharkFields[k]] = v
		}
		require.Equal(t, wanted(p, packets[i]), numbers(t, got), "%v: %s", p.Op, line)
	}
}

// wanted is what tshark should find in a packet.
func wanted(p *Packet, b []byte) map[string]uint64 {
	s := shapes[p.Op]
	truth := map[bool]uint64{true: 1}
	want := map[string]uint64{"bth.opcode": uint64(p.Op), "bth.se": truth[p.Solicited], "bth.m": 1, "bth.padcnt": uint64(padding(len(p.Payload))),
		"bth.tver": 0, "bth.p_key": uint64(p.PKey), "bth.destqp": uint64(p.QPN), "bth.a": truth[p.AckReq], "bth.psn": uint64(p.PSN),
		"invariant.crc": uint64(binary.BigEndian.Uint32(b[len(b)-4:]))}
	if s&hasRETH != 0 {
		want["reth.va"], want["reth.r_key"], want["reth.dmalen"] = p.VA, uint64(p.Key), uint64(p.Length)
	}
	if s&hasAETH != 0 {
		want["aeth.syndrome"], want["aeth.msn"] = uint64(p.Syndrome), uint64(p.MSN)
	}
	if s&hasImm != 0 {
		want["immdt"] = uint64(p.Imm)
	}
	if s&hasDETH != 0 {
		want["deth.q_key"], want["deth.srcqp"] = uint64(p.QKey), uint64(p.SrcQPN)
	}
	return want
}

// numbers reads the fields that tshark has found.
func numbers(t *testing.T, fields map[string]string) map[string]uint64 {
	n := map[string]uint64{}
	for name, text := range fields {
		base := 0
		text, _, _ = strings.Cut(text, ",") // tshark lists immediate data twice
		switch {
		case text == "":
			continue
		case text == "True" || text == "False":
			text = map[string]string{"True": "1", "False": "0"}[text]
		case name == "immdt":
			text, base = strings.ReplaceAll(text, ":", ""), 16
		}
		v, err := strconv.ParseUint(text, base, 64)
		require.NoError(t, err, "%s=%s", name, text)
		n[name] = v
	}
	return n
}

// pcapHeader begins a capture of packets without link headers.
func pcapHeader() []byte {
	b := binary.LittleEndian.AppendUint32(nil, 0xa1b2c3d4)
	b = append(b, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, 65535)
	return binary.LittleEndian.AppendUint32(b, 101) // LINKTYPE_RAW
}

func pcapRecord(b, packet []byte) []byte {
	b = append(b, make([]byte, 8)...)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(packet)))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(packet)))
	return append(b, packet...)
}
