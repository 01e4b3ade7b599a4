package main

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// native are the sources in C.
//
//go:embed native
var native embed.FS

// programs are the names that -programs takes.
var programs = []string{"kolo", "plain", "openmpi", "gloo", "floor"}

func parseProgram(s string) (string, error) {
	if !slices.Contains(programs, s) {
		return "", fmt.Errorf("%q is none of %s", s, strings.Join(programs, ", "))
	}
	return s, nil
}

// mpiSettings are options of mpirun by name.
var mpiSettings = map[string][]string{
	"default": nil,
	"sm":      {"--mca", "coll_sm_priority", "100"},
	"han":     {"--mca", "coll_han_priority", "100"},
	"ucx":     {"--mca", "pml", "ucx"},
	"tcp":     {"--mca", "pml", "ob1", "--mca", "btl", "tcp,self"},
}

func mpiNames() string {
	var list []string
	for name := range mpiSettings {
		list = append(list, name)
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

func parseMPI(s string) (string, error) {
	if _, ok := mpiSettings[s]; !ok {
		return "", fmt.Errorf("%q is none of %s", s, mpiNames())
	}
	return s, nil
}

// Longest times of what happens before the first round.
const (
	buildTime   = 2 * time.Minute
	installTime = 10 * time.Minute
)

// builder makes the programs ready to run.
type builder struct {
	dir     string // where they go
	install bool
}

// parts are the programs that can run, and why the others cannot.
func (b builder) parts(ctx context.Context, o options) (list []part, notes []string) {
	if err := b.unpack(); err != nil {
		notes = append(notes, fmt.Sprintf("C sources: %v", err))
	}
	for _, name := range o.programs {
		var made []part
		var err error
		switch name {
		case "floor":
			made, err = b.floor(ctx)
		case "openmpi":
			made, err = b.mpi(ctx, o)
		case "gloo":
			made, err = b.gloo(ctx, o)
		default:
			made, err = b.self(name, o)
		}
		if err != nil {
			notes = append(notes, fmt.Sprintf("%s cannot run here: %v", name, err))
		}
		list = append(list, made...)
	}
	return list, notes
}

// self is a part of this program, which may have its ranks in processes.
func (b builder) self(name string, o options) ([]part, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return []part{{name, func(j job) []string {
		j.between = o.between
		if o.bind && j.ranks <= o.cores() {
			j.bind = 1
		}
		return append([]string{exe, "part", name}, j.args()...)
	}}}, nil
}

func (b builder) floor(ctx context.Context) ([]part, error) {
	if err := b.need(ctx, "gcc", "gcc", "libc6-dev"); err != nil {
		return nil, err
	}
	exe, err := b.compile(ctx, "gcc", "floor.c", "-pthread")
	if err != nil {
		return nil, err
	}
	return []part{{"floor", func(j job) []string { return append([]string{exe}, j.args()...) }}}, nil
}

func (b builder) mpi(ctx context.Context, o options) (list []part, err error) {
	for _, command := range []string{"mpicc", "mpirun"} {
		if err := b.need(ctx, command, "openmpi-bin", "libopenmpi-dev", "gcc", "libc6-dev"); err != nil {
			return nil, err
		}
	}
	version, err := output(ctx, "mpirun", "--version")
	if err != nil || !strings.Contains(version, "Open MPI") {
		return nil, fmt.Errorf("mpirun is not Open MPI's, whose options this program knows")
	}
	exe, err := b.compile(ctx, "mpicc", "mpi.c")
	if err != nil {
		return nil, err
	}
	for _, setting := range o.mpi {
		name := "openmpi"
		if setting != "default" {
			name += "/" + setting
		}
		list = append(list, part{name, func(j job) []string {
			return slices.Concat(mpirun(j.ranks, o.cores(), setting), []string{exe, "variant=" + setting}, j.args())
		}})
	}
	return list, nil
}

// cores is how many cores the ranks have.
func (o options) cores() int {
	if o.busy {
		return runtime.NumCPU() - 1
	}
	return runtime.NumCPU()
}

// mpirun is how so many ranks are started. With a core for each they are bound to it;
// with fewer they yield to each other while they wait.
func mpirun(ranks, cores int, setting string) []string {
	list := []string{"mpirun", "--oversubscribe", "-np", strconv.Itoa(ranks)}
	if os.Geteuid() == 0 {
		list = append(list, "--allow-run-as-root")
	}
	if ranks <= cores {
		list = append(list, "--bind-to", "core")
	} else {
		list = append(list, "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1")
	}
	return append(list, mpiSettings[setting]...)
}

// unpack writes the C sources to the build directory.
func (b builder) unpack() error {
	entries, err := native.ReadDir("native")
	if err != nil {
		return err
	}
	for _, e := range entries {
		text, err := native.ReadFile("native/" + e.Name())
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(b.dir, e.Name()), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// compile builds one source for this machine and returns the program's path.
func (b builder) compile(ctx context.Context, compiler, source string, flags ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, buildTime)
	defer cancel()
	exe := filepath.Join(b.dir, strings.TrimSuffix(source, filepath.Ext(source)))
	args := append([]string{"-O3", "-march=native", "-Wall", "-o", exe, filepath.Join(b.dir, source)}, flags...)
	if text, err := exec.CommandContext(ctx, compiler, args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", compiler, source, err, text)
	}
	return exe, nil
}

// gloo is made of Debian's library. A compiler that finds its headers has it.
func (b builder) gloo(ctx context.Context, o options) ([]part, error) {
	if o.between != "tcp" {
		return nil, errors.New("its ranks are processes joined by TCP: compare it with -between tcp")
	}
	has := func() error {
		if _, err := exec.LookPath("g++"); err != nil {
			return errors.New("no g++")
		}
		if _, err := output(ctx, "g++", "-E", "-include", "gloo/allreduce.h", "-x", "c++", os.DevNull); err != nil {
			return errors.New("no headers of Gloo")
		}
		return nil
	}
	if err := b.needThat(ctx, has, "libgloo-dev", "g++"); err != nil {
		return nil, err
	}
	exe, err := b.compile(ctx, "g++", "gloo.cc", "-std=c++14", "-lgloo", "-pthread")
	if err != nil {
		return nil, err
	}
	return []part{{"gloo", func(j job) []string { return append([]string{exe}, j.args()...) }}}, nil
}

// need makes sure that a command exists, and installs packages if it may.
func (b builder) need(ctx context.Context, command string, packages ...string) error {
	return b.needThat(ctx, func() error {
		if _, err := exec.LookPath(command); err != nil {
			return fmt.Errorf("no %s", command)
		}
		return nil
	}, packages...)
}

// needThat makes sure that nothing is missing, and installs packages if it may.
func (b builder) needThat(ctx context.Context, missing func() error, packages ...string) error {
	lack := missing()
	if lack == nil {
		return nil
	}
	hint := "install " + strings.Join(packages, " ")
	switch _, err := exec.LookPath("apt-get"); {
	case !b.install:
		return fmt.Errorf("%w; %s, or give -install, which does so as root with apt-get", lack, hint)
	case err != nil || os.Geteuid() != 0:
		return fmt.Errorf("%w, and this is not root with apt-get; %s", lack, hint)
	}
	fmt.Fprintln(os.Stderr, "peers:", hint)
	ctx, cancel := context.WithTimeout(ctx, installTime)
	defer cancel()
	install := append([]string{"-qq", "install", "-y", "--no-install-recommends"}, packages...)
	for _, args := range [][]string{{"-qq", "update"}, install} {
		c := exec.CommandContext(ctx, "apt-get", args...)
		c.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if text, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("%w, and apt-get %s: %w: %s", lack, args[1], err, lastLine(string(text)))
		}
	}
	if lack = missing(); lack != nil {
		return fmt.Errorf("%w, also after apt-get install", lack)
	}
	return nil
}

// output is the standard output of a command that is soon done.
func output(ctx context.Context, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	text, err := exec.CommandContext(ctx, name, args...).Output()
	return string(text), err
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}
