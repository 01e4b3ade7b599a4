package plan

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kolo-ccl/kolo"
)

func newEntry(t *testing.T, name string, k Key, n int) *Entry {
	t.Helper()
	programs, err := Programs(k, OneServer(n))
	require.NoError(t, err)
	e, err := NewEntry(name, k, programs)
	require.NoError(t, err)
	return e
}

func TestEntriesServe(t *testing.T) {
	ringKey := Key{Algorithm: "ring", Collective: kolo.AllReduce, InPlace: true}
	small, large := newEntry(t, "small", ringKey, 4), newEntry(t, "large", ringKey, 4)
	small.MaxBytes, large.MinBytes = 100, 64
	gather := newEntry(t, "gather", Key{Algorithm: "nhr", Collective: kolo.AllGather}, 4)
	gather.MinBytes = 160
	rooted := newEntry(t, "rooted", Key{Algorithm: "tree", Collective: kolo.Broadcast, Root: 2, InPlace: true}, 4)
	var l Library
	for _, e := range []*Entry{small, large, gather, rooted} {
		require.NoError(t, l.Add(e))
	}
	require.ErrorIs(t, l.Add(small), kolo.ErrArgument)
	small2 := *small
	small2.Name = "ring"
	require.ErrorIs(t, l.Add(&small2), kolo.ErrArgument)
	call := kolo.Call{Collective: kolo.AllReduce, DType: kolo.Int8, Count: 99, InPlace: true}
	for _, tc := range []struct {
		name   string
		change func(c *kolo.Call)
		n      int
		want   string
	}{
		{"in the first window", func(*kolo.Call) {}, 4, "small"},
		{"in the second", func(c *kolo.Call) { c.Count = 101 }, 4, "large"},
		{"out of place", func(c *kolo.Call) { c.InPlace = false }, 4, ""},
		{"other ranks", func(*kolo.Call) {}, 5, ""},
		{"multiplied", func(c *kolo.Call) { c.Op = kolo.PreMulSum(2) }, 4, ""},
		{"chunks count together", func(c *kolo.Call) { c.Collective, c.Count, c.InPlace = kolo.AllGather, 40, false }, 4, "gather"},
		{"too few together", func(c *kolo.Call) { c.Collective, c.Count, c.InPlace = kolo.AllGather, 39, false }, 4, ""},
		{"counts of their own", func(c *kolo.Call) { c.Collective, c.Count, c.InPlace = kolo.AllGatherV, 40, false }, 4, ""},
		{"root", func(c *kolo.Call) { c.Collective, c.Root = kolo.Broadcast, 2 }, 4, "rooted"},
		{"other root", func(c *kolo.Call) { c.Collective, c.Root = kolo.Broadcast, 1 }, 4, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := call
			tc.change(&c)
			got := ""
			for _, e := range slices.Backward(l.Entries()) {
				if e.Serves(&c, tc.n) == nil {
					got = e.Name // the first in the end
				}
			}
			require.Equal(t, tc.want, got)
		})
	}
	require.NotEqual(t, l.Digest(), new(Library).Digest())
	require.Empty(t, (*Library)(nil).Entries())
	require.Equal(t, new(Library).Digest(), (*Library)(nil).Digest())
}

func TestEntryTakesWrongProgramsForNone(t *testing.T) {
	k := Key{Algorithm: "ring", Collective: kolo.AllReduce}
	programs, err := Programs(k, OneServer(3))
	require.NoError(t, err)
	programs[1] = unshared(programs[1])
	programs[1].Steps[1].Op = Recv
	programs[1].Steps[1].Src, programs[1].Steps[1].Final = nil, false
	_, err = NewEntry("ring 3", k, programs)
	var f *Fault
	require.ErrorAs(t, err, &f)
	_, _, err = Rendezvous(Key{Algorithm: "ring", Collective: kolo.Barrier}, programs, false)
	require.Error(t, err)
}
