package lint

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// sources are files by path.
type sources map[string]string

func parse(t *testing.T, s sources) *tree {
	t.Helper()
	fsys := fstest.MapFS{}
	for name, text := range s {
		fsys[name] = &fstest.MapFile{Data: []byte(text)}
	}
	tree, err := load(fsys, slices.Collect(maps.Keys(s)))
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func find(t *testing.T, name string) rule {
	t.Helper()
	i := slices.IndexFunc(rules, func(r rule) bool { return r.name == name })
	if i < 0 {
		t.Fatalf("no rule %q", name)
	}
	return rules[i]
}

// Each rule finds the given places and no other.
func TestRulesFindWhatTheyForbid(t *testing.T) {
	tested := map[string]bool{}
	for _, c := range cases() {
		tested[c.rule] = true
		t.Run(c.rule+"/"+c.name, func(t *testing.T) {
			var got []string
			for _, f := range find(t, c.rule).check(parse(t, c.files)) {
				got = append(got, fmt.Sprintf("%s:%d", f.file, f.line))
			}
			slices.Sort(got)
			if !slices.Equal(got, c.want) {
				t.Errorf("found %q, want %q", got, c.want)
			}
		})
	}
	for _, r := range rules {
		if !tested[r.name] {
			t.Errorf("no test of the rule %q", r.name)
		}
	}
}

type ruleCase struct {
	rule, name string
	files      sources
	want       []string // file:line
}

func cases() []ruleCase {
	return slices.Concat(importCases(), pureCases(), goroutineCases(), stateCases(), shapeCases(), commentCases(), textCases())
}

func importCases() []ruleCase {
	const self = `"` + module
	return []ruleCase{
		{"files parse", "broken file", sources{"plan/a.go": "package plan\nfunc {"}, []string{"plan/a.go:1"}},
		{"files parse", "broken file of a test's data", sources{"plan/testdata/a.go": "package {"}, nil},
		{"imports go down", "up, sideways, down", sources{
			"plan/a.go":    "package plan\nimport (\n" + self + "\"\n" + self + "/rank\"\n" + self + "/channel\"\n)",
			"rank/a.go":    "package rank\nimport " + self + "/plan\"",
			"channel/a.go": "package channel\nimport _ " + self + "/channel/hccs\"",
		}, []string{"channel/a.go:2", "plan/a.go:4", "plan/a.go:5"}},
		{"imports go down", "package without a row", sources{"extra/a.go": "package extra"}, []string{"extra/a.go:1"}},
		{"imports go down", "module of its own", sources{"extra/go.mod": "module m", "extra/a.go": "package extra"}, nil},
		{"imports go down", "tests use kits and drivers, but go not up", sources{
			"rank/a_test.go":        "package rank_test\nimport (\n_ " + self + "/channel/tcp\"\n" + self + "/rank/ranktest\"\n" + self + "/cluster\"\n)",
			"channel/tcp/a_test.go": "package tcp\nimport (\n_ " + self + "/actor\"\n" + self + "/plan\"\n)",
		}, []string{"channel/tcp/a_test.go:4", "rank/a_test.go:5"}},
		{"imports go down", "programs see what users see", sources{
			"cmd/kolo/main.go": "package main\nimport (\n" + self + "/rank\"\n" + self + "/internal/kernel\"\n)",
		}, []string{"cmd/kolo/main.go:4"}},
		{"imports from outside have a reason", "actors", sources{
			"actor/a.go": "package actor\nimport _ \"github.com/asynkron/protoactor-go/actor\"",
			"rank/a.go":  "package rank\nimport _ \"github.com/asynkron/protoactor-go/actor\"",
		}, []string{"rank/a.go:2"}},
		{"imports from outside have a reason", "kits and tests", sources{
			"rank/a.go":            "package rank\nimport _ \"github.com/stretchr/testify/require\"\nimport _ \"testing\"",
			"rank/a_test.go":       "package rank\nimport _ \"github.com/stretchr/testify/require\"\nimport _ \"testing\"",
			"rank/ranktest/run.go": "package ranktest\nimport _ \"go.uber.org/goleak\"\nimport _ \"testing\"",
		}, []string{"rank/a.go:2", "rank/a.go:3"}},
		{"imports from outside have a reason", "unknown", sources{
			"plan/a_test.go": "package plan\nimport _ \"example.org/module\"",
		}, []string{"plan/a_test.go:2"}},
		{"package names say something", "common ones", sources{
			"internal/utils/a.go": "package utils",
			"cmd/types/main.go":   "package main",
			"plan/a.go":           "package plan",
		}, []string{"cmd/types/main.go:1", "internal/utils/a.go:1"}},
	}
}

func pureCases() []ruleCase {
	const rule = "root and plan are pure"
	return []ruleCase{
		{rule, "imports", sources{
			"a.go":         "package kolo\nimport (\n\"errors\"\n\"sync/atomic\"\n\"math/rand/v2\"\n\"io/fs\"\n\"iter\"\n\"net/netip\"\n)",
			"plan/a.go":    "package plan\nimport \"context\"",
			"channel/a.go": "package channel\nimport \"sync\"",
		}, []string{"a.go:4", "a.go:5", "a.go:6", "plan/a.go:2"}},
		{rule, "clock and output", sources{
			"plan/a.go": "package plan\nimport (\n\"time\"\n\"fmt\"\n)\nfunc f(d time.Duration) {\n_ = time.Now()\n<-time.After(d)\nfmt.Println(fmt.Sprint(time.Second))\n}",
		}, []string{"plan/a.go:7", "plan/a.go:8", "plan/a.go:9"}},
		{rule, "renamed import", sources{
			"plan/a.go": "package plan\nimport clock \"time\"\nvar now = clock.Now\ntype time struct{ Now int }\nfunc f(time time) int { return time.Now }",
		}, []string{"plan/a.go:3"}},
		{rule, "tests are free", sources{"plan/a_test.go": "package plan\nimport \"os\""}, nil},
	}
}

func goroutineCases() []ruleCase {
	const rule = "goroutines live at the rim"
	body := "\nfunc f() {\n// ended by Close\ngo g()\n\n// starts one\ngo g()\n}\n"
	return []ruleCase{
		{rule, "in a driver", sources{"channel/tcp/a.go": "package tcp" + body}, []string{"channel/tcp/a.go:7"}},
		{rule, "elsewhere", sources{
			"channel/a.go":  "package channel" + body,
			"plan/a.go":     "package plan" + body,
			"rank/world.go": "package rank" + body,
			"rank/run.go":   "package rank\nfunc f(w *sync.WaitGroup) {\n// ends with f\nw.Go(g)\n}",
			"rank/a.go":     "package rank\nfunc f(w *sync.WaitGroup) {\n// ends with f\nw.Go(g)\nw.Go()\n}",
		}, []string{"channel/a.go:4", "channel/a.go:7", "plan/a.go:4", "plan/a.go:7", "rank/a.go:4", "rank/world.go:4", "rank/world.go:7"}},
		{rule, "function of a package", sources{"plan/a.go": "package plan\nimport \"x/y\"\nfunc f() { y.Go(1) }"}, nil},
		{rule, "tests", sources{"plan/a_test.go": "package plan" + body}, nil},
		{rule, "comment on the line", sources{
			"actor/a.go": "package actor\nfunc f() {\ngo func() { // ends when w is empty\n}()\n}",
		}, nil},
		{"init only registers", "place and content", sources{
			"channel/tcp/register.go": "package tcp\nfunc init() { channel.Register(\"tcp\", New) }",
			"channel/shm/register.go": "package shm\nfunc init() {\nchannel.Register(\"shm\", New)\nx = 1\n}",
			"channel/shm/shm.go":      "package shm\nfunc init() { channel.Register(\"shm\", New) }\nfunc (s) init() {}",
		}, []string{"channel/shm/register.go:4", "channel/shm/shm.go:2"}},
	}
}

func stateCases() []ruleCase {
	const rule = "no package state"
	return []ruleCase{
		{rule, "assigned", sources{"plan/a.go": `package plan
var n, table = 0, map[string]int{}
var fixed = []int{1, 2}
var s struct{ f [3]int }
func f(x []int) {
	n = 1
	n++
	table["a"] = 2
	s.f[0] += 3
	p := &s.f[1]
	delete(table, "a")
	for n = range x {
	}
	n := fixed[0]
	n, m := 1, &n
	n = *m
}
`}, []string{"plan/a.go:10", "plan/a.go:11", "plan/a.go:12", "plan/a.go:6", "plan/a.go:7", "plan/a.go:8", "plan/a.go:9"}},
		{rule, "method with a pointer receiver", sources{"rank/a.go": `package rank
type counter struct{ n int }
func (c *counter) add() { c.n++ }
func (c counter) get() int { return c.n }
var total counter
func f() int {
	total.add()
	return total.get()
}
`}, []string{"rank/a.go:7"}},
		{rule, "locks, atomics, channels", sources{"rank/a.go": `package rank
import (
	"sync"
	"sync/atomic"
)
type guarded struct{ mu sync.Mutex }
type table map[string]guarded
var (
	a atomic.Int64
	b = make(chan int)
	c guarded
	d = table{}
	e = sync.OnceValue(func() *sync.Mutex { return nil })
	f func(chan int)
	g, h = 1, "x"
	i = sync.Pool{New: func() any { return new(sync.Mutex) }}
)
`}, []string{"rank/a.go:10", "rank/a.go:11", "rank/a.go:12", "rank/a.go:9"}},
		{rule, "registries, tests, other packages", sources{
			"channel/a.go":   "package channel\nimport \"sync\"\nvar registry = struct{ mu sync.Mutex; m map[string]int }{m: map[string]int{}}\nfunc f() { registry.m[\"a\"] = 1 }",
			"rank/a_test.go": "package rank\nvar n int\nfunc f() { n++ }",
			"rank/a.go":      "package rank\nimport \"os\"\nfunc f() { os.Args = nil }",
		}, []string{"rank/a.go:3"}},
		{rule, "files for two machines", sources{
			"internal/cpu/a_amd64.go": "package cpu\nvar n = 1\nfunc f() { n = 2 }",
			"internal/cpu/a_arm64.go": "package cpu\nvar n = 1\nfunc f() { n = 3 }",
		}, []string{"internal/cpu/a_amd64.go:3", "internal/cpu/a_arm64.go:3"}},
	}
}

func shapeCases() []ruleCase {
	long := func(n int) string { return "func f() {" + strings.Repeat("\n", n-1) + "}\n" }
	const ends = `
func f() {
	os.Exit(1)
	log.Fatalf("x")
	panic("plan: step done twice")
	panic("step done twice")
	panic(fmt.Sprintf("plan: step %d", 1))
	panic("plan: " + x)
	panic(err)
}
`
	return []ruleCase{
		{"functions fit a screen", "70 and 71 lines", sources{
			"plan/a.go":      "package plan\n" + long(70),
			"plan/b.go":      "package plan\n// f is long.\n" + long(71),
			"plan/c_test.go": "package plan\n" + long(100),
			"plan/d.go":      "// Code generated by gen. DO NOT EDIT.\n\npackage plan\n" + long(100),
		}, []string{"plan/b.go:3"}},
		{"unsafe stays in its places", "imports", sources{
			"rank/bytes.go":      "package rank\nimport \"unsafe\"",
			"rank/other.go":      "package rank\nimport \"unsafe\"",
			"channel/shm/a.go":   "package shm\nimport \"unsafe\"",
			"channel/a.go":       "package channel\nimport \"unsafe\"",
			"internal/cpu/a.go":  "package cpu\nimport \"unsafe\"",
			"pipeline/a_test.go": "package pipeline\nimport \"unsafe\"",
		}, []string{"channel/a.go:2", "pipeline/a_test.go:2", "rank/other.go:2"}},
		{"the library does not end the process", "ends", sources{
			"plan/a.go":        "package plan\nimport (\n\"os\"\n\"log\"\n\"fmt\"\n)" + ends,
			"plan/a_test.go":   "package plan\nimport (\n\"os\"\n\"log\"\n\"fmt\"\n)" + ends,
			"cmd/kolo/main.go": "package main\nimport (\n\"os\"\n\"log\"\n\"fmt\"\n)" + ends,
		}, []string{"plan/a.go:11", "plan/a.go:14", "plan/a.go:8", "plan/a.go:9"}},
		{"tests do not sleep", "in and out of a bubble", sources{
			"rank/a_test.go": `package rank
import (
	"testing"
	"testing/synctest"
	"time"
)
func TestX(t *testing.T) {
	time.Sleep(1)
	synctest.Test(t, func(t *testing.T) { func() { time.Sleep(1) }() })
	nap := time.Sleep
}
func nap() {
	time.Sleep(1) // in a bubble
}
`,
			"rank/ranktest/a.go": "package ranktest\nimport \"time\"\nfunc f() { time.Sleep(1) }",
			"channel/tcp/a.go":   "package tcp\nimport \"time\"\nfunc f() { time.Sleep(1) }",
		}, []string{"rank/a_test.go:10", "rank/a_test.go:8", "rank/ranktest/a.go:3"}},
	}
}

func commentCases() []ruleCase {
	return []ruleCase{
		{"packages say what they are for", "places and beginnings", sources{
			"plan/doc.go":          "// Package plan decides.\npackage plan",
			"plan/a.go":            "// Package plan again.\npackage plan",
			"rank/a.go":            "package rank",
			"actor/doc.go":         "// Actors.\npackage actor",
			"channel/channel.go":   "// Package channel moves.\npackage channel",
			"cmd/kolo/main.go":     "// Command kolo\n// runs.\npackage main",
			"cmd/other/main.go":    "// Runs.\npackage main",
			"examples/two/main.go": "// Two shows two ranks.\npackage main",
			"npu/a_test.go":        "package npu",
		}, []string{"actor/doc.go:1", "channel/channel.go:1", "cmd/other/main.go:1", "plan/doc.go:1", "rank/a.go:1"}},
		{"exported names are explained", "declarations", sources{"plan/a.go": `package plan
// Run runs.
func Run() {}
func Walk() {}
// Walks to the end.
func WalkOn() {}
type T struct{}
func (T) M() {}
func (*T) m() {}
type t struct{}
func (t) M() {}
// A U is one.
type U[P any] struct{}
func (u *U[P]) M() {}
// The colours.
const (
	Red = 1
	Blue = 2
)
const (
	Up = 1 // upwards
	Down = 2
)
var V, W int
// Xs are many.
type X int
`, "plan/a_test.go": "package plan\nfunc F() {}", "cmd/kolo/main.go": "package main\nfunc F() {}"},
			[]string{"plan/a.go:14", "plan/a.go:22", "plan/a.go:24", "plan/a.go:26", "plan/a.go:4", "plan/a.go:6", "plan/a.go:7", "plan/a.go:8"}},
		{"what is left to do has an issue", "comments and scripts", sources{
			"plan/a.go": "package plan\n// TO" + "DO: more\n// XX" + "X #12 done\n// TO" + "DO(#7): x\nvar s = \"TO" + "DO\"\n// FIX" + "ME\n",
			"Makefile":  "x:\n# TO" + "DO\n",
			"NOTES.md":  "No TO" + "DO without an issue.",
		}, []string{"Makefile:2", "plan/a.go:2", "plan/a.go:6"}},
	}
}

func textCases() []ruleCase {
	const rule = "texts are at home everywhere"
	return []ruleCase{
		{rule, "directories of a machine", sources{
			"A.md": "see /ho" + "me/x/a\nsee /usr/share\nhttps://example.org/ho" + "me/x\n/ro" + "ot/a",
			"B.md": "rank/wo" + "rk/a.go\n(/wo" + "rk/a)\n/Us" + "ers/x\nC:\\Us" + "ers\\x",
		}, []string{"A.md:1", "A.md:4", "B.md:2", "B.md:3", "B.md:4"}},
		{rule, "paths and trailers", sources{
			"A.md": "see ../sh" + "ared/x\nCo-Au" + "thored-By: x\nGenerated wi" + "th x\ngenerated by go generate",
			"b":    "\x00../sh" + "ared/x",
		}, []string{"A.md:1", "A.md:2", "A.md:3"}},
	}
}

// An edge of the table points to a row above its own and has a reason; patterns are
// well formed and hide no row below them.
func TestTableGoesOneWay(t *testing.T) {
	for i, l := range layers {
		if _, err := path.Match(l.name, "x"); err != nil {
			t.Errorf("%s: %v", l.name, err)
		}
		if got := layerOf(l.name); got != l {
			t.Errorf("%s is hidden by %s above it", l.name, got.name)
		}
		for _, e := range l.imports {
			if e.reason == "" {
				t.Errorf("%s -> %s has no reason", l.name, e.to)
			}
			if e.to == public {
				continue
			}
			if k := slices.IndexFunc(layers, func(m *layer) bool { return m.name == e.to || matches(m.name, e.to) }); k < 0 || k >= i && e.to != l.name {
				t.Errorf("%s -> %s does not go up in the table", l.name, e.to)
			}
		}
	}
}

func TestPublicPackages(t *testing.T) {
	for dir, want := range map[string]bool{
		root: true, "rank": true, "channel/tcp": true, "rank/ranktest": true,
		"internal/kernel": false, "cmd/kolo": false, "nowhere": false,
	} {
		if matches(public, dir) != want {
			t.Errorf("%s is public: %v, want %v", dir, !want, want)
		}
	}
}
