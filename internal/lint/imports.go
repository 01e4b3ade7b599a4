package lint

import (
	"path"
	"slices"
	"strings"
)

// layering checks every import within the module against the table.
func layering(t *tree) (found []finding) {
	for _, p := range t.packages {
		if p.layer == nil {
			found = append(found, t.at(p.files[0].ast.Package, "package %s has no row in internal/lint/layers.go", p.dir))
		}
	}
	t.each(func(f *file) {
		for _, s := range f.ast.Imports {
			to, ok := within(importPath(s))
			if !ok {
				continue
			}
			allowed := mayImport(f.pkg.dir, to)
			if f.test {
				allowed = testMayImport(f.pkg.dir, to)
			}
			if !allowed {
				found = append(found, t.at(s.Pos(), "%s may not import %s; a new edge needs a reason in internal/lint/layers.go", f.pkg.dir, to))
			}
		}
	})
	return found
}

// outsiders checks imports of other modules, and of package testing.
func outsiders(t *tree) (found []finding) {
	t.each(func(f *file) {
		for _, s := range f.ast.Imports {
			name := importPath(s)
			first, _, _ := strings.Cut(name, "/")
			_, own := within(name)
			switch {
			case name == "testing" || strings.HasPrefix(name, "testing/"):
				if !f.forTests() {
					found = append(found, t.at(s.Pos(), "%s is for tests and kits", name))
				}
			case !own && strings.Contains(first, ".") && !invited(f, name):
				found = append(found, t.at(s.Pos(), "%s may not import %s; see outside in internal/lint/layers.go", f.pkg.dir, name))
			}
		}
	})
	return found
}

// invited says whether the table lets the file import a package of another module.
func invited(f *file, name string) bool {
	for _, o := range outside {
		if name == o.prefix || strings.HasPrefix(name, o.prefix+"/") {
			return slices.ContainsFunc(o.by, func(by string) bool {
				return by == "tests" && f.forTests() || matches(by, f.pkg.dir)
			})
		}
	}
	return false
}

// naming refuses names of packages and of their directories that say nothing.
func naming(t *tree) (found []finding) {
	for _, p := range t.packages {
		for _, name := range []string{p.name, path.Base(p.dir)} {
			if slices.Contains(badNames, name) {
				found = append(found, t.at(p.files[0].ast.Name.Pos(), "the name %s does not say what the package is for", name))
				break
			}
		}
	}
	return found
}

// impure are packages of Go that a pure package does not import.
var impure = []string{
	"bufio", "context", "crypto/rand", "database/sql", "io", "log", "math/rand", "net", "os", "plugin", "runtime",
	"sync", "syscall", "testing", "unsafe",
}

// impureNames are those of the names of other packages.
var impureNames = map[string][]string{
	"time": {"After", "AfterFunc", "NewTicker", "NewTimer", "Now", "Since", "Sleep", "Tick", "Until", "Local", "LoadLocation"},
	"fmt":  {"Print", "Printf", "Println", "Scan", "Scanf", "Scanln"},
}

// purity keeps the world out of pure packages. That they start no goroutine is
// seen to by goroutines.
func purity(t *tree) (found []finding) {
	t.each(func(f *file) {
		if f.test || !f.pkg.has(pure) {
			return
		}
		for _, s := range f.ast.Imports {
			name := importPath(s)
			for _, bad := range impure {
				if (name == bad || strings.HasPrefix(name, bad+"/")) && name != "net/netip" { // that has values only
					found = append(found, t.at(s.Pos(), "%s is pure: it may not import %s", f.pkg.dir, name))
				}
			}
		}
		found = append(found, t.impureUses(f)...)
	})
	return found
}
