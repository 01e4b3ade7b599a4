package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// describe says on what machine and with which versions this runs, a line each.
func describe(ctx context.Context) []string {
	field := func(file, name string) string {
		s := valueOf(file, name)
		if s == "" {
			return "unknown"
		}
		return s
	}
	list := []string{
		fmt.Sprintf("processor: %s, %d in use%s", field("/proc/cpuinfo", "model name"), runtime.NumCPU(), caches()),
		fmt.Sprintf("memory: %s", field("/proc/meminfo", "MemTotal")),
		fmt.Sprintf("system: %s, Linux %s", strings.Trim(field("/etc/os-release", "PRETTY_NAME"), `"`), read("/proc/sys/kernel/osrelease")),
		fmt.Sprintf("versions: kolo %s, %s, GOMAXPROCS %d", revision(ctx), runtime.Version(), runtime.GOMAXPROCS(0)),
	}
	for _, command := range []string{"gcc", "mpirun"} {
		if text, err := output(ctx, command, "--version"); err == nil {
			first, _, _ := strings.Cut(text, "\n")
			list[3] += ", " + first
		}
	}
	return append(list, load())
}

// load says how busy the machine was before.
func load() string {
	f := strings.Fields(read("/proc/loadavg"))
	if len(f) == 0 {
		return "load: unknown"
	}
	s := "load before: " + f[0]
	if x, err := strconv.ParseFloat(f[0], 64); err == nil && x > 0.5 {
		s += "; THE MACHINE WAS NOT QUIET, the figures say little"
	}
	return s
}

// caches are those of the first processor.
func caches() string {
	dirs, err := filepath.Glob("/sys/devices/system/cpu/cpu0/cache/index*")
	if err != nil {
		return ""
	}
	s := ""
	for _, dir := range dirs {
		if kind := read(filepath.Join(dir, "type")); kind == "Data" || kind == "Unified" {
			s += fmt.Sprintf(", L%s %s", read(filepath.Join(dir, "level")), read(filepath.Join(dir, "size")))
		}
	}
	return s
}

// revision is the commit that is checked out here, if it is.
func revision(ctx context.Context) string {
	hash, err := output(ctx, "git", "rev-parse", "--short=12", "HEAD")
	if err != nil {
		return "of an unknown commit"
	}
	hash = strings.TrimSpace(hash)
	if changes, err := output(ctx, "git", "status", "--porcelain", "--untracked-files=no"); err == nil && changes != "" {
		hash += " with changes"
	}
	return hash
}

// availableMemory is in bytes; 0 when unknown.
func availableMemory() int64 {
	number, _, _ := strings.Cut(valueOf("/proc/meminfo", "MemAvailable"), " ")
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return 0
	}
	return n << 10
}

// valueOf is the first value of a name in a file of lines with : or =.
func valueOf(file, name string) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if i := strings.IndexAny(lines.Text(), ":="); i >= 0 && strings.TrimSpace(lines.Text()[:i]) == name {
			return strings.TrimSpace(lines.Text()[i+1:])
		}
	}
	return ""
}

// read is a small file without the space around it; empty when it cannot be read.
func read(file string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}
