package golden

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// listener is a testing.TB that hears what a failed comparison says.
type listener struct {
	testing.TB
	said string
}

func (l *listener) Helper()                   {}
func (l *listener) Errorf(f string, a ...any) { l.said += fmt.Sprintf(f, a...) }
func (l *listener) Fatalf(f string, a ...any) { l.said += "fatal: " + fmt.Sprintf(f, a...) }

func TestEqualComparesWithTheFile(t *testing.T) {
	Equal(t, "round.txt", "one sends\nthe next adds and sends\nthe last one knows\n")
}

func TestCompareSaysWhatDiffers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "deep", "file.txt")
	l := &listener{TB: t}
	compare(l, path, "a\n")
	if !strings.Contains(l.said, "fatal: no golden file") || !strings.Contains(l.said, "-rewrite") {
		t.Errorf("a missing file is reported as %q", l.said)
	}
	write(t, path, "a\nb\nc\n")
	if b, err := os.ReadFile(path); err != nil || string(b) != "a\nb\nc\n" {
		t.Fatalf("wrote %q, %v", b, err)
	}
	l = &listener{TB: t}
	compare(l, path, "a\nb\nc\n")
	if l.said != "" {
		t.Errorf("equal texts are reported as %q", l.said)
	}
	compare(l, path, "a\nB\nc\n")
	if want := "line 1:\n  a\n- b\n+ B\n  c\n"; !strings.HasSuffix(l.said, want) {
		t.Errorf("said %q, want it to end with %q", l.said, want)
	}
}

func TestDiff(t *testing.T) {
	for _, c := range []struct{ name, want, got, diff string }{
		{"equal", "a\n", "a\n", ""},
		{"from nothing", "", "a\n", "line 1:\n+ a\n"},
		{"to nothing", "a\n", "", "line 1:\n- a\n"},
		{"no newline", "a\n", "a", "line 1:\n  a\n+ " + endMissing + "\n"},
		{"far apart", "1\n2\n3\n4\n5\n6\n7\n8\n9\n", "x\n2\n3\n4\n5\n6\n7\n8\ny\n",
			"line 1:\n- 1\n+ x\n  2\n  3\n  4\nline 6:\n  6\n  7\n  8\n- 9\n+ y\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if d := diff(c.want, c.got); d != c.diff {
				t.Errorf("got %q, want %q", d, c.diff)
			}
		})
	}
}

func TestLongDiffIsCut(t *testing.T) {
	var a, b strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&a, "a%d\n", i)
		fmt.Fprintf(&b, "b%d\n", i)
	}
	if d := diff(a.String(), b.String()); strings.Count(d, "\n") > maxShown+2 || !strings.HasSuffix(d, "... and more\n") {
		t.Errorf("%d lines, ending %q", strings.Count(d, "\n"), d[len(d)-20:])
	}
}

// An edit applied to the first text gives the second.
func TestEditsLeadFromOneTextToTheOther(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	lines := func() (l []string) {
		for range rng.IntN(12) {
			l = append(l, string(rune('a'+rng.IntN(3))))
		}
		return l
	}
	for range 2000 {
		a, b := lines(), lines()
		var from, to []string
		for _, e := range edits(a, b) {
			if e.sign != '+' {
				from = append(from, e.line)
			}
			if e.sign != '-' {
				to = append(to, e.line)
			}
		}
		if !slices.Equal(from, a) || !slices.Equal(to, b) {
			t.Fatalf("edits of %q and %q give %q and %q", a, b, from, to)
		}
	}
}
