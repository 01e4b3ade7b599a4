package lint

// rule is one house rule.
type rule struct {
	name  string
	check func(*tree) []finding
}

// rules are all of them, in the order of CONVENTIONS.md.
var rules = []rule{
	{"files parse", func(t *tree) []finding { return t.broken }},
	{"imports go down", layering},
	{"imports from outside have a reason", outsiders},
	{"package names say something", naming},
	{"packages say what they are for", packageComments},
	{"root and plan are pure", purity},
	{"goroutines live at the rim", goroutines},
	{"init only registers", inits},
	{"no package state", state},
	{"functions fit a screen", lengths},
	{"exported names are explained", docs},
	{"unsafe stays in its places", unsafety},
	{"the library does not end the process", endings},
	{"tests do not sleep", sleeps},
	{"what is left to do has an issue", unfinished},
	{"texts are at home everywhere", texts},
}
