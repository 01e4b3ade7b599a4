package tcp

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"

	"github.com/stretchr/testify/require"
)

// recorder writes down what a parser tells, and takes bodies in pieces of odd sizes. It
// drops the body of every third frame that has one.
type recorder struct {
	log    bytes.Buffer
	bodies int
	taken  []byte
}

func (r *recorder) begin(h *header, dst [][]byte) ([][]byte, error) {
	fmt.Fprintf(&r.log, "begin %+v\n", *h)
	r.taken = nil
	n := int(h.body())
	if n == 0 {
		return dst, nil
	}
	if r.bodies++; r.bodies%3 == 0 {
		return nil, nil
	}
	r.taken = make([]byte, n)
	for rest, k := r.taken, 0; ; k = (k*3 + 1) % 97 {
		if k >= len(rest) {
			return append(dst, rest), nil
		}
		dst, rest = append(dst, rest[:k]), rest[k:]
	}
}

func (r *recorder) end(h *header) error {
	fmt.Fprintf(&r.log, "end %+v %x\n", *h, r.taken)
	return nil
}

// feed gives b to a parser in pieces, whose sizes next says.
func feed(b []byte, next func() int) (log string, err error) {
	r := &recorder{}
	p := parser{to: r}
	for len(b) > 0 && err == nil {
		n := min(max(next(), 1), len(b))
		copied := 0
		for _, s := range p.space() {
			copied += copy(s, b[copied:n])
		}
		b = b[copied:]
		err = p.filled(copied)
	}
	return r.log.String(), err
}

func randomHeader(rng *rand.Rand) header {
	h := header{kind: kind(1 + rng.IntN(int(kinds)-1)), dtype: kolo.DTypes()[rng.IntN(len(kolo.DTypes()))], digest: rng.Uint64(), id: rng.Uint64(),
		credit: rng.Int64N(maxSize), size: rng.Int64N(maxSize), offset: rng.Int64N(maxSize),
		key: channel.Key{Group: rng.Uint64(), Call: rng.Uint64(), Class: channel.Class(rng.IntN(3)), Lane: uint8(rng.Uint32()), Number: rng.Uint32()}}
	if h.size = rng.Int64N(maxSize); h.body() > 0 {
		h.size = []int64{0, 1, 63, 500, maxReason}[rng.IntN(5)]
	}
	return h
}

// stream is some frames.
func stream(rng *rand.Rand, frames int) []byte {
	var b []byte
	for range frames {
		h := randomHeader(rng)
		var head [headerSize]byte
		h.encode(head[:])
		b = append(b, head[:]...)
		for range h.body() {
			b = append(b, byte(rng.Uint32()))
		}
	}
	return b
}

func TestHeadersSurvive(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 1000 {
		want, got := randomHeader(rng), header{}
		var b [headerSize]byte
		want.encode(b[:])
		require.NoError(t, got.decode(b[:]), "seed %d", seed)
		require.Equal(t, want, got, "seed %d", seed)
	}
}

func TestHeadersThatLie(t *testing.T) {
	good := header{kind: eager, size: 8, dtype: kolo.Float32}
	for name, spoil := range map[string]func(h *header){
		"no kind":        func(h *header) { h.kind = 0 },
		"another kind":   func(h *header) { h.kind = kinds },
		"class":          func(h *header) { h.key.Class = 3 },
		"type":           func(h *header) { h.dtype = kolo.NumDTypes },
		"credit":         func(h *header) { h.credit = -1 },
		"negative size":  func(h *header) { h.size = -8 },
		"size":           func(h *header) { h.size = maxSize + 1 },
		"offset":         func(h *header) { h.offset = -1 },
		"eager too big":  func(h *header) { h.size = maxEager + 1 },
		"part too big":   func(h *header) { h.kind, h.size = part, maxPart+1 },
		"reason too big": func(h *header) { h.kind, h.size = bye, maxReason+1 },
	} {
		h := good
		spoil(&h)
		var b [headerSize]byte
		h.encode(b[:])
		require.ErrorIs(t, new(header).decode(b[:]), kolo.ErrLost, name)
	}
}

func TestStreamCutAtEveryByte(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	b := stream(rng, 12)
	want, err := feed(b, func() int { return len(b) })
	require.NoError(t, err)
	for at := range len(b) {
		first := true
		got, err := feed(b, func() int {
			if first {
				first = false
				return at
			}
			return len(b)
		})
		require.NoError(t, err)
		require.Equal(t, want, got, "cut at %d (seed %d)", at, seed)
	}
	got, err := feed(b, func() int { return 1 })
	require.NoError(t, err)
	require.Equal(t, want, got, "byte by byte (seed %d)", seed)
	long := stream(rng, 3000) // longer than the buffer
	want, err = feed(long, func() int { return len(long) })
	require.NoError(t, err)
	got, err = feed(long, func() int { return rng.IntN(3000) })
	require.NoError(t, err)
	require.Equal(t, want, got, "seed %d", seed)
}

// Whatever comes, in whatever pieces, the parser finds the same, and does not grow.
func FuzzParser(f *testing.F) {
	rng := rand.New(rand.NewPCG(1, 2))
	f.Add(stream(rng, 5), uint64(1))
	f.Add([]byte("GET / HTTP/1.1\r\nHost: a stranger's, with a header of some length\r\n\r\n"), uint64(2))
	f.Fuzz(func(t *testing.T, b []byte, seed uint64) {
		rng := rand.New(rand.NewPCG(seed, 0))
		want, e1 := feed(b, func() int { return len(b) })
		got, e2 := feed(b, func() int { return rng.IntN(200) })
		if want != got || (e1 == nil) != (e2 == nil) {
			t.Errorf("in one piece %q, %v; in several %q, %v", want, e1, got, e2)
		}
	})
}

func FuzzGreetings(f *testing.F) {
	h := &hello{role: data, stripe: 2, from: 3, to: 4, epoch: 5, link: 6, eager: 7, window: 8, job: "job"}
	a := &answer{verdict: closed, eager: 1, window: 2, text: "why"}
	f.Add(h.encode())
	f.Add(a.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := readHello(bytes.NewReader(b)); err == nil {
			if again := h.encode(); !bytes.Equal(again[:12], b[:12]) || len(again) > len(b) {
				t.Errorf("%x was read as %+v", b, h)
			}
		}
		if a, err := readAnswer(bytes.NewReader(b)); err == nil && len(a.encode()) > len(b) {
			t.Errorf("%x was read as %+v", b, a)
		}
	})
}

func TestGreetingsSurvive(t *testing.T) {
	h := &hello{role: data, stripe: 2, from: 3, to: 1 << 20, epoch: 1 << 63, link: 6, eager: 7, window: 8, job: "job"}
	b := h.encode()
	got, err := readHello(bytes.NewReader(b))
	require.NoError(t, err)
	require.Equal(t, h, got)
	for at := range b {
		_, err := readHello(bytes.NewReader(b[:at]))
		require.Error(t, err, "cut at %d", at)
		spoilt := bytes.Clone(b)
		spoilt[at] ^= 0x55
		_, err = readHello(bytes.NewReader(spoilt))
		require.Error(t, err, "byte %d", at)
	}
	a := &answer{verdict: closed, eager: 1, window: 2, text: "why"}
	b = a.encode()
	read, err := readAnswer(bytes.NewReader(b))
	require.NoError(t, err)
	require.Equal(t, a, read)
	for at := range b {
		_, err := readAnswer(bytes.NewReader(b[:at]))
		require.Error(t, err, "cut at %d", at)
		spoilt := bytes.Clone(b)
		spoilt[at] ^= 0x55
		_, err = readAnswer(bytes.NewReader(spoilt))
		require.Error(t, err, "byte %d", at)
	}
}
