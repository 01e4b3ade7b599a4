package lint

import (
	"go/ast"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// packageComments wants one comment per package: in doc.go, beginning "Package x";
// for a program in doc.go or main.go, beginning "Command x" or with its name.
func packageComments(t *tree) (found []finding) {
	for _, p := range t.packages {
		files := p.sources()
		if len(files) == 0 {
			continue
		}
		var with []*file
		for _, f := range files {
			if f.ast.Doc.Text() != "" {
				with = append(with, f)
			}
		}
		places, starts := []string{"doc.go"}, []string{"Package " + p.name + " "}
		if p.name == "main" {
			name := path.Base(p.dir)
			places, starts = []string{"doc.go", "main.go"}, []string{"Command " + name + " ", capital(name) + " "}
		}
		switch {
		case len(with) == 0:
			found = append(found, t.at(files[0].ast.Package, "package %s has no comment; it belongs in %s", p.dir, places[0]))
		case len(with) > 1:
			found = append(found, t.at(with[1].ast.Doc.Pos(), "package %s has a second comment here", p.dir))
		case !slices.Contains(places, with[0].base()):
			found = append(found, t.at(with[0].ast.Doc.Pos(), "the comment of package %s belongs in %s", p.dir, places[0]))
		case !beginsWith(oneLine(with[0].ast.Doc.Text()), starts):
			found = append(found, t.at(with[0].ast.Doc.Pos(), "the comment of package %s begins %q", p.dir, starts[0]))
		}
	}
	return found
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

func capital(s string) string {
	r := []rune(s)
	r[0] = unicode.ToUpper(r[0])
	return string(r)
}

func beginsWith(s string, starts []string) bool {
	return slices.ContainsFunc(starts, func(p string) bool { return strings.HasPrefix(s, p) })
}

// docs wants a comment at every exported function, type, constant and variable, and
// at exported methods of exported types. That of a function or type begins with its
// name. A comment on a group of constants or variables serves all of them.
func docs(t *tree) (found []finding) {
	t.each(func(f *file) {
		if f.test || f.generated || f.pkg.name == "main" {
			return
		}
		for _, d := range f.ast.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && exportedReceiver(d) {
					found = append(found, t.doc(d.Pos(), d.Name.Name, d.Doc.Text())...)
				}
			case *ast.GenDecl:
				found = append(found, t.groupDocs(d)...)
			}
		}
	})
	return found
}

func exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	e := d.Recv.List[0].Type
	for {
		switch x := e.(type) {
		case *ast.StarExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.IndexListExpr:
			e = x.X
		case *ast.Ident:
			return x.IsExported()
		default:
			return false
		}
	}
}

// doc checks one comment that should begin with a name.
func (t *tree) doc(pos token.Pos, name, text string) []finding {
	if text = oneLine(text); text == "" {
		return []finding{t.at(pos, "exported %s has no comment", name)}
	}
	for _, article := range []string{"", "A ", "An ", "The "} {
		if rest, ok := strings.CutPrefix(text, article+name); ok && (rest == "" || !unicode.IsLetter(rune(rest[0]))) {
			return nil
		}
	}
	return []finding{t.at(pos, "the comment of %s begins with its name", name)}
}

func (t *tree) groupDocs(d *ast.GenDecl) (found []finding) {
	for _, s := range d.Specs {
		switch s := s.(type) {
		case *ast.TypeSpec:
			text := s.Doc.Text()
			if text == "" && !d.Lparen.IsValid() {
				text = d.Doc.Text()
			}
			if s.Name.IsExported() {
				found = append(found, t.doc(s.Pos(), s.Name.Name, text)...)
			}
		case *ast.ValueSpec:
			if s.Names[0].IsExported() && s.Doc.Text()+s.Comment.Text()+d.Doc.Text() == "" {
				found = append(found, t.at(s.Pos(), "exported %s has no comment", s.Names[0].Name))
			}
		}
	}
	return found
}

var (
	mark    = regexp.MustCompile(`\b(TO{1}DO|FI{1}XME|X{3})\b`)
	marked  = regexp.MustCompile(`\b(TO{1}DO|FI{1}XME|X{3})\b[( ]*#[0-9]+`)
	scripts = []string{".s", ".sh", ".yml", ".yaml", ".mk"}
)

// unfinished refuses notes of things to do that name no issue, like #12.
func unfinished(t *tree) (found []finding) {
	note := func(name string, line int, text string) {
		if len(mark.FindAllString(text, -1)) > len(marked.FindAllString(text, -1)) {
			found = append(found, finding{name, line, "what is left to do names its issue, as in #12"})
		}
	}
	t.each(func(f *file) {
		for _, g := range f.ast.Comments {
			for _, c := range g.List {
				note(f.path, t.line(c.Pos()), c.Text)
			}
		}
	})
	for name, text := range t.texts {
		if slices.Contains(scripts, path.Ext(name)) || path.Base(name) == "Makefile" || strings.HasPrefix(name, ".ci/") {
			for i, line := range strings.Split(text, "\n") {
				if _, comment, ok := strings.Cut(line, "#"); ok {
					note(name, i+1, comment)
				} else if _, comment, ok := strings.Cut(line, "//"); ok {
					note(name, i+1, comment)
				}
			}
		}
	}
	return found
}

// elsewhere is what a text holds that was written for one machine or one person:
// directories of people's machines, paths that leave the repository, trailers of
// tools. Each begins with a literal, which makes the search fast.
var elsewhere = []*regexp.Regexp{
	regexp.MustCompile(`/(ro{2}t|ho{1}me|wo{1}rk|Us{1}ers|fa{1}rm)/\w`),
	regexp.MustCompile(`:\\Us{1}ers\\`),
	regexp.MustCompile(`\.\./sh{1}ared\b`),
	regexp.MustCompile(`C[Oo]-[Aa]u{1}thored-[Bb]y\b`),
	regexp.MustCompile(`enerated wi{1}th\b`),
}

// texts refuses what does not belong in a public repository, in any file.
func texts(t *tree) (found []finding) {
	for name, text := range t.texts {
		if strings.ContainsRune(text, 0) {
			continue
		}
		for _, e := range elsewhere {
			for _, at := range e.FindAllStringIndex(text, -1) {
				if text[at[0]] == '/' && at[0] > 0 && pathLike(text[at[0]-1]) {
					continue // further down a path, or in an address
				}
				found = append(found, finding{name, 1 + strings.Count(text[:at[0]], "\n"),
					"written for one machine or person: " + text[at[0]:at[1]]})
			}
		}
	}
	return found
}

// pathLike says whether a byte may stand in a path before a slash.
func pathLike(b byte) bool {
	return b == '_' || b == '.' || b == '-' || b == '/' || b >= '0' && b <= '9' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z'
}
