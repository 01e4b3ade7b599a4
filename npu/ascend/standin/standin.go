//go:build linux && (amd64 || arm64) && !noacl

package standin

import (
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
)

//go:embed testdata/ascendcl.c
var ascendclSource []byte

//go:embed testdata/dcmi.c
var dcmiSource []byte

// Library is a stand-in that was built and loaded. There is one in a process.
type Library struct {
	Path string // of libascendcl.so
	DCMI string // of libdcmi.so

	violations, inject, calls, fault, lose, set, live, reset, health uintptr
}

// built is the library of the process: it is loaded once, and stays.
var built = sync.OnceValues(build)

// Open builds the libraries where that has not been done in this process, and makes
// all as new. It skips the test without gcc, and fails it at its end if a call has
// broken a rule or something was not given back.
func Open(t testing.TB) *Library {
	t.Helper()
	l, why := built()
	if l == nil {
		t.Skip(why)
	}
	purego.SyscallN(l.reset)
	for device := range 4 {
		l.Health(device, 0, 0)
	}
	t.Cleanup(func() {
		if v := l.Violations(); v != "" {
			t.Errorf("the library was called as it must not be:\n%s", v)
		}
		if n := l.Live(); n != 0 {
			t.Errorf("%d things of the library were not given back", n)
		}
	})
	t.Log("stand-in library over memory of the host: no NPU")
	return l
}

// build compiles and loads. The directory is left to the system: the libraries stay
// loaded until the process ends.
func build() (*Library, string) {
	dir := os.Getenv("KOLO_STANDIN") // with libraries that were built before, for a machine that is emulated
	if dir == "" {
		if _, err := exec.LookPath("gcc"); err != nil {
			return nil, "no gcc to build the stand-in library with"
		}
		var err error
		if dir, err = os.MkdirTemp("", "kolo-standin"); err != nil {
			return nil, err.Error()
		}
		defer os.RemoveAll(dir) // once loaded, they need no name
		if err := Compile("gcc", dir); err != nil {
			panic("standin: " + err.Error())
		}
	}
	l := &Library{Path: filepath.Join(dir, "libascendcl.so"), DCMI: filepath.Join(dir, "libdcmi.so")}
	h, err := purego.Dlopen(l.Path, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		panic("standin: " + err.Error())
	}
	d, err := purego.Dlopen(l.DCMI, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		panic("standin: " + err.Error())
	}
	for name, p := range map[string]*uintptr{"violations": &l.violations, "inject": &l.inject, "calls": &l.calls,
		"fault": &l.fault, "lose": &l.lose, "set": &l.set, "live": &l.live, "reset": &l.reset} {
		*p = symbol(h, "standin_"+name)
	}
	l.health = symbol(d, "standin_health")
	return l, ""
}

func symbol(h uintptr, name string) uintptr {
	p, err := purego.Dlsym(h, name)
	if err != nil {
		panic("standin: " + err.Error())
	}
	return p
}

// Compile makes the libraries in a directory with a C compiler.
func Compile(cc, dir string) error {
	for name, source := range map[string][]byte{"ascendcl": ascendclSource, "dcmi": dcmiSource} {
		cmd := exec.Command(cc, "-O2", "-g", "-shared", "-fPIC", "-pthread", "-fvisibility=hidden", "-Wall", "-Werror",
			"-xc", "-o", filepath.Join(dir, "lib"+name+".so"), "-")
		cmd.Stdin = strings.NewReader(string(source))
		if out, err := cmd.CombinedOutput(); err != nil {
			return &exec.Error{Name: cc + ": " + string(out), Err: err}
		}
	}
	return nil
}

// cstring is a C string; who calls keeps it alive.
func cstring(s string) *byte { return unsafe.StringData(s + "\x00") }

// Violations is what was called as it must not be, a line each; "" if nothing.
func (l *Library) Violations() string {
	text := make([]byte, 8192)
	n, _, _ := purego.SyscallN(l.violations, uintptr(unsafe.Pointer(&text[0])), uintptr(len(text)))
	if n == 0 {
		return ""
	}
	s, _, _ := strings.Cut(string(text), "\x00")
	return s
}

// Forget forgets the violations, for a test that has made them.
func (l *Library) Forget() { purego.SyscallN(l.reset) }

// Inject has one call of a function fail with a code, after skip calls that do not.
func (l *Library) Inject(function string, code int32, skip int) {
	p := cstring(function)
	purego.SyscallN(l.inject, uintptr(unsafe.Pointer(p)), uintptr(code), uintptr(skip))
	runtime.KeepAlive(p)
}

// Calls is how often a function was called.
func (l *Library) Calls(function string) int {
	p := cstring(function)
	n, _, _ := purego.SyscallN(l.calls, uintptr(unsafe.Pointer(p)))
	runtime.KeepAlive(p)
	return int(n)
}

// Fault has a copy or a reduction of a device's streams fail with a code when it
// runs, after skip that do not.
func (l *Library) Fault(device int, code int32, skip int) {
	purego.SyscallN(l.fault, uintptr(device), uintptr(code), uintptr(skip))
}

// Lose stops a device: every call for it returns the code, and nothing on it goes on.
func (l *Library) Lose(device int, code int32) {
	purego.SyscallN(l.lose, uintptr(device), uintptr(code))
}

// Set sets "devices", "memory" (bytes of each), "misalign" (1: memory comes at
// multiples of 64 only), "no peers" (1: no device reaches another) or "topology" (bits
// of aclrtGetDevicesTopo).
func (l *Library) Set(what string, value int) {
	p := cstring(what)
	purego.SyscallN(l.set, uintptr(unsafe.Pointer(p)), uintptr(value))
	runtime.KeepAlive(p)
}

// Live is how many things were made and not given back.
func (l *Library) Live() int {
	n, _, _ := purego.SyscallN(l.live)
	return int(int32(n))
}

// Health sets what the stand-in for DCMI says of a device, and of its network port.
func (l *Library) Health(device int, health uint32, network int32) {
	purego.SyscallN(l.health, uintptr(device), uintptr(health), uintptr(network))
}
