package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRunStartsEveryProcess(t *testing.T) {
	if _, err := exec.LookPath("env"); err != nil {
		t.Skip("no env here")
	}
	r := command(t, "run -n 3 -x A=b -x HOME -- env", func(a *app) { a.getenv = func(string) string { return "home" } })
	require.Zero(t, r.code, r.err)
	var got []string
	ports := map[string]bool{}
	for line := range strings.Lines(r.out) {
		line = strings.TrimSpace(line)
		_, rest, _ := strings.Cut(line, " ")
		key, value, _ := strings.Cut(rest, "=")
		switch key {
		case "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "A":
			got = append(got, line)
		case "MASTER_PORT":
			ports[value] = true
		}
	}
	slices.Sort(got)
	require.Equal(t, []string{
		"[0] A=b", "[0] LOCAL_RANK=0", "[0] MASTER_ADDR=127.0.0.1", "[0] RANK=0", "[0] WORLD_SIZE=3",
		"[1] A=b", "[1] LOCAL_RANK=1", "[1] MASTER_ADDR=127.0.0.1", "[1] RANK=1", "[1] WORLD_SIZE=3",
		"[2] A=b", "[2] LOCAL_RANK=2", "[2] MASTER_ADDR=127.0.0.1", "[2] RANK=2", "[2] WORLD_SIZE=3",
	}, got)
	require.Len(t, ports, 1, "all meet at one port")
	require.NotContains(t, ports, "0")
}

func TestRunSaysWhoFailed(t *testing.T) {
	r := command(t, "run -n 2 --no-prefix -- false", nil)
	require.Equal(t, exitFailed, r.code)
	require.Regexp(t, `kolo: rank \d \(pid \d+\): exit status 1\n$`, r.err)
}

// The exit code is that of the process that failed first, also where the others end well.
func TestExitCodeOfRun(t *testing.T) {
	file := filepath.Join(t.TempDir(), "program")
	require.NoError(t, os.WriteFile(file, []byte("#!/bin/sh\n[ $RANK = 1 ] && exit 7\nexit 0\n"), 0o700))
	for _, flag := range []string{"", "--keep-going "} {
		r := command(t, "run -n 3 "+flag+"-- "+file, nil)
		require.Equal(t, 7, r.code, r.err)
	}
	r := command(t, "run -- "+file+".none", nil)
	require.Equal(t, 127, r.code, r.err)
}

func TestRunRefusesWhatCannotRun(t *testing.T) {
	hosts := filepath.Join(t.TempDir(), "hosts")
	require.NoError(t, os.WriteFile(hosts, []byte("a slots=2\n"), 0o644))
	for line, want := range map[string]string{
		"run":                              "no program to run",
		"run -n -1 true":                   "--processes",
		"run -x NOTHING true":              "no such variable",
		"run --port 70000 true":            "port 70000",
		"run --hosts nowhere true":         "no such file",
		"run -n 3 --hosts " + hosts + " x": "3 processes; the hosts have 2 slots",
	} {
		r := command(t, line, nil)
		require.Equal(t, exitUsage, r.code, line)
		require.Contains(t, r.err, want, line)
	}
}
