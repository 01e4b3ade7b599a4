package lint

import (
	"path"
	"slices"
	"strings"
)

// root is what the tables call the package of the module's root.
const root = "kolo"

// module is the module's path.
const module = "github.com/kolo-ccl/kolo"

// layer is one package, or all that a pattern like "channel/*" matches, and what it
// may do.
type layer struct {
	name    string
	imports []edge   // within the module
	goes    []string // files that may start goroutines; "*" is all of them
	is      trait
}

// edge is a permitted import and what it is for.
type edge struct{ to, reason string }

// trait is a set of properties of a layer.
type trait uint

const (
	pure    trait = 1 << iota // no goroutine, clock, lock, context, IO, randomness
	raw                       // may use unsafe in every file
	program                   // holds main packages
	kit                       // made for tests: what binds tests binds it, what they may do it may
	private                   // not for cmd and examples
)

// layers is the import table, lowest first: a package imports what stands above it
// here, and nothing else of the module. The first row whose name matches counts.
//
// The tests of a package may import all that the package may reach through others,
// and besides every kit, every driver, and internal/golden.
var layers = []*layer{
	{name: root, is: pure},
	{name: "internal/lint", is: private},
	{name: "internal/golden", is: kit | private},
	{name: "internal/netlab", is: kit | private, goes: []string{"*"}},
	{name: "internal/invariant", is: private},
	{name: "internal/cpu", is: raw | private},
	{name: "internal/cover", is: pure | private},
	{name: "internal/dynlib", is: private},
	{name: "internal/ctxerr", is: private, imports: []edge{
		{root, "the errors that it gives"},
	}},
	{name: "internal/kernel/gen", is: program | private},
	{name: "internal/kernel", is: raw | private, imports: []edge{
		{root, "the element types and operations"},
		{"internal/cpu", "which vector instructions there are"},
	}},
	{name: "internal/drivers", is: private, imports: []edge{
		{root, "the error of a driver that is not linked in"},
	}},
	{name: "plan", is: pure, imports: []edge{
		{root, "calls and edges in, programs out"},
	}},
	{name: "trace"},
	{name: "plan/msccl", is: pure, imports: []edge{
		{root, "ranks, collectives, errors"},
		{"plan", "Programs out of files, and files out of Programs"},
	}},
	{name: "plan/schedule", is: pure, imports: []edge{
		{root, "ranks, calls, errors"},
		{"plan", "Programs and the bytes of their blocks"},
	}},
	{name: "plan/survey", is: pure, imports: []edge{
		{root, "ranks, links, errors"},
		{"plan", "the Topology that choices are made by"},
	}},
	{name: "actor", goes: []string{"*"}, imports: []edge{
		{root, "the errors of actors that have ended or panicked"},
	}},
	{name: "channel", imports: []edge{
		{root, "memory, links, ranks, errors"},
		{"actor", "the channel actor"},
		{"internal/kernel", "a receive may reduce"},
		{"internal/drivers", "the drivers that are linked in"},
		{"internal/invariant", "scramble a buffer that was handed over"},
	}},
	{name: "channel/channeltest", is: kit, goes: []string{"*"}, imports: []edge{
		{root, "memory, links, ranks, errors"},
		{"actor", "the turns in which completions come"},
		{"channel", "what every driver must do"},
		{"internal/kernel", "a receive may reduce"},
	}},
	{name: "channel/faulty", goes: []string{"*"}, imports: []edge{
		{root, "errors and ranks of the links it cuts"},
		{"actor", "a late message is posted in a turn of its rank"},
		{"channel", "it is a driver around another"},
	}},
	{name: "channel/roce/rc", is: pure},
	{name: "channel/hccs", goes: []string{"*"}, imports: []edge{
		{root, "memory, links, ranks, errors"},
		{"channel", "the driver and engine interfaces"},
		{"internal/cpu", "how to wait in a spinning loop, and which core this is"},
		{"internal/invariant", "scramble a buffer that was handed over"},
	}},
	{name: "channel/pcie", imports: []edge{
		{root, "memory, links, errors"},
		{"channel", "an engine around another, and a driver"},
		{"channel/hccs", "sends meet their receives as there; only how bytes move differs"},
		{"internal/kernel", "the operation of a fold that is done on the host"},
	}},
	{name: "channel/roce", is: raw, goes: []string{"*"}, imports: []edge{
		{root, "memory, links, ranks, errors"},
		{"channel", "the driver interface and registry"},
		{"channel/roce/rc", "its pure core"},
	}},
	{name: "channel/verbs", is: raw, goes: []string{"*"}, imports: []edge{
		{root, "memory, links, ranks, errors"},
		{"channel", "the driver registry"},
		{"channel/roce", "messages, links and the handshake are the same; the queue pairs are an adapter's"},
		{"channel/roce/rc", "kinds and completions of work requests"},
		{"internal/dynlib", "libibverbs, found at run time"},
	}},
	{name: "channel/*", is: raw, goes: []string{"*"}, imports: []edge{
		{root, "memory, links, ranks, errors"},
		{"channel", "the driver interface and registry"},
		{"internal/kernel", "a driver may reduce while it moves"},
		{"internal/cpu", "how to wait in a spinning loop, and which core this is"},
		{"internal/invariant", "scramble a buffer that was handed over"},
	}},
	{name: "npu", imports: []edge{
		{root, "memory and errors"},
		{"actor", "the device actor"},
		{"internal/drivers", "the drivers that are linked in"},
		{"internal/ctxerr", "why a context has ended"},
	}},
	{name: "npu/driver", imports: []edge{
		{root, "memory and errors"},
		{"npu", "the interfaces of devices, and the order of streams"},
		{"channel", "the devices of a driver are an Engine that moves their memory"},
		{"internal/ctxerr", "why a context has ended"},
	}},
	{name: "npu/nputest", is: kit, goes: []string{"*"}, imports: []edge{
		{root, "memory and errors"},
		{"actor", "the device actor"},
		{"npu", "what every device driver must do"},
	}},
	{name: "npu/sim", goes: []string{"*"}, imports: []edge{
		{root, "memory and errors"},
		{"npu", "the driver interface and registry"},
		{"npu/driver", "what all drivers of devices have in common"},
		{"internal/kernel", "a simulated device computes on the host"},
		{"channel", "a cluster of simulated devices is the Engine that moves their memory, in simulated time"},
		{"trace", "the spans of a timeline"},
		{"internal/ctxerr", "why a context has ended"},
	}},
	{name: "npu/ascend", is: raw, goes: []string{"*"}, imports: []edge{
		{root, "memory and errors"},
		{"npu", "the driver interface and registry"},
		{"npu/driver", "what all drivers of devices have in common"},
		{"internal/kernel", "what an NPU does not fold is folded on the host"},
		{"channel", "the devices of a driver are the Engine that moves their memory"},
		{"plan", "what lies between devices, as a topology"},
		{"internal/dynlib", "AscendCL, found at run time"},
		{"internal/ctxerr", "why a context has ended"},
	}},
	{name: "npu/ascend/standin", is: kit | raw},
	{name: "npu/*", is: raw, goes: []string{"*"}, imports: []edge{
		{root, "memory and errors"},
		{"npu", "the driver interface and registry"},
		{"internal/kernel", "a simulated device computes on the host"},
	}},
	{name: "rank", goes: []string{"run.go"}, imports: []edge{
		{root, "calls, memory, errors"},
		{"actor", "rank actors and hubs"},
		{"plan", "what to do"},
		{"plan/msccl", "a directory of plans from outside"},
		{"channel", "how it gets there"},
		{"channel/hccs", "ranks of one process need no other driver"},
		{"channel/pcie", "devices of one process that have no way to each other"},
		{"npu", "device buffers"},
		{"internal/kernel", "the operation of a reduction"},
		{"internal/ctxerr", "why a context has ended"},
		{"internal/cover", "who goes where links have broken"},
		{"internal/invariant", "scramble a buffer that was handed over"},
	}},
	{name: "rank/ranktest", is: kit, goes: []string{"*"}, imports: []edge{
		{root, "calls, memory, errors"},
		{"rank", "many ranks for a test"},
		{"channel", "drivers by name"},
		{"channel/*", "drivers linked in"},
		{"plan", "algorithms by name"},
	}},
	{name: "cluster", goes: []string{"*"}, imports: []edge{
		{root, "ranks, edges, errors"},
		{"actor", "the membership actor"},
		{"channel", "drivers between processes"},
		{"channel/*", "drivers linked in"},
		{"plan", "the topology that all ranks agree on"},
		{"rank", "a World of several processes"},
		{"internal/cover", "who goes where links have broken"},
	}},
	{name: "cluster/probe", goes: []string{"*"}, imports: []edge{
		{root, "ranks, edges, errors"},
		{"cluster", "where the processes of a world are"},
		{"plan", "the topology that all ranks agree on"},
		{"plan/survey", "what was measured, as a value"},
		{"rank", "messages between ranks"},
	}},
	{name: "pipeline", imports: []edge{
		{root, "operations and errors"},
		{"actor", "the chunk actor"},
		{"npu", "compute that feeds a reduction"},
		{"rank", "the collectives it overlaps"},
		{"internal/ctxerr", "why a context has ended"},
	}},
	{name: "internal/soak", is: kit | private, goes: []string{"*"}, imports: []edge{
		{root, "calls, memory, errors"},
		{"channel", "drivers of a world that is on two hosts as far as it knows"},
		{"npu", "device memory and streams"},
		{"plan", "topologies, algorithms by name"},
		{"rank", "what is tried"},
		{"cluster", "worlds of several processes"},
		{"pipeline", "gradient reducers"},
	}},
	{name: "bench", is: program, goes: []string{"*"}, imports: []edge{
		{public, "what users have is what is measured"},
	}},
	{name: "bench/*", is: program, goes: []string{"*"}, imports: []edge{
		{public, "what users have is what is measured"},
	}},
	{name: "cmd/*/internal/*", is: program | private, goes: []string{"*"}, imports: []edge{
		{public, "a part of a command"},
		{"cmd/*/internal/*", "another part; Go lets only those of the same command through"},
	}},
	{name: "cmd/*", is: program, goes: []string{"*"}, imports: []edge{
		{public, "a command is made of what users have"},
		{"cmd/*/internal/*", "and of its own parts"},
	}},
	{name: "internal/exampletest", is: kit | private, goes: []string{"exampletest.go"}, imports: []edge{
		{"cluster", "the processes of an example meet"},
	}},
	{name: "examples/*", is: program, goes: []string{"*"}, imports: []edge{
		{public, "an example shows what users have"},
	}},
}

// public stands for every layer that is neither private nor a program.
const public = "public packages"

// outside says who may import what is not of this module and not of Go. A package
// that has no row here may be imported by nobody.
var outside = []struct {
	prefix string
	by     []string // layers; "tests" are test files and kits
	reason string
}{
	{"github.com/asynkron/protoactor-go", []string{"actor"}, "actors: life, address, supervision"},
	{"google.golang.org/grpc", []string{"cluster"}, "rendezvous and membership between hosts"},
	{"google.golang.org/protobuf", []string{"cluster"}, "its messages"},
	{"golang.org/x/sys", []string{"channel/*", "npu/*", "internal/netlab", "cmd/*/internal/*"}, "system calls that package syscall lacks"},
	{"github.com/ebitengine/purego", []string{"npu/ascend", "npu/ascend/standin", "channel/verbs", "internal/dynlib"}, "libraries of vendors, bound at run time, without cgo"},
	{"github.com/spf13/cobra", []string{"cmd/*"}, "a command with commands, flags and help"},
	{"github.com/spf13/pflag", []string{"cmd/*"}, "cobra's flags"},
	{"gonum.org/v1/gonum", []string{"examples/*"}, "BLAS: a matrix product that is worth hiding something behind"},
	{"gonum.org/v1/plot", []string{"cmd/*/internal/*"}, "pictures of measurements"},
	{"github.com/stretchr/testify", []string{"tests"}, "require"},
	{"gopkg.in/yaml.v3", []string{"tests"}, "the manifest of an example is read"},
	{"go.uber.org/goleak", []string{"tests"}, "no goroutine is left behind"},
}

// registries are the package variables that may change.
var registries = map[string]string{"channel": "registry", "npu": "registry"}

// unsafeFiles may use unsafe although their layer is not raw.
var unsafeFiles = []string{"rank/bytes.go"}

// badNames say nothing about what is in a package.
var badNames = []string{"utils", "util", "common", "helpers", "helper", "types", "config", "misc", "base"}

// layerOf is the row of a package, nil if it has none.
func layerOf(dir string) *layer {
	for _, l := range layers {
		if matches(l.name, dir) {
			return l
		}
	}
	return nil
}

// matches says whether a name of the tables stands for the package.
func matches(name, dir string) bool {
	if name == public {
		l := layerOf(dir)
		return l != nil && l.is&(private|program) == 0
	}
	ok, _ := path.Match(name, dir) // the only error is a bad pattern, which a test excludes
	return ok
}

// mayImport says whether package dir may import package to of the module.
func mayImport(dir, to string) bool {
	l := layerOf(dir)
	return l != nil && slices.ContainsFunc(l.imports, func(e edge) bool { return matches(e.to, to) })
}

// testMayImport says what tests of package dir may import besides.
func testMayImport(dir, to string) bool {
	l := layerOf(to)
	return to == dir || reaches(dir, to) || l != nil && l.is&kit != 0 || isDriver(to)
}

// reaches says whether package dir may import package to, or one that reaches it.
// The table goes one way, so this ends.
func reaches(dir, to string) bool {
	if mayImport(dir, to) {
		return true
	}
	l := layerOf(dir)
	return l != nil && slices.ContainsFunc(l.imports, func(e edge) bool { return e.to != l.name && reaches(e.to, to) })
}

// isDriver says whether the package is a driver of a channel or a device.
func isDriver(dir string) bool {
	l := layerOf(dir)
	return l != nil && l.is&kit == 0 && (strings.HasPrefix(dir, "channel/") || strings.HasPrefix(dir, "npu/"))
}
