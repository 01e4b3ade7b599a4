//go:build linux && (amd64 || arm64) && !noverbs

package verbs

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"
)

// standin is the library of testdata/standin.c, built and loaded. There is one in a
// process.
type standin struct {
	path, sys                                      string
	reset, live, violations, inject, set, fatality uintptr
}

const header = "/usr/include/infiniband/verbs.h"

// noHeader is why C that needs the header cannot be compiled, "" if it can.
func noHeader() string {
	if _, err := exec.LookPath("gcc"); err != nil {
		return "no gcc here"
	}
	if _, err := os.Stat(header); err != nil {
		return "no " + header + " here: apt-get install libibverbs-dev"
	}
	return ""
}

var built = sync.OnceValues(func() (s *standin, why string) {
	if why := noHeader(); why != "" {
		return nil, why
	}
	dir, err := os.MkdirTemp("", "kolo-verbs")
	if err != nil {
		return nil, err.Error()
	}
	defer os.RemoveAll(dir) // once it is loaded it needs no name
	s = &standin{path: filepath.Join(dir, libraryName)}
	if out, err := exec.Command("gcc", "-O1", "-g", "-shared", "-fPIC", "-pthread", "-fvisibility=hidden", "-Wall", "-Werror", "-o", s.path, "testdata/standin.c").CombinedOutput(); err != nil {
		panic("standin: " + string(out))
	}
	if _, err := load([]string{s.path}); err != nil {
		panic(err)
	}
	h, err := purego.Dlopen(s.path, purego.RTLD_NOW)
	if err != nil {
		panic(err)
	}
	for name, p := range map[string]*uintptr{"reset": &s.reset, "live": &s.live, "violations": &s.violations, "inject": &s.inject, "set": &s.set, "fatal": &s.fatality} {
		if *p, err = purego.Dlsym(h, "standin_"+name); err != nil {
			panic(err)
		}
	}
	return s, ""
})

// newStandin makes the library as new. It skips the test where it cannot be built, and
// fails it at its end if a call has broken a rule or something was not given back.
func newStandin(t testing.TB) *standin {
	t.Helper()
	s, why := built()
	if s == nil {
		t.Skip(why)
	}
	purego.SyscallN(s.reset)
	s.sys = t.TempDir()
	writePort(t, s.sys, "standin0", "1", "4: ACTIVE", map[string][2]string{
		"0": {"fe80:0000:0000:0000:0000:00ff:fe00:0001", "IB/RoCE v1"}, "1": {"fe80:0000:0000:0000:0000:00ff:fe00:0001", typeV2},
		"2": {"0000:0000:0000:0000:0000:ffff:7f00:0001", typeV2}, "3": {"0000:0000:0000:0000:0000:0000:0000:0001", typeV2},
		"4": {"0000:0000:0000:0000:0000:0000:0000:0000", ""}})
	t.Cleanup(func() {
		p, _, _ := purego.SyscallN(s.violations)
		if v := goString(p); v != "" {
			t.Errorf("the library was called as it must not be:\n%s", v)
		}
		if n, _, _ := purego.SyscallN(s.live); n != 0 {
			t.Errorf("%d things of the library were not given back", int32(n))
		}
	})
	return s
}

// config is a configuration that finds the stand-in.
func (s *standin) config() Config { return Config{Library: s.path, Sys: s.sys} }

func cstring(s string) *byte { return unsafe.StringData(s + "\x00") }

// fail has one call of a function fail with an error number, after skip that do not.
func (s *standin) fail(function string, errno, skip int) {
	p := cstring(function)
	purego.SyscallN(s.inject, uintptr(unsafe.Pointer(p)), uintptr(errno), uintptr(skip))
	runtime.KeepAlive(p)
}

// put sets "mtu" (a number of the ABI), "layer" or "layout" (what is wrong with it).
func (s *standin) put(what string, value int) {
	p := cstring(what)
	purego.SyscallN(s.set, uintptr(unsafe.Pointer(p)), uintptr(value))
	runtime.KeepAlive(p)
}

// fatal makes an event of the n-th queue pair.
func (s *standin) fatal(n, kind int) { purego.SyscallN(s.fatality, uintptr(n), uintptr(kind)) }

// writePort makes a port as sysfs has it.
func writePort(t testing.TB, sys, device, port, state string, gids map[string][2]string) {
	t.Helper()
	at := filepath.Join(sys, "class/infiniband", device, "ports", port)
	write := func(name, text string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(at, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(at, name), []byte(text+"\n"), 0o600))
	}
	write("state", state)
	write("link_layer", "Ethernet")
	write("rate", "100 Gb/sec (4X EDR)")
	for i, g := range gids {
		write("gids/"+i, g[0])
		if g[1] != "" {
			write("gid_attrs/types/"+i, g[1])
			write("gid_attrs/ndevs/"+i, "eth0")
		}
	}
}

// text of an error, in one line.
func line(err error) string { return strings.ReplaceAll(err.Error(), "\n", " ") }
