package npu

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kolo-ccl/kolo"

	"github.com/stretchr/testify/require"
)

func TestArenaReusesAndJoins(t *testing.T) {
	a := NewArena(100, 10_000) // 512 to 9728: 18 units
	require.EqualValues(t, 18*Alignment, a.Size())
	var at []uint64
	for range 18 {
		p, err := a.Alloc(1)
		require.NoError(t, err)
		at = append(at, p)
	}
	_, err := a.Alloc(1)
	require.ErrorIs(t, err, ErrMemory)
	require.ErrorIs(t, err, kolo.ErrLimit)
	require.NoError(t, a.Free(at[3]))
	require.NoError(t, a.Free(at[5]))
	_, err = a.Alloc(2 * Alignment)
	require.ErrorContains(t, err, "1024 of 9216 free, 512 in one piece")
	require.NoError(t, a.Free(at[4]))
	p, err := a.Alloc(3 * Alignment)
	require.NoError(t, err)
	require.Equal(t, at[3], p)
	require.ErrorIs(t, a.Free(at[4]), ErrFreed)
	_, err = a.Alloc(0)
	require.ErrorIs(t, err, kolo.ErrArgument)
}

func FuzzArena(f *testing.F) {
	f.Add(uint64(1), 200)
	f.Add(uint64(2), 2000)
	f.Fuzz(func(t *testing.T, seed uint64, steps int) {
		rng := rand.New(rand.NewPCG(seed, 2))
		a := NewArena(rng.Uint64N(1<<40), rng.Int64N(1<<22))
		type span struct{ at, end uint64 }
		var live []span
		sum := int64(0)
		for range min(max(steps, 0), 5000) {
			if i := rng.IntN(len(live) + 2); i < len(live) {
				if err := a.Free(live[i].at); err != nil {
					t.Fatalf("seed %d: free: %v", seed, err)
				}
				sum -= int64(live[i].end - live[i].at)
				live = slices.Delete(live, i, i+1)
			} else {
				n := 1 + rng.Int64N(1<<uint(1+rng.IntN(20)))
				at, err := a.Alloc(n)
				if err != nil {
					if !errors.Is(err, ErrMemory) || a.Largest() >= n {
						t.Fatalf("seed %d: alloc of %d with %d in one piece: %v", seed, n, a.Largest(), err)
					}
					continue
				}
				s := span{at, at + uint64(n+Alignment-1)&^(Alignment-1)}
				if at%Alignment != 0 || at < a.base || s.end > a.base+a.size {
					t.Fatalf("seed %d: %d bytes at %#x", seed, n, at)
				}
				for _, o := range live {
					if s.at < o.end && o.at < s.end {
						t.Fatalf("seed %d: %#x-%#x overlaps %#x-%#x", seed, s.at, s.end, o.at, o.end)
					}
				}
				live = append(live, s)
				sum += int64(s.end - s.at)
			}
			if a.Used() != sum {
				t.Fatalf("seed %d: used %d, want %d", seed, a.Used(), sum)
			}
		}
		for _, s := range live {
			if err := a.Free(s.at); err != nil {
				t.Fatal(err)
			}
		}
		if a.Largest() != a.Size() || len(a.gaps) > 1 || a.Used() != 0 {
			t.Fatalf("seed %d: all is free, but there are %d gaps", seed, len(a.gaps))
		}
	})
}

func TestBlocks(t *testing.T) {
	var l Blocks
	a, b := &Block{Addr: 512, Size: 100}, &Block{Addr: 1024, Size: 512}
	require.NoError(t, l.Add(b))
	require.NoError(t, l.Add(a))
	for _, x := range []*Block{{Addr: 512, Size: 1}, {Addr: 611, Size: 8}, {Addr: 500, Size: 13}, {Addr: 500, Size: 1000}, {Addr: 1000, Size: 25}, {Addr: 1535, Size: 1}} {
		require.ErrorIs(t, l.Add(x), kolo.ErrOverlap, "%d bytes at %d", x.Size, x.Addr)
	}
	require.Equal(t, []*Block{a, b}, l.All())
	memory := func(at uint64, n int64) kolo.Memory { return kolo.Memory{Space: 1, Addr: at, Size: n} }
	got, err := l.Find(memory(600, 12))
	require.NoError(t, err)
	require.Same(t, a, got)
	for _, m := range []kolo.Memory{memory(600, 13), memory(612, 1), memory(0, 1), memory(1<<20, 1), memory(512, -1), memory(1024, 513)} {
		_, err := l.Find(m)
		require.ErrorIs(t, err, ErrFreed, "%d bytes at %d", m.Size, m.Addr)
		require.ErrorIs(t, err, kolo.ErrArgument)
	}
	_, err = l.Remove(memory(512, 50))
	require.ErrorIs(t, err, kolo.ErrArgument)
	a.Hold(`copy on stream "x"`)
	_, err = l.Remove(memory(512, 100))
	require.ErrorIs(t, err, ErrBusy)
	require.ErrorContains(t, err, `copy on stream "x"`)
	a.Release()
	_, err = l.Remove(memory(512, 100))
	require.NoError(t, err)
	require.ErrorIs(t, l.Add(&Block{Addr: 1000, Size: 100}), kolo.ErrOverlap)
	require.NoError(t, l.Add(&Block{Addr: 512, Size: 512}), "between what is left")
}
