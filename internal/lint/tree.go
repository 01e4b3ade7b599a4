package lint

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// finding is a place where a rule is broken.
type finding struct {
	file string
	line int
	text string
}

func (f finding) String() string { return fmt.Sprintf("%s:%d: %s", f.file, f.line, f.text) }

// tree is the source of the module.
type tree struct {
	fset     *token.FileSet
	packages []*pkg
	texts    map[string]string // every file, by path
	broken   []finding         // files that cannot be parsed
}

// pkg is a directory of Go files.
type pkg struct {
	dir   string // relative to the module, root for the module's own
	name  string
	files []*file
	info  *types.Info
	scope *types.Scope
	layer *layer // nil if the table has none
}

// file is a Go file.
type file struct {
	pkg       *pkg
	path      string
	ast       *ast.File
	test      bool // its name ends in _test.go
	generated bool
	comments  map[int]string // text of the comment that ends on a line
}

// base is the file's name without its directory.
func (f *file) base() string { return path.Base(f.path) }

// forTests says whether the file is part of a test or of a kit for tests.
func (f *file) forTests() bool { return f.test || f.pkg.has(kit) }

// has says whether the package's layer has the trait.
func (p *pkg) has(t trait) bool { return p.layer != nil && p.layer.is&t != 0 }

// sources are the files that are not tests.
func (p *pkg) sources() []*file {
	return slices.DeleteFunc(slices.Clone(p.files), func(f *file) bool { return f.test })
}

var generatedLine = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// load parses the named files of fsys. Go files under testdata or in a directory
// with a go.mod of its own are texts only.
func load(fsys fs.FS, names []string) (*tree, error) {
	t := &tree{fset: token.NewFileSet(), texts: map[string]string{}}
	for _, name := range names {
		b, err := fs.ReadFile(fsys, name)
		if err != nil {
			return nil, fmt.Errorf("read source: %w", err)
		}
		t.texts[name] = string(b)
	}
	byDir := map[string]*pkg{}
	for _, name := range slices.Sorted(slices.Values(names)) {
		if !strings.HasSuffix(name, ".go") || t.foreign(name) {
			continue
		}
		f, err := parser.ParseFile(t.fset, name, t.texts[name], parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.broken = append(t.broken, finding{name, 1, err.Error()})
			continue
		}
		dir := path.Dir(name)
		if dir == "." {
			dir = root
		}
		p := byDir[dir]
		if p == nil {
			p = &pkg{dir: dir, layer: layerOf(dir)}
			byDir[dir] = p
			t.packages = append(t.packages, p)
		}
		p.add(t.fset, f, name, t.texts[name])
	}
	for _, p := range t.packages {
		p.check(t.fset)
	}
	return t, nil
}

// foreign says whether a Go file is not part of the module's packages.
func (t *tree) foreign(name string) bool {
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if _, ok := t.texts[dir+"/go.mod"]; ok || path.Base(dir) == "testdata" || strings.HasPrefix(path.Base(dir), ".") {
			return true
		}
	}
	return false
}

func (p *pkg) add(fset *token.FileSet, f *ast.File, name, text string) {
	if p.name == "" || !strings.HasSuffix(name, "_test.go") {
		p.name = strings.TrimSuffix(f.Name.Name, "_test")
	}
	x := &file{pkg: p, path: name, ast: f, test: strings.HasSuffix(name, "_test.go"), comments: map[int]string{}}
	x.generated = generatedLine.MatchString(text)
	for _, g := range f.Comments {
		for _, c := range g.List {
			x.comments[fset.Position(c.End()).Line] = g.Text()
		}
	}
	p.files = append(p.files, x)
}

// check resolves the identifiers of a package as far as its own files allow: what
// is imported stays unknown but for its path, so nothing has to be built or fetched.
// Files for several machines are taken together. Type errors that come of all this
// are of no interest.
func (p *pkg) check(fset *token.FileSet) {
	p.info = &types.Info{
		Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{},
		Selections: map[*ast.SelectorExpr]*types.Selection{},
	}
	cfg := types.Config{Error: func(error) {}, Importer: unknown{}}
	var own, outer []*ast.File
	for _, f := range p.files {
		if f.ast.Name.Name == p.name {
			own = append(own, f.ast)
		} else {
			outer = append(outer, f.ast)
		}
	}
	made, _ := cfg.Check(module+"/"+p.dir, fset, own, p.info) // see above
	p.scope = made.Scope()
	_, _ = cfg.Check(module+"/"+p.dir+"_test", fset, outer, p.info) // see above
}

// unknown imports empty packages.
type unknown struct{}

var version = regexp.MustCompile(`^v[0-9]+$`)

// Import makes an empty package for a path.
func (unknown) Import(name string) (*types.Package, error) {
	base := path.Base(name)
	if version.MatchString(base) {
		base = path.Base(path.Dir(name))
	}
	p := types.NewPackage(name, base)
	p.MarkComplete()
	return p, nil
}

// at makes a finding.
func (t *tree) at(pos token.Pos, format string, args ...any) finding {
	p := t.fset.Position(pos)
	return finding{p.Filename, p.Line, fmt.Sprintf(format, args...)}
}

// line is the line of a position.
func (t *tree) line(pos token.Pos) int { return t.fset.Position(pos).Line }

// each calls f for every Go file.
func (t *tree) each(f func(*file)) {
	for _, p := range t.packages {
		for _, x := range p.files {
			f(x)
		}
	}
}

// selected is the path of the package and the name in an expression like
// time.Sleep, and "" if e is anything else.
func (p *pkg) selected(e ast.Expr) (pkgPath, name string) {
	s, ok := ast.Unparen(e).(*ast.SelectorExpr)
	if !ok {
		return "", ""
	}
	id, ok := s.X.(*ast.Ident)
	if !ok {
		return "", ""
	}
	if n, ok := p.info.Uses[id].(*types.PkgName); ok {
		return n.Imported().Path(), s.Sel.Name
	}
	return "", ""
}

// importPath is the path in an import declaration.
func importPath(s *ast.ImportSpec) string {
	p, _ := strconv.Unquote(s.Path.Value) // the parser has seen that it is a string
	return p
}

// within is the package of this module that has the path; ok is false for others.
func within(importPath string) (dir string, ok bool) {
	if importPath == module {
		return root, true
	}
	return strings.CutPrefix(importPath, module+"/")
}
