//go:build linux && (amd64 || arm64)

package shm

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/kolo-ccl/kolo"
	"github.com/kolo-ccl/kolo/channel"

	"github.com/stretchr/testify/require"
)

// words is memory for an area, aligned.
func words() []byte {
	mem, file, err := makeShared("test", halfBytes)
	if err != nil {
		panic("shm: " + err.Error())
	}
	_ = file.Close() // the mapping stays
	return mem
}

func TestFrameRoundTrip(t *testing.T) {
	f := frame{kind: message, dtype: kolo.Float32, size: 5, from: 3, to: maxRank, digest: 1 << 63, offer: 77, length: 5,
		key: channel.Key{Group: 1<<64 - 1, Call: 1 << 40, Class: channel.Message, Lane: 255, Number: 1<<32 - 1}, inline: [8]byte{1, 2, 3, 4, 5}}
	var b [line]byte
	f.put(b[:])
	var g frame
	require.NoError(t, g.parse(&b))
	require.Equal(t, f, g)
}

// Frames of random sizes go through a ring that is full most of the time.
func TestRingKeepsOrderAndBytes(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	mem := words()
	w := writer{area: newArea(mem)}
	r := reader{area: newArea(mem)}
	sent, got := uint64(0), uint64(0)
	size := func(i uint64) int { return rand.New(rand.NewPCG(seed, i)).IntN(eagerBytes+1) >> (i % 12) }
	for got < 5000 {
		for {
			n := size(sent)
			f := frame{kind: message, size: uint32(n), length: uint64(n), key: channel.Key{Call: sent}}
			ok, err := w.room(f.entry())
			require.NoError(t, err)
			if !ok {
				break
			}
			b := pattern(make([]byte, n+3), sent)
			cut := rng.IntN(n + 1)
			w.put(&f, []kolo.Memory{kolo.HostMemory(b[:3]), kolo.HostMemory(b[3 : 3+cut]), {}, kolo.HostMemory(b[3+cut:])}, 3)
			sent++
		}
		for range rng.IntN(40) {
			var f frame
			ok, err := r.next(&f)
			require.NoError(t, err)
			if !ok {
				break
			}
			require.Equal(t, got, f.key.Call)
			b := make([]byte, f.size)
			cut := rng.IntN(len(b) + 1)
			r.scatter(&f, []kolo.Memory{kolo.HostMemory(b[:cut]), kolo.HostMemory(b[cut:])}, 0)
			require.True(t, bytes.Equal(b, pattern(make([]byte, len(b)+3), got)[3:]), "frame %d of %d bytes", got, len(b))
			r.skip(&f)
			got++
		}
		r.free()
	}
}

// What a writer has begun and not published is not there.
func TestHalfFrameIsNotSeen(t *testing.T) {
	mem := words()
	r := reader{area: newArea(mem)}
	f := frame{kind: message, size: 300, length: 300}
	for i := range 64 + 300 { // a writer that dies after i bytes
		var b [line + 300]byte
		f.put(b[:])
		copy(mem[dataAt:], b[:i])
		var g frame
		ok, err := r.next(&g)
		require.NoError(t, err)
		require.False(t, ok)
		require.False(t, r.waiting())
	}
}

// FuzzRing lets a hostile peer write what it likes, head and tail included.
func FuzzRing(f *testing.F) {
	f.Add(uint64(64), uint64(0), []byte{1, 0, 0, 0, 4, 0, 0, 0})
	f.Add(uint64(1<<64-64), uint64(1<<63), []byte{2, 0, 0, 0, 64})
	f.Add(uint64(4096), uint64(64), bytes.Repeat([]byte{4, 1, 2, 3, 255, 255, 0, 0}, 100))
	mem := words()
	f.Fuzz(func(t *testing.T, tail, head uint64, data []byte) {
		clear(mem)
		binary.LittleEndian.PutUint64(mem[tailAt:], tail)
		binary.LittleEndian.PutUint64(mem[headAt:], head)
		copy(mem[dataAt:], data)
		r := reader{area: newArea(mem)}
		for range 100 {
			var g frame
			ok, err := r.next(&g)
			if err != nil || !ok {
				break
			}
			if g.size > ringBytes || g.entry() > tail {
				t.Fatalf("a frame of %d bytes where %d are", g.size, tail)
			}
			b := make([]byte, g.size)
			r.scatter(&g, []kolo.Memory{kolo.HostMemory(b)}, 0)
			if g.kind == offer {
				spans, err := parseSpans(nil, b, g.length)
				sum := uint64(0)
				for _, s := range spans {
					sum += s.size
				}
				if err == nil && len(spans) > 0 && sum != g.length {
					t.Fatalf("spans of %d bytes in a message of %d", sum, g.length)
				}
			}
			r.skip(&g)
		}
		w := writer{area: newArea(mem)}
		if ok, err := w.room(line); ok && err == nil && w.at+line-w.seen > ringBytes {
			t.Fatal("room where there is none")
		}
	})
}

// FuzzAddress reads what another process may have sent.
func FuzzAddress(f *testing.F) {
	f.Add([]byte(`{"host":"a","user":0,"process":1,"started":2,"socket":"@x"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := parseAddress(b)
		if err == nil && (len(a.Socket) < 2 || a.Socket[0] != '@') {
			t.Fatalf("%q is an address", b)
		}
	})
}
