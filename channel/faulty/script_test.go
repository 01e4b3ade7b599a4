package faulty

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/kolo-ccl/kolo"

	"github.com/stretchr/testify/require"
)

func TestParse(t *testing.T) {
	const all = math.MaxInt64
	for _, c := range []struct {
		name, text, again string
		want              []rule
	}{
		{"nothing", "", "", nil},
		{"comments and empty lines", "# lose 1 -> 2\n\n   \n\t# end", "", nil},
		{"one message", "lose rank 2 -> 3 send 5", "lose 2 -> 3 send 5\n",
			[]rule{{line: 1, what: Lose, from: 2, to: 3, first: 5, last: 5, percent: 100}}},
		{"a range", "lose 2->rank 3 send 5..7 # gone\r\n", "lose 2 -> 3 send 5..7\n",
			[]rule{{line: 1, what: Lose, from: 2, to: 3, first: 5, last: 7, percent: 100}}},
		{"a percentage", "\n\nlose 2 -> 3 1%", "lose 2 -> 3 1%\n",
			[]rule{{line: 3, what: Lose, from: 2, to: 3, last: all, percent: 1}}},
		{"all", "lose * -> *", "lose * -> *\n",
			[]rule{{line: 1, what: Lose, from: everyRank, to: everyRank, last: all, percent: 100}}},
		{"a delay", "delay 1 -> * 10ms", "delay 1 -> * 10ms\n",
			[]rule{{line: 1, what: Delay, from: 1, to: everyRank, last: all, percent: 100, delay: 10 * time.Millisecond}}},
		{"half of them", "delay 1 -> 0 50% 1.5s", "delay 1 -> 0 50% 1.5s\n",
			[]rule{{line: 1, what: Delay, from: 1, to: 0, last: all, percent: 50, delay: 1500 * time.Millisecond}}},
		{"a delay of one", "delay 1 -> 0 send 0 1us", "delay 1 -> 0 send 0 1µs\n",
			[]rule{{line: 1, what: Delay, from: 1, to: 0, percent: 100, delay: time.Microsecond}}},
		{"two rules", "cut 0 -> 1 after 3\nlose 4 -> 4 0%", "cut 0 -> 1 after 3\nlose 4 -> 4 0%\n",
			[]rule{{line: 1, what: Cut, from: 0, to: 1, first: 3, last: all, percent: 100}, {line: 2, what: Lose, from: 4, to: 4, last: all}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := Parse(c.text)
			require.NoError(t, err)
			require.Equal(t, c.want, s.rules)
			require.Equal(t, c.again, s.String())
		})
	}
}

func TestParseErrors(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"loose 1 -> 2", `script line 1: "loose": want lose, delay or cut`},
		{"# ok\nlose", `script line 2: it ends where a rank or * should be`},
		{"lose x -> 2", `script line 1: "x": want a rank or *`},
		{"lose -1 -> 2", `"-1": want a rank or *`},
		{"lose +1 -> 2", `"+1": want a rank or *`},
		{"lose rank -> 2", `"->": want a rank or *`},
		{"lose 99999999999999999999 -> 2", `want a rank or *`},
		{"lose 1 to 2", `"to": want ->`},
		{"lose 1 ->", `it ends where a rank or * should be`},
		{"lose 1 -> 2 often", `"often": want send and a number, a percentage, or the end of the line`},
		{"lose 1 -> 2 send", `it ends where the number of a message`},
		{"lose 1 -> 2 send x", `"x": want the number of a message, from 0, or a range as 3..5`},
		{"lose 1 -> 2 send 5..3", `"5..3": want the number of a message`},
		{"lose 1 -> 2 send 1..2..3", `"1..2..3": want the number of a message`},
		{"lose 1 -> 2 101%", `"101%": want a percentage from 0% to 100%`},
		{"lose 1 -> 2 NaN%", `"NaN%": want a percentage`},
		{"lose 1 -> 2 %", `"%": want a percentage`},
		{"lose 1 -> 2 send 1 5%", `"5%": want the end of the line`},
		{"lose 1 -> 2 send 1 10ms", `"10ms": want the end of the line`},
		{"delay 1 -> 2", `it ends where a time as 10ms`},
		{"delay 1 -> 2 fast", `"fast": want a time as 10ms, more than 0 and at most 24h0m0s`},
		{"delay 1 -> 2 -5ms", `"-5ms": want a time`},
		{"delay 1 -> 2 25h", `"25h": want a time`},
		{"cut 1 -> 2", `it ends where after and a number of messages should be`},
		{"cut 1 -> 2 before 3", `"before": want after and a number of messages`},
		{"cut 1 -> 2 after", `it ends where a number of messages should be`},
		{"cut 1 -> 2 after 3 4", `"4": want the end of the line`},
		{strings.Repeat("cut 1 -> 2 after 3\n", maxRules+1), `script line 1001: more than 1000 rules`},
		{strings.Repeat(" ", maxScript+1), `a script of 1048577 bytes`},
	} {
		_, err := Parse(c.text)
		require.ErrorIs(t, err, kolo.ErrArgument, c.text)
		require.ErrorContains(t, err, c.want)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"lose rank 2 -> 3 send 5", "delay 1 -> * 10ms", "cut 0 -> 1 after 3", "lose 2->3 1e-3% # x\ndelay *->* send 1..2 1h"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse(text)
		if err != nil {
			require.ErrorIs(t, err, kolo.ErrArgument)
			return
		}
		again, err := Parse(s.String())
		require.NoError(t, err, s.String())
		require.Equal(t, s.String(), again.String())
		require.Equal(t, len(s.rules), len(again.rules))
		for i := range s.rules {
			s.rules[i].line, again.rules[i].line = 0, 0
		}
		require.Equal(t, s.rules, again.rules)
	})
}

func TestJudge(t *testing.T) {
	s, err := Parse("lose 0 -> 1 send 2\ndelay 0 -> * 1ms\ndelay * -> 1 send 2..3 1s\ncut 2 -> 2 after 4\nlose 2 -> 2\n")
	require.NoError(t, err)
	for _, c := range []struct {
		from, to kolo.Rank
		k        int64
		want     verdict
	}{
		{0, 1, 0, verdict{delay: time.Millisecond}},
		{0, 1, 2, verdict{lose: true, line: 1, delay: time.Second + time.Millisecond}},
		{0, 1, 3, verdict{delay: time.Second + time.Millisecond}},
		{0, 2, 3, verdict{delay: time.Millisecond}},
		{5, 1, 3, verdict{delay: time.Second}},
		{1, 0, 2, verdict{}},
		{2, 2, 3, verdict{lose: true, line: 5}},
		{2, 2, 4, verdict{cut: true, line: 4}},
		{2, 2, 1 << 50, verdict{cut: true, line: 4}},
	} {
		require.Equal(t, c.want, s.judge(1, c.from, c.to, c.k), "%v -> %v send %d", c.from, c.to, c.k)
	}
}

// A percentage is met, differs between seeds, ways and rules, and is the same again.
func TestJudgePercentage(t *testing.T) {
	s, err := Parse("lose * -> * 10%")
	require.NoError(t, err)
	const count = 20_000
	pattern := func(seed uint64, from, to kolo.Rank) (p string, lost int) {
		var b strings.Builder
		for k := range int64(count) {
			if s.judge(seed, from, to, k).lose {
				lost++
				b.WriteByte('x')
			} else {
				b.WriteByte('.')
			}
		}
		return b.String(), lost
	}
	seen := map[string]bool{}
	for seed := range uint64(3) {
		for _, way := range [][2]kolo.Rank{{0, 1}, {1, 0}, {1, 2}} {
			p, lost := pattern(seed, way[0], way[1])
			if lost < count/10*9/10 || lost > count/10*11/10 {
				t.Errorf("seed %d, %v: %d of %d lost, want about a tenth", seed, way, lost, count)
			}
			again, _ := pattern(seed, way[0], way[1])
			require.Equal(t, p, again)
			require.False(t, seen[p], "two ways or seeds lose the same messages")
			seen[p] = true
		}
	}
	never, err := Parse("lose * -> * 0%\nlose * -> * send 3 # always")
	require.NoError(t, err)
	for k := range int64(1000) {
		require.Equal(t, k == 3, never.judge(7, 0, 1, k).lose)
	}
}
