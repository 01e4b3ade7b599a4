package lint

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestHouseRules(t *testing.T) {
	dir := filepath.Join("..", "..")
	tree, err := load(os.DirFS(dir), tracked(t, dir))
	if err != nil {
		t.Fatal(err)
	}
	if len(tree.packages) < 5 {
		t.Fatalf("only %d packages found", len(tree.packages))
	}
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			for _, f := range r.check(tree) {
				t.Error(f)
			}
		})
	}
}

// tracked lists the files of the repository: what git knows and what it would add;
// every file where there is no git.
func tracked(t *testing.T, dir string) (names []string) {
	cmd := exec.CommandContext(t.Context(), "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = dir
	if out, err := cmd.Output(); err == nil {
		names = strings.Split(strings.TrimRight(string(out), "\x00"), "\x00")
	} else {
		t.Logf("git ls-files: %v; every file is looked at", err)
		err := fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
			if err == nil && name == ".git" {
				return fs.SkipDir
			}
			if err == nil && d.Type().IsRegular() {
				names = append(names, name)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	names = slices.DeleteFunc(names, func(name string) bool {
		info, err := os.Lstat(filepath.Join(dir, filepath.FromSlash(name)))
		return err != nil || !info.Mode().IsRegular() // gone from the work tree, or a link
	})
	slices.Sort(names)
	return slices.Compact(names)
}
