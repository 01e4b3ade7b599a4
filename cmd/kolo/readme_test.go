package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The Go in README.md compiles, and the whole program of it prints what its comment says.
func TestDocumentedPrograms(t *testing.T) {
	gobin, err := exec.LookPath("go")
	if err != nil {
		t.Skip("no go command here to compile with")
	}
	text, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?ms)^```go\n(.*?)^```$").FindAllStringSubmatch(string(text), -1)
	require.Len(t, blocks, 3)
	dir := t.TempDir()
	for i, b := range blocks {
		code, whole := b[1], strings.HasPrefix(b[1], "package main")
		if !whole {
			code = around(code)
		}
		file, program := filepath.Join(dir, fmt.Sprintf("block%d.go", i)), filepath.Join(dir, fmt.Sprintf("block%d", i))
		require.NoError(t, os.WriteFile(file, []byte(code), 0o600))
		out, err := exec.CommandContext(t.Context(), gobin, "build", "-o", program, file).CombinedOutput()
		require.NoError(t, err, "%s\n%s", code, out)
		if !whole {
			continue
		}
		out, err = exec.CommandContext(t.Context(), program).CombinedOutput()
		require.NoError(t, err, "%s", out)
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		slices.Sort(lines)
		for r, line := range lines {
			require.Equal(t, fmt.Sprintf("rank %d [28 8 16]", r), line)
		}
		require.Len(t, lines, 8)
	}
}

// around makes a program of a fragment, which uses the names that the text around it does.
func around(fragment string) string {
	var b strings.Builder
	b.WriteString("package main\n\nimport (\n\t\"context\"\n\n\t\"github.com/kolo-ccl/kolo/rank\"\n")
	for _, path := range []string{"errors", "log", "time", "github.com/kolo-ccl/kolo", "github.com/kolo-ccl/kolo/cluster"} {
		if strings.Contains(fragment, path[strings.LastIndex(path, "/")+1:]+".") {
			fmt.Fprintf(&b, "\t%q\n", path)
		}
	}
	world := "w *rank.World, "
	if strings.HasPrefix(fragment, "w, err :=") { // it makes its own
		world = ""
	}
	fmt.Fprintf(&b, ")\n\nfunc fragment(ctx context.Context, %sg *rank.Group, grads []float32) error {\n%s\treturn err\n}\n\nfunc main() {}\n", world, fragment)
	return b.String()
}
