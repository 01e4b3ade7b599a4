package golden

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files in testdata instead of comparing with them")

// Equal fails the test if got is not what testdata/name holds, and shows the lines
// that differ. Under -rewrite it writes got there instead. Call it on the goroutine
// of the test.
func Equal(t testing.TB, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", filepath.FromSlash(name))
	if *rewrite {
		write(t, path, got)
		return
	}
	compare(t, path, got)
}

func compare(t testing.TB, path, got string) {
	t.Helper()
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("no golden file, run go test with -rewrite once: %v", err)
		return
	}
	if d := diff(string(want), got); d != "" {
		t.Errorf("%s (-) differs from what was made (+); if that is meant, run go test with -rewrite\n%s", path, d)
	}
}

func write(t testing.TB, path, got string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatalf("make the directory of a golden file: %v", err)
	}
	if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
		t.Fatalf("write a golden file: %v", err)
	}
}
