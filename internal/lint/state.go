package lint

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"
)

// state refuses package variables that change after their declaration, or whose
// type is made for change, but the registries. Tests and kits may have them, and a
// sync.Pool is fine: nothing can be read from it that was not just forgotten.
func state(t *tree) (found []finding) {
	for _, p := range t.packages {
		for _, f := range p.sources() {
			if f.forTests() {
				continue
			}
			found = append(found, t.changing(f)...)
			ast.Inspect(f.ast, func(n ast.Node) bool {
				for _, e := range p.changed(n) {
					if name := p.variable(e); name != "" && name != registries[p.dir] {
						found = append(found, t.at(n.Pos(), "package variable %s changes, or its address is taken", name))
					}
				}
				return true
			})
		}
	}
	return found
}

// steady are names of package sync that a package variable may be made of.
var steady = []string{"OnceFunc", "OnceValue", "OnceValues", "Pool"}

// changing finds package variables with locks, atomics and channels in them.
func (t *tree) changing(f *file) (found []finding) {
	for _, d := range f.ast.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.VAR {
			continue
		}
		for _, s := range g.Specs {
			v := s.(*ast.ValueSpec)
			exprs := v.Values
			if v.Type != nil {
				exprs = append([]ast.Expr{v.Type}, exprs...)
			}
			for _, e := range exprs {
				if v.Names[0].Name != "_" && v.Names[0].Name != registries[f.pkg.dir] && f.pkg.mutable(e, 0) {
					found = append(found, t.at(v.Pos(), "package variable %s is made to change", v.Names[0].Name))
				}
			}
		}
	}
	return found
}

// mutable says whether a type, or a value, contains a lock, an atomic or a channel.
// It follows types of the package, a few deep.
func (p *pkg) mutable(e ast.Expr, depth int) (yes bool) {
	ast.Inspect(e, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit, *ast.FuncType:
			return false
		case *ast.ChanType:
			yes = true
		case *ast.SelectorExpr:
			from, name := p.selected(n)
			switch {
			case from == "sync/atomic":
				yes = true
			case from == "sync" && !slices.Contains(steady, name):
				yes = true
			}
		case *ast.Ident:
			if spec := p.typeSpec(n); spec != nil && depth < 8 && p.mutable(spec.Type, depth+1) {
				yes = true
			}
		}
		return !yes
	})
	return yes
}

// typeSpec is the declaration of the type of the package that an identifier names.
func (p *pkg) typeSpec(id *ast.Ident) *ast.TypeSpec {
	obj, ok := p.info.Uses[id].(*types.TypeName)
	if !ok || obj.Parent() != p.scope {
		return nil
	}
	for _, f := range p.files {
		for _, d := range f.ast.Decls {
			if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.TYPE {
				for _, s := range g.Specs {
					if s := s.(*ast.TypeSpec); s.Name.Pos() == obj.Pos() {
						return s
					}
				}
			}
		}
	}
	return nil
}

// changed lists the expressions that a node changes or lets change.
func (p *pkg) changed(n ast.Node) []ast.Expr {
	switch n := n.(type) {
	case *ast.AssignStmt:
		if n.Tok != token.DEFINE {
			return n.Lhs
		}
	case *ast.IncDecStmt:
		return []ast.Expr{n.X}
	case *ast.RangeStmt:
		if n.Tok == token.ASSIGN {
			return []ast.Expr{n.Key, n.Value}
		}
	case *ast.UnaryExpr:
		if n.Op == token.AND {
			return []ast.Expr{n.X}
		}
	case *ast.CallExpr:
		if id, ok := n.Fun.(*ast.Ident); ok && len(n.Args) > 0 {
			switch id.Name {
			case "delete", "clear", "copy":
				return n.Args[:1]
			}
		}
		if s, ok := n.Fun.(*ast.SelectorExpr); ok && p.takesAddress(s) {
			return []ast.Expr{s.X}
		}
	}
	return nil
}

// takesAddress says whether x.m calls a method with a pointer receiver on a value.
func (p *pkg) takesAddress(s *ast.SelectorExpr) bool {
	sel := p.info.Selections[s]
	if sel == nil || sel.Kind() != types.MethodVal {
		return false
	}
	sig, ok := sel.Obj().Type().(*types.Signature)
	if !ok || sig.Recv() == nil {
		return false
	}
	_, pointer := sig.Recv().Type().Underlying().(*types.Pointer)
	_, already := sel.Recv().Underlying().(*types.Pointer)
	return pointer && !already
}

// variable is the name of the package variable that an expression is part of, "" if
// there is none. Variables of other packages count, too.
func (p *pkg) variable(e ast.Expr) string {
	for e != nil {
		switch x := e.(type) {
		case *ast.ParenExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.SliceExpr:
			e = x.X
		case *ast.SelectorExpr:
			if from, name := p.selected(x); from != "" {
				return from + "." + name
			}
			e = x.X
		case *ast.Ident:
			if v, ok := p.info.Uses[x].(*types.Var); ok && v.Parent() == p.scope {
				return x.Name
			}
			return ""
		default:
			return ""
		}
	}
	return ""
}
