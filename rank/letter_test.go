package rank

import (
	"context"
	"fmt"
	"testing"

	"github.com/kolo-ccl/kolo"

	"github.com/stretchr/testify/require"
)

func someLetters() []letter {
	call := kolo.Call{Collective: kolo.AllToAllV, DType: kolo.Float32, Op: kolo.PreMulSum(-0.5), Root: 3, Count: 1 << 40,
		Counts: []int64{1, 0, 7}, RecvCounts: []int64{2, 2, 2}, InPlace: true}
	cause := &distant{text: "why", is: []error{kolo.ErrDeadline, context.DeadlineExceeded}}
	return []letter{
		&madeLetter{id: 1 << 63, name: "tp", nth: 2, ranks: []kolo.Rank{5, 1, 900000}, algorithm: "ring", timeout: -1, priority: -3},
		&callsLetter{id: 7, seq: 1 << 50, dispute: true, entries: []entry{{ranks: []kolo.Rank{0, 1}, call: call, algorithm: "mesh"}, {}}},
		&failedLetter{id: 8, err: &kolo.Error{Op: kolo.AllReduce, Group: "g", Rank: kolo.NoRank, Peer: 4, Seq: 9, Ranks: []kolo.Rank{4}, Err: cause}},
		&leftLetter{id: 9, rank: 3, calls: 12, cause: cause},
		&leftLetter{id: 9, rank: 3},
		&partedLetter{rank: 6},
		&shrinkLetter{rank: 6, call: 2, tried: 1, opened: []kolo.Rank{9, 4, 1}, links: map[kolo.Rank]string{4: "cut", 9: ""}, out: map[kolo.Rank]*exclusion{3: {ends: []kolo.Rank{0, 2}, why: "no answer"}}},
		&askLetter{token: 1, id: 2, seq: 3, inCall: true, about: []kolo.Rank{8, 7}},
		&greeting{kind: greetWelcome, conn: 1 << 60, from: 3, to: 4, window: "kv", regions: []Region{{"cache", 1<<63 | 1, 1 << 40}, {}}, cause: cause},
		&answerLetter{token: 4, states: []state{{rank: 1, arrived: true, last: "Barrier #3"}, {rank: 2}}, lines: []string{"a", ""}},
	}
}

func TestLettersAreWhatWasWritten(t *testing.T) {
	for _, m := range someLetters() {
		got, err := unpack(pack(m))
		require.NoError(t, err)
		require.Equal(t, m, got)
	}
}

func TestErrorsOfOtherProcessesKeepWhatTheyAre(t *testing.T) {
	for _, s := range sentinels() {
		err := fmt.Errorf("while: %w", s)
		got, e := unpack(pack(&leftLetter{cause: err}))
		require.NoError(t, e)
		cause := got.(*leftLetter).cause
		require.ErrorIs(t, cause, s)
		require.Equal(t, err.Error(), cause.Error())
		for _, other := range sentinels() {
			if other != s {
				require.NotErrorIs(t, cause, other)
			}
		}
	}
}

// A letter that was cut anywhere, has a byte too many, or is of another version is
// refused.
func TestLettersThatAreBrokenAreRefused(t *testing.T) {
	for _, m := range someLetters() {
		b := pack(m)
		for n := range b {
			_, err := unpack(b[:n])
			require.ErrorIs(t, err, kolo.ErrArgument, "%T cut at %d of %d", m, n, len(b))
		}
		_, err := unpack(append(b, 0))
		require.ErrorContains(t, err, "too many")
	}
	_, err := unpack([]byte{letterVersion + 1, kindMade})
	require.ErrorContains(t, err, "version 2; this process speaks version 1")
	_, err = unpack([]byte{letterVersion, 99})
	require.ErrorContains(t, err, "kind 99")
}

func FuzzLetters(f *testing.F) {
	for _, m := range someLetters() {
		f.Add(pack(m))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := unpack(b)
		if err != nil {
			return
		}
		again, err := unpack(pack(m))
		require.NoError(t, err)
		require.Equal(t, pack(m), pack(again))
	})
}

// Two calls have one digest only if data of one is good for the other.
func TestDigestTellsCallsApart(t *testing.T) {
	base := kolo.Call{Collective: kolo.AllReduce, DType: kolo.Int32, Count: 10}
	seen := map[uint64]string{callDigest(1, &base, "ring"): "base"}
	add := func(name string, basis uint64, algorithm string, change func(c *kolo.Call)) {
		c := base
		change(&c)
		d := callDigest(basis, &c, algorithm)
		require.NotZero(t, d)
		require.Empty(t, seen[d], "%s has the digest of another call", name)
		seen[d] = name
	}
	same := func(*kolo.Call) {}
	add("algorithm", 1, "mesh", same)
	add("topology", 2, "ring", same)
	add("count", 1, "ring", func(c *kolo.Call) { c.Count++ })
	add("type", 1, "ring", func(c *kolo.Call) { c.DType = kolo.Uint32 })
	add("operation", 1, "ring", func(c *kolo.Call) { c.Op = kolo.Max })
	add("factor", 1, "ring", func(c *kolo.Call) { c.Op = kolo.PreMulSum(2) })
	add("other factor", 1, "ring", func(c *kolo.Call) { c.Op = kolo.PreMulSum(3) })
	add("root", 1, "ring", func(c *kolo.Call) { c.Root = 1 })
	add("collective", 1, "ring", func(c *kolo.Call) { c.Collective = kolo.Reduce })
	add("counts", 1, "ring", func(c *kolo.Call) { c.Counts = []int64{1, 2} })
	place := base
	place.InPlace = true
	require.Equal(t, callDigest(1, &base, "ring"), callDigest(1, &place, "ring"), "in place is each rank's own affair")
}

// A request for places that do not add up, or that is cut anywhere, is refused.
func TestRequestsThatAreBrokenAreRefused(t *testing.T) {
	q := &request{places: []place{{1<<63 | 1, 1 << 40, 5}, {3, 0, 0}, {7, -1, 6}}, notice: &Notice{Name: "n", Message: []byte("m")}}
	b := q.pack()
	got, err := unpackRequest(b, 11)
	require.NoError(t, err)
	require.Equal(t, q, got)
	for n := range b {
		_, err := unpackRequest(b[:n], 11)
		require.ErrorIs(t, err, kolo.ErrArgument, "cut at %d", n)
	}
	for _, size := range []int64{0, 10, 12, -1} {
		_, err := unpackRequest(b, size)
		require.ErrorIs(t, err, kolo.ErrArgument, "size %d", size)
	}
	_, err = unpackRequest(append(b, 0), 11)
	require.ErrorContains(t, err, "too many")
}

func FuzzRecords(f *testing.F) {
	q := &request{places: []place{{9, 0, 3}}, notice: &Notice{Name: "n"}}
	for _, r := range []record{{kind: recordPut, id: 1, size: 3, body: q.pack()}, {kind: recordGet, body: make([]byte, recordSize)}} {
		b := make([]byte, recordSize)
		r.put(b)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) != recordSize {
			return
		}
		r, follows, err := readRecord(b)
		if err != nil || follows {
			return
		}
		again := make([]byte, recordSize)
		r.put(again)
		same, _, err := readRecord(again)
		require.NoError(t, err)
		require.Equal(t, r, same)
		if q, err := unpackRequest(r.body, r.size); err == nil {
			require.NotNil(t, q)
		}
	})
}
