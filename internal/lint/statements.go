package lint

import (
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

func (t *tree) impureUses(f *file) (found []finding) {
	ast.Inspect(f.ast, func(n ast.Node) bool {
		if e, ok := n.(ast.Expr); ok {
			if from, name := f.pkg.selected(e); slices.Contains(impureNames[from], name) {
				found = append(found, t.at(e.Pos(), "%s is pure: no %s.%s", f.pkg.dir, from, name))
			}
		}
		return true
	})
	return found
}

var says = regexp.MustCompile(`(?i)\bend(s|ed)?\b`)

// goroutines checks where goroutines start, and that the comment there says who
// ends them. In tests the code around it does.
func goroutines(t *tree) (found []finding) {
	t.each(func(f *file) {
		if f.test {
			return
		}
		allowed := f.pkg.layer != nil &&
			(slices.Contains(f.pkg.layer.goes, "*") || slices.Contains(f.pkg.layer.goes, f.base()))
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if !f.pkg.startsGoroutine(n) {
				return true
			}
			line := t.line(n.Pos())
			switch {
			case !allowed:
				found = append(found, t.at(n.Pos(), "%s may not start a goroutine here; see goes in internal/lint/layers.go", f.pkg.dir))
			case !says.MatchString(f.comments[line-1]) && !says.MatchString(f.comments[line]):
				found = append(found, t.at(n.Pos(), "the line above a new goroutine says who ends it, or when it ends"))
			}
			return true
		})
	})
	return found
}

// startsGoroutine recognises a go statement and a call like wg.Go(f).
func (p *pkg) startsGoroutine(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.GoStmt:
		return true
	case *ast.CallExpr:
		s, ok := n.Fun.(*ast.SelectorExpr)
		if !ok || s.Sel.Name != "Go" || len(n.Args) != 1 {
			return false
		}
		from, _ := p.selected(s)
		return from == ""
	}
	return false
}

// inits refuses init functions but those of register.go, which only call Register.
func inits(t *tree) (found []finding) {
	t.each(func(f *file) {
		for _, d := range f.ast.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Recv != nil || fn.Name.Name != "init" {
				continue
			}
			if f.base() != "register.go" {
				found = append(found, t.at(fn.Pos(), "init belongs in register.go"))
			}
			for _, s := range fn.Body.List {
				if !callsRegister(s) {
					found = append(found, t.at(s.Pos(), "init only calls Register"))
				}
			}
		}
	})
	return found
}

func callsRegister(s ast.Stmt) bool {
	e, ok := s.(*ast.ExprStmt)
	if !ok {
		return false
	}
	c, ok := e.X.(*ast.CallExpr)
	if !ok {
		return false
	}
	switch fn := c.Fun.(type) {
	case *ast.Ident:
		return fn.Name == "Register"
	case *ast.SelectorExpr:
		return fn.Sel.Name == "Register"
	}
	return false
}

// maxLines is the length of the longest function.
const maxLines = 70

// lengths refuses functions that do not fit a screen, but for tests and generated
// files.
func lengths(t *tree) (found []finding) {
	t.each(func(f *file) {
		if f.test || f.generated {
			return
		}
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				if n := t.line(fn.End()) - t.line(fn.Pos()) + 1; n > maxLines {
					found = append(found, t.at(fn.Pos(), "function %s has %d lines, more than %d", fn.Name.Name, n, maxLines))
				}
			}
		}
	})
	return found
}

// unsafety checks who imports unsafe.
func unsafety(t *tree) (found []finding) {
	t.each(func(f *file) {
		for _, s := range f.ast.Imports {
			if importPath(s) == "unsafe" && !f.pkg.has(raw) && !slices.Contains(unsafeFiles, f.path) {
				found = append(found, t.at(s.Pos(), "%s may not use unsafe", f.path))
			}
		}
	})
	return found
}

// endings refuses what ends the process, outside programs: os.Exit, log.Fatal, and
// panics that do not begin with the package's name.
func endings(t *tree) (found []finding) {
	t.each(func(f *file) {
		if f.test || f.pkg.has(program) {
			return
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			c, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			from, name := f.pkg.selected(c.Fun)
			switch {
			case from == "os" && name == "Exit",
				from == "log" && (strings.HasPrefix(name, "Fatal") || strings.HasPrefix(name, "Panic")):
				found = append(found, t.at(c.Pos(), "only a program calls %s.%s", from, name))
			}
			if id, ok := c.Fun.(*ast.Ident); ok && id.Name == "panic" && len(c.Args) == 1 {
				if !strings.HasPrefix(firstText(c.Args[0]), f.pkg.name+": ") {
					found = append(found, t.at(c.Pos(), "a panic begins with %q", f.pkg.name+": "))
				}
			}
			return true
		})
	})
	return found
}

// firstText is the string literal that an expression begins with: itself, the left
// end of a sum, the first argument of a call.
func firstText(e ast.Expr) string {
	switch e := ast.Unparen(e).(type) {
	case *ast.BasicLit:
		if e.Kind == token.STRING {
			s, _ := strconv.Unquote(e.Value) // the parser has seen that it is a string
			return s
		}
	case *ast.BinaryExpr:
		return firstText(e.X)
	case *ast.CallExpr:
		if len(e.Args) > 0 {
			return firstText(e.Args[0])
		}
	}
	return ""
}

// sleeps refuses time.Sleep in tests and kits, but inside synctest.Test and on a
// line that says "in a bubble".
func sleeps(t *tree) (found []finding) {
	t.each(func(f *file) {
		if !f.forTests() {
			return
		}
		var bubbles []ast.Node
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if c, ok := n.(*ast.CallExpr); ok {
				if from, _ := f.pkg.selected(c.Fun); from == "testing/synctest" {
					bubbles = append(bubbles, c)
				}
			}
			return true
		})
		ast.Inspect(f.ast, func(n ast.Node) bool {
			e, ok := n.(ast.Expr)
			if !ok {
				return true
			}
			inside := slices.ContainsFunc(bubbles, func(b ast.Node) bool { return b.Pos() <= n.Pos() && n.End() <= b.End() })
			if from, name := f.pkg.selected(e); from == "time" && name == "Sleep" && !inside &&
				!strings.Contains(f.comments[t.line(n.Pos())], "in a bubble") {
				found = append(found, t.at(n.Pos(), "a test sleeps only in a synctest bubble; wait for what you wait for"))
			}
			return true
		})
	})
	return found
}
